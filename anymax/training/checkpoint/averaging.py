"""The mean of several checkpoints of a run, which often decodes better than any of them."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from anymax.checks import check_counts
from anymax.training.checkpoint.checkpoints import Checkpoints
from anymax.training.checkpoint.tensors import Tensors
from anymax.training.run_folder.folder import CHECKPOINTS


def average_checkpoints(
    run: str | os.PathLike[str], *, last: int | None = None, steps: Sequence[int] | None = None
) -> Tensors:
    """The model's tensors with the mean of what they are in several checkpoints, for `load_model`.

    Means are computed in float64 and given in the type of the tensors. What is no floating point number, as a count, is
    that of the latest checkpoint.

    Args:
        run: the folder of the run.
        last: how many of the latest checkpoints; a run saves as many as its `keep` says.
        steps: which checkpoints, in place of `last`.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import average_checkpoints, open_run, train
        >>> _ = train(recipes.find("dirichlet.linear")().toy(), "run")
        >>> tensors = average_checkpoints("run", last=2)
        >>> _ = open_run("run").task.model.load_state_dict(tensors)
        >>> list(tensors)
        ['output.table', 'vectors']
    """
    checkpoints = Checkpoints(Path(run) / CHECKPOINTS)
    chosen = _chosen(checkpoints, last, steps)
    sums: Tensors = {}
    latest = checkpoints.load(chosen[-1])
    for step in chosen:
        checkpoint = checkpoints.load(step)
        checkpoint.check_identity(latest.header.identity)
        tensors = checkpoint.tensors["model"]
        _check_same_model(tensors, latest.tensors["model"], checkpoint.file("model"))
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                sums[name] = tensor.double() if name not in sums else sums[name].add_(tensor)
    return {
        # A copy: the tensors of a file are mapped from it.
        name: (sums[name] / len(chosen)).to(tensor.dtype) if name in sums else tensor.clone()
        for name, tensor in latest.tensors["model"].items()
    }


def _chosen(checkpoints: Checkpoints, last: int | None, steps: Sequence[int] | None) -> list[int]:
    """The steps of the checkpoints, rising."""
    if (last is None) == (steps is None):
        raise ValueError(f"either last or steps must be given, got last={last} and steps={steps}")
    if steps is not None:
        if not steps or len(set(steps)) < len(steps):
            raise ValueError(f"steps must name one checkpoint or several different ones, got {list(steps)}")
        return sorted(checkpoints.find(step) for step in steps)
    assert last is not None
    check_counts(last=last)
    there = checkpoints.steps()
    if last > len(there):
        raise ValueError(
            f"last must be at most the number of checkpoints in {checkpoints.folder}, {len(there)}, got {last}; "
            f"train with keep={last}"
        )
    return there[-last:]


def _check_same_model(tensors: Tensors, latest: Tensors, file: Path) -> None:
    ours, theirs = ({name: (each.shape, each.dtype) for name, each in of.items()} for of in (tensors, latest))
    if ours != theirs:
        name = next(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
        raise ValueError(
            f"{file} must hold the same tensors as the latest checkpoint, but {name} differs; leave it out"
        )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{file} must hold finite numbers, but {name} does not; leave that step out")
