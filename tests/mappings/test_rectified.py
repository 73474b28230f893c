"""Rectified against its definition."""

import pytest
import torch

import anymax
from anymax.mappings import Rectified


def test_weights_are_powers_of_what_is_above_zero_over_the_number_of_entries() -> None:
    scores, mask = torch.randn(4, 6, dtype=torch.float64), torch.rand(4, 6) < 0.6
    mask[:, 0] = True
    for power in (1, 2, 1.5):
        wanted = torch.where(mask & (scores > 0), scores.abs() ** power, 0) / mask.sum(-1, keepdim=True)
        torch.testing.assert_close(anymax.rectified(scores, power, mask=mask), wanted)
        torch.testing.assert_close(Rectified(power, dim=0)(scores), anymax.rectified(scores.T, power).T)


def test_a_power_that_has_no_slope_at_zero_is_refused() -> None:
    for power in (0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"power must be finite and at least 1, got"):
            anymax.rectified(torch.randn(3), power)
