"""BertAdam: the Adam that BERT was published with, without bias correction and with a clip for each parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from anymax.distributed.sharding import own_part, whole

MEAN, SQUARES = "exp_avg", "exp_avg_sq"
# As torch clips: a norm of exactly the limit is scaled a little too.
CLIP_EPS = 1e-6


class BertAdam(Optimizer):
    """Adam with decoupled weight decay, whose first steps are small ones, as its moving means are taken as they are.

    Args:
        betas: how much of the moving means of gradients and of their squares stays from step to step.
        eps: added to the root.
        weight_decay: decay per step, times the learning rate.
        clip: the largest norm of the gradient of each parameter by itself; None for any.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        clip: float | None = 1.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "clip": clip})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Change all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._step(group, parameters)
        return loss

    def _step(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {name: torch.zeros_like(parameter) for name in (MEAN, SQUARES)}
        gradients = [own_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
        if group["clip"] is not None:
            torch._foreach_mul_(gradients, _clipping(parameters, gradients, group["clip"]))
        means, squares = ([own_part(self.state[each][name]) for each in parameters] for name in (MEAN, SQUARES))
        own, (beta, beta_of_squares) = [own_part(parameter) for parameter in parameters], group["betas"]
        torch._foreach_lerp_(means, gradients, 1 - beta)
        torch._foreach_mul_(squares, beta_of_squares)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta_of_squares)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(own, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_addcdiv_(own, means, roots, -group["lr"])


def _clipping(parameters: list[Tensor], gradients: list[Tensor], clip: float) -> list[Tensor]:
    """What brings the gradient of each parameter to the limit; of one that is divided among ranks, as a whole."""
    norms = list(torch._foreach_norm(gradients))
    for i, (parameter, own) in enumerate(zip(parameters, gradients, strict=True)):
        if parameter.grad is not None and own is not parameter.grad:
            norms[i] = whole(torch.linalg.vector_norm(parameter.grad))
    return [(clip / (norm + CLIP_EPS)).clamp(max=1) for norm in norms]
