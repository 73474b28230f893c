"""What a run holds in tensors, by name, for checkpoints: parameters, buffers, the state of the optimizer."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anymax.training.parallel import divided_as, own_part, whole
from anymax.training.ranks import Ranks

Tensors = dict[str, Tensor]


def model_tensors(model: nn.Module) -> Tensors:
    """Parameters, tied ones once, and the buffers that belong to the model's state."""
    kept = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {**dict(model.named_parameters()), **buffers}


def whole_copy(model: nn.Module, make: Callable[[], nn.Module], *, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy on the CPU, whole on every rank, made by `make` where nothing is allocated and given the model's tensors.

    Args:
        dtype: what its floating point numbers become; None leaves them.
    """
    with torch.device("meta"):
        copy = make()
    tensors = {name: whole(tensor.detach()).cpu() for name, tensor in model_tensors(model).items()}
    copy.load_state_dict(tensors, assign=True)
    return copy if dtype is None else copy.to(dtype)


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> Tensors:
    """What the optimizer holds for each parameter, as "<parameter>.<name>"; single numbers have no dimensions."""
    return {
        f"{name}.{key}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for key, value in optimizer.state[parameter].items()
        if value is not None
    }


def gathered(tensors: Mapping[str, Tensor], ranks: Ranks) -> Tensors:
    """All tensors whole and on the CPU for the first rank; the others take part and get none."""
    held: Tensors = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if ranks.is_first:
            held[name] = full.cpu().contiguous()
    return held


@torch.no_grad()
def load_model(model: nn.Module, tensors: Mapping[str, Tensor], file: Path) -> None:
    """Copy tensors of a file into a model; names, shapes and types must be those of the model."""
    ours = model_tensors(model)
    _check_names(ours, tensors, file)
    for name, tensor in ours.items():
        if tensor.shape != tensors[name].shape or tensor.dtype != tensors[name].dtype:
            raise ValueError(
                f"{file} must fit the model, but {name} is {_describe(tensors[name])} there and {_describe(tensor)} "
                "here; build the model as the run's config.json says"
            )
    for name, tensor in ours.items():
        tensor.copy_(divided_as(tensor, tensors[name]))


def load_optimizer(model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor], file: Path) -> None:
    """Give an optimizer the state that `optimizer_tensors` had of it."""
    parameters = dict(model.named_parameters())
    index_of = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state: dict[int, Tensors] = {}
    for entry, tensor in tensors.items():
        name, _, key = entry.rpartition(".")
        if name not in parameters or id(parameters[name]) not in index_of:
            raise ValueError(f"{file} must fit the model, but {entry} belongs to no parameter that is trained")
        parameter = parameters[name]
        if tensor.dim() > 0 and tensor.shape != parameter.shape:
            raise ValueError(
                f"{file} must fit the model, but {entry} is {_describe(tensor)} and {name} is {_describe(parameter)}"
            )
        # A copy: the tensors of a file are mapped from it.
        placed = tensor.clone() if tensor.dim() == 0 else divided_as(parameter, tensor.clone())
        state.setdefault(index_of[id(parameter)], {})[key] = placed
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def are_finite(tensors: Mapping[str, Tensor], ranks: Ranks) -> bool:
    """Whether no number of any rank is infinite or undefined."""
    parts = [own_part(tensor.detach()) for tensor in tensors.values() if tensor.is_floating_point()]
    extremes = [extreme for part in parts if part.numel() for extreme in part.aminmax()]
    (num_wrong,) = ranks.sum([not all(bool(extreme.isfinite()) for extreme in extremes)])
    return num_wrong == 0


def num_parameters(model: nn.Module) -> int:
    """How many numbers the model has, tied ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def num_bytes(model: nn.Module, held: int) -> int:
    """About how large a checkpoint is where the optimizer holds so many tensors for each parameter."""
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model_tensors(model).values())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return weights + held * trained


def _check_names(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], file: Path) -> None:
    missing = [name for name in ours if name not in theirs]
    unknown = [name for name in theirs if name not in ours]
    if missing or unknown:
        parts = [
            f"{what} {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}"
            for what, names in (("it lacks", missing), ("the model lacks", unknown))
            if names
        ]
        raise ValueError(
            f"{file} must fit the model, but {' and '.join(parts)}; build it as the run's config.json says"
        )


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
