"""Masks of recurrent weights: torch's dropout against ours, and a copy, the least that any can cost."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anymax.bench.comparison import Comparison, Contestant, compare
from anymax.bench.timing import Budget, Run
from anymax.regularizers.element_dropout import element_dropout


def masks(job: str, widths: Sequence[int], rate: float, budget: Budget) -> Comparison:
    """Forward and backward of dropout for one hidden-to-hidden weight of each width."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(4 * width, width) for width in widths]
    weights = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    gradients = [torch.randn(shape, generator=generator) for shape in shapes]
    num_bytes = sum(weight.numel() * weight.element_size() for weight in weights)

    def differentiated(dropped: Callable[[Tensor], Tensor]) -> Run:
        return lambda: torch.autograd.grad([dropped(weight) for weight in weights], weights, gradients)

    def copied() -> object:
        return [weight.detach().clone() for weight in weights], [gradient.clone() for gradient in gradients]

    contestants = [
        Contestant("F.dropout", differentiated(lambda weight: F.dropout(weight, rate)), num_bytes),
        Contestant("element_dropout", differentiated(lambda weight: element_dropout(weight, rate)), num_bytes),
        Contestant("copies of weights and gradients", copied, num_bytes),
    ]
    return compare(job, contestants, budget)
