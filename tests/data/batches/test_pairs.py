"""Batches of pairs: every target token once, batches of about one length within the budget, resumable and shared."""

import json
from itertools import islice

import pytest
import torch

from anymax.data import DrawnPairs, EncodedPairs, PairBatch, PairBatches, ParallelText, Words, prepare_parallel
from tests.each import each

EOS = 0
COUNTS = ("target", "source", "both", "padded")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> EncodedPairs:
    """Sentences of 2 to 9 words and one of 40, whose translations leave out every third word."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = DrawnPairs(pairs=250, held_out=1, shortest=2, longest=9, seed=2).open("copy").lines("train").sources
    lines[100] = " ".join(["ba"] * 40)
    (folder / "train.a").write_text("".join(f"{line}\n" for line in lines))
    shorter = [
        " ".join(word for at, word in enumerate(line.split()) if at % 3 != number % 3)
        for number, line in enumerate(lines)
    ]
    (folder / "train.b").write_text("".join(f"{line or 'ba'}\n" for line in shorter))
    text = ParallelText(path=folder, languages=("a", "b"), units=Words(), splitting="spaces")
    return prepare_parallel(text, cache=folder).split("train")


def make(pairs: EncodedPairs, max_tokens: int = 60, **options) -> PairBatches:
    return PairBatches(pairs, max_tokens, **{"seed": 3, "eos": EOS, **options})


def rows_of(batch: PairBatch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The sentences of a batch without padding, those with a target."""
    rows = []
    for source, mask, target in zip(batch.source, batch.source_mask, batch.target, strict=True):
        words = tuple(target[target != -100].tolist())
        if words:
            rows.append((tuple(source[mask].tolist()), words))
    return rows


