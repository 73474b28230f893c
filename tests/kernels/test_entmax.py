"""The native entmax on hard values, any strides and every instruction level; contracts/test_kernel.py has the rest."""

import math
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anymax.kernels import entmax as ops
from anymax.kernels import library
from anymax.kernels.entmax import native, reference
from tests.each import each

ALPHAS = [0.0, 1e-6, 0.2, 0.5, 0.9, 0.999, 1.0, 1.00001, 1.01, 1.05, 1.1, 1.33, 1.5, 1.7, 1.9, 1.99, 2.0, 2.5, 4.0]


@pytest.fixture(params=library.machine_levels(), autouse=True)
def level(request: pytest.FixtureRequest):
    with library.use_cpu_level(request.param):
        if library.why_missing() is not None:
            pytest.skip(library.why_missing())
        yield request.param


def assert_agree(scores_RN: Tensor, alpha_A: Tensor) -> None:
    """Forward, conjugate and both gradients of the two backends."""
    atol = 3e-6 if scores_RN.dtype == torch.float32 else 1e-9
    probs_RN, wanted_RN = native.forward(scores_RN, alpha_A), reference.forward(scores_RN, alpha_A)
    torch.testing.assert_close(probs_RN, wanted_RN, rtol=0, atol=atol, equal_nan=True)
    # The conjugate is infinite at alpha 0.
    if (alpha_A > 0).all():
        same_RN, maxima_R = native.conjugate(scores_RN, alpha_A)
        wanted_R = reference.conjugate(scores_RN, alpha_A)[1]
        # Below alpha 1 the far tail counts. In float32 its powers are off by log(p) roundings, and those that underflow
        # are missing, though scores of 1e30 would give them weight.
        rtol, least = (1e-5, 2e-5) if (alpha_A < 1).any() else (1e-6, atol)
        torch.testing.assert_close(maxima_R, wanted_R, rtol=rtol, atol=least, equal_nan=True)
        torch.testing.assert_close(same_RN, probs_RN, rtol=0, atol=0, equal_nan=True)
    grad_RN = torch.randn_like(scores_RN)
    both = native.backward_both(grad_RN, wanted_RN, alpha_A)
    torch.testing.assert_close(
        both, reference.backward_both(grad_RN, wanted_RN, alpha_A), rtol=2e-5, atol=2e-5, equal_nan=True
    )
    torch.testing.assert_close(native.backward(grad_RN, wanted_RN, alpha_A), both[0], rtol=0, atol=0, equal_nan=True)


@each("num_rows", [1, 2, 7, 8, 9, 15, 16, 17, 300])
def test_rows_of_different_alpha_do_not_disturb_each_other(num_rows: int) -> None:
    scores_RN = torch.randn(num_rows, 37)
    alpha_R = torch.tensor(ALPHAS)[torch.randint(len(ALPHAS), (num_rows,))]
    assert_agree(scores_RN, alpha_R)
    together = native.forward(scores_RN, alpha_R)
    for row in range(num_rows):
        alone = native.forward(scores_RN[row : row + 1].contiguous(), alpha_R[row : row + 1].contiguous())
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=2e-6)


