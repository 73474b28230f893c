"""AdaptiveInput: each word from the table of its band, in the order the words came."""

import pytest
import torch
from torch import Tensor, nn

from anymax.vocabulary import AdaptiveInput, Bands

BANDS = Bands.from_sizes((4, 3, 6), dims=(8, 5, 2))


def one_by_one(layer: AdaptiveInput, ids: Tensor) -> Tensor:
    """Each word looked up by itself, in plain Python."""
    vectors = []
    for word in ids.flatten().tolist():
        band = sum(word >= cutoff for cutoff in layer.bands.cutoffs)
        row = layer.tables[band][word - (0, *layer.bands.cutoffs)[band]]
        vectors.append(layer.projections[band] @ row * (word != layer.padding_index))
    return torch.stack(vectors).view(*ids.shape, -1)


@pytest.mark.parametrize("padding_index", [None, 0, 5, 12])
def test_words_come_from_their_own_band_in_their_order(padding_index: int | None) -> None:
    layer = AdaptiveInput(BANDS, 7, padding_index=padding_index).double()
    # Every word, and some twice.
    ids = torch.cat([torch.arange(13), torch.randint(13, (11,))])[torch.randperm(24)].view(2, 3, 4)
    ours, expected = layer(ids), one_by_one(layer, ids)
    torch.testing.assert_close(ours, expected)
    weights = torch.randn_like(ours)
    parameters = list(layer.parameters())
    torch.testing.assert_close(
        torch.autograd.grad((ours * weights).sum(), parameters),
        torch.autograd.grad((expected * weights).sum(), parameters),
    )


def test_the_bands_not_asked_for_get_zero_gradients() -> None:
    layer = AdaptiveInput(BANDS, 7)
    layer(torch.tensor([4, 5, 6])).sum().backward()
    for band in range(3):
        for parameter in (layer.tables[band], layer.projections[band]):
            assert parameter.grad is not None
            assert (parameter.grad != 0).any() == (band == 1)


def test_published_parameter_count() -> None:
    bands = Bands.from_sizes((20_000, 40_000, 207_744), dim=1024)
    with torch.device("meta"):
        layer = AdaptiveInput(bands, 1024)
    assert sum(table.numel() for table in layer.tables) == 44_015_616
    assert sum(projection.numel() for projection in layer.projections) == 1_376_256
    assert [tuple(projection.shape) for projection in layer.projections] == [(1024, 1024), (1024, 256), (1024, 64)]


@pytest.mark.parametrize(("padding_index", "zeros"), [(1, [[1], [], []]), (6, [[], [2], []]), (None, [[], [], []])])
def test_only_the_row_of_padding_starts_at_zero(padding_index: int | None, zeros: list[list[int]]) -> None:
    layer = AdaptiveInput(BANDS, 7, padding_index=padding_index)
    assert [(table == 0).all(1).nonzero()[:, 0].tolist() for table in layer.tables] == zeros


def test_each_band_starts_at_the_scale_of_its_own_dimension() -> None:
    layer = AdaptiveInput(Bands.from_sizes((3000, 3000), dim=64), 64)
    assert [table.std().item() for table in layer.tables] == pytest.approx([64**-0.5, 16**-0.5], rel=0.02)
    bounds = [(6 / (64 + dim)) ** 0.5 for dim in (64, 16)]
    assert [p.abs().max().item() for p in layer.projections] == pytest.approx(bounds, rel=0.02)


def test_padding_stays_zero_when_its_row_does_not() -> None:
    layer = AdaptiveInput(BANDS, 7, padding_index=5)
    for table in layer.tables:
        nn.init.ones_(table)
    assert (layer(torch.tensor([5, 4, 6])) != 0).any(-1).tolist() == [False, True, True]


def test_one_band_is_a_projected_table() -> None:
    layer = AdaptiveInput(Bands.from_cutoffs((), 6, dim=4), 5)
    torch.testing.assert_close(layer(torch.arange(6)), layer.tables[0] @ layer.projections[0].T)


def test_shows_its_bands() -> None:
    shown = "AdaptiveInput(cutoffs=(4, 7), vocabulary_size=13, dims=(8, 5, 2), model_dim=7, padding_index=1"
    assert shown in repr(AdaptiveInput(BANDS, 7, padding_index=1)).replace("\n  ", "")
