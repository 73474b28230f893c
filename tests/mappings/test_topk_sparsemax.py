"""Top-k sparsemax and its certificate."""

import pytest
import torch

import anymax


def test_at_most_k_entries_are_chosen_and_they_are_the_largest() -> None:
    scores = torch.randn(20, 30) * 0.1
    probs = anymax.topk_sparsemax(scores, 4)
    assert ((probs > 0).sum(-1) <= 4).all()
    assert (scores.masked_fill(probs == 0, torch.inf).amin(-1) >= scores.topk(4).values[:, -1]).all()


def test_is_sparsemax_of_the_k_largest() -> None:
    scores = torch.randn(20, 30) * 0.1
    values = anymax.topk_sparsemax(scores, 4).sort(-1, descending=True).values
    torch.testing.assert_close(values[:, :4], anymax.sparsemax(scores.topk(4).values), rtol=0, atol=1e-6)


def test_a_certified_row_equals_sparsemax() -> None:
    scores = torch.randn(200, 12) * torch.linspace(0.05, 2, 200)[:, None]
    probs = anymax.topk_sparsemax(scores, 5)
    certified = anymax.topk_sparsemax_is_exact(probs, 5)
    assert certified.any() and not certified.all()
    torch.testing.assert_close(probs[certified], anymax.sparsemax(scores[certified]), rtol=0, atol=1e-6)
    support = (anymax.sparsemax(scores) > 0).sum(-1)
    assert (certified == (support < 5)).all()


def test_with_every_entry_allowed_it_is_always_certified() -> None:
    scores = torch.zeros(3, 4)
    probs = anymax.topk_sparsemax(scores, 4)
    assert anymax.topk_sparsemax_is_exact(probs, 4).all()
    torch.testing.assert_close(probs, anymax.sparsemax(scores))


def test_the_certificate_follows_dim() -> None:
    probs = anymax.topk_sparsemax(torch.randn(6, 5), 2, dim=0)
    assert anymax.topk_sparsemax_is_exact(probs, 2, dim=0).shape == (5,)


@pytest.mark.parametrize("k", [0, -1, 6])
def test_a_k_outside_its_range_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="k must be between 1 and the 5 entries"):
        anymax.topk_sparsemax(torch.randn(3, 5), k)
    with pytest.raises(ValueError, match="k must be between 1 and the 5 entries"):
        anymax.topk_sparsemax_is_exact(torch.rand(3, 5), k)


def test_a_k_that_is_no_integer_is_refused() -> None:
    with pytest.raises(TypeError, match="k must be an integer"):
        anymax.topk_sparsemax(torch.randn(3, 5), 2.5)
