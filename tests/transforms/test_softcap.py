"""Softcap: its bound, its slope, and what is refused."""

import pytest
import torch

from anymax.transforms import Softcap, softcap
from tests.each import each


def test_it_is_a_hyperbolic_tangent_that_leaves_small_scores_as_they_are() -> None:
    scores = torch.linspace(-200, 200, 401, dtype=torch.float64)
    torch.testing.assert_close(softcap(scores, 30.0), 30 * torch.tanh(scores / 30))
    assert (softcap(scores, 30.0).abs() <= 30).all() and (softcap(scores, 100.0).diff() > 0).all()
    small = torch.randn(5, dtype=torch.float64) * 1e-4
    torch.testing.assert_close(Softcap()(small), small, rtol=1e-9, atol=0)


@each("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_rounding_of_single(dtype: torch.dtype) -> None:
    scores = torch.linspace(-9, 9, 101).to(dtype)
    assert torch.equal(softcap(scores, 3.0), softcap(scores.float(), 3.0).to(dtype))


def test_gradients_agree_with_finite_differences_and_it_compiles() -> None:
    scores = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Softcap(2.0), scores)
    torch.testing.assert_close(
        torch.compile(Softcap(2.0), fullgraph=True, backend="aot_eager")(scores), softcap(scores, 2.0)
    )


def test_bad_input_is_refused() -> None:
    with pytest.raises(TypeError, match=r"scores must be floating point, got torch.int64"):
        softcap(torch.arange(3))
    for cap in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="cap must be a positive finite number"):
            Softcap(cap)
