"""Which implementation of a kernel runs: the fastest that can, or the one the caller named."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

NAMES = ("native", "reference")


class Backend(Protocol):
    """What every implementation of every kernel offers beside its own functions."""

    def why_unsupported(self, scores: Tensor) -> str | None:
        """Why this backend cannot take `scores`, or None if it can."""


# Per context, so that threads and asynchronous tasks do not change each other's. Autograd runs the backward of CPU
# tensors in the thread that asks for it; for accelerators it has threads of its own, but there only the reference runs.
_named: ContextVar[str | None] = ContextVar("anymax backend", default=None)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run every kernel inside the block through one backend, in forward and backward, in this thread or task alone.

    A thread that is started inside the block chooses for itself; `contextvars.copy_context().run` takes the choice
    along.

    Args:
        name: "native" (C++ on the CPU) or "reference" (torch, every device). A named backend never falls back: where
            it cannot run, the call raises.
    """
    if name not in NAMES:
        raise ValueError(f"backend must be one of {', '.join(NAMES)}, got {name!r}")
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


def choose(backends: dict[str, Backend], scores: Tensor) -> str:
    """The name of the backend that takes `scores`: the named one, or the first that can."""
    named = _named.get()
    if named is not None:
        reason = backends[named].why_unsupported(scores) if named in backends else "this kernel has no such backend"
        if reason is not None:
            raise RuntimeError(
                f"the {named} backend was asked for by name but cannot run: {reason}; "
                "leave use_backend(...) out to let anymax choose"
            )
        return named
    return next(name for name in NAMES if name in backends and backends[name].why_unsupported(scores) is None)


def is_plain(tensor: Tensor) -> bool:
    """Whether nothing watches what is done to a CPU tensor: no compiler, transform, mode or subclass.

    Then an operator's kernel may be called by itself, without torch's dispatcher, which costs more than a small kernel.
    """
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.is_cpu
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and not is_functorch_wrapped_tensor(tensor)
        and torch._C._len_torch_dispatch_stack() == 0
    )


def widest(tensor: Tensor) -> torch.dtype:
    """The most exact type of the tensor's device: Apple's have no double precision."""
    return tensor.dtype if tensor.device.type == "mps" else torch.float64
