"""The view that makes softmax, sparsemax and entmax one family: maximize the expected score minus a convex Omega."""

from collections.abc import Callable

import torch
from torch import Tensor

from anymax.mappings.arguments import prepare

# The barrier's weight falls by this factor per stage, down to where it no longer shows in double precision.
BARRIER_FACTOR = 0.2
FINAL_BARRIER = 1e-13
NEWTON_STEPS = 30


def regularized_argmax(scores: Tensor, omega: Callable[[Tensor], Tensor]) -> Tensor:
    """Solve  argmax over p in the simplex of  <p, scores> - omega(p)  for each row of the last dimension, slowly.

    Args:
        scores: rows in the last dimension, finite.
        omega: maps one distribution, a vector, to a number; convex, and twice differentiable inside the simplex.

    A generic method, to check mappings by and to try a regularizer before writing a mapping for it: Newton's method
    with a logarithmic barrier that fades, in double precision, O(n^3) per step. Use it for rows of up to a few hundred
    entries. It carries no gradient. Entries the answer leaves out come out near 1e-12, not at zero.

    Example:
        >>> scores = torch.tensor([2.0, 1.5])
        >>> probs = anymax.regularized_argmax(scores, lambda p: p.square().sum() / 2)
        >>> torch.allclose(probs, anymax.sparsemax(scores))
        True
    """
    prepare(scores, -1, None)
    if not bool(scores.isfinite().all()):
        raise ValueError("scores must be finite; leave out the entries that may not be chosen")
    if scores.numel() == 0:
        return scores.detach().clone()
    rows = scores.detach().double().reshape(-1, scores.shape[-1])
    solved = [_solve(row, omega) for row in rows]
    return torch.stack(solved).reshape(scores.shape).to(scores.dtype)


def _solve(scores: Tensor, omega: Callable[[Tensor], Tensor]) -> Tensor:
    n = scores.shape[0]
    probs = torch.full_like(scores, 1 / n)
    barrier = 1.0
    while barrier > FINAL_BARRIER:
        for _ in range(NEWTON_STEPS):
            step = _newton_step(probs, scores, omega, barrier)
            # Stay inside: never go more than 99% of the way to the nearest wall.
            towards_wall = torch.where(step < 0, -probs / step, torch.inf).min()
            size = min(1.0, 0.99 * float(towards_wall))
            probs = probs + _backtrack(probs, step, size, scores, omega, barrier) * step
            if float((step / probs).abs().max()) < 1e-9:
                break
        barrier *= BARRIER_FACTOR
    return probs / probs.sum()


def _objective(probs: Tensor, scores: Tensor, omega: Callable[[Tensor], Tensor], barrier: float) -> Tensor:
    return omega(probs) - probs @ scores - barrier * probs.log().sum()


def _newton_step(probs: Tensor, scores: Tensor, omega: Callable[[Tensor], Tensor], barrier: float) -> Tensor:
    def objective(p: Tensor) -> Tensor:
        return _objective(p, scores, omega, barrier)

    gradient = torch.func.grad(objective)(probs)
    hessian = torch.func.jacrev(torch.func.grad(objective))(probs)
    # In the variables step / p the barrier's part of the system is the identity, however small p becomes.
    scaled = hessian * probs[:, None] * probs[None, :]
    system = probs.new_zeros(len(probs) + 1, len(probs) + 1)
    system[:-1, :-1], system[:-1, -1], system[-1, :-1] = scaled, probs, probs
    right = torch.cat([-gradient * probs, probs.new_zeros(1)])
    return torch.linalg.lstsq(system, right[:, None]).solution[:-1, 0] * probs


def _backtrack(
    probs: Tensor, step: Tensor, size: float, scores: Tensor, omega: Callable[[Tensor], Tensor], barrier: float
) -> float:
    before = _objective(probs, scores, omega, barrier)
    while size > 1e-6 and not _objective(probs + size * step, scores, omega, barrier) <= before + 1e-15:
        size /= 2
    return size
