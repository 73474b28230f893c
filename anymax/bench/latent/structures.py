"""SparseMAP and the best bit-vectors for a whole batch, against loops that take one example at a time.

Shapes: N examples, D bits, L positions, T tags, S structures.
"""

import heapq
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from anymax.bench.harness.comparison import Comparison, Entry
from anymax.bench.harness.timing import Run, time_interleaved
from anymax.bench.latent.settings import Settings
from anymax.structured import Bits, Polytope, Sequence, SparseStructures, sparsemap, topk_bits

BATCH = "active set"
LOOP = "one at a time, active set, float64"
TOPK = "topk_bits"
LISTS = "one at a time, lists in Python"


def compare_bits(job: str, settings: Settings) -> Comparison:
    """SparseMAP over all bit-vectors, with each decomposition; the first is the default."""
    scores_ND = _scores(settings.structures, settings.bits)
    runs = {name: _solving(scores_ND, Bits(), name) for name in Bits.decompositions}
    return _compare(job, {**runs, LOOP: lambda: solve_one_by_one(scores_ND, Bits())}, settings)


def compare_sequences(job: str, settings: Settings) -> Comparison:
    """SparseMAP over sequences of tags, whose transitions are the same everywhere."""
    positions, tags = settings.sequence
    scores_NLT = _scores(settings.structures, positions, tags)
    transitions = torch.randn(tags, tags, generator=torch.Generator().manual_seed(1))
    runs = {BATCH: _solving(scores_NLT, Sequence(transitions), None)}
    exact = Sequence(transitions.double())
    return _compare(job, {**runs, LOOP: lambda: solve_one_by_one(scores_NLT, exact)}, settings)


def compare_topk(job: str, settings: Settings) -> Comparison:
    """The best bit-vectors and the gradient of their scores."""
    scores_ND, k = _scores(settings.structures, settings.bits), settings.top
    runs: dict[str, Run] = {
        TOPK: lambda: torch.autograd.grad(topk_bits(scores_ND, k).scores.square().sum(), scores_ND),
        LISTS: lambda: torch.autograd.grad(topk_one_by_one(scores_ND, k).square().sum(), scores_ND),
    }
    return _compare(job, runs, settings)


def solve_one_by_one(scores: Tensor, polytope: Polytope) -> list[SparseStructures]:
    """Forward and backward of SparseMAP, example by example in double precision."""
    return [_solve(one.double(), polytope, "active set") for one in scores.split(1)]


def topk_one_by_one(scores_ND: Tensor, k: int) -> Tensor:
    """The scores (N, k) of the k best bit-vectors of each example, found by merging lists of sets of flipped bits."""
    bits = [_best_bits(row, k) for row in scores_ND.tolist()]
    return (torch.tensor(bits, dtype=scores_ND.dtype) * scores_ND.unsqueeze(1)).sum(-1)


def _best_bits(scores: list[float], k: int) -> list[list[int]]:
    best = [int(score > 0) for score in scores]
    flips: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    # A set with any other bit costs no less than the k that the cheapest make.
    for bit in heapq.nsmallest(k - 1, range(len(scores)), key=lambda bit: abs(scores[bit])):
        with_bit = [(cost + abs(scores[bit]), (*others, bit)) for cost, others in flips]
        flips = [flip for flip, _ in zip(heapq.merge(flips, with_bit), range(k), strict=False)]
    return [[value ^ (bit in flipped) for bit, value in enumerate(best)] for _, flipped in flips]


def _solving(scores: Tensor, polytope: Polytope, decomposition: str | None) -> Run:
    return lambda: _solve(scores, polytope, decomposition)


def _solve(scores: Tensor, polytope: Polytope, decomposition: str | None) -> SparseStructures:
    found = sparsemap(scores, polytope, decomposition=decomposition)
    torch.autograd.grad(found.marginals.square().sum() + found.probs.square().sum(), scores)
    return found


def _scores(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def _compare(job: str, runs: Mapping[str, Callable[[], object]], settings: Settings) -> Comparison:
    """The first is the baseline."""
    timings = time_interleaved(runs, baseline=next(iter(runs)), budget=settings.slow_budget)
    return Comparison(job, tuple(Entry(name, timings[name]) for name in runs))
