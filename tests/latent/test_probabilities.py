"""Drawing from rows of probabilities."""

import pytest
import torch

from anymax.latent.latent import draw


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_are_drawn_as_often_as_they_are_probable(dtype: torch.dtype):
    probs = torch.tensor([[0.1, 0.0, 0.6, 0.3], [0.0, 1.0, 0.0, 0.0]], dtype=dtype)
    drawn = draw(probs.unsqueeze(1).expand(-1, 20_000, -1), None)
    counts = torch.stack([row.bincount(minlength=4) for row in drawn])
    torch.testing.assert_close(counts / 20_000, probs.float(), rtol=0, atol=0.012)
    assert (counts[probs == 0] == 0).all()


@pytest.mark.parametrize("point", [0.0, 1 - 2**-53])
def test_the_ends_of_the_line_are_no_way_out_of_the_support(point: float, monkeypatch: pytest.MonkeyPatch):
    """The smallest and the largest number that torch.rand can give."""
    probs = torch.rand(500, 9) * (torch.rand(500, 9) < 0.4)
    probs[:, 4] += 1e-6
    probs /= probs.sum(-1, keepdim=True)
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, **_: torch.full(shape, point, dtype=dtype))
    drawn = draw(probs, None)
    support = (probs > 0).long()
    expected = support.argmax(-1) if point == 0 else 8 - support.flip(-1).argmax(-1)
    assert torch.equal(drawn, expected)


def test_a_generator_decides_what_is_drawn():
    probs = torch.softmax(torch.randn(50, 7), -1)
    first, second = (draw(probs, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second) and not torch.equal(first, draw(probs, None))


def test_small_probabilities_behind_a_large_one_are_reached(monkeypatch: pytest.MonkeyPatch):
    """In single precision the running sum would stand still at the first entry."""
    probs = torch.full((1, 100_001), 2e-8)
    probs[0, 0] = 0.998
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, **_: torch.full(shape, 0.999, dtype=dtype))
    assert draw(probs, None).item() == pytest.approx(50_000, rel=0.01)
