"""Where to cut a vocabulary so that the scores of a batch cost least, by a formula or as measured on a machine.

Shapes: V places between words, from 0 to the vocabulary size; R ends of a tail; M starts that are tried for all ends,
in one list.
"""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from anymax.vocabulary.bands import Counts, check_word_counts

# A measurement stops at products this slow or this large.
LONG_ENOUGH = 0.03


MOST_SCORES = 2**26


@dataclass(frozen=True)
class Cost:
    """The time of a batch's scores: for every band, per_band + per_score * max(rows * tokens, floor).

    The head has a row for each of its words and each tail, and is computed for all tokens; a tail only for the tokens
    whose word lies in it. A row costs the same in every band. The smaller dimension of tails is left out on purpose: it
    makes words in tails look almost free, and the cheapest head a few dozen words.

    The defaults count time in scores and suit an accelerator; `measure_cost` finds those of a machine.

    Args:
        num_tokens: number of tokens of a batch.
        per_band: the time a band takes however small it is. It does not move the cutoffs of a given number of bands,
            it decides how many bands pay off.
        per_score: the time of one row for one token.
        floor: fewer scores than this take no less time.

    Example:
        >>> from anymax.vocabulary import Bands, Cost
        >>> counts = [5000 // rank for rank in range(1, 5001)]  # as Zipf's law has them
        >>> cost = Cost(num_tokens=4096)
        >>> bands = Bands.optimal(counts, 3, dim=64, cost=cost)
        >>> bands.cutoffs
        (208, 1666)
        >>> cost.of(bands.cutoffs, counts) < 0.4 * cost.of((), counts)  # against one softmax of all words
        True
    """

    num_tokens: int = 4096
    per_band: float = 1e6
    per_score: float = 1.0
    floor: float = 1e5

    def __post_init__(self) -> None:
        if self.num_tokens < 1:
            raise ValueError(f"num_tokens must be at least 1, got {self.num_tokens}")
        if not 0 < self.per_score < math.inf:
            raise ValueError(f"per_score must be positive and finite, got {self.per_score}")
        for name, value in (("per_band", self.per_band), ("floor", self.floor)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {value}")

    def of(self, cutoffs: Sequence[int], counts: Counts) -> float:
        """The time of one batch whose words are distributed as `counts` say."""
        mass = prefix_sums(counts)
        edges = [*cutoffs, len(mass) - 1]
        scores = [float((edges[0] + len(cutoffs)) * self.num_tokens)]
        for start, end in itertools.pairwise(edges):
            share = ((mass[end] - mass[start]) / mass[-1]).item()
            scores.append((end - start) * share * self.num_tokens)
        return sum(self.per_band + self.per_score * max(number, self.floor) for number in scores)


DEFAULT_COST = Cost()


def measure_cost(dim: int, num_tokens: int = 4096, *, device: str | torch.device = "cpu") -> Cost:
    """Time matrix products of growing size and fit a `Cost` in seconds. Takes a second or less.

    Times differ from run to run, and so may cutoffs chosen by them: keep the cutoffs, not the call.

    Args:
        dim: the dimension of the vectors that are scored.
        num_tokens: number of tokens of a batch.
        device: where to time them.

    Example:
        >>> cost = anymax.vocabulary.measure_cost(dim=512, num_tokens=1024)
        >>> cost.num_tokens, cost.per_score > 0
        (1024, True)
    """
    if dim < 1 or num_tokens < 1:
        raise ValueError(f"dim and num_tokens must be at least 1, got {dim} and {num_tokens}")
    hidden = torch.randn(num_tokens, dim, device=device)
    sizes, seconds = [], []
    for num_rows in (4**i for i in itertools.count()):
        sizes.append(float(num_rows * num_tokens))
        seconds.append(_time_product(hidden, torch.randn(num_rows, dim, device=device)))
        if len(sizes) > 2 and (seconds[-1] > LONG_ENOUGH or sizes[-1] * 4 > MOST_SCORES):
            break
    return Cost(num_tokens, *_fit(sizes, seconds))


def optimal_cutoffs(
    counts: Counts,
    num_bands: int,
    *,
    num_specials: int = 0,
    min_head: int = 1,
    min_head_mass: float = 0.0,
    cost: Cost = DEFAULT_COST,
) -> tuple[int, ...]:
    """The cutoffs of least cost, by a dynamic programme over all words; among equals one of them.

    Exact, floor included. A band that ends at b begins best at an a that minimizes

        best(a) + max(mass(a, b) * (b - a), floor)

    with `best(a)` the cost of all before. Above the floor the product obeys the quadrangle inequality: the best a never
    falls as b grows, and divide and conquer finds it for all b in V log V steps. Below the floor the term is constant,
    and what is left is the smallest `best` in a window. The larger of the two does not obey the inequality, so each
    side is solved by itself.

    Args:
        counts: the count of each word, falling from word to word.
        num_bands: number of bands, the head included.
        num_specials: words at the front whose counts need not fall.
        min_head: the fewest words in the head.
        min_head_mass: the least share of all tokens that the head must hold.
        cost: what is minimized.

    Grave et al. 2017.
    """
    mass_V = prefix_sums(counts)
    size, num_tails = len(mass_V) - 1, num_bands - 1
    check_word_counts(counts, size, num_specials)
    smallest = _smallest_head(mass_V, num_tails, min_head, min_head_mass)
    # In units where the scores of a band are its rows times the count of its words: exact for integer counts.
    floor = cost.floor * mass_V[-1].item() / cost.num_tokens
    with torch.device("cpu"), _one_thread():
        return _search(mass_V, num_tails, smallest, floor)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The search is a thousand short operations, which on several threads of a busy machine wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _search(mass_V: Tensor, num_tails: int, smallest: int, floor: float) -> tuple[int, ...]:
    """The cutoffs, tail by tail: the best start of a tail for every place where it may end, then back from the end."""
    size = len(mass_V) - 1
    best_V = ((torch.arange(size + 1) + num_tails) * mass_V[-1]).clamp(min=floor)
    starts = []
    for tail in range(1, num_tails + 1):
        # The last tail ends with the vocabulary; those before leave a word or more to each that follows.
        first_end = size if tail == num_tails else smallest + tail
        ends_R = torch.arange(first_end, size - num_tails + tail + 1)
        best_V, start_V = _add_tail(best_V, mass_V, floor, ends_R, smallest + tail - 1)
        starts.append(start_V)
    edges = [size]
    for start_V in reversed(starts):
        edges.insert(0, int(start_V[edges[0]]))
    return tuple(edges[:-1])


def _smallest_head(mass_V: Tensor, num_tails: int, min_head: int, min_head_mass: float) -> int:
    """The fewest words a head may have, checked against what the tails need."""
    size = len(mass_V) - 1
    if num_tails < 0:
        raise ValueError(f"num_bands must be at least 1, got {num_tails + 1}")
    if min_head < 1:
        raise ValueError(f"min_head must be at least 1, got {min_head}")
    if not 0 <= min_head_mass <= 1:
        raise ValueError(f"min_head_mass must be between 0 and 1, got {min_head_mass}")
    smallest = max(min_head, int(torch.searchsorted(mass_V, min_head_mass * mass_V[-1])))
    if smallest + num_tails > size:
        raise ValueError(
            f"num_bands must leave a word to every tail, but of {size} words the head needs {smallest} and there are "
            f"{num_tails} tails; use fewer bands or a smaller head"
        )
    return smallest


def _add_tail(best_V: Tensor, mass_V: Tensor, floor: float, ends_R: Tensor, earliest: int) -> tuple[Tensor, Tensor]:
    """The least cost of all words up to each end when one more tail ends there, and where that tail then begins."""
    limit_R = _last_large_start(mass_V, floor, ends_R, earliest)
    start_R = _smallest_in_window(best_V, (limit_R + 1).clamp(min=earliest), ends_R)
    cost_R = torch.where(start_R < ends_R, best_V[start_R] + floor, torch.inf)
    # The limit grows with the end, so the ends with a large tail are the last ones.
    large = slice(int((limit_R < earliest).sum()), None)
    large_start_R = _divide_and_conquer(best_V, mass_V, ends_R[large], limit_R[large], earliest)
    large_cost_R = _cost(best_V, mass_V, ends_R[large], large_start_R)
    start_R[large] = torch.where(large_cost_R <= cost_R[large], large_start_R, start_R[large])
    cost_R[large] = torch.minimum(cost_R[large], large_cost_R)
    new_best_V, start_V = torch.full_like(best_V, torch.inf), torch.zeros(best_V.shape, dtype=torch.int64)
    new_best_V[ends_R], start_V[ends_R] = cost_R, start_R
    return new_best_V, start_V


def _cost(best_V: Tensor, mass_V: Tensor, end: Tensor, start: Tensor) -> Tensor:
    return best_V[start] + _scores(mass_V, end, start)


def _scores(mass_V: Tensor, end: Tensor, start: Tensor) -> Tensor:
    return (mass_V[end] - mass_V[start]) * (end - start)


def _last_large_start(mass_V: Tensor, floor: float, ends_R: Tensor, earliest: int) -> Tensor:
    """The last start at which a tail still reaches the floor, `earliest` - 1 where none does; by bisection."""
    low_R, high_R = torch.full_like(ends_R, earliest - 1), ends_R - 1
    for _ in range(len(mass_V).bit_length()):
        middle_R = (low_R + high_R + 1) // 2
        is_large_R = (middle_R > low_R) & (_scores(mass_V, ends_R, middle_R) >= floor)
        low_R, high_R = torch.where(is_large_R, middle_R, low_R), torch.where(is_large_R, high_R, middle_R - 1)
        high_R = torch.maximum(low_R, high_R)
    return low_R


def _smallest_in_window(best_V: Tensor, first_R: Tensor, end_R: Tensor) -> Tensor:
    """Where the smallest of best[first:end] stands; `end` where that window is empty."""
    at_R, length_R = end_R.clone(), end_R - first_R
    at_V = torch.arange(len(best_V))
    width = 1
    # at_V holds the place of the smallest of `width` entries from each on; two of them that overlap make a window.
    while width <= int(length_R.max()):
        rows = ((length_R >= width) & (length_R < 2 * width)).nonzero()[:, 0]
        at_R[rows] = _smaller(best_V, at_V[first_R[rows]], at_V[end_R[rows] - width])
        at_V = _smaller(best_V, at_V[:-width], at_V[width:])
        width *= 2
    return at_R


def _smaller(best_V: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(best_V[other] < best_V[one], other, one)


def _divide_and_conquer(best_V: Tensor, mass_V: Tensor, ends_R: Tensor, limit_R: Tensor, earliest: int) -> Tensor:
    """The best start of a tail for each end, between `earliest` and the end's limit.

    Every second row is solved before the rows between, whose best starts lie between those of their neighbours.
    """
    num_rows = len(ends_R)
    best_start_R = torch.empty_like(ends_R)
    stride = (1 << num_rows.bit_length()) >> 1
    while stride > 0:
        rows = torch.arange(stride - 1, num_rows, 2 * stride)
        low, high = torch.full_like(rows, earliest), limit_R[rows].clone()
        low[1:] = best_start_R[rows[1:] - stride]
        inner = rows[rows + stride < num_rows]
        high[: len(inner)] = torch.minimum(high[: len(inner)], best_start_R[inner + stride])
        best_start_R[rows] = _first_smallest(best_V, mass_V, ends_R[rows], low, high)
        stride //= 2
    return best_start_R


def _first_smallest(best_V: Tensor, mass_V: Tensor, end_R: Tensor, low_R: Tensor, high_R: Tensor) -> Tensor:
    """The first of the cheapest starts from low to high, for each end."""
    length_R = high_R - low_R + 1
    offset_R = length_R.cumsum(0) - length_R
    row_M = torch.repeat_interleave(length_R)
    start_M = torch.arange(len(row_M)) + (low_R - offset_R)[row_M]
    cost_M = _cost(best_V, mass_V, end_R[row_M], start_M)
    least_R = torch.segment_reduce(cost_M, "min", lengths=length_R)
    hits = (cost_M == least_R[row_M]).nonzero()[:, 0]
    return start_M[hits[torch.searchsorted(hits, offset_R)]]


def _time_product(hidden: Tensor, rows: Tensor) -> float:
    """Seconds of one product, the best of some."""
    best = math.inf
    # The first is slow, it allocates.
    for _ in range(4):
        start = time.perf_counter()
        hidden @ rows.T
        if hidden.device.type != "cpu":
            torch.accelerator.synchronize(hidden.device)
        best = min(best, time.perf_counter() - start)
    return best


def _fit(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, float]:
    """per_band, per_score and floor: a line through the two largest, and how far the quickest lies above its start."""
    slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    # Noise alone can make the larger one the faster, or let the line start above what was measured.
    per_score = slope if slope > 0 else seconds[-1] / sizes[-1]
    per_band = min(max(seconds[-1] - per_score * sizes[-1], 0.0), min(seconds))
    return per_band, per_score, (min(seconds) - per_band) / per_score


def prefix_sums(counts: Counts) -> Tensor:
    """The count of all words before each, and of all in the end: one entry more than there are words."""
    values = torch.as_tensor(counts, dtype=torch.float64, device="cpu")
    if values.dim() != 1 or values.sum() == 0:
        raise ValueError(f"counts must be a list of numbers that are not all zero, got shape {tuple(values.shape)}")
    return torch.cat([values.new_zeros(1), values.cumsum(0)])
