"""SparseMAP: marginals of structures, and a distribution over few of them whose mean they are."""

import numbers
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.kernels.backend import widest
from anymax.structured.active_set import active_set, probs_on_support
from anymax.structured.bits import BitPolytope
from anymax.structured.decompositions import chain, systematic
from anymax.structured.polytope import Polytope, spoil

CLOSED_FORMS = {"chain": chain, "systematic": systematic}


class SparseStructures(NamedTuple):
    """A sparse distribution over structures, as `sparsemap` returns it; S is the largest number of them.

    Example:
        >>> from anymax.structured import Budget, sparsemap
        >>> found = sparsemap(torch.tensor([2.0, 1.0, 0.7, -1.0]), Budget(k=2))
        >>> found.structures, found.probs
        (tensor([[1., 1., 0., 0.],
                [1., 0., 1., 0.]]), tensor([0.5750, 0.4250]))
        >>> torch.allclose(found.probs @ found.structures, found.marginals)
        True
    """

    marginals: Tensor
    """The mean structure, of the scores' shape."""
    structures: Tensor
    """The structures of each example, most probable first, 0/1: (*batch, S, *event); zeros where it has fewer."""
    probs: Tensor
    """Their probabilities: (*batch, S); they sum to one, and are zero where an example has fewer."""
    iterations: Tensor
    """How often the active set asked for the best structure: (*batch,); zero for closed forms."""
    converged: Tensor
    """Whether the answer is final: (*batch,); false where the iterations ran out or a NaN spoiled the example."""


def sparsemap(
    scores: Tensor, polytope: Polytope, *, decomposition: str | None = None, max_iterations: int | None = None
) -> SparseStructures:
    """Solve SparseMAP for a batch of examples; marginals and probabilities carry gradients.

        argmax over mu in the polytope of  <scores, mu> - |mu|^2 / 2

    The marginals are unique, the distribution over structures is not. Probabilities get the gradient they have while
    the structures stay the same. The active set leaves out structures below 1e-10; where dozens of entries choose
    independently of each other (free bits, a sequence whose transitions are all zero) there are such, and the gradient
    of the rest lacks their share.

    Args:
        scores: floating point, any batch shape and then that of a structure.
        polytope: which structures there are: `Bits`, `Budget`, `Sequence`, `Matching` or your own `Polytope`.
        decomposition: how the marginals are split into structures, by default the polytope's first: "chain" (nested
            bit-vectors), "systematic" (bit-vectors whose number of bits differs by one at most) or "active set" (the
            structures that the generic solver met). None has more structures than marginals strictly between 0 and 1,
            plus one.
        max_iterations: bounds the active set; by default 100 and ten times the entries of a structure. An example that
            reaches it gets the best answer so far and says so in `converged`.

    A NaN or +inf among an example's scores makes its answer NaN. Niculae et al. 2018.

    Example:
        >>> from anymax.structured import Budget, sparsemap
        >>> scores = torch.tensor([2.0, 1.0, 0.7, -1.0], requires_grad=True)
        >>> found = sparsemap(scores, Budget(k=2))
        >>> found.marginals.detach()
        tensor([1.0000, 0.5750, 0.4250, 0.0000])
        >>> found.marginals[1].backward()
        >>> scores.grad
        tensor([ 0.0000,  0.2500, -0.2500,  0.0000])
    """
    if not isinstance(polytope, Polytope):
        raise TypeError(f"polytope must be a Polytope such as Bits(), got {type(polytope).__name__}")
    name = polytope.decomposition(decomposition)
    _check_bound(max_iterations, name)
    solve = _solve_by_active_set if name == "active set" else _solve_in_closed_form
    flat, spoiled = solve(scores, polytope, name, max_iterations)
    batch = scores.shape[: scores.dim() - polytope.event_dim]
    values = [spoil(part, spoiled).to(scores.dtype) for part in (flat.marginals, flat.probs)]
    return SparseStructures(
        values[0].reshape(scores.shape),
        flat.structures.to(scores.dtype).reshape(*batch, *flat.structures.shape[1:]),
        values[1].reshape(*batch, flat.probs.shape[1]),
        flat.iterations.reshape(batch),
        (flat.converged & ~spoiled).reshape(batch),
    )


def _solve_in_closed_form(
    scores: Tensor, polytope: Polytope, name: str, max_iterations: int | None
) -> tuple[SparseStructures, Tensor]:
    assert isinstance(polytope, BitPolytope)
    rows = polytope.rows(scores)
    # In double precision, since the plain scores of large scores would round.
    wide = rows.scores.to(widest(rows.scores))
    marginals = polytope.nearest(polytope.plain(wide)).to(rows.scores.dtype)
    structures, probs = CLOSED_FORMS[name](marginals)
    none = torch.zeros_like(rows.spoiled, dtype=torch.long)
    return SparseStructures(marginals, structures, probs, none, none == 0), rows.spoiled


def _solve_by_active_set(
    scores: Tensor, polytope: Polytope, name: str, max_iterations: int | None
) -> tuple[SparseStructures, Tensor]:
    rows = polytope.rows(scores, widest(scores))
    solvable = (~rows.spoiled).nonzero()[:, 0]
    fitted, own_scores = rows.polytope.select(solvable), rows.scores[solvable]
    plain = fitted.bounded(fitted.plain(own_scores))
    bound = 100 + 10 * scores.shape[-polytope.event_dim :].numel() if max_iterations is None else int(max_iterations)
    with torch.no_grad():
        start = fitted.best(own_scores.detach())
        support = active_set(plain.detach(), fitted, start=start, max_iterations=bound)
    probs = probs_on_support(plain, fitted, support)
    if isinstance(fitted, BitPolytope):
        # With many free bits some structures have probabilities too small to be kept; this gradient has them all.
        marginals = fitted.nearest(fitted.plain(own_scores))
    else:
        marginals = torch.einsum("ns,ns...->n...", probs, support.structures)
    parts = (marginals, support.structures, probs, support.iterations, support.converged)
    spread = (part.new_zeros(len(rows.spoiled), *part.shape[1:]).index_copy(0, solvable, part) for part in parts)
    return SparseStructures(*spread), rows.spoiled


def _check_bound(max_iterations: int | None, decomposition: str) -> None:
    if max_iterations is None:
        return
    if decomposition != "active set":
        raise ValueError(
            f"max_iterations bounds the active set only, got {max_iterations} with decomposition {decomposition!r}; "
            'leave it out, or pass decomposition="active set"'
        )
    if isinstance(max_iterations, bool) or not isinstance(max_iterations, numbers.Integral):
        raise TypeError(f"max_iterations must be an integer, got {type(max_iterations).__name__}")
    if max_iterations < 1:
        raise ValueError(f"max_iterations must be at least 1, got {max_iterations}")
