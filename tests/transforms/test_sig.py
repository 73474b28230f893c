"""Sig: stable everywhere, increasing, and softmax of it is sig-softmax."""

import pytest
import torch

from anymax.transforms import Sig, sig


def test_softmax_of_it_is_the_published_sig_softmax() -> None:
    probs = torch.softmax(sig(torch.tensor([1.0, 2.0, 3.0])), -1)
    torch.testing.assert_close(probs, torch.tensor([0.07192671, 0.23556371, 0.69250958]))
    scores = torch.linspace(-5, 5, 11, dtype=torch.float64)
    product = scores.exp() * scores.sigmoid()
    torch.testing.assert_close(torch.softmax(sig(scores), -1), product / product.sum())


def test_other_arguments_give_its_published_generalisation() -> None:
    scores = torch.linspace(-9, 9, 101, dtype=torch.float64)
    centre, k = -1.5, 2.5
    expected = k * (scores - centre) + centre - (k - 1) * torch.nn.functional.softplus(scores - centre, threshold=1e9)
    torch.testing.assert_close(sig(scores, shift=centre, slope=k), expected)
    torch.testing.assert_close(Sig(shift=centre, slope=k)(scores), expected)


def test_far_scores_neither_overflow_nor_lose_their_gradient() -> None:
    scores = torch.tensor([-1e30, -200.0, 200.0, 1e30, -torch.inf, torch.inf], requires_grad=True)
    results = sig(scores)
    torch.testing.assert_close(results, torch.tensor([-2e30, -400.0, 200.0, 1e30, -torch.inf, torch.inf]))
    results.nan_to_num(0, 0, 0).sum().backward()
    torch.testing.assert_close(scores.grad[:4], torch.tensor([2.0, 2.0, 1.0, 1.0]))  # type: ignore[index]
    assert scores.grad is not None and scores.grad.isfinite().all()


@pytest.mark.parametrize("slope", [0.3, 1.0, 2.0, 5.0])
def test_larger_scores_give_larger_results(slope: float) -> None:
    assert bool((sig(torch.linspace(-50, 50, 1001), slope=slope).diff() > 0).all())


def test_gradients_match_finite_differences_twice() -> None:
    torch.manual_seed(0)
    scores = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sig, scores)
    assert torch.autograd.gradgradcheck(sig, scores)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_rounding_of_single(dtype: torch.dtype) -> None:
    scores = torch.linspace(-9, 9, 101).to(dtype)
    assert torch.equal(sig(scores), sig(scores.float()).to(dtype))


def test_compiled_and_vmapped_equal_eager() -> None:
    scores = torch.linspace(-3, 3, 12).reshape(3, 4)
    torch.testing.assert_close(torch.compile(Sig(), fullgraph=True, backend="aot_eager")(scores), sig(scores))
    torch.testing.assert_close(torch.vmap(sig)(scores), sig(scores))
    assert sig(scores[:0]).shape == (0, 4)


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"scores must be floating point, got torch\.int64"):
        sig(torch.arange(3))
    with pytest.raises(ValueError, match=r"slope must be a positive finite number, got 0\.0"):
        Sig(slope=0.0)
