"""SignedLog: softmax of it is stablemax, and its slope is right at zero."""

import pytest
import torch

from anymax.transforms import SignedLog, signed_log
from tests.each import each


def test_softmax_of_it_is_stablemax() -> None:
    scores = torch.randn(5, 7, dtype=torch.float64) * 10
    weights = torch.where(scores >= 0, scores + 1, 1 / (1 - scores))
    torch.testing.assert_close(torch.softmax(signed_log(scores), -1), weights / weights.sum(-1, keepdim=True))


def test_it_rises_and_far_scores_stay_finite() -> None:
    scores = torch.tensor([-1e30, -200.0, -1e-30, 0.0, 1e-30, 200.0, 1e30], requires_grad=True)
    results = signed_log(scores)
    assert (results.diff() > 0).all() and results.isfinite().all()
    results.sum().backward()
    assert scores.grad is not None
    torch.testing.assert_close(scores.grad, 1 / (1 + scores.detach().abs()))
    torch.testing.assert_close(signed_log(torch.tensor([-torch.inf, torch.inf])), torch.tensor([-torch.inf, torch.inf]))


@each("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_rounding_of_single(dtype: torch.dtype) -> None:
    scores = torch.linspace(-9, 9, 101).to(dtype)
    assert torch.equal(signed_log(scores), signed_log(scores.float()).to(dtype))


def test_gradients_agree_with_finite_differences_and_it_compiles() -> None:
    scores = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(signed_log, scores) and torch.autograd.gradgradcheck(signed_log, scores)
    torch.testing.assert_close(
        torch.compile(SignedLog(), fullgraph=True, backend="aot_eager")(scores), signed_log(scores)
    )


def test_integer_scores_are_refused() -> None:
    with pytest.raises(TypeError, match=r"scores must be floating point, got torch.int64"):
        signed_log(torch.arange(3))
