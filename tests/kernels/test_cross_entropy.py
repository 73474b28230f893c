"""The cross-entropy kernel against torch's log-softmax in float64, on odd lengths, hard values and every level."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from anymax.kernels import library, use_backend
from anymax.kernels.cross_entropy import cross_entropy_
from tests.each import each

pytestmark = pytest.mark.usefixtures("engine")
WIDTHS = [1, 7, 8, 9, 63, 64, 65, 1000, 4097]
SMOOTHINGS = [0.0, 0.1, 1.0]
DTYPES = [torch.float32, torch.float64]


def expected(scores: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Losses and gradient of every row, in float64."""
    log_probs = scores.double().log_softmax(1)
    wanted = torch.full_like(log_probs, smoothing / scores.shape[1])
    wanted.scatter_add_(1, target[:, None], wanted.new_full((len(target), 1), 1 - smoothing))
    losses = -torch.where(wanted > 0, wanted * log_probs, 0).sum(1)
    return losses, log_probs.exp() - wanted


def assert_right(losses: Tensor, gradient: Tensor, scores: Tensor, target: Tensor, smoothing: float) -> None:
    wanted_losses, wanted_gradient = expected(scores, target, smoothing)
    eps = torch.finfo(scores.dtype).eps
    # A loss is a difference of numbers as large as the scores.
    size = 1 + scores.abs().max().item()
    torch.testing.assert_close(losses.double(), wanted_losses, rtol=4 * eps, atol=8 * eps * size)
    torch.testing.assert_close(gradient.double(), wanted_gradient, rtol=2 * size * eps, atol=4 * eps)


