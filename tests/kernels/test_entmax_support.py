"""Entmax in place, as lists of what was chosen: the lists, their capacity, the derivative by alpha, the products."""

import mpmath
import pytest
import torch
from torch import Tensor, nn

from anymax.kernels import entmax as ops
from anymax.kernels import library
from anymax.kernels.entmax.omega import tsallis_by_alpha
from tests.each import each
from tests.kernels.test_cross_entropy import threads

ALPHAS = [1.0, 1.3, 1.5, 2.0, 3.0]
DTYPES = [torch.float32, torch.float64]
# Rows longer than any that the dense kernel takes several of at a time.
LONG = 700
ROOMY = 10**9


@pytest.fixture
def native_engine(engine: str) -> str:
    if engine == "reference":
        pytest.skip("the reference makes no lists")
    return engine


def unlisted(rows_RN: Tensor, counts_R: Tensor | None) -> Tensor:
    """The probabilities of rows that may be lists."""
    if counts_R is None:
        return rows_RN.clone()
    probs_RN = torch.zeros(rows_RN.shape, dtype=rows_RN.dtype)
    for row, count in enumerate(counts_R.tolist()):
        if count:
            words = rows_RN[row].clone().view(torch.int32)[-count:].long()
            assert words.unique().numel() == count
            probs_RN[row, words] = rows_RN[row, :count]
    return probs_RN


def drawn(num_rows: int, n: int, dtype: torch.dtype, scale: float = 4.0) -> Tensor:
    return torch.randn(num_rows, n, dtype=dtype) * scale


