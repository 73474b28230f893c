"""Batches: every token a target once, the token before it as input, and a state from which they go on."""

import json
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
import torch
from torch import Tensor

from anymax.data import Batch, Batches, BlockBatches, ContiguousBatches, RandomLengths, SentenceBatches
from tests.each import each

EOS = 0


def stream(length: int = 103) -> Tensor:
    """Sentences of several lengths; apart from the ends, every id is its own position."""
    tokens = torch.arange(length) + 1
    ends = [0, 3, 9, 10, 30, 31, 32, 55, 60, 71, 79, 90, 94, length - 1]
    tokens[[end for end in ends if end < length]] = EOS
    return tokens


KINDS: dict[str, Callable[..., Batches]] = {
    "contiguous": lambda tokens, **rest: ContiguousBatches(tokens, 4, 7, eos=EOS, **rest),
    "random lengths": lambda tokens, **rest: ContiguousBatches(
        tokens, 4, 7, eos=EOS, random_lengths=RandomLengths(0.3, 2.0, 2), seed=3, **rest
    ),
    "blocks": lambda tokens, **rest: BlockBatches(tokens, 7, 4, seed=3, eos=EOS, **rest),
    "blocks in order": lambda tokens, **rest: BlockBatches(tokens, 7, 4, seed=None, eos=EOS, **rest),
    "sentences": lambda tokens, **rest: SentenceBatches(tokens, 30, seed=3, eos=EOS, **rest),
    "joined sentences": lambda tokens, **rest: SentenceBatches(tokens, 40, block=20, seed=3, eos=EOS, **rest),
    "sentences in order": lambda tokens, **rest: SentenceBatches(tokens, 30, seed=None, eos=EOS, **rest),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


def forever(batches: Batches) -> Iterator[Batch]:
    while True:
        yield from batches


def same(left: Batch, right: Batch) -> bool:
    return left.lr_factor == right.lr_factor and all(
        torch.equal(a, b) for a, b in zip(left[:3], right[:3], strict=True)
    )


@every_kind
def test_another_stream_may_be_read_than_is_predicted(make):
    tokens = stream()
    read = torch.where(tokens % 5 == 3, tokens + 1_000, tokens)
    for plain, batch in zip(make(tokens), make(tokens, read=read), strict=True):
        assert same(plain, batch._replace(ids=batch.ids % 1_000))
        assert batch.ids.equal(torch.where(plain.ids % 5 == 3, plain.ids + 1_000, plain.ids))
    with pytest.raises(ValueError, match="read must have one id for each of the 103 tokens, got 102"):
        make(tokens, read=read[1:])


@every_kind
@each("length", [4, 27, 28, 29, 103])
def test_every_token_is_a_target_once_an_epoch_after_the_token_before_it(make, length: int):
    tokens = stream(length)
    expected = sorted(zip([EOS, *tokens[:-1].tolist()], tokens.tolist(), strict=True))
    batches = make(tokens)
    for _ in range(2):
        epoch = list(batches)
        assert len(epoch) == batches.length(batches.epoch - 1)
        pairs = []
        for batch in epoch:
            counted = batch.target != -100
            assert torch.equal(counted, torch.arange(batch.target.shape[1]) < batch.lengths[:, None])
            assert batch.lengths.max() == batch.target.shape[1]
            assert (batch.ids[~counted] == EOS).all()
            pairs += zip(batch.ids[counted].tolist(), batch.target[counted].tolist(), strict=True)
        assert sorted(pairs) == expected
    assert batches.epoch == 2 and batches.position == 0


@every_kind
def test_batches_resume_from_a_saved_state_also_over_the_end_of_an_epoch(make):
    number = sum(make(stream()).length(epoch) for epoch in range(3))
    whole = list(islice(forever(make(stream())), number))
    for taken in range(number - 2):
        stopped = make(stream())
        list(islice(forever(stopped), taken))
        state = json.loads(json.dumps(stopped.state_dict()))
        resumed = make(stream())
        resumed.load_state_dict(state)
        following = list(islice(forever(resumed), number - taken))
        assert all(same(a, b) for a, b in zip(following, whole[taken:], strict=True))


@every_kind
@each("world_size", [2, 3, 5])
def test_the_shares_of_the_ranks_are_the_batches_of_one_process(make, world_size: int):
    single = make(stream())
    ranks = [make(stream(), rank=rank, world_size=world_size) for rank in range(world_size)]
    assert {len(batches) for batches in ranks} == {len(single)}
    for batch, *shares in zip(single, *ranks, strict=True):
        for share in shares:
            assert len(share.ids) >= 1 and share.ids.shape[1] == batch.ids.shape[1]
        # A rank for which no row was left has one without targets.
        rows = len(batch.ids)
        assert {share.lr_factor for share in shares} == {batch.lr_factor}
        joined = Batch(*(torch.cat(parts) for parts in zip(*(share[:3] for share in shares), strict=True)))
        assert same(Batch(*(part[:rows] for part in joined[:3]), batch.lr_factor), batch)
        assert (joined.lengths[rows:] == 0).all() and (joined.target[rows:] == -100).all()


def test_a_state_serves_another_number_of_ranks():
    single = BlockBatches(stream(), 7, 4, seed=3, eos=EOS)
    list(islice(single, 2))
    second = BlockBatches(stream(), 7, 4, seed=3, eos=EOS, rank=1, world_size=2)
    second.load_state_dict(single.state_dict())
    assert torch.equal(next(iter(second)).ids, next(iter(single)).ids[2:])


@pytest.mark.parametrize("kind", ["random lengths", "blocks", "sentences", "joined sentences"])
def test_the_order_is_drawn_by_seed_and_epoch_alone(kind: str):
    torch.manual_seed(1)
    first = list(islice(forever(KINDS[kind](stream())), 20))
    torch.manual_seed(2)
    torch.rand(7)
    second = list(islice(forever(KINDS[kind](stream())), 20))
    assert all(same(a, b) for a, b in zip(first, second, strict=True))


def test_epochs_and_seeds_give_different_orders():
    def order(batches: Batches) -> list[int]:
        return [int(target) for batch in batches for target in batch.target[:, 0]]

    batches = BlockBatches(torch.arange(1, 201), 4, 5, seed=0, eos=EOS)
    orders = [order(batches), order(batches), order(BlockBatches(batches.tokens, 4, 5, seed=1, eos=EOS))]
    assert len({tuple(each) for each in orders}) == 3
    assert {tuple(sorted(each)) for each in orders} == {tuple(range(1, 201, 4))}
    assert order(BlockBatches(batches.tokens, 4, 5, seed=None, eos=EOS)) == list(range(1, 201, 4))


def test_contiguous_rows_resume_from_batch_to_batch():
    batches = list(ContiguousBatches(torch.arange(1, 12), 3, 2, eos=EOS))
    rows = torch.cat([batch.target for batch in batches], dim=1)
    assert rows.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, -100]]
    assert torch.cat([batch.ids for batch in batches], dim=1).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 0]]
    assert [batch.lengths.tolist() for batch in batches] == [[2, 2, 2], [2, 2, 1]]


