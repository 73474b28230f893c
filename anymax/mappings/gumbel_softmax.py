"""Gumbel-softmax: a sample from the softmax distribution, relaxed so that gradients pass."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from anymax.mappings.arguments import check_number, check_per_row, check_values, largest, prepare
from anymax.mappings.softmax import softmax


def gumbel_softmax(
    scores: Tensor,
    tau: float | Tensor = 1.0,
    *,
    hard: bool = False,
    generator: torch.Generator | None = None,
    dim: int = -1,
    mask: Tensor | None = None,
) -> Tensor:
    """Draw softmax((scores + Gumbel noise) / tau) along `dim`.

    Args:
        scores: floating point, any shape.
        tau: temperature above zero; a number, or a tensor that broadcasts with size 1 along `dim`, which gets a
            gradient.
        hard: straight-through: the value is exactly one-hot, the gradient that of the relaxed sample.
        generator: source of the noise; by default torch's global one.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; a row with none gets zeros.

    Jang et al. 2017, Maddison et al. 2017.

    Example:
        >>> scores = torch.tensor([[2.0, 1.5, -9.0]], requires_grad=True)
        >>> sample = anymax.gumbel_softmax(scores, tau=0.5, hard=True)
        >>> sample.sum().item(), sorted(sample.unique().tolist())  # one-hot
        (1.0, [0.0, 1.0])
        >>> sample[0, 0].backward()
        >>> scores.grad[0, 0] > 0  # the gradient of the relaxed sample
        tensor(True)
    """
    prepared = prepare(scores, dim, mask)
    _check_tau(tau, prepared, dim)
    # -log of an exponential variable is a Gumbel variable.
    noise = -torch.empty_like(prepared).exponential_(generator=generator).log()
    perturbed = prepared + noise
    # The largest becomes zero, which no tau can make overflow.
    top = largest(perturbed, dim)
    relaxed = softmax((perturbed - torch.where(top == -torch.inf, 0, top)) / tau, dim=dim)
    if not hard or relaxed.shape[dim] == 0:
        return relaxed.to(scores.dtype)
    # A row with nothing to choose stays empty.
    one_hot = torch.zeros_like(relaxed).scatter(dim, relaxed.argmax(dim, keepdim=True), 1.0) * (relaxed > 0)
    one_hot = torch.where(relaxed.isnan(), relaxed, one_hot)
    return (one_hot.detach() + (relaxed - relaxed.detach())).to(scores.dtype)


def annealed_tau(step: int, *, rate: float, floor: float) -> float:
    """The temperature at a step of training: max(floor, exp(-rate * step)).

    Args:
        step: the number of steps before.
        rate: how fast it falls, per step.
        floor: the least temperature, above 0.

    Example:
        >>> [round(anymax.annealed_tau(step, rate=1e-3, floor=0.5), 2) for step in (0, 100, 500, 1000)]
        [1.0, 0.9, 0.61, 0.5]
    """
    if not (rate >= 0 and floor > 0 and step >= 0):
        raise ValueError(
            f"rate and step must not be negative and floor must be above 0, got {rate=}, {step=}, {floor=}"
        )
    return max(floor, math.exp(-rate * step))


class LearnedTau(nn.Module):
    """A learned temperature, kept above `floor` by a softplus; call it for the current value.

    Args:
        initial: the temperature to start from, above `floor`.
        floor: what it stays above, at least 0.

    Example:
        >>> tau = anymax.LearnedTau(1.0, floor=0.1)
        >>> anymax.gumbel_softmax(torch.randn(5, 3), tau())[:, 0].sum().backward()
        >>> round(tau().item(), 4), tau.pre_tau.grad is not None
        (1.0, True)
    """

    def __init__(self, initial: float = 1.0, *, floor: float = 0.0) -> None:
        super().__init__()
        if not math.inf > initial > floor >= 0:
            raise ValueError(f"initial must be above floor, finite, and floor at least 0, got {initial=}, {floor=}")
        self.floor = floor
        above = initial - floor
        # The inverse of softplus.
        self.pre_tau = nn.Parameter(torch.tensor(above + math.log(-math.expm1(-above))))

    def forward(self) -> Tensor:
        return self.floor + functional.softplus(self.pre_tau)

    def extra_repr(self) -> str:
        return f"floor={self.floor}"


def _check_tau(tau: float | Tensor, scores: Tensor, dim: int) -> None:
    if isinstance(tau, Tensor):
        check_per_row("tau", tau, scores, dim)
        check_values("tau", "finite and above 0", tau, lambda t: (t > 0) & (t < torch.inf))
    else:
        check_number("tau", tau)
        if not 0 < tau < math.inf:
            raise ValueError(f"tau must be finite and above 0, got {tau}; use argmax for the limit at 0")
