"""Batches of rows of which few have a label."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from anymax.data.images.labelled import MixedBatches, MixedRows

LABELLED = torch.tensor([20, 3, 7, 11, 15])
UNLABELLED = torch.arange(100, 117)


def mixed(**changes: int) -> MixedBatches:
    settings = {"batch_size": 4, "warm_epochs": 0, "seed": 1, **changes}
    return MixedBatches(LABELLED, UNLABELLED, settings.pop("batch_size"), **settings)


def joined(rows: list[Tensor]) -> list[int]:
    return torch.cat(rows).tolist()


def test_an_epoch_has_every_row_without_a_label_once_in_an_order_of_its_own():
    batches = mixed()
    epochs = [[batch.unlabelled for batch in batches] for _ in range(2)]
    assert [[len(rows) for rows in epoch] for epoch in epochs] == [[4, 4, 4, 4, 1]] * 2
    assert sorted(joined(epochs[0])) == sorted(joined(epochs[1])) == UNLABELLED.tolist()
    assert joined(epochs[0]) != joined(epochs[1])


def test_rows_with_a_label_come_round_equally_often_over_the_ends_of_epochs():
    batches = mixed()
    rows = [batch.labelled for _ in range(5) for batch in batches]
    # 25 batches of 4 are 20 rounds of 5.
    assert {len(each) for each in rows} == {4}
    assert Counter(joined(rows)) == dict.fromkeys(LABELLED.tolist(), 20)
    rounds = torch.cat(rows).view(20, 5)
    assert all(sorted(each.tolist()) == sorted(LABELLED.tolist()) for each in rounds)
    assert len({tuple(each.tolist()) for each in rounds}) > 10


def test_warm_epochs_have_rows_with_a_label_alone_and_each_once():
    batches = mixed(warm_epochs=2)
    assert [batches.length(epoch) for epoch in range(4)] == [2, 2, 5, 5]
    warm = [list(batches) for _ in range(2)]
    for epoch in warm:
        assert [(len(batch.unlabelled), len(batch.labelled)) for batch in epoch] == [(0, 4), (0, 1)]
        assert [(batch.num_unlabelled, batch.num_labelled) for batch in epoch] == [(0, 4), (0, 1)]
        assert sorted(joined([batch.labelled for batch in epoch])) == sorted(LABELLED.tolist())
    assert [len(batch.unlabelled) for batch in batches] == [4, 4, 4, 4, 1]


def test_batches_resume_from_any_state():
    batches = mixed(warm_epochs=1)
    for place in range(11):
        state = batches.state_dict()
        expected = next(iter(batches))
        other = mixed(warm_epochs=1)
        other.load_state_dict(state)
        assert same(next(iter(other)), expected), place
    for changes in ({"seed": 2}, {"batch_size": 3}, {"warm_epochs": 2}):
        with pytest.raises(ValueError, match=f"state must come from the same batches, .*{next(iter(changes))}"):
            mixed(**changes).load_state_dict(state)


def same(one: MixedRows, other: MixedRows) -> bool:
    return all(
        torch.equal(torch.as_tensor(left), torch.as_tensor(right)) for left, right in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_ranks_share_each_batch_and_know_how_large_it_is(world_size: int):
    whole = mixed(warm_epochs=1)
    ranks = [mixed(warm_epochs=1, rank=rank, world_size=world_size) for rank in range(world_size)]
    for _ in range(3):
        for batch, *parts in zip(whole, *ranks, strict=True):
            assert joined([part.unlabelled for part in parts]) == batch.unlabelled.tolist()
            assert joined([part.labelled for part in parts]) == batch.labelled.tolist()
            assert {part[2:] for part in parts} == {batch[2:]} == {(len(batch.unlabelled), len(batch.labelled))}


def test_the_seed_decides_the_order():
    assert all(same(one, other) for one, other in zip(mixed(), mixed(), strict=True))
    assert joined([b.labelled for b in mixed()]) != joined([b.labelled for b in mixed(seed=2)])
    assert joined([b.unlabelled for b in mixed()]) != joined([b.unlabelled for b in mixed(seed=2)])


def test_a_batch_has_no_more_rows_than_there_are_of_either_kind():
    assert [len(batch.labelled) for batch in mixed(batch_size=50)] == [5, 5, 5, 5]
    with pytest.raises(ValueError, match=r"batch_size must be .*at least 1, got 0"):
        mixed(batch_size=0)
