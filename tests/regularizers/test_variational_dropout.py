"""Variational dropout: one mask along a dimension, another one for every sample and call."""

import pytest
import torch

from anymax.regularizers import VariationalDropout, variational_dropout


@pytest.mark.parametrize("dim", [0, 1, -2, -3])
def test_masks_are_shared_along_the_dimension_alone(dim: int) -> None:
    dropped = VariationalDropout(0.5, dim=dim)(torch.ones(40, 30, 20)).movedim(dim, 0)
    assert (dropped == dropped[0]).all()
    # Every row along another dimension has a mask of its own, as good as surely.
    for other in (0, 1):
        assert dropped[0].unique(dim=other).shape[other] == dropped[0].shape[other]


def test_what_stays_is_scaled_and_as_frequent_as_it_should_be() -> None:
    vectors = torch.randn(1, 400, 300)
    dropped = variational_dropout(vectors, 0.3, dim=0, training=True)
    kept = dropped != 0
    assert kept.double().mean().item() == pytest.approx(0.7, abs=0.01)
    torch.testing.assert_close(dropped[kept], vectors[kept] / 0.7)


def test_every_call_draws_anew() -> None:
    dropout, vectors = VariationalDropout(0.5, dim=1), torch.ones(2, 3, 50)
    assert not torch.equal(dropout(vectors), dropout(vectors))


def test_the_vectors_themselves_come_back_where_nothing_is_dropped() -> None:
    vectors = torch.ones(2, 3)
    assert VariationalDropout(0.0, dim=0)(vectors) is vectors
    assert VariationalDropout(0.5, dim=0).eval()(vectors) is vectors


def test_a_rate_of_one_drops_all_without_nan() -> None:
    assert (VariationalDropout(1.0, dim=0)(torch.randn(3, 4)) == 0).all()


def test_a_gradient_passes_where_a_number_was_kept() -> None:
    vectors = torch.randn(5, 7, 3, requires_grad=True)
    dropped = variational_dropout(vectors, 0.5, dim=1, training=True)
    dropped.sum().backward()
    torch.testing.assert_close(vectors.grad, (dropped != 0) * 2.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_type_stays(dtype: torch.dtype) -> None:
    assert variational_dropout(torch.ones(2, 3, dtype=dtype), 0.5, dim=0, training=True).dtype == dtype


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dim must be one of the 2 dimensions of vectors, of shape \(2, 3\), got 2"):
        VariationalDropout(0.5, dim=2)(torch.ones(2, 3))
    with pytest.raises(ValueError, match="rate must be between 0 and 1, got 2"):
        VariationalDropout(2, dim=0)
