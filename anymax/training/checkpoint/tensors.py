"""What a run holds in tensors, by name, for checkpoints: parameters, buffers, the state of the optimizer."""

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anymax.distributed.ranks import Ranks
from anymax.distributed.sharding import divided_as, own_part, whole

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
    made = {id(tensor): name for name, tensor in model_tensors(copy).items()}
    # A parameter by each of its names becomes one new one, so that what is tied stays tied.
    new = {name: nn.Parameter(tensors[name], parameter.requires_grad) for name, parameter in copy.named_parameters()}
    for module in copy.modules():
        for own, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, own, new[made[id(parameter)]])
        for own, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            if id(buffer) in made:
                setattr(module, own, tensors[made[id(buffer)]])
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


def load_model(model: nn.Module, tensors: Mapping[str, Tensor], file: Path) -> None:
    """Copy tensors of a file into a model; names, shapes and types must be those of the model."""
    load_into(model_tensors(model), tensors, file)


@torch.no_grad()
def load_into(ours: Mapping[str, Tensor], tensors: Mapping[str, Tensor], file: Path) -> None:
    """Copy tensors of a file into tensors of a model; names, shapes and types must be those."""
    _check_names(ours, tensors, file)
    for name, tensor in ours.items():
        if tensor.shape != tensors[name].shape or tensor.dtype != tensors[name].dtype:
            raise ValueError(
                f"{file} must fit the model, but {name} is {_describe(tensors[name])} there and {_describe(tensor)} "
                "here; build the model as the run's config.json says"
            )
        if tensor.is_floating_point() and not bool(tensors[name].isfinite().all()):
            raise ValueError(f"{file} must hold finite numbers, but {name} does not; resume from an earlier step")
    for name, tensor in ours.items():
        tensor.copy_(divided_as(tensor, tensors[name]))


def load_optimizer(
    model: nn.Module, optimizer: Optimizer, made: Mapping[str, Tensor], tensors: Mapping[str, Tensor], file: Path
) -> None:
    """Give an optimizer the state that `optimizer_tensors` had of it.

    Torch's fused optimizers read and write past a tensor of another shape or dtype than they made, so all must fit.

    Args:
        made: what the optimizer makes for one parameter; its single numbers have no dimensions, all else has the
            parameter's shape.
    """
    trained = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    ours = {
        f"{name}.{key}": (parameter, key)
        for name, parameter in model.named_parameters()
        if id(parameter) in trained
        for key in made
    }
    _check_names(ours, tensors, file)
    state: dict[int, Tensors] = {}
    for entry, (parameter, key) in ours.items():
        tensor, is_number = tensors[entry], made[key].dim() == 0
        shape = made[key].shape if is_number else parameter.shape
        if tensor.shape != shape or tensor.dtype != made[key].dtype:
            raise ValueError(
                f"{file} must fit the optimizer, but {entry} is {_describe(tensor)} and should be {tuple(shape)} "
                f"{_name(made[key].dtype)}"
            )
        if is_number and not 0 <= tensor.item() < math.inf:
            raise ValueError(
                f"{file} must fit the optimizer, but {entry} is {tensor.item()}, no count or learning rate"
            )
        # A copy: the tensors of a file are mapped from it.
        placed = tensor.clone() if is_number else divided_as(parameter, tensor.clone())
        state.setdefault(trained[id(parameter)], {})[key] = placed
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
    """About how large a checkpoint is where the optimizer holds `held` tensors for each parameter."""
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model_tensors(model).values())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return weights + held * trained


def _check_names(ours: Collection[str], theirs: Mapping[str, Tensor], file: Path) -> None:
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
    return f"{tuple(tensor.shape)} {_name(tensor.dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
