"""What differs between two finished runs that should be the same to the bit, whatever stopped one of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from anymax.training import read_metrics
from anymax.training.checkpoint.checkpoints import Checkpoints
from anymax.training.run_folder.folder import CHECKPOINTS, CONFIG, SUMMARY

# How long things took is in the records, and differs.
TIMES = {"seconds", "training_seconds", "items_per_second"}


def differences(one: Path, other: Path) -> list[str]:
    """A line for everything that differs; empty where the runs are the same."""
    return [*_unfinished(one), *_unfinished(other)] or [*_tensors(one, other), *_values(one, other)]


def _unfinished(run: Path) -> Iterator[str]:
    if not (run / SUMMARY).exists():
        yield f"{run} was not finished"
    for left in (run / CHECKPOINTS).rglob(".*"):
        yield f"{left} was left behind"


def _tensors(one: Path, other: Path) -> Iterator[str]:
    """All tensors of the last checkpoints: weights, what the optimizer holds, and a state that is carried."""
    ours, theirs = (_last_checkpoint(run) for run in (one, other))
    names = [sorted(path.name for path in folder.glob("*.safetensors")) for folder in (ours, theirs)]
    if ours.name != theirs.name or names[0] != names[1]:
        yield f"{ours} holds {names[0]}, {theirs} holds {names[1]}"
        return
    for file in names[0]:
        left, right = load_file(ours / file), load_file(theirs / file)
        if left.keys() != right.keys():
            yield f"{file} holds other names: {sorted(left.keys() ^ right.keys())}"
        for name in sorted(left.keys() & right.keys()):
            if not _same_bits(left[name], right[name]):
                yield f"{name} of {file} differs"


def _values(one: Path, other: Path) -> Iterator[str]:
    left, right = _plain(one), _plain(other)
    for name in left:
        if left[name] != right[name]:
            yield f"{name} differ: {left[name]} and {right[name]}"
    records = [[_untimed(record) for record in read_metrics(run)] for run in (one, other)]
    if len(records[0]) != len(records[1]):
        yield f"there are {len(records[0])} records and {len(records[1])}"
    for ours, theirs in zip(*records, strict=False):
        if ours != theirs:
            yield f"records differ: {ours} and {theirs}"


def _plain(run: Path) -> dict[str, Any]:
    state = json.loads((_last_checkpoint(run) / "state.json").read_text())
    progress = _untimed(state["progress"])
    progress["since_record"] = _untimed(progress["since_record"])
    return {
        "configs": json.loads((run / CONFIG).read_text()),
        "places in the data": state["data"],
        "identities": state["identity"],
        "progress": progress,
        "best checkpoints": Checkpoints(run / CHECKPOINTS).best(),
    }


def _last_checkpoint(run: Path) -> Path:
    checkpoints = Checkpoints(run / CHECKPOINTS)
    return checkpoints.path(checkpoints.find("last"))


def _untimed(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in TIMES}


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
