"""A step taken stage by stage, so that forward and backward of each part of a network are timed by themselves."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, ParamSpec

from torch import Tensor

P = ParamSpec("P")


@dataclass(frozen=True)
class Parts:
    """Milliseconds of one step: forward and backward of each part, then clipping and the update."""

    words: float = 0.0
    weight_masks: float = 0.0
    dropouts: float = 0.0
    recurrences: float = 0.0
    output: float = 0.0
    penalties: float = 0.0
    clip: float = 0.0
    optimizer: float = 0.0


class Stages:
    """Runs functions one after another and their backwards in reverse, each on the clock of a part.

    The graph is cut after every function: what it gives is a leaf, whose gradient is where its backward begins.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._ran: list[_Ran] = []

    def run(self, part: str, function: Callable[P, Tensor], *args: P.args, **kwargs: P.kwargs) -> Tensor:
        """What the function gives, for later stages.

        Args:
            part: a field of `Parts`.
        """
        with self.timed(part):
            result = function(*args, **kwargs)
        leaf = result.detach().requires_grad_()
        self._ran.append(_Ran(part, result, leaf))
        return leaf

    def backward(self, loss: Tensor) -> None:
        """Gradients of a loss that was computed from what stages gave."""
        loss.backward()
        for part, result, leaf in reversed(self._ran):
            with self.timed(part):
                result.backward(leaf.grad)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """The time of the block belongs to a part."""
        start = time.perf_counter()
        yield
        self._seconds[part] += time.perf_counter() - start

    def parts(self) -> Parts:
        return Parts(**{part: 1e3 * seconds for part, seconds in self._seconds.items()})


class _Ran(NamedTuple):
    part: str
    result: Tensor
    leaf: Tensor
