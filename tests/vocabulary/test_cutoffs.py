"""Cutoffs of least cost: the best there are, by enumeration and by known optima; and the cost itself."""

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anymax.vocabulary import Bands, Cost, measure_cost
from anymax.vocabulary.cutoffs import _fit

FLAT = Cost(num_tokens=1, per_band=0, floor=0)


def expected_cost(cutoffs: tuple[int, ...], counts: list[float], cost: Cost) -> float:
    """The formula, band by band, summing counts anew."""
    edges = (0, *cutoffs, len(counts))
    total = 0.0
    for start, end in pairwise(edges):
        is_head = start == 0
        rows = end + len(cutoffs) if is_head else end - start
        tokens = cost.num_tokens * (1 if is_head else sum(counts[start:end]) / sum(counts))
        total += cost.per_band + cost.per_score * max(rows * tokens, cost.floor)
    return total


def zipf(size: int) -> torch.Tensor:
    return 1 / torch.arange(1, size + 1, dtype=torch.float64)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[float], int, int, Cost]:
    """Counts, how many bands, the fewest words in the head, and a cost, often with a floor in the midst of things."""
    number = st.sampled_from([0, 1, 1, 2, 3, 10, 40, 300]) | st.floats(0, 50, allow_subnormal=False)
    counts = sorted(draw(st.lists(number, min_size=1, max_size=11)), reverse=True)
    counts[0] += 1
    num_bands = draw(st.integers(1, min(4, len(counts))))
    min_head = draw(st.integers(1, len(counts) - num_bands + 1))
    floor = draw(st.sampled_from([0.0, 0.5, 3.0, 12.0, 60.0, 1e4]))
    return counts, num_bands, min_head, Cost(draw(st.integers(1, 40)), 0.7, draw(st.sampled_from([0.2, 3.0])), floor)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(problems())
def test_no_other_cutoffs_cost_less(problem: tuple[list[float], int, int, Cost]) -> None:
    counts, num_bands, min_head, cost = problem
    bands = Bands.optimal(counts, num_bands, dim=1, factor=1, min_head=min_head, cost=cost)
    every = [
        cutoffs
        for cutoffs in combinations(range(1, len(counts)), num_bands - 1)
        if cutoffs == () or cutoffs[0] >= min_head
    ]
    assert bands.cutoffs in every
    least = min(expected_cost(cutoffs, counts, cost) for cutoffs in every)
    assert expected_cost(bands.cutoffs, counts, cost) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize(
    ("cutoffs", "speed_up"),
    [((23_037,), 3.9), ((7_192, 83_595), 7.1), ((3_414, 39_681, 127_092), 10.3)],
)
def test_known_optima_of_a_zipf_vocabulary_are_found(cutoffs: tuple[int, ...], speed_up: float) -> None:
    counts = zipf(267_744)
    bands = Bands.optimal(counts, len(cutoffs) + 1, dim=1024, cost=FLAT)
    assert bands.cutoffs == cutoffs
    assert 267_744 / FLAT.of(cutoffs, counts) == pytest.approx(speed_up, abs=0.05)


def test_a_vocabulary_of_800_thousand_words_is_no_trouble() -> None:
    counts = zipf(800_000)
    bands = Bands.optimal(counts, 3, dim=1024)
    assert bands.vocabulary_size == 800_000
    least = Cost().of(bands.cutoffs, counts)
    for step in (-5000, 5000):
        for moved in ((bands.cutoffs[0] + step, bands.cutoffs[1]), (bands.cutoffs[0], bands.cutoffs[1] + step)):
            assert Cost().of(moved, counts) > least


def test_the_head_is_as_large_as_asked() -> None:
    counts = zipf(2000)
    free = Bands.optimal(counts, 3, dim=64, cost=FLAT)
    words = free.cutoffs[0] + 100
    assert Bands.optimal(counts, 3, dim=64, cost=FLAT, min_head=words).cutoffs[0] == words
    massive = Bands.optimal(counts, 3, dim=64, cost=FLAT, min_head_mass=0.9).cutoffs[0]
    share = counts.cumsum(0) / counts.sum()
    assert share[massive - 1] >= 0.9 > share[massive - 2]
    assert Bands.optimal(counts, 3, dim=64, cost=FLAT, min_head=5, min_head_mass=0.01) == free


