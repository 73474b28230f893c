"""Sigmoid against its definition, with a bias that is given, learned or the number of entries."""

import math

import pytest
import torch

import anymax
from anymax.mappings import Sigmoid


def test_the_bias_is_minus_the_log_of_the_entries_that_are_left() -> None:
    scores, mask = torch.randn(3, 6, dtype=torch.float64), torch.rand(3, 6) < 0.6
    for row in range(3):
        n = int(mask[row].sum())
        wanted = torch.where(mask[row], 1 / (1 + n * torch.exp(-scores[row])), 0)
        torch.testing.assert_close(anymax.sigmoid(scores, mask=mask)[row], wanted)
    # Scores of zero sum to about one.
    torch.testing.assert_close(anymax.sigmoid(torch.zeros(1000)).sum(), torch.tensor(1000 / 1001))


def test_a_bias_is_a_number_or_a_tensor_that_gets_a_gradient() -> None:
    scores = torch.randn(2, 3, 5, dtype=torch.float64)
    bias = torch.randn(3, 1, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(anymax.sigmoid(scores, bias), torch.sigmoid(scores + bias))
    assert torch.autograd.gradcheck(lambda bias: anymax.sigmoid(scores, bias), (bias,))
    torch.testing.assert_close(Sigmoid(-2.0, dim=1)(scores), torch.sigmoid(scores - 2))
    torch.testing.assert_close(Sigmoid(dim=1)(scores), torch.sigmoid(scores - math.log(3)))


def test_a_bias_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="bias must be finite, got inf; None is -log"):
        anymax.sigmoid(torch.randn(3), math.inf)
    with pytest.raises(ValueError, match="bias must broadcast against scores with size 1 along dim -1"):
        anymax.sigmoid(torch.randn(2, 3), torch.randn(3))
    with pytest.raises(TypeError, match="bias must be a number or a tensor, got str"):
        anymax.sigmoid(torch.randn(3), "log n")