def same(left: PairBatch, right: PairBatch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@each("count", COUNTS)
def test_every_pair_is_there_once_an_epoch_whatever_is_counted(pairs: EncodedPairs, count: str):
    expected = sorted((tuple(pairs.source(n).tolist()), tuple(pairs.target(n).tolist())) for n in range(len(pairs)))
    batches = make(pairs, count=count)
    for _ in range(2):
        epoch = list(batches)
        assert sorted(row for batch in epoch for row in rows_of(batch)) == expected
        assert sum(int((batch.target != -100).sum()) for batch in epoch) == int(pairs.target_lengths.sum())


def test_a_row_reads_what_stands_before_each_target_and_is_padded_behind(pairs: EncodedPairs):
    for batch in make(pairs):
        assert batch.source_mask.dtype == torch.bool and batch.ids.dtype == batch.target.dtype == torch.int64
        assert batch.source.shape == batch.source_mask.shape and batch.ids.shape == batch.target.shape
        lengths, target_lengths = batch.source_mask.sum(1), (batch.target != -100).sum(1)
        assert int(lengths.max()) == batch.source.shape[1] and int(target_lengths.max()) == batch.ids.shape[1]
        for row in range(len(batch.ids)):
            length, target_length = int(lengths[row]), int(target_lengths[row])
            assert batch.source_mask[row, :length].all() and batch.source[row, length - 1] == EOS
            assert (batch.source[row, length:] == EOS).all() and (batch.ids[row, target_length:] == EOS).all()
            assert batch.ids[row, 0] == EOS == batch.target[row, target_length - 1]
            assert torch.equal(batch.ids[row, 1:target_length], batch.target[row, : target_length - 1])


@each("count", COUNTS)
def test_batches_keep_to_the_budget_but_for_a_pair_that_is_longer(pairs: EncodedPairs, count: str):
    sizes = []
    for batch in make(pairs, count=count):
        rows, source, target = *batch.source.shape, batch.ids.shape[1]
        size = {"target": rows * target, "source": rows * source, "both": rows * (source + target)}
        sizes.append(size.get(count, rows * max(source, target)))
        assert sizes[-1] <= 60 or rows == 1
    # The sentence of 40 words and its <eos> have room, but not with the 28 of the target.
    assert (max(sizes) > 60) == (count == "both")
    assert sum(sizes) / len(sizes) > 40


def test_rows_of_a_batch_are_of_about_one_length(pairs: EncodedPairs):
    batches = list(make(pairs, 200, count="both"))
    cells = sum(batch.source.numel() + batch.ids.numel() for batch in batches)
    tokens = int(pairs.source_lengths.sum() + pairs.target_lengths.sum())
    drawn = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).split(len(pairs) // len(batches))
    unsorted = sum(
        len(rows) * int(pairs.source_lengths[rows].max() + pairs.target_lengths[rows].max()) for rows in drawn
    )
    assert tokens / cells > 0.9 > 0.75 > tokens / unsorted


def test_epochs_differ_in_their_batches_and_seeds_in_their_order(pairs: EncodedPairs):
    batches = make(pairs)
    first, second = ([frozenset(rows_of(batch)) for batch in epoch] for epoch in (list(batches), list(batches)))
    assert len(first) == len(second) == len(batches) and first != second
    assert set(first) != set(second)
    again = [frozenset(rows_of(batch)) for batch in make(pairs)]
    other = [frozenset(rows_of(batch)) for batch in make(pairs, seed=4)]
    assert again == first != other
    # Without a seed they rise in length.
    widths = [batch.ids.shape[1] for batch in make(pairs, seed=None)]
    assert widths == sorted(widths)


def test_batches_resume_after_any_batch_to_the_bit(pairs: EncodedPairs):
    batches = make(pairs)
    total = 2 * len(batches) + 3

    def forever(some: PairBatches):
        while True:
            yield from some

    whole = list(islice(forever(make(pairs)), total))
    for stopped in (1, len(batches) - 1, len(batches), len(batches) + 2):
        before = make(pairs)
        list(islice(forever(before), stopped))
        state = json.loads(json.dumps(before.state_dict()))
        resumed = make(pairs)
        resumed.load_state_dict(state)
        rest = list(islice(forever(resumed), total - stopped))
        assert all(same(a, b) for a, b in zip(rest, whole[stopped:], strict=True)), stopped
    for other in (make(pairs, 61), make(pairs, seed=4), make(pairs, count="both"), make(pairs, source_eos=1)):
        with pytest.raises(ValueError, match="state must come from the same batches"):
            other.load_state_dict(state)


@each("world_size", [2, 3, 7])
def test_the_shares_of_all_ranks_are_the_batch_of_one(pairs: EncodedPairs, world_size: int):
    shares = [make(pairs, rank=rank, world_size=world_size) for rank in range(world_size)]
    for whole, *parts in zip(make(pairs), *shares, strict=True):
        assert [row for part in parts for row in rows_of(part)] == rows_of(whole)
        # A rank without a row still has something to read, as wide as the others.
        assert all(part.source.shape[1:] == whole.source.shape[1:] and len(part.ids) >= 1 for part in parts)
        assert all(part.ids.shape[1:] == whole.ids.shape[1:] for part in parts)
        assert all(bool(part.source_mask.any(1).all()) for part in parts)
        assert max(len(part.ids) for part in parts) - min(len(rows_of(part)) for part in parts) <= 1


def test_a_state_resumes_with_another_number_of_ranks(pairs: EncodedPairs):
    batches = make(pairs)
    list(islice(batches, 5))
    expected = next(iter(batches))
    shares = []
    for rank in range(2):
        part = make(pairs, rank=rank, world_size=2)
        part.load_state_dict({**batches.state_dict(), "position": 5})
        shares.append(next(iter(part)))
    assert [row for part in shares for row in rows_of(part)] == rows_of(expected)


def test_the_source_may_have_an_end_mark_of_its_own(pairs: EncodedPairs):
    for batch in make(pairs, source_eos=9):
        assert (batch.source[~batch.source_mask] == 9).all()
        assert (batch.ids[:, 0] == EOS).all()


def test_wrong_settings_are_refused(pairs: EncodedPairs):
    for options, match in (
        ({"count": "rows"}, "count must be one of target, source, both, padded, got 'rows'"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"rank": 2, "world_size": 2}, "rank must be between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=match):
            make(pairs, **options)
