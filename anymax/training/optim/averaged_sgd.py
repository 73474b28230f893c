"""Averaged SGD: plain steps, and from some step on the mean of where they led. Polyak and Juditsky 1992."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from anymax.distributed.sharding import own_part

# What is held for a parameter: its average, or in exchange for that its iterate.
AVERAGE, ITERATE = "average", "iterate"


class AveragedSGD(Optimizer):
    """SGD without any state until `begin`, and from then on with the mean of the iterates of every parameter.

    The n-th step after `begin` has the learning rate lr / (1 + decay * lr * (n - 1))**power.

    Args:
        weight_decay: this share of the parameters is added to their gradients.
        decay: weight decay from `begin` on, times the learning rate.
        power: how quickly the learning rate falls where there is a decay.
        start: how many steps after `begin` the mean skips.
        published: be `torch.optim.ASGD`: its mean skips one more iterate, and a changed learning rate takes effect only
            at the next step.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        weight_decay: float = 0.0,
        decay: float = 0.0,
        power: float = 0.75,
        start: int = 0,
        published: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "decay": decay,
            "power": power,
            "start": start,
            "published": published,
        }
        super().__init__(params, defaults)
        self._has_begun = False

    @property
    def is_averaging(self) -> bool:
        return self._has_begun or bool(self.state)

    def begin(self) -> None:
        """Average from the next step on."""
        self._has_begun = True

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Change all parameters that have a gradient, and the averages of all."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step(group)
        return loss

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """While the block runs, parameters hold their averages; the iterates are held in their place."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange what parameters hold with what is held for them, in place; twice leaves every bit as it was."""
        for parameter, state in self.state.items():
            before, after = (AVERAGE, ITERATE) if AVERAGE in state else (ITERATE, AVERAGE)
            state[after] = state.pop(before)
            ours, theirs = own_part(parameter), own_part(state[after])
            kept = ours.clone()
            ours.copy_(theirs)
            theirs.copy_(kept)

    def take_back(self) -> None:
        """Bring back the iterates of a state that was saved while they were exchanged."""
        if any(ITERATE in state for state in self.state.values()):
            self.exchange()

    def _step(self, group: dict[str, Any]) -> None:
        number = self._steps(group) + 1 if self.is_averaging else 0
        rate = self._rate(group, number)
        with_gradient = [parameter for parameter in group["params"] if parameter.grad is not None]
        parameters = [own_part(parameter) for parameter in with_gradient]
        shrink = rate * (group["weight_decay"] + (group["decay"] if number else 0.0))
        if shrink and parameters:
            torch._foreach_add_(parameters, parameters, alpha=-shrink)
        if parameters:
            torch._foreach_add_(parameters, [own_part(parameter.grad) for parameter in with_gradient], alpha=-rate)
        if number:
            self._average(group, number)

    def _average(self, group: dict[str, Any], number: int) -> None:
        taken = number - group["start"] - int(group["published"])
        for parameter in group["params"]:
            state = self.state[parameter]
            if not state:
                state[AVERAGE] = parameter.detach().clone()
            state["step"] = number
            if group["published"]:
                # Single precision, as torch holds it, survives a checkpoint of float32 parameters.
                state["eta"] = torch.tensor(_fallen(group, number), dtype=torch.float32)
        averages: list[Tensor] = [own_part(self.state[parameter][AVERAGE]) for parameter in group["params"]]
        torch._foreach_lerp_(averages, [own_part(parameter) for parameter in group["params"]], 1 / max(1, taken))

    def _rate(self, group: dict[str, Any], number: int) -> float:
        """The learning rate of a step, by its number since `begin`, from 1; 0 stands for those before."""
        if number == 0:
            return float(group["lr"])
        if group["published"] and number > 1:
            return float(self.state[group["params"][0]]["eta"])
        return _fallen(group, number - 1)

    def _steps(self, group: dict[str, Any]) -> int:
        """How many steps of averaging were taken."""
        return int(self.state.get(group["params"][0], {}).get("step", 0))


def _fallen(group: dict[str, Any], steps: int) -> float:
    lr = group["lr"]
    return float(lr / (1 + group["decay"] * lr * steps) ** group["power"])
