"""Where to cut a vocabulary so that the scores of a batch cost least.

Shapes: V places between words, from 0 to the vocabulary size; R ends of a tail; M starts that are tried for all ends,
in one list.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from anymax.vocabulary.bands import Counts, check_counts
from anymax.vocabulary.cost import DEFAULT_COST, Cost, prefix_sums


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
        counts: how often each word occurs, falling from word to word.
        num_bands: how many bands, the head included.
        num_specials: words at the front whose counts need not fall.
        min_head: the fewest words in the head.
        min_head_mass: the least share of all tokens that the head must hold.
        cost: what is minimized.

    Grave et al. 2017.
    """
    mass_V = prefix_sums(counts)
    size, num_tails = len(mass_V) - 1, num_bands - 1
    check_counts(counts, size, num_specials)
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
        raise ValueError(f"min_head_mass must lie from 0 to 1, got {min_head_mass}")
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
