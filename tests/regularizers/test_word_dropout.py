"""Word dropout: a word is dropped wherever it stands, and words are dropped by chance."""

import pytest
import torch

from anymax.regularizers import word_dropout


def test_every_occurrence_of_a_word_is_kept_or_dropped_together() -> None:
    ids = torch.randint(30, (20, 40))
    vectors = torch.randn(20, 40, 5)
    dropped = word_dropout(vectors, ids, 30, 0.5, training=True)
    is_kept = {}
    for word in range(30):
        here = dropped[ids == word]
        is_kept[word] = bool((here != 0).any())
        torch.testing.assert_close(here, vectors[ids == word] * (2.0 if is_kept[word] else 0.0))
    assert 3 < sum(is_kept.values()) < 27


def test_words_are_dropped_as_often_as_the_rate_says() -> None:
    ids = torch.arange(50_000)
    dropped = word_dropout(torch.ones(50_000, 1), ids, 50_000, 0.1, training=True)
    assert (dropped == 0).double().mean().item() == pytest.approx(0.1, abs=0.005)
    assert dropped.mean().item() == pytest.approx(1, abs=0.01)


def test_every_call_draws_anew() -> None:
    ids, vectors = torch.arange(100), torch.ones(100, 2)
    first, second = (word_dropout(vectors, ids, 100, 0.5, training=True) for _ in range(2))
    assert not torch.equal(first, second)


def test_the_vectors_themselves_come_back_where_nothing_is_dropped() -> None:
    ids, vectors = torch.arange(4), torch.ones(4, 2)
    assert word_dropout(vectors, ids, 4, 0.5, training=False) is vectors
    assert word_dropout(vectors, ids, 4, 0.0, training=True) is vectors


def test_a_rate_of_one_drops_all_without_nan() -> None:
    assert (word_dropout(torch.randn(4, 2), torch.arange(4), 4, 1.0, training=True) == 0).all()


def test_the_table_behind_the_vectors_is_left_alone() -> None:
    table = torch.randn(6, 3, requires_grad=True)
    ids = torch.arange(6).repeat(2, 1)
    before = table.detach().clone()
    dropped = word_dropout(table[ids], ids, 6, 0.5, training=True)
    dropped.sum().backward()
    assert torch.equal(table.detach(), before)
    # Twice in the batch, and twice as much where it was kept.
    torch.testing.assert_close(table.grad, (dropped[0] != 0) * 4.0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vectors must have the shape of ids and one more.* got \(4, 2\) .* \(3,\)"):
        word_dropout(torch.ones(4, 2), torch.arange(3), 5, 0.5, training=True)
    with pytest.raises(ValueError, match="rate must be between 0 and 1, got -1"):
        word_dropout(torch.ones(3, 2), torch.arange(3), 5, -1, training=True)
