"""FixedInput: one table, and a projection where it is narrower than the model."""

import pytest
import torch
from torch import nn

from anymax.vocabulary import FixedInput


def test_equals_torch_with_the_same_weights() -> None:
    layer = FixedInput(11, 8, dim=3)
    table, projection = nn.Embedding(11, 3), nn.Linear(3, 8, bias=False)
    with torch.no_grad():
        table.weight.copy_(layer.table)
        projection.weight.copy_(layer.projection)
    ids, weights = torch.randint(11, (4, 5)), torch.randn(4, 5, 8)
    ours, theirs = layer(ids), projection(table(ids))
    torch.testing.assert_close(ours, theirs)
    grads = torch.autograd.grad((ours * weights).sum(), [layer.table, layer.projection])
    expected = torch.autograd.grad((theirs * weights).sum(), [table.weight, projection.weight])
    torch.testing.assert_close(grads, expected)


def test_a_table_as_wide_as_the_model_needs_no_projection() -> None:
    for layer in (FixedInput(5, 6), FixedInput(5, 6, dim=6)):
        assert layer.projection is None and list(layer.state_dict()) == ["table"]
        assert torch.equal(layer(torch.arange(5)), layer.table)


def test_published_parameter_counts() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in FixedInput(267_744, 1024, dim=64).parameters()) == 267_744 * 64 + 64 * 1024
        assert sum(p.numel() for p in FixedInput(33_337, 1024).parameters()) == 33_337 * 1024


def test_rows_start_with_a_length_of_about_one() -> None:
    layer = FixedInput(4000, 64, dim=16, padding_index=7)
    assert layer.table.std().item() == pytest.approx(16**-0.5, rel=0.02)
    bound = (6 / (64 + 16)) ** 0.5
    assert layer.projection.abs().max().item() == pytest.approx(bound, rel=0.02)
    assert (layer.table == 0).all(1).nonzero().tolist() == [[7]]


def test_padding_stays_zero_when_its_row_does_not() -> None:
    layer = FixedInput(5, 6, padding_index=0)
    nn.init.ones_(layer.table)
    assert layer(torch.tensor([0, 1])).sum(-1).tolist() == [0, 6]


def test_sizes_below_one_are_refused() -> None:
    for sizes, options in (((0, 4), {}), ((4, 0), {}), ((4, 4), {"dim": 0})):
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            FixedInput(*sizes, **options)


def test_shows_its_sizes() -> None:
    assert repr(FixedInput(5, 6, dim=2)) == "FixedInput(vocabulary_size=5, model_dim=6, dim=2, padding_index=None)"
