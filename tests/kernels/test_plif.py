"""The PLIF kernel on any numbers and threads, at every instruction level; contracts/test_kernel.py has the rest."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anymax.kernels import library
from anymax.kernels import plif as kernel
from anymax.kernels.plif import native, reference

needs_native = pytest.mark.skipif(library.why_missing() is not None, reason=f"{library.why_missing()}")
every_level = pytest.mark.parametrize("level", library.machine_levels())


def draw(shape: tuple[int, ...], num_pieces: int, dtype: torch.dtype, spread: float = 1.5) -> tuple[Tensor, ...]:
    """A gradient, scores that partly lie outside a bound of 2, and slopes."""
    generator = torch.Generator().manual_seed(math.prod(shape) + num_pieces)
    grad, scores = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    slopes = torch.rand(num_pieces, generator=generator, dtype=torch.float64) * 2
    slopes_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    return grad.to(dtype), (scores * spread).to(dtype), slopes.to(slopes_dtype)


def assert_equal(ours: Tensor, reference_result: Tensor, scale: float = 1.0) -> None:
    # The results differ by the rounding of the knots to the dtype and of the result.
    tolerance = 4 * torch.finfo(ours.dtype).eps
    torch.testing.assert_close(ours, reference_result, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_level_puts_every_score_into_the_same_piece(dtype: torch.dtype) -> None:
    # Scores on the knots and one step to either side, where a rounding would move them.
    knots = torch.linspace(-3, 3, 701, dtype=torch.float64).to(dtype)
    ends = torch.tensor([torch.inf], dtype=dtype)
    scores = torch.cat([knots, torch.nextafter(knots, ends), torch.nextafter(knots, -ends)])
    # Slopes that name their piece.
    slopes = torch.arange(1, 701, dtype=dtype)
    expected = reference.backward(torch.ones_like(scores), scores, slopes, 3.0)
    for level in library.machine_levels():
        with library.use_cpu_level(level):
            assert torch.equal(native.backward(torch.ones_like(scores), scores, slopes, 3.0), expected)


@needs_native
def test_a_fixed_number_of_threads_gives_the_same_bits() -> None:
    grad, scores, slopes = draw((150, 131), 1000, torch.float32)
    first = native.backward_both(grad, scores, slopes, 2.0)
    for _ in range(5):
        again = native.backward_both(grad, scores, slopes, 2.0)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@needs_native
@pytest.mark.parametrize("num_threads", [1, 2, 3, 64])
def test_any_number_of_threads_gives_the_same_gradient(num_threads: int) -> None:
    grad, scores, slopes = draw((150, 131), 100, torch.float64)
    expected = reference.backward_both(grad, scores, slopes, 2.0)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        results = native.backward_both(grad, scores, slopes, 2.0)
    finally:
        torch.set_num_threads(before)
    for ours, theirs in zip(results, expected, strict=True):
        assert_equal(ours, theirs, scale=float(grad.abs().sum()))


@needs_native
@every_level
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_input_crashes_the_library_and_all_agree_with_the_reference(level: str, data: st.DataObject) -> None:
    width, dtype = data.draw(st.sampled_from([(32, torch.float32), (64, torch.float64)]))
    count = data.draw(st.integers(0, 40))
    numbers = st.floats(width=width) | st.sampled_from(
        [math.nan, math.inf, -math.inf, 1e38, -1e38, -2.0, 2.0, 0.0, -0.0]
    )
    scores = torch.tensor(data.draw(st.lists(numbers, min_size=count, max_size=count)), dtype=dtype)
    grads = st.sampled_from([0.0, 1.0, -1.0, 0.25])
    grad = torch.tensor(data.draw(st.lists(grads, min_size=count, max_size=count)), dtype=dtype)
    slopes = st.lists(st.sampled_from([0.5, 1.0, 3.0, 1e-6]), min_size=1, max_size=9)
    slopes_K = torch.tensor(data.draw(slopes), dtype=dtype)
    bound = data.draw(st.sampled_from([2.0, 20.0, 1e-3, 1e6]))
    with library.use_cpu_level(level):
        result = native.forward(scores, slopes_K, bound)
        by_scores, by_slopes = native.backward_both(grad, scores, slopes_K, bound)
    expected = reference.forward(scores, slopes_K, bound)
    assert_equal(result, expected, scale=4 * bound)
    expected_scores, expected_slopes = reference.backward_both(grad, scores, slopes_K, bound)
    assert_equal(by_scores, expected_scores)
    finite = scores.double().nan_to_num(0, 0, 0).abs().sum() + count * bound
    # Beyond the largest number the order of a sum decides whether it is infinite.
    if finite < math.inf:
        assert_equal(by_slopes, expected_slopes, scale=float(finite))


@needs_native
@pytest.mark.parametrize("bound", [5e-324, 1e308, math.inf, math.nan, -1.0])
def test_a_grid_too_fine_or_coarse_for_doubles_is_refused(bound: float) -> None:
    _, scores, slopes = draw((5,), 10, torch.float64)
    with pytest.raises(ValueError, match="pieces must be"):
        native.forward(scores, slopes, bound)
    with pytest.raises(ValueError, match="pieces must be"):
        native.backward_both(scores, scores, slopes, bound)


def test_vmap_over_any_argument_equals_a_loop() -> None:
    grad, scores, _ = draw((4, 6), 7, torch.float64)
    slopes = torch.rand(4, 7, dtype=torch.float64)
    for operator, tensors in ((kernel.plif, (scores,)), (kernel.plif_backward, (grad, scores))):
        for slopes_dim in (None, 0):
            dims = (*(0 for _ in tensors), slopes_dim, None)
            given_slopes = slopes[0] if slopes_dim is None else slopes
            result = torch.vmap(operator, dims)(*tensors, given_slopes, 2.0)
            loop = [
                operator(*(t[i] for t in tensors), slopes[0] if slopes_dim is None else slopes[i], 2.0)
                for i in range(4)
            ]
            torch.testing.assert_close(result, torch.stack(loop))
    by_scores, by_slopes = torch.vmap(kernel.plif_backward_both, (1, 1, None, None))(grad, scores, slopes[0], 2.0)
    loop_both = [kernel.plif_backward_both(grad[:, i], scores[:, i], slopes[0], 2.0) for i in range(6)]
    torch.testing.assert_close(by_scores, torch.stack([both[0] for both in loop_both]))
    torch.testing.assert_close(by_slopes, torch.stack([both[1] for both in loop_both]))


def test_reference_is_the_interpolation_of_its_knots() -> None:
    _, scores, slopes = draw((1000,), 40, torch.float64, spread=0.6)
    scores = scores.clamp(-2, 2)
    knots = torch.cat([torch.tensor([-2.0]).double(), -2 + (slopes * 0.1).cumsum(0)])
    np = pytest.importorskip("numpy")
    expected = np.interp(scores.numpy(), np.linspace(-2, 2, 41), knots.numpy())
    torch.testing.assert_close(reference.forward(scores, slopes, 2.0), torch.from_numpy(expected))