def test_a_row_may_be_its_own_result() -> None:
    for num_rows, n in product((1, 3, 5, 9, 40), (1, 7, 33, 64, 300)):
        scores_RN = torch.randn(num_rows, n)
        scores_RN[num_rows // 2] = -torch.inf
        for alpha_A in (torch.tensor([1.5]), torch.tensor(ALPHAS)[torch.randint(len(ALPHAS), (num_rows,))]):
            expected = native.forward(scores_RN, alpha_A)
            in_place = scores_RN.clone()
            native._forward(in_place, alpha_A, in_place, None)
            assert in_place.equal(expected)


@each("n", [5, 64, 700])
def test_ties_and_constant_rows_are_shared_evenly(n: int) -> None:
    for alpha in ALPHAS:
        probs = native.forward(torch.full((9, n), 3.25), torch.tensor([alpha]))
        torch.testing.assert_close(probs, torch.full((9, n), 1 / n), rtol=3e-6, atol=0)


def test_many_ties_are_shared_evenly_to_double_precision_above_two() -> None:
    probs = native.forward(torch.zeros(1, 30_000).double(), torch.tensor([3.0]).double())
    torch.testing.assert_close(probs, torch.full_like(probs, 1 / 30_000), rtol=1e-14, atol=0)


@each("alpha", [3, 5, 13])
@each("row", [(0.7, 0.3, 2**-30, 0.0), (0.25, 0.5, 0.25), (0.02,) * 50])
def test_gradients_above_two_are_right_where_a_small_probability_outweighs_the_others(alpha, row) -> None:
    for dtype, rtol in ((torch.float32, 2e-6), (torch.float64, 1e-13)):
        probs_RN = torch.tensor([row], dtype=dtype)
        grad_RN = torch.randn_like(probs_RN)
        p, g = ([Fraction(x) for x in t[0].tolist()] for t in (probs_RN, grad_RN))
        weights = [x ** (2 - alpha) if x else Fraction(0) for x in p]
        mean = sum(w * x for w, x in zip(weights, g, strict=True)) / sum(weights)
        by_scores = [float(w * (x - mean)) for w, x in zip(weights, g, strict=True)]
        slopes = [float(x) * (1 - (alpha - 1) * math.log(x)) / (alpha - 1) ** 2 if x else 0.0 for x in p]
        parts = [slope * float(x - mean) for slope, x in zip(slopes, g, strict=True)]
        for backend in (native, reference):
            got, got_alpha_R = backend.backward_both(grad_RN, probs_RN, torch.tensor([alpha], dtype=dtype))
            wanted = torch.tensor([by_scores], dtype=torch.float64)
            torch.testing.assert_close(got.double(), wanted, rtol=rtol, atol=rtol * wanted.abs().max().item())
            assert got_alpha_R.item() == pytest.approx(math.fsum(parts), rel=rtol, abs=rtol * max(map(abs, parts)))


@pytest.mark.parametrize("n", [6, 200])
def test_hard_rows_agree_with_the_reference(n: int) -> None:
    scores_RN = torch.randn(20, n)
    scores_RN[0] = -torch.inf
    scores_RN[1, 0] = torch.nan
    scores_RN[2, 1] = torch.inf
    scores_RN[3] = torch.finfo(torch.float32).max
    scores_RN[4] = torch.finfo(torch.float32).min
    scores_RN[5, : n // 2] = -torch.inf
    scores_RN[6] *= 1e30
    scores_RN[7] = 1e-40
    scores_RN[8] += 1e6
    for alpha in ALPHAS:
        assert_agree(scores_RN, torch.tensor([alpha]))


def test_a_long_row_sums_to_one_within_float_rounding() -> None:
    scores_RN = torch.randn(2, 1_000_003)
    for alpha in (0.0, 0.2, 0.5, 0.95, 1.0, 1.05, 1.33, 1.5, 2.0):
        for scale in (1e-3, 1.0):
            probs = native.forward(scores_RN * scale, torch.tensor([alpha]))
            torch.testing.assert_close(probs.double().sum(1), torch.ones(2, dtype=torch.float64), rtol=0, atol=3e-6)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    scores_RN, alpha_R = torch.randn(3000, 40), 2.5 * torch.rand(3000)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(native.forward(scores_RN, alpha_R))
            results.append(native.backward(scores_RN, results[0], alpha_R))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(results[2], results[0], rtol=0, atol=0)
    torch.testing.assert_close(results[3], results[1], rtol=0, atol=0)


def test_every_number_of_half_precision_is_read_as_it_is() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        # Up to where a row's sum is still a float.
        numbers = every[every.abs() < 1e36]
        # Of two entries at alpha 2 the gradient of (x, -x) is itself.
        for width in (2, 34):
            grad = torch.stack([numbers, -numbers], 1).repeat(1, width // 2)
            got = native.backward(grad, torch.ones_like(grad), torch.tensor([2.0]))
            assert got.equal(grad)


def test_half_precision_is_rounded_to_the_nearest_even_number() -> None:
    # Sums and differences of all sizes: between two numbers, halfway, below the smallest, above the largest.
    for dtype in (torch.float16, torch.bfloat16):
        numbers = torch.randint(-(2**15), 2**15, (2, 200_000)).to(torch.int16).view(dtype)
        close = torch.stack([numbers[0], numbers[0] * torch.tensor(1.01, dtype=dtype)])
        tiny = (torch.randint(-40, 40, (2, 5000)) * 2.0**-24).to(dtype)
        for pairs in (numbers, close, tiny):
            grad = pairs[:, pairs.isfinite().all(0)].T.contiguous()
            alpha_A, probs = torch.tensor([2.0]), torch.ones_like(grad)
            wide = native.backward(grad.float(), probs.float(), alpha_A)
            assert native.backward(grad, probs, alpha_A).equal(wide.to(dtype))


def test_a_row_of_half_precision_is_the_rounded_row() -> None:
    for dtype, num_rows, n in product((torch.float16, torch.bfloat16), (1, 9, 300), (1, 7, 64, 300, 2100)):
        scores_RN = (torch.randn(num_rows, n) * 2).to(dtype)
        for alpha_A in (torch.tensor([1.5]), torch.tensor(ALPHAS)[torch.randint(len(ALPHAS), (num_rows,))]):
            probs_RN = native.forward(scores_RN, alpha_A)
            assert probs_RN.equal(native.forward(scores_RN.float(), alpha_A).to(dtype))
            grad_RN = torch.randn(num_rows, n).to(dtype)
            both = native.backward_both(grad_RN, probs_RN, alpha_A)
            wide = native.backward_both(grad_RN.float(), probs_RN.float(), alpha_A)
            assert both[0].equal(wide[0].to(dtype)) and both[1].equal(wide[1])
            wide_alone = native.backward(grad_RN.float(), probs_RN.float(), alpha_A)
            assert native.backward(grad_RN, probs_RN, alpha_A).equal(wide_alone.to(dtype))


def test_an_alpha_below_zero_is_refused_by_both_backends() -> None:
    for backend in (native, reference):
        for alpha in (-0.5, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="alpha must be finite and at least 0"):
                backend.forward(torch.randn(2, 3), torch.tensor([1.5, alpha]))


# Anything a float can be, with the values that break things drawn often.
hard_floats = st.floats(width=32) | st.sampled_from(
    [0.0, -0.0, 1e-45, -1e-38, 3e38, -3e38, float("inf"), -float("inf")]
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_c_interface_survives_anything(data: st.DataObject) -> None:
    """No crash, nothing written outside the results, and each row a distribution, empty or NaN."""
    rows, n = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 70))
    values = data.draw(st.lists(hard_floats, min_size=1, max_size=40))
    scores = torch.tensor(values).repeat(rows * n // len(values) + 1)[: rows * n].reshape(rows, n).contiguous()
    num_alphas = rows if rows and data.draw(st.booleans()) else 1
    alpha = torch.tensor(
        data.draw(
            st.lists(
                st.floats(2**-10, 2, width=32) | st.floats(2, 50, width=32), min_size=num_alphas, max_size=num_alphas
            )
        )
    )
    guard = 16
    results = torch.full((guard + rows * n + guard,), 7.0)
    conjugates = torch.full((guard + rows + guard,), 7.0)
    call = native._FORWARD.of(torch.float32)
    at = results.data_ptr() + guard * 4
    assert call(scores.data_ptr(), alpha.data_ptr(), num_alphas, at, conjugates.data_ptr() + guard * 4, rows, n, 2) == 0
    for tensor in (results, conjugates):
        assert (tensor[:guard] == 7).all() and (tensor[-guard:] == 7).all()
    probs = results[guard : guard + rows * n].reshape(rows, n).clone()
    sums = probs.double().sum(1)
    assert (sums.isnan() | (sums == 0) | ((sums - 1).abs() < 1e-4)).all(), sums
    hopeless = scores.isnan().any(1) | (scores == torch.inf).any(1)
    assert (probs[hopeless].isnan()).all() and not probs[~hopeless].isnan().any()
    grad = torch.full((guard + rows * n + guard,), 7.0)
    backward = native._BACKWARD.of(torch.float32)
    arguments = (scores.data_ptr(), probs.data_ptr(), alpha.data_ptr(), num_alphas, grad.data_ptr() + guard * 4)
    assert backward(*arguments, conjugates.data_ptr() + guard * 4, rows, n, 2) == 0
    assert (grad[:guard] == 7).all() and (grad[-guard:] == 7).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_strides_give_what_contiguous_scores_give(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=2))
    steps = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    base = torch.randn(shape[0] * steps[0], shape[1] * steps[1])
    scores = base[:: steps[0], :: steps[1]]
    scores = scores.T if data.draw(st.booleans()) else scores
    alpha = torch.tensor([data.draw(st.sampled_from(ALPHAS))])
    torch.testing.assert_close(ops.entmax(scores, alpha), ops.entmax(scores.contiguous(), alpha), rtol=0, atol=0)
