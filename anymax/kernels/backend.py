"""Which implementation of an operator runs: the first that can, or the one the caller named.

A backend is a name, and a module for each operator that it has. A module is imported when it is first chosen.
"""

import importlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.compiler import is_compiling

OPERATORS = ("attention", "cross_entropy", "dropout", "entmax", "matmul", "plif")


class Kernel(Protocol):
    """What every backend of every operator offers; each operator's `protocol.py` says what else."""

    def why_unsupported(self, scores: Tensor, /) -> str | None:
        """Why this backend cannot take `scores`, or None if it can."""


class Backend(NamedTuple):
    """The module of each operator that a backend has, and the types of device it is for, None for all."""

    modules: Mapping[str, str]
    devices: Collection[str] | None


def _own(name: str, devices: Collection[str] | None = None, operators: Collection[str] = OPERATORS) -> Backend:
    return Backend({operator: f"anymax.kernels.{operator}.{name}" for operator in operators}, devices)


# By name, the preferred first. Replaced and never changed, so that a thread that walks through it is not disturbed.
_backends = {
    "native": _own("native", ["cpu"]),
    "triton": _own("triton", ["cuda"], ["attention", "entmax"]),
    "reference": _own("reference"),
}

# Per context, so that threads and asynchronous tasks do not change each other's. Autograd runs the backward of CPU
# tensors in the thread that asks for it. For accelerators it has threads of its own, in which no backend is named: the
# first that can runs.
_named: ContextVar[str | None] = ContextVar("anymax backend", default=None)


def backend_names() -> tuple[str, ...]:
    """The registered backends, the preferred first."""
    return tuple(_backends)


def register_backend(
    name: str, modules: Mapping[str, str], *, before: str | None = None, devices: Collection[str] | None = None
) -> None:
    """Add a backend of some operators, which is then chosen like the others, or by `use_backend(name)`.

    A module is given by its path and imported when the backend is first chosen for its operator. It offers the
    functions of `anymax/kernels/<operator>/protocol.py`. Where a package that it imports is missing, the next backend
    serves.

    Args:
        name: a new name.
        modules: their paths by operator: "attention", "cross_entropy", "dropout", "entmax", "matmul" or "plif".
        before: the backend that it is preferred to; all by default.
        devices: the types of device it is for, such as "cuda"; for other tensors it is only imported by name.

    Example:
        >>> modules = {"entmax": "anymax.kernels.entmax.reference"}  # here your own module
        >>> anymax.kernels.register_backend("mine", modules, before="reference", devices=["cuda"])
        >>> with anymax.use_backend("mine"):
        ...     anymax.sparsemax(torch.tensor([2.0, 1.5, 0.5]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    global _backends
    if name in _backends:
        raise ValueError(f"name must be new, got {name!r}, which is registered; choose another name")
    if unknown := sorted(set(modules) - set(OPERATORS)):
        raise ValueError(f"modules must be by operator, each one of {', '.join(OPERATORS)}, got {', '.join(unknown)}")
    if isinstance(devices, str):
        raise TypeError(f"devices must be a collection of device types, got {devices!r}; pass [{devices!r}]")
    before = next(iter(_backends)) if before is None else before
    if before not in _backends:
        raise ValueError(f"before must be one of {', '.join(_backends)}, got {before!r}")
    added = {name: Backend(dict(modules), devices)}
    order = list(_backends)
    place = order.index(before)
    _backends = {key: (_backends | added)[key] for key in [*order[:place], name, *order[place:]]}


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run every kernel inside the block through one backend, in forward and backward, in this thread or task alone.

    A thread that is started inside the block chooses for itself; `contextvars.copy_context().run` takes the choice
    along.

    Args:
        name: "native" (C++ on the CPU), "triton" (GPUs), "reference" (torch, every device) or a backend that was
            registered. A named backend never falls back: where it cannot run, the call raises.

    Example:
        >>> with anymax.use_backend("reference"):
        ...     anymax.sparsemax(torch.tensor([2.0, 1.5, 0.5]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    if name not in _backends:
        raise ValueError(f"backend must be one of {', '.join(_backends)}, got {name!r}")
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


K = TypeVar("K", bound=Kernel)


class Kernels(Generic[K]):
    """The backends of one operator, each imported when it is first chosen."""

    def __init__(self, operator: str) -> None:
        assert operator in OPERATORS
        self.operator = operator
        # By the path of the module; a text says why it cannot be imported.
        self._imported: dict[str, K | str] = {}
        # By device: the modules that are for it, the preferred first, and the table of backends they are from.
        self._paths: dict[torch.device, tuple[object, tuple[str, ...]]] = {}

    def choose(self, scores: Tensor) -> K:
        """The backend that takes `scores`: the named one, or the first that can."""
        named = _named.get()
        if named is not None:
            return self._choose_named(named, scores)
        device = scores.device
        backends, paths = self._paths.get(device, (None, ()))
        for path in paths if backends is _backends else self._paths_for(device):
            kernel = self._imported.get(path) or self._import(path)
            if not isinstance(kernel, str) and kernel.why_unsupported(scores) is None:
                return kernel
        raise AssertionError("the reference takes every tensor")

    def _paths_for(self, device: torch.device) -> tuple[str, ...]:
        backends = _backends
        fitting = [one for one in backends.values() if one.devices is None or device.type in one.devices]
        paths = tuple(one.modules[self.operator] for one in fitting if self.operator in one.modules)
        self._paths[device] = (backends, paths)
        return paths

    def _choose_named(self, name: str, scores: Tensor) -> K:
        path = _backends[name].modules.get(self.operator)
        kernel = "this kernel has no such backend" if path is None else self._imported.get(path) or self._import(path)
        reason = kernel if isinstance(kernel, str) else kernel.why_unsupported(scores)
        if reason is None:
            assert not isinstance(kernel, str)
            return kernel
        raise RuntimeError(
            f"the {name} backend was asked for by name but cannot run: {reason}; "
            "leave use_backend(...) out to let anymax choose"
        )

    def _import(self, path: str) -> K | str:
        """The module, or why it cannot be imported: a package that it needs is missing."""
        try:
            kernel: K | str = cast(K, importlib.import_module(path))
        except ModuleNotFoundError as error:
            if error.name is None or f"{path}.".startswith(f"{error.name}."):
                raise
            kernel = f"it needs the package {error.name}, which is not installed"
        self._imported[path] = kernel
        return kernel


_PLAIN = (Tensor, nn.Parameter)


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether nothing watches what is done to CPU tensors: no compiler, transform, mode or subclass. None is ignored.

    Then an operator's kernel may be called by itself, without torch's dispatcher, which costs more than a small kernel.
    """
    if is_compiling() or _get_tracing_state() or _len_torch_dispatch_stack():
        return False
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN or not tensor.is_cpu or is_functorch_wrapped_tensor(tensor):
            return False
    return True


def widest(tensor: Tensor) -> torch.dtype:
    """The most exact type of the tensor's device: Apple's have no double precision."""
    return tensor.dtype if tensor.device.type == "mps" else torch.float64
