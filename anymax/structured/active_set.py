"""The active set: SparseMAP for any polytope whose best structure can be found, a whole batch in step.

Each example holds a few structures and the probabilities that are best on them. An iteration asks the polytope for the
structure that gains most over the present mean, and lets it enter; others may leave. Where it gains no more than those
already there, the example is done and leaves the batch. The objective rises with every iteration, so no set comes
twice.

Shapes: N examples that are not done, * the dimensions of a structure, E their product, S structures, C slots.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from anymax.structured.polytope import FORBIDDEN, Polytope
from anymax.structured.vertex_sets import Entrants, VertexSets

# What a structure must gain, in units of the scores, to enter: rounding stays well below.
TOLERANCE = 1e-11
# Structures with a smaller probability are left out.
SMALLEST = 1e-10


class Support(NamedTuple):
    """Structures (N, S, *) and their probabilities (N, S), most probable first, zeros beyond an example's own."""

    structures: Tensor
    probs: Tensor
    iterations: Tensor
    converged: Tensor


def active_set(scores: Tensor, polytope: Polytope, *, start: Tensor, max_iterations: int) -> Support:
    """Find the structures of SparseMAP's answer for rows of scores (N, *), from a structure (N, *) each to start at."""
    event, scores_NE = scores.shape[1:], scores.flatten(1)
    example_N = torch.arange(len(scores), device=scores.device)
    iterations, converged = torch.zeros_like(example_N), torch.zeros_like(example_N, dtype=torch.bool)
    linear_N = linear_scores(scores, polytope, start[:, None])[:, 0]
    tolerance_N = TOLERANCE * _magnitude(scores_NE, linear_N)
    sets, finished = VertexSets(start.flatten(1), linear_N), _Finished(scores)
    for _ in range(max_iterations):
        if len(example_N) == 0:
            break
        iterations[example_N] += 1
        mean_NE = sets.mean()
        # Rounding must not choose between structures that gain the same.
        left_NE = scores_NE - mean_NE
        left_NE.masked_fill_(left_NE.abs() < tolerance_N[:, None], 0)
        best = polytope.best(left_NE.view(-1, *event))
        linear_N = linear_scores(scores_NE.view(-1, *event), polytope, best[:, None])[:, 0]
        entrants = sets.consider(best.flatten(1), linear_N, mean_NE)
        is_done_N = ~(entrants.gain_N > tolerance_N) | entrants.is_known_N
        if bool(is_done_N.any()):
            converged[example_N[is_done_N]] = True
            finished.add(sets, is_done_N, example_N)
            stay = (~is_done_N).nonzero()[:, 0]
            sets.select(stay)
            polytope, entrants = polytope.select(stay), Entrants(*(part[stay] for part in entrants))
            scores_NE, tolerance_N, example_N = scores_NE[stay], tolerance_N[stay], example_N[stay]
        sets.enter(entrants)
    finished.add(sets, torch.ones_like(example_N, dtype=torch.bool), example_N)
    return Support(*finished.together(), iterations, converged)


def probs_on_support(scores: Tensor, polytope: Polytope, support: Support) -> Tensor:
    """The best probabilities (N, S) on the structures of a support; gradients pass to the scores."""
    vertices_NSE = support.structures.flatten(2)
    is_used_NS = support.probs > 0
    system = scores.new_zeros(len(scores), 1 + is_used_NS.shape[1], 1 + is_used_NS.shape[1])
    # Where an example has fewer structures the equation is p = 0.
    system[:, 1:, 1:] = vertices_NSE @ vertices_NSE.mT + torch.diag_embed(~is_used_NS)
    system[:, 0, 1:] = system[:, 1:, 0] = is_used_NS.to(scores.dtype)
    linear_NS = torch.where(is_used_NS, linear_scores(scores, polytope, support.structures), 0)
    right = torch.cat([torch.ones_like(linear_NS[:, :1]), linear_NS], 1)
    return torch.where(is_used_NS, torch.linalg.solve(system, right)[:, 1:], 0)


def linear_scores(scores: Tensor, polytope: Polytope, structures: Tensor) -> Tensor:
    """What structures (N, S, *) score, (N, S)."""
    # A row times a matrix: torch's batched product is several times slower with columns.
    return torch.bmm(scores.flatten(1)[:, None], structures.flatten(2).mT)[:, 0] + polytope.extra(structures)


class _Finished:
    """The sets of examples that are done, in whatever order they were."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, sets: VertexSets, is_done_N: Tensor, example_N: Tensor) -> None:
        probs_NC = sets.solution_NK[is_done_N, 1:]
        probs_NC, order_NC = torch.where(probs_NC > SMALLEST, probs_NC, 0).sort(dim=1, descending=True, stable=True)
        most = int((probs_NC > 0).sum(1).max()) if len(probs_NC) else 0
        probs_NS, order_NS = probs_NC[:, :most], order_NC[:, :most]
        vertices_NSE = sets.vertices_NCE[is_done_N.nonzero(), order_NS] * (probs_NS > 0)[:, :, None]
        self.parts.append((example_N[is_done_N], vertices_NSE, probs_NS))

    def together(self) -> tuple[Tensor, Tensor]:
        n, event = len(self.scores), self.scores.shape[1:]
        most = max(1, *(probs.shape[1] for _, _, probs in self.parts))
        structures, all_probs = self.scores.new_zeros(n, most, event.numel()), self.scores.new_zeros(n, most)
        for example, vertices, probs in self.parts:
            structures[example, : probs.shape[1]], all_probs[example, : probs.shape[1]] = vertices, probs
        return structures.view(n, most, *event), all_probs


def _magnitude(scores_NE: Tensor, linear_N: Tensor) -> Tensor:
    allowed_NE = torch.where(scores_NE > FORBIDDEN / 10, scores_NE, 0)
    return torch.maximum(allowed_NE.abs().amax(1), linear_N.abs()).clamp(min=1)
