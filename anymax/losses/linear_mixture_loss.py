"""Cross-entropy of a mixture of softmaxes over one linear layer, without its scores in memory.

With experts' hidden states h_k and a prior over them, p = sum_k prior_k softmax(W h_k). The loss needs p at the target
alone, so a row of scores belongs to one expert and its gradient is that of a cross-entropy, weighted with the posterior
of the expert given the target. Shapes as in blocks.py; the G rows of a target are its K experts.
"""

from typing import Any

import torch
from torch import Tensor, nn

from anymax.losses.blocks import Piece
from anymax.losses.fused import define, fused_loss
from anymax.losses.linear_arguments import check_floating_point
from anymax.losses.linear_cross_entropy import CrossEntropy, Transformed, fused_loss_outside_graphs, trained
from anymax.losses.rules import Rule, RuleInputs
from anymax.mappings.arguments import check_device, computed_in


def linear_mixture_loss(
    experts: Tensor,
    prior: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None = None,
    *,
    transform: nn.Module | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    memory_budget: int | None = None,
) -> Tensor:
    """Cross-entropy of the mixture sum over k of softmax(prior)_k softmax(experts_k @ linear_weight.T + linear_bias).

    Computed in blocks of targets; neither tokens x experts x classes nor tokens x classes is ever held.

    Args:
        experts: (..., experts, dimension), the hidden state of every expert.
        prior: (..., experts), scores of the experts; their softmax is taken here.
        linear_weight, linear_bias: one layer for all experts, (classes, dimension) and (classes).
        target: classes, in the leading shape.
        transform: a module applied to every score by itself, as PLIF; its parameters get their gradient.
        reduction, ignore_index, memory_budget: as in `linear_cross_entropy`.

    Yang et al. 2018.

    Example:
        >>> experts, prior = torch.randn(6, 3, 8), torch.randn(6, 3)  # 6 targets, 3 experts
        >>> weight, target = torch.randn(50, 8), torch.arange(6)
        >>> loss = anymax.linear_mixture_loss(experts, prior, weight, target)
        >>> probs = (prior.softmax(-1)[..., None] * (experts @ weight.T).softmax(-1)).sum(1)
        >>> torch.allclose(loss, -probs[torch.arange(6), target].log().mean(), atol=1e-5)
        True
    """
    if not isinstance(experts, Tensor) or experts.dim() < 2:
        got = tuple(experts.shape) if isinstance(experts, Tensor) else type(experts).__name__
        raise ValueError(f"experts must be a tensor of shape (..., experts, dimension), got {got}")
    num_experts = experts.shape[-2]
    if not isinstance(prior, Tensor) or prior.shape != experts.shape[:-1] or num_experts == 0:
        got = tuple(prior.shape) if isinstance(prior, Tensor) else type(prior).__name__
        raise ValueError(
            f"prior must have one score for each of at least one expert, {tuple(experts.shape[:-1])}, got {got}"
        )
    check_floating_point("prior", prior)
    check_device("prior", prior, experts, "experts")
    parameters = trained(transform)

    def make_rule(inputs: RuleInputs) -> Rule:
        assert transform is not None
        _, *of_transform = inputs.extras
        return Transformed(transform, dict(zip(parameters, of_transform, strict=True)), Mixture(inputs))

    take = fused_loss_outside_graphs if transform is not None and torch.compiler.is_compiling() else fused_loss
    return take(
        "linear_mixture_loss",
        [Piece(experts, linear_weight, linear_bias)],
        target,
        [prior.reshape(-1, num_experts), *parameters.values()],
        make_rule=None if transform is None else make_rule,
        reduction=reduction,
        ignore_index=ignore_index,
        memory_budget=memory_budget,
        group=num_experts,
    )


class Mixture(CrossEntropy):
    """The loss of a target is that of its experts' mixture; the gradient of a row counts by its expert's posterior."""

    def __init__(self, inputs: RuleInputs) -> None:
        super().__init__(inputs)
        prior_TK = self.selection.take(inputs.extras[0].detach())
        self.group = prior_TK.shape[1]
        self.log_prior_TK = prior_TK.to(computed_in(prior_TK.dtype)).log_softmax(1)
        self.grad_TK = torch.zeros_like(self.log_prior_TK)

    def weigh(self, losses_B: Tensor, targets: slice, coefficient: Tensor | None) -> tuple[Tensor, Tensor | None]:
        log_prior_BK = self.log_prior_TK[targets].to(losses_B.dtype)
        joint_BK = log_prior_BK - losses_B.view(-1, self.group)
        losses = -joint_BK.logsumexp(1)
        if coefficient is None:
            return losses, None
        posterior_BK = (joint_BK + losses[:, None]).exp()
        self.grad_TK[targets] = coefficient[:, None] * (log_prior_BK.exp() - posterior_BK)
        return losses, (coefficient[:, None] * posterior_BK).flatten()

    def gradients(self) -> list[Tensor]:
        return [self.selection.put_back_(self.grad_TK)]

    def without_blocks(self, *_: Any) -> None:
        return None


define("linear_mixture_loss", Mixture)
