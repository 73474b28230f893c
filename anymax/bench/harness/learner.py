"""Learner: a model that takes training steps, timed whole or as forward, backward and update."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Parts:
    """Milliseconds of one step: the loss, its gradients, then clipping and the update."""

    forward: float
    backward: float
    optimizer: float


class Learner:
    """Called, it takes one step: forward, backward, clipping of gradients and an update.

    Args:
        batches: what the model is called with, taken in turn, again and again.
        make_optimizer: is given the parameters.
        setting: what was chosen for the model, if anything was.
        precision: that of autocast; float32 is none.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        batches: Sequence[tuple[Any, ...]],
        make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        *,
        setting: str = "",
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.name = name
        self.setting = setting
        self.model = model
        self.optimizer = make_optimizer(model.parameters())
        self._device = next(model.parameters()).device.type
        self._batches = cycle(batches)
        self._precision = precision

    def __call__(self) -> float:
        """The loss of the batch."""
        loss = self._loss()
        loss.backward()
        self._update()
        # On a GPU this waits for the step.
        return loss.item()

    def parts(self) -> Parts:
        """Take a step and return the time of each part."""
        marks = [time.perf_counter()]
        loss = self._loss()
        marks.append(self._now())
        loss.backward()
        marks.append(self._now())
        self._update()
        marks.append(self._now())
        return Parts(*(1e3 * (end - start) for start, end in pairwise(marks)))

    @property
    def held_bytes(self) -> int:
        """What parameters and the optimizer's moments take, which stays between steps."""
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.model.parameters(), *states))

    def _loss(self) -> Tensor:
        with torch.autocast(self._device, self._precision, enabled=self._precision != torch.float32):
            loss: Tensor = self.model(*next(self._batches))
        return loss

    def _update(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _now(self) -> float:
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()