def test_sentences_stay_whole_and_batches_within_the_budget():
    tokens = stream()
    batches = SentenceBatches(tokens, 30, seed=0, eos=EOS)
    rows = [row[:length] for batch in batches for row, length in zip(batch.target, batch.lengths, strict=True)]
    assert all((row == EOS).nonzero().tolist() == [[len(row) - 1]] for row in rows)
    assert len(rows) == (tokens == EOS).sum()
    assert all(batch.ids[:, 0].eq(EOS).all() and batch.ids.numel() <= 30 for batch in batches)


def test_joined_sentences_fill_rows_up_to_the_block_and_longer_ones_stand_alone():
    tokens = torch.tensor([1, 0, 2, 0, 3, 3, 3, 3, 3, 3, 0, 4, 0, 5, 5, 0, 6])
    batches = SentenceBatches(tokens, 5, block=5, seed=None, eos=EOS)
    rows = [row[row != -100].tolist() for batch in batches for row in batch.target]
    assert sorted(rows) == [[1, 0, 2, 0], [3, 3, 3, 3, 3, 3, 0], [4, 0, 5, 5, 0], [6]]
    assert [batch.ids.numel() for batch in batches] == [1, 4, 5, 7]


def test_sentences_of_a_long_stream_are_found_piece_by_piece(monkeypatch):
    tokens = torch.randint(0, 4, (200,))
    whole = list(SentenceBatches(tokens, 20, seed=1, eos=EOS))
    monkeypatch.setattr("anymax.data.batches.sentences.SEARCHED", 7)
    pieces = list(SentenceBatches(tokens, 20, seed=1, eos=EOS))
    assert all(same(a, b) for a, b in zip(whole, pieces, strict=True))


@every_kind
@each("dtype", [torch.uint16, torch.int32])
def test_encoded_types_give_the_same_batches(make, dtype: torch.dtype):
    for expected, batch in zip(make(stream()), make(stream().to(dtype)), strict=True):
        assert same(batch, expected) and batch.ids.dtype == torch.int64


@every_kind
def test_a_state_of_another_stream_is_refused(make):
    state = make(stream()).state_dict()
    with pytest.raises(ValueError, match=r"made with num_tokens 103 \(now 99\)"):
        make(stream(99)).load_state_dict(state)


def test_a_state_of_another_kind_is_refused():
    state = KINDS["contiguous"](stream()).state_dict()
    with pytest.raises(ValueError, match=r"made with kind ContiguousBatches \(now BlockBatches\)"):
        KINDS["blocks"](stream()).load_state_dict(state)


def test_a_change_of_seed_or_size_is_refused_by_name():
    state = BlockBatches(stream(), 7, 4, seed=3, eos=EOS).state_dict()
    with pytest.raises(ValueError, match=r"block 7 \(now 8\), seed 3 \(now 4\)"):
        BlockBatches(stream(), 8, 4, seed=4, eos=EOS).load_state_dict(state)


def test_what_cannot_be_batched_is_refused():
    with pytest.raises(ValueError, match="tokens must be one dimension of integers and not empty"):
        ContiguousBatches(torch.empty(0, dtype=torch.int64), 1, 1, eos=EOS)
    with pytest.raises(ValueError, match=r"got torch.float32 \(3,\)"):
        BlockBatches(torch.rand(3), 1, 1, seed=0, eos=EOS)
    with pytest.raises(ValueError, match="batch_size must be at most the 3 tokens there are, got 4"):
        ContiguousBatches(torch.ones(3, dtype=torch.int64), 4, 1, eos=EOS)
    with pytest.raises(ValueError, match="block must be at least 1, got 0"):
        BlockBatches(stream(), 0, 1, seed=0, eos=EOS)
    with pytest.raises(TypeError, match=r"max_tokens must be an integer, got 1.5"):
        SentenceBatches(stream(), 1.5, seed=0, eos=EOS)
    with pytest.raises(ValueError, match="rank must be between 0 and 1, one less than world_size, got 2"):
        BlockBatches(stream(), 1, 1, seed=0, eos=EOS, rank=2, world_size=2)