def alphas(*values: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@each("alpha", ALPHAS)
@each("dtype", DTYPES)
def test_the_lists_are_entmax_to_the_bit(engine: str, alpha: float, dtype: torch.dtype) -> None:
    for n in (LONG, 1000, 4097):
        scores, alpha_A = drawn(9, n, dtype), alphas(alpha, dtype=dtype)
        rows = scores.clone()
        support = ops.support_(rows, alpha_A, capacity=ROOMY, wants_by_alpha=False)
        dense, conjugate = ops.entmax_conjugate(scores, alpha_A)
        # Softmax chooses all, and then there is nothing to list.
        assert (support.counts_R is None) == (engine == "reference" or alpha == 1)
        assert unlisted(rows, support.counts_R).equal(dense)
        assert support.conjugate_R.equal(conjugate) and support.top_R.equal(scores.amax(1))
        assert support.by_alpha_R is None
        if support.counts_R is not None:
            assert support.counts_R.equal((dense > 0).sum(1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_short_rows_of_odd_lengths_are_entmax(engine: str, dtype: torch.dtype) -> None:
    atol = 3e-6 if dtype == torch.float32 else 1e-12
    for n in (1, 2, 3, 7, 8, 9, 31, 33, 63, 64, 65, 129):
        for alpha in ALPHAS:
            scores, alpha_A = drawn(7, n, dtype), alphas(alpha, dtype=dtype)
            rows = scores.clone()
            support = ops.support_(rows, alpha_A, capacity=ROOMY, wants_by_alpha=False)
            dense, conjugate = ops.entmax_conjugate(scores, alpha_A)
            torch.testing.assert_close(unlisted(rows, support.counts_R), dense, rtol=0, atol=atol)
            torch.testing.assert_close(support.conjugate_R, conjugate, rtol=1e-6, atol=atol)


@pytest.mark.parametrize("capacity", [0, ROOMY])
def test_rows_may_have_each_their_own_alpha(engine: str, capacity: int) -> None:
    scores = drawn(40, LONG, torch.float32, 8.0)
    alpha_R = torch.tensor(ALPHAS[1:])[torch.randint(len(ALPHAS) - 1, (40,))]
    rows = scores.clone()
    support = ops.support_(rows, alpha_R, capacity=capacity, wants_by_alpha=True)
    for row in range(40):
        alone = scores[row : row + 1].clone()
        single = ops.support_(alone, alpha_R[row : row + 1], capacity=capacity, wants_by_alpha=True)
        torch.testing.assert_close(single.conjugate_R[0], support.conjugate_R[row], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(single.by_alpha_R[0], support.by_alpha_R[row], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(unlisted(rows, support.counts_R), ops.entmax(scores, alpha_R), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_capacity_is_kept_to_the_entry(native_engine: str, dtype: torch.dtype) -> None:
    scores, alpha_A = drawn(30, LONG, dtype), alphas(1.5, dtype=dtype)
    dense = ops.entmax(scores, alpha_A)
    total = int((dense > 0).sum())
    for count in (1, 2):
        with threads(count):
            for capacity in (0, 1, total - 1, total, total + 1):
                rows = scores.clone()
                support = ops.support_(rows, alpha_A, capacity=capacity, wants_by_alpha=False)
                assert (support.counts_R is not None) == (capacity >= total)
                assert unlisted(rows, support.counts_R).equal(dense)


@each("n", [64, 65, LONG])
def test_a_row_that_fills_more_than_half_of_itself_is_not_listed(native_engine: str, n: int) -> None:
    alpha_A = torch.tensor([1.5])
    for chosen in (n // 2, n // 2 + 1):
        scores = torch.full((3, n), -50.0)
        scores[:, torch.randperm(n)[:chosen]] = 1.0
        rows = scores.clone()
        support = ops.support_(rows, alpha_A, capacity=ROOMY, wants_by_alpha=False)
        assert (support.counts_R is not None) == (2 * chosen <= n)
        wanted = torch.where(scores > 0, 1 / chosen, 0.0)
        torch.testing.assert_close(unlisted(rows, support.counts_R), wanted, rtol=1e-5, atol=0)


@each("capacity", [0, ROOMY])
@each("dtype", DTYPES)
def test_what_lies_between_rows_stays(engine: str, capacity: int, dtype: torch.dtype) -> None:
    for n in (9, 65, LONG):
        scores, alpha_A = drawn(6, n, dtype), alphas(1.5, dtype=dtype)
        memory = torch.full((8, n + 11), 7.0, dtype=dtype)
        rows = memory[1:-1, 4 : n + 4]
        rows.copy_(scores)
        support = ops.support_(rows, alpha_A, capacity=capacity, wants_by_alpha=True)
        probs = unlisted(rows, support.counts_R)
        torch.testing.assert_close(probs, ops.entmax(scores, alpha_A), rtol=0, atol=3e-6)
        rows.fill_(7)
        assert (memory == 7).all()


@each("capacity", [0, ROOMY])
@each("poison", [torch.nan, torch.inf])
def test_a_row_without_an_answer_says_nan_and_spoils_no_other(engine: str, capacity: int, poison: float) -> None:
    for place in (0, 1, LONG - 1):
        scores, alpha_A = drawn(5, LONG, torch.float32), torch.tensor([1.4])
        clean = scores.clone()
        scores[3, place] = poison
        support = ops.support_(scores, alpha_A, capacity=capacity, wants_by_alpha=True)
        assert support.counts_R is None
        assert scores[3].isnan().all() and support.conjugate_R[3].isnan() and support.by_alpha_R[3].isnan()
        others = torch.arange(5) != 3
        assert scores[others].equal(ops.entmax(clean, alpha_A)[others])
        assert support.conjugate_R[others].isfinite().all() and support.by_alpha_R[others].isfinite().all()


def test_a_row_with_nothing_to_choose_from_is_empty(engine: str) -> None:
    scores = drawn(4, LONG, torch.float32)
    scores[1] = -torch.inf
    support = ops.support_(scores, torch.tensor([1.5]), capacity=ROOMY, wants_by_alpha=True)
    probs = unlisted(scores, support.counts_R)
    assert (probs[1] == 0).all() and support.conjugate_R[1] == 0 and support.by_alpha_R[1] == 0
    torch.testing.assert_close(probs.sum(1), torch.tensor([1.0, 0.0, 1.0, 1.0]))


def omega_by_alpha_exactly(probs: Tensor, alpha: float) -> float:
    """The derivative of sum(p^alpha - p) / (alpha (alpha - 1)) in 60 digits; its limit if alpha is 1."""
    with mpmath.workdps(60):
        p = [mpmath.mpf(value) for value in probs.tolist() if value > 0]

        def omega(at: mpmath.mpf) -> mpmath.mpf:
            return sum(q**at - q for q in p) / (at * (at - 1))

        # Differences over a step that avoids alpha 1, where the formula is 0 / 0.
        at, step = mpmath.mpf(alpha), mpmath.mpf(10) ** -15
        return float((omega(at + step) - omega(at - step)) / (2 * step))


@each("alpha", [1.0, 1.0000002, 1.00001, 1.001, 1.05, 1.3, 1.5, 2.0, 3.0, 6.0])
@each("dtype", DTYPES)
def test_the_derivative_of_omega_by_alpha_is_exact(engine: str, alpha: float, dtype: torch.dtype) -> None:
    tolerance = 2e-6 if dtype == torch.float32 else 1e-13
    for n in (2, 9, 40):
        for scale in (0.01, 1.0, 6.0):
            rows, alpha_A = drawn(1, n, dtype, scale), alphas(alpha, dtype=dtype)
            support = ops.support_(rows, alpha_A, capacity=0, wants_by_alpha=True)
            wanted = omega_by_alpha_exactly(rows[0], alpha_A.item())
            assert support.by_alpha_R.item() == pytest.approx(wanted, rel=tolerance, abs=tolerance)
            in_torch = tsallis_by_alpha(rows.double(), alpha_A.double())
            assert in_torch.item() == pytest.approx(wanted, rel=1e-13, abs=1e-13)


def test_the_derivative_does_not_depend_on_the_list(engine: str) -> None:
    scores, alpha_A = drawn(9, LONG, torch.float32), torch.tensor([1.3])
    results = [
        ops.support_(scores.clone(), alpha_A, capacity=capacity, wants_by_alpha=True).by_alpha_R
        for capacity in (0, 3, ROOMY)
    ]
    assert results[1].equal(results[0]) and results[2].equal(results[0])


@each("capacity", [0, 20_000, ROOMY])
def test_the_bits_do_not_depend_on_the_number_of_threads(native_engine: str, capacity: int) -> None:
    scores, alpha_R = drawn(200, LONG, torch.float32), 1.2 + torch.rand(200)
    results = []
    for count in (1, 2, 5):
        with threads(count):
            rows = scores.clone()
            support = ops.support_(rows, alpha_R, capacity=capacity, wants_by_alpha=True)
            results.append((unlisted(rows, support.counts_R), support.top_R, support.conjugate_R, support.by_alpha_R))
    for result in results[1:]:
        assert all(got.equal(wanted) for got, wanted in zip(result, results[0], strict=True))


def test_an_alpha_below_zero_is_refused(engine: str) -> None:
    for alpha in (-0.5, torch.nan, torch.inf):
        with pytest.raises(ValueError, match=f"alpha must be finite and at least 0, got {alpha}"):
            ops.support_(torch.randn(2, 3), torch.tensor([1.5, alpha]), capacity=0, wants_by_alpha=False)
    with pytest.raises(ValueError, match=r"1 or 2 entries, one per row, got torch\.float32 with 3"):
        ops.support_(torch.randn(2, 5), torch.full((3,), 1.5), capacity=0, wants_by_alpha=False)
    with pytest.raises(ValueError, match=r"alpha must be torch\.float32 .* got torch\.float64"):
        ops.support_(torch.randn(2, 5), alphas(1.5, dtype=torch.float64), capacity=0, wants_by_alpha=False)


@each("dim", [1, 3, 8, 17, 64])
@each("dtype", DTYPES)
def test_products_of_lists_are_those_of_the_dense_rows(native_engine: str, dim: int, dtype: torch.dtype) -> None:
    num_rows = 33
    memory = drawn(num_rows, LONG + 5, dtype)
    rows = memory[:, :LONG]
    probs = ops.entmax(rows.contiguous(), alphas(1.5, dtype=dtype))
    counts = ops.support_(rows, alphas(1.5, dtype=dtype), capacity=ROOMY, wants_by_alpha=False).counts_R
    assert counts is not None
    coefficient = torch.randn(num_rows, dtype=dtype)
    weight, hidden = torch.randn(LONG, dim, dtype=dtype), torch.randn(num_rows, dim, dtype=dtype)
    target, peak = torch.randint(LONG, (num_rows,)), 0.9
    at_target = nn.functional.one_hot(target, LONG).to(dtype)
    weighted = coefficient[:, None] * (probs - peak * at_target)
    before = torch.randn(LONG, dim, dtype=dtype), torch.randn(LONG, dtype=dtype)
    wanted = (weighted @ weight, before[0] + weighted.T @ hidden, before[1] + weighted.sum(0))
    eps = torch.finfo(dtype).eps
    results = []
    for count in (1, 2, 5):
        with threads(count):
            into = (torch.full((num_rows, dim), torch.nan, dtype=dtype), before[0].clone(), before[1].clone())
            ops.add_products(
                rows,
                counts,
                target,
                coefficient,
                weight,
                hidden,
                peak=peak,
                into_hidden_RD=into[0],
                into_weight_ND=into[1],
                into_bias_N=into[2],
            )
        torch.testing.assert_close(into, wanted, rtol=30 * eps, atol=30 * eps)
        results.append(into)
    for result in results[1:]:
        assert all(got.equal(first) for got, first in zip(result, results[0], strict=True))


def test_each_product_can_be_left_out(native_engine: str) -> None:
    rows = drawn(4, LONG, torch.float32)
    counts = ops.support_(rows, torch.tensor([1.5]), capacity=ROOMY, wants_by_alpha=False).counts_R
    weight, hidden, coefficient = torch.randn(LONG, 6), torch.randn(4, 6), torch.randn(4)
    target = torch.randint(LONG, (4,))
    names = ("into_hidden_RD", "into_weight_ND", "into_bias_N")

    def products(wanted: tuple[str, ...]) -> dict[str, Tensor | None]:
        shapes = ((4, 6), (LONG, 6), (LONG,))
        into = {name: torch.zeros(shape) if name in wanted else None for name, shape in zip(names, shapes, strict=True)}
        ops.add_products(rows, counts, target, coefficient, weight, hidden, peak=1.0, **into)
        return into

    together = products(names)
    for name in names:
        alone = products((name,))
        assert alone[name].equal(together[name]) and alone[name].abs().sum() > 0
    assert products(()) == dict.fromkeys(names)


def test_empty_lists_make_no_product(native_engine: str) -> None:
    rows = torch.full((3, LONG), -torch.inf)
    counts = ops.support_(rows, torch.tensor([1.5]), capacity=1, wants_by_alpha=False).counts_R
    assert counts.tolist() == [0, 0, 0]
    into_hidden, into_weight = torch.full((3, 5), torch.nan), torch.zeros(LONG, 5)
    ops.add_products(
        rows,
        counts,
        torch.zeros(3, dtype=torch.int64),
        torch.ones(3),
        torch.randn(LONG, 5),
        torch.randn(3, 5),
        peak=0.0,
        into_hidden_RD=into_hidden,
        into_weight_ND=into_weight,
        into_bias_N=None,
    )
    assert (into_hidden == 0).all() and (into_weight == 0).all()


def test_no_rows_make_an_empty_answer(engine: str) -> None:
    support = ops.support_(torch.empty(0, 9), torch.tensor([1.5]), capacity=ROOMY, wants_by_alpha=True)
    assert support.top_R.shape == support.conjugate_R.shape == support.by_alpha_R.shape == (0,)


def test_levels_agree_on_the_lists() -> None:
    if library.why_missing() is not None:
        pytest.skip(library.why_missing())
    scores, alpha_A = drawn(20, LONG, torch.float64), alphas(1.5, dtype=torch.float64)
    results = []
    for level in library.machine_levels():
        with library.use_cpu_level(level):
            rows = scores.clone()
            support = ops.support_(rows, alpha_A, capacity=ROOMY, wants_by_alpha=False)
            results.append((support.counts_R, unlisted(rows, support.counts_R)))
    for counts, probs in results[1:]:
        assert counts.equal(results[0][0])
        torch.testing.assert_close(probs, results[0][1], rtol=0, atol=1e-14)