def drawn(num_rows: int, n: int, dtype: torch.dtype, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    return torch.randn(num_rows, n, dtype=dtype) * scale, torch.randint(n, (num_rows,))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@each("dtype", DTYPES)
@each("smoothing", SMOOTHINGS)
def test_losses_and_the_gradient_in_place_are_those_of_log_softmax(dtype: torch.dtype, smoothing: float) -> None:
    for n in WIDTHS:
        for scale in (0.1, 3.0, 50.0):
            scores, target = drawn(5, n, dtype, scale)
            gradient = scores.clone()
            losses = cross_entropy_(gradient, target, smoothing, wants_gradient=True)
            assert losses.shape == (5,) and losses.dtype == dtype
            assert_right(losses, gradient, scores, target, smoothing)


@each("dtype", DTYPES)
@each("smoothing", SMOOTHINGS)
def test_the_losses_are_the_same_where_no_gradient_is_wanted(dtype: torch.dtype, smoothing: float) -> None:
    for n in WIDTHS:
        scores, target = drawn(5, n, dtype)
        losses = cross_entropy_(scores.clone(), target, smoothing, wants_gradient=False)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(losses.double(), expected(scores, target, smoothing)[0], rtol=4 * eps, atol=99 * eps)


@each("wants_gradient", [True, False])
@each("dtype", DTYPES)
def test_rows_may_stand_apart_and_what_lies_between_them_stays(dtype: torch.dtype, wants_gradient: bool) -> None:
    num_rows, gap = 6, 13
    for n in (1, 7, 65, 1000):
        scores, target = drawn(num_rows, n, dtype)
        memory = torch.full((num_rows + 2, n + gap), 7.0, dtype=dtype)
        rows = memory[1:-1, 5 : n + 5]
        rows.copy_(scores)
        losses = cross_entropy_(rows, target, 0.1, wants_gradient=wants_gradient)
        if wants_gradient:
            assert_right(losses, rows, scores, target, 0.1)
        rows.fill_(7)
        assert (memory == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_class_at_minus_infinity_takes_no_part(dtype: torch.dtype) -> None:
    scores, target = drawn(4, 70, dtype)
    out = torch.rand(4, 70) < 0.5
    out.scatter_(1, target[:, None], False)
    gradient = scores.masked_fill(out, -torch.inf)
    losses = cross_entropy_(gradient, target, 0.0, wants_gradient=True)
    assert (gradient[out] == 0).all()
    for row in range(4):
        kept = ~out[row]
        place = kept[: target[row]].sum()[None]
        alone = scores[row, kept][None]
        assert_right(losses[row, None], gradient[row, kept][None], alone, place, 0.0)


def test_a_target_at_minus_infinity_costs_infinity() -> None:
    for wants_gradient in (True, False):
        scores = torch.tensor([[0.3, -torch.inf, 1.0]])
        assert cross_entropy_(scores, torch.tensor([1]), 0.0, wants_gradient=wants_gradient) == torch.inf
        # Smoothing gives every class a share of the target.
        scores = torch.tensor([[0.3, -torch.inf, 1.0]])
        assert cross_entropy_(scores, torch.tensor([0]), 0.1, wants_gradient=wants_gradient) == torch.inf


@each("poison", [torch.nan, torch.inf, -torch.inf])
@each("wants_gradient", [True, False])
def test_a_row_without_an_answer_says_nan_and_spoils_no_other(poison: float, wants_gradient: bool) -> None:
    others = torch.arange(5) != 2
    for n in (1, 9, 300):
        clean, target = drawn(5, n, torch.float32)
        scores = clean.clone()
        # One such entry is enough, but for -inf, which leaves a row without an answer if it is all there is.
        scores[2, n // 2 if poison != -torch.inf else slice(None)] = poison
        losses = cross_entropy_(scores, target, 0.1, wants_gradient=wants_gradient)
        assert losses[2].isnan()
        wanted_losses, _ = expected(clean, target, 0.1)
        torch.testing.assert_close(losses[others].double(), wanted_losses[others], rtol=1e-5, atol=1e-5)
        if wants_gradient:
            assert scores[2].isnan().any()
            assert_right(losses[others], scores[others], clean[others], target[others], 0.1)


@each("scale", [1e-3, 1.0, 10.0])
@each("smoothing", [0.0, 0.1])
def test_a_long_row_loses_nothing_in_float32(scale: float, smoothing: float) -> None:
    scores, target = drawn(3, 100_003, torch.float32, scale)
    gradient = scores.clone()
    losses = cross_entropy_(gradient, target, smoothing, wants_gradient=True)
    wanted_losses, wanted_gradient = expected(scores, target, smoothing)
    torch.testing.assert_close(losses.double(), wanted_losses, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient.double(), wanted_gradient, rtol=1e-5, atol=1e-10)
    assert gradient.double().sum(1).abs().max() < 1e-5


def test_extreme_scores_neither_overflow_nor_lose_the_loss() -> None:
    largest = torch.finfo(torch.float32).max
    scores = torch.tensor([[largest, -largest, 0.0], [3e38, 3e38, 3e38], [-3e38, -3e38, -3e38], [1e6, 1e6 + 1, 1e6]])
    gradient = scores.clone()
    losses = cross_entropy_(gradient, torch.tensor([0, 1, 2, 1]), 0.0, wants_gradient=True)
    wanted_losses, wanted_gradient = expected(scores, torch.tensor([0, 1, 2, 1]), 0.0)
    torch.testing.assert_close(losses.double(), wanted_losses, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient.double(), wanted_gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("wants_gradient", [True, False])
def test_the_bits_do_not_depend_on_the_number_of_threads(engine: str, wants_gradient: bool) -> None:
    if engine == "reference":
        pytest.skip("torch promises no such thing of its sums")
    scores, target = drawn(130, 1001, torch.float32)
    results = []
    for count in (1, 2, 5):
        with threads(count):
            work = scores.clone()
            results.append((cross_entropy_(work, target, 0.1, wants_gradient=wants_gradient), work))
    for losses, work in results[1:]:
        assert losses.equal(results[0][0]) and work.equal(results[0][1])


def test_no_rows_give_no_losses() -> None:
    scores = torch.empty(0, 7)
    assert cross_entropy_(scores, torch.empty(0, dtype=torch.long), 0.0, wants_gradient=True).shape == (0,)


def test_targets_of_any_stride_serve() -> None:
    scores, target = drawn(6, 20, torch.float64)
    spread = torch.stack([target, target], 1)[:, 0]
    assert not spread.is_contiguous()
    losses = cross_entropy_(scores.clone(), spread, 0.0, wants_gradient=True)
    assert losses.equal(cross_entropy_(scores.clone(), target, 0.0, wants_gradient=True))


def test_a_named_backend_says_why_it_cannot_run() -> None:
    if library.why_missing() is not None:
        pytest.skip(library.why_missing())
    with use_backend("native"):
        target = torch.zeros(3, dtype=torch.long)
        with pytest.raises(RuntimeError, match="the entries of a row must stand side by side"):
            cross_entropy_(torch.randn(4, 3).T, target, 0.0, wants_gradient=True)
        with pytest.raises(RuntimeError, match=r"it takes float32 and float64, and the scores are torch.float16"):
            cross_entropy_(torch.randn(3, 4).half(), target, 0.0, wants_gradient=True)