def test_special_words_may_stand_in_front() -> None:
    counts = torch.cat([torch.zeros(3, dtype=torch.float64), zipf(500)])
    bands = Bands.optimal(counts, 2, dim=64, num_specials=3, cost=FLAT)
    costs = [expected_cost((cutoff,), counts.tolist(), FLAT) for cutoff in range(1, 503)]
    assert bands.cutoffs == (1 + min(range(502), key=costs.__getitem__),)
    with pytest.raises(ValueError, match="at word 3; sort"):
        Bands.optimal(counts, 2, dim=64)


def test_the_same_counts_in_any_type_give_the_same_bands() -> None:
    counts = [1000 // (i + 1) for i in range(200)]
    bands = Bands.optimal(counts, 3, dim=64)
    assert bands == Bands.optimal(torch.tensor(counts), 3, dim=64)
    assert bands == Bands.optimal(tuple(counts), 3, dims=(64, 16, 4))


def test_one_band_needs_no_cutoff() -> None:
    assert Bands.optimal([3, 2, 1], 1, dim=8) == Bands(3, (), (8,))


@pytest.mark.parametrize("cutoffs", [(), (3,), (2, 7)])
def test_cost_is_what_its_formula_says(cutoffs: tuple[int, ...]) -> None:
    counts = [50.0, 20, 9, 8, 8, 4, 3, 1, 1]
    for cost in (FLAT, Cost(7, 2.0, 0.5, 10.0)):
        assert cost.of(cutoffs, counts) == pytest.approx(expected_cost(cutoffs, counts, cost))


def test_a_dear_band_makes_fewer_bands_best() -> None:
    counts = zipf(20_000)
    every = [Bands.optimal(counts, num_bands, dim=1024).cutoffs for num_bands in range(1, 6)]

    def best_number(per_band: float) -> int:
        costs = [Cost(per_band=per_band).of(cutoffs, counts) for cutoffs in every]
        return 1 + costs.index(min(costs))

    assert best_number(0.0) == 5 and best_number(1e9) == 1
    assert 1 < best_number(4e6) < 5


def test_a_fit_finds_the_numbers_its_times_were_made_of() -> None:
    sizes = [4.0**i for i in range(10)]
    per_band, per_score, floor = _fit(sizes, [2e-4 + 1e-9 * max(size, 5000.0) for size in sizes])
    assert (per_band, per_score, floor) == pytest.approx((2e-4, 1e-9, 5000.0), rel=1e-6)


def test_a_fit_of_noise_is_still_a_cost() -> None:
    for seconds in ([1e-5, 3e-5, 2e-5], [5e-5, 1e-5, 9e-5], [1e-5, 1e-5, 1e-5]):
        assert Cost(8, *_fit([1.0, 4.0, 16.0], seconds)).per_score > 0


def test_the_cost_of_this_machine_serves() -> None:
    cost = measure_cost(16, 256)
    assert cost.num_tokens == 256
    assert 0 < cost.per_score < 1e-3 and 0 <= cost.per_band < 1
    assert Bands.optimal(zipf(500), 3, dim=64, cost=cost).num_bands == 3
    with pytest.raises(ValueError, match="dim and num_tokens must be at least 1"):
        measure_cost(0)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="num_bands must leave a word to every tail"):
        Bands.optimal([3, 2, 1], 4, dim=64)
    with pytest.raises(ValueError, match="the head needs 3 and there are 1 tails"):
        Bands.optimal([3, 2, 1], 2, dim=64, min_head_mass=1.0)
    with pytest.raises(ValueError, match="num_bands must be at least 1"):
        Bands.optimal([3, 2, 1], 0, dim=64)
    with pytest.raises(ValueError, match="min_head must be at least 1"):
        Bands.optimal([3, 2, 1], 2, dim=64, min_head=0)
    with pytest.raises(ValueError, match="min_head_mass must be between 0 and 1"):
        Bands.optimal([3, 2, 1], 2, dim=64, min_head_mass=1.5)
    with pytest.raises(ValueError, match="not all zero"):
        Bands.optimal([0, 0], 2, dim=64)
    with pytest.raises(ValueError, match=r"got shape \(2, 2\)"):
        Bands.optimal(torch.ones(2, 2), 2, dim=64)
    with pytest.raises(ValueError, match="finite and not negative, got nan for word 1"):
        Bands.optimal([2, float("nan")], 2, dim=64)
    with pytest.raises(ValueError, match="rise from 2 to 3 at word 1"):
        Bands.optimal([2, 3], 2, dim=64)
    with pytest.raises(ValueError, match="use fewer bands, a larger dim"):
        Bands.optimal([3, 2, 1], 3, dim=8)


@pytest.mark.parametrize("name", ["num_tokens", "per_band", "per_score", "floor"])
def test_costs_below_zero_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        Cost(**{name: -1})
