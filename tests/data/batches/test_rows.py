"""Batches of rows of a table."""

import pytest
import torch

from anymax.data.batches.batches import RowBatches


def test_an_epoch_has_every_row_once_in_an_order_of_its_own():
    batches = RowBatches(10, 4, seed=1)
    epochs = [list(batches), list(batches)]
    assert [[len(batch) for batch in epoch] for epoch in epochs] == [[4, 4, 2]] * 2
    orders = [torch.cat(epoch).tolist() for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(10)) and orders[0] != orders[1]


def test_batches_resume_from_any_state():
    batches = RowBatches(10, 4, seed=1)
    for position in range(5):
        state = batches.state_dict()
        expected = next(iter(batches))
        other = RowBatches(10, 4, seed=1)
        other.load_state_dict(state)
        assert torch.equal(next(iter(other)), expected), position
    with pytest.raises(ValueError, match="state must come from the same batches"):
        RowBatches(10, 5, seed=1).load_state_dict(state)


def test_ranks_share_each_batch():
    whole = torch.cat(list(RowBatches(7, 3, seed=1)))
    shares = [list(RowBatches(7, 3, seed=1, rank=rank, world_size=2)) for rank in range(2)]
    assert [[len(part) for part in parts] for parts in zip(*shares, strict=True)] == [[2, 1], [2, 1], [1, 0]]
    together = torch.cat([part for parts in zip(*shares, strict=True) for part in parts])
    assert torch.equal(together, whole)


def test_without_a_size_a_batch_is_everything():
    batches = RowBatches(6, None, seed=1)
    assert len(batches) == batches.length(3) == 1
    assert sorted(next(iter(batches)).tolist()) == list(range(6)) and batches.epoch == 1


def test_without_a_seed_rows_keep_their_order():
    assert torch.equal(torch.cat(list(RowBatches(5, 2, seed=None))), torch.arange(5))
