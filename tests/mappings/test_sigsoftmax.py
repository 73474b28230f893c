"""Sig-softmax against its definition and a published vector."""

import torch

import anymax


def test_is_proportional_to_exp_times_sigmoid() -> None:
    scores = torch.randn(5, 6, dtype=torch.float64)
    weights = scores.exp() * scores.sigmoid()
    torch.testing.assert_close(anymax.sigsoftmax(scores), weights / weights.sum(-1, keepdim=True))


def test_gives_the_published_example() -> None:
    expected = torch.tensor([0.07192671, 0.23556371, 0.69250958])
    torch.testing.assert_close(anymax.sigsoftmax(torch.tensor([1.0, 2.0, 3.0])), expected)


def test_very_negative_rows_stay_finite() -> None:
    probs = anymax.sigsoftmax(torch.tensor([[-500.0, -501.0], [500.0, 499.0]]))
    torch.testing.assert_close(probs.sum(-1), torch.ones(2))
    torch.testing.assert_close(probs[0], torch.softmax(torch.tensor([2.0, 0.0]), -1))
