"""The generic solver on problems whose answer is known."""

import pytest
import torch

import anymax


def test_negative_entropy_gives_softmax() -> None:
    scores = torch.randn(3, 4, 6, dtype=torch.float64)
    probs = anymax.regularized_argmax(scores, lambda p: (p * p.log()).sum())
    torch.testing.assert_close(probs, torch.softmax(scores, -1), rtol=0, atol=1e-9)


def test_a_weighted_square_gives_its_closed_form() -> None:
    # With a wide enough Omega all entries are chosen, and p_i = (s_i - tau) / w_i.
    scores, weights = (
        torch.tensor([0.3, 0.1, 0.2], dtype=torch.float64),
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
    )
    tau = ((scores / weights).sum() - 1) / (1 / weights).sum()
    probs = anymax.regularized_argmax(scores, lambda p: (weights * p**2).sum() / 2)
    torch.testing.assert_close(probs, (scores - tau) / weights, rtol=0, atol=1e-9)


def test_keeps_the_dtype_and_an_empty_batch() -> None:
    assert anymax.regularized_argmax(torch.randn(2, 3), lambda p: p @ p).dtype == torch.float32
    for shape in ((0, 3), (2, 0)):
        assert anymax.regularized_argmax(torch.randn(shape), lambda p: p @ p).shape == shape


def test_what_it_cannot_solve_is_refused() -> None:
    with pytest.raises(ValueError, match="scores must be finite"):
        anymax.regularized_argmax(torch.tensor([1.0, -torch.inf]), lambda p: p @ p)
    with pytest.raises(TypeError, match="scores must be floating point"):
        anymax.regularized_argmax(torch.tensor([1, 2]), lambda p: p @ p)
