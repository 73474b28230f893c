"""Rows with hidden pieces: what is hidden and how often, which rows an epoch has, and what decides both."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import Tensor

from anymax.data import MaskedBatch, MaskedBatches, Masking, WordPieces
from anymax.data.units.word_pieces import SPECIALS
from tests.each import each

PIECES = WordPieces((*SPECIALS, *(f"w{number}" for number in range(95))))
PAD, CLS, SEP, MASK = PIECES.pad, PIECES.cls, PIECES.sep, PIECES.mask


def stream(lengths: list[int], seed: int = 0) -> Tensor:
    """Lines of these lengths, "[SEP]" included, of drawn pieces."""
    generator = torch.Generator().manual_seed(seed)
    lines = [torch.randint(5, 100, (length - 1,), generator=generator) for length in lengths]
    return torch.cat([part for line in lines for part in (line, torch.tensor([SEP]))])


def original(batch: MaskedBatch) -> Tensor:
    """The rows with nothing hidden."""
    return torch.where(batch.target != -100, batch.target, batch.ids)


def drawn_lengths(number: int, seed: int = 0) -> list[int]:
    return torch.randint(2, 30, (number,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_rows_hold_whole_lines_in_their_order_and_all_of_the_text_once():
    tokens = stream([4, 3, 5, 9, 2, 25, 3])
    batches = MaskedBatches({"en": tokens}, PIECES, 12, 2, seed=1, in_order=True)
    rows = [row[mask] for batch in batches for row, mask in zip(original(batch), batch.mask, strict=True)]
    # Two lines, then one more would not fit; a line of 25 is cut.
    assert [len(row) - 1 for row in rows] == [7, 5, 11, 11, 11, 6]
    assert all(row[0] == CLS and CLS not in row[1:] for row in rows)
    assert torch.equal(torch.cat([row[1:] for row in rows]), tokens)


def test_padding_follows_the_end_of_a_row_and_is_no_target():
    for batch in MaskedBatches({"en": stream(drawn_lengths(40))}, PIECES, 40, 4, seed=1):
        lengths = batch.mask.sum(1)
        assert torch.equal(batch.mask, torch.arange(batch.ids.shape[1]) < lengths[:, None])
        assert bool((batch.ids[~batch.mask] == PAD).all()) and bool((batch.target[~batch.mask] == -100).all())
        assert int(lengths.max()) == batch.ids.shape[1] <= 40


def test_hidden_pieces_are_the_stated_share_and_become_masks_others_and_themselves_as_stated():
    batches = MaskedBatches({"en": stream(drawn_lengths(3000))}, PIECES, 64, 50, seed=3)
    counted = Counter[str]()
    for batch in batches:
        is_hidden = batch.target != -100
        ordinary = batch.mask & (batch.ids >= 5) | is_hidden
        for row, hidden in zip(ordinary, is_hidden, strict=True):
            assert int(hidden.sum()) == max(1, round(0.15 * int(row.sum())))
        hidden_ids, wanted = batch.ids[is_hidden], batch.target[is_hidden]
        assert bool((wanted >= 5).all())
        counted["all"] += len(wanted)
        counted["mask"] += int((hidden_ids == MASK).sum())
        counted["same"] += int((hidden_ids == wanted).sum())
        others = hidden_ids[(hidden_ids != MASK) & (hidden_ids != wanted)]
        assert bool((others >= 5).all())
        counted["other"] += len(others)
        # Nothing else is changed.
        assert bool((batch.ids[batch.mask & ~is_hidden] != MASK).all())
    shares = [counted[kind] / counted["all"] for kind in ("mask", "other", "same")]
    assert counted["all"] > 5000
    # One in 95 of those drawn at random is the piece itself.
    assert shares == pytest.approx([0.8, 0.1 * 94 / 95, 0.1 + 0.1 / 95], abs=0.015)


def test_other_maskings_do_what_they_say():
    tokens = stream(drawn_lengths(60))
    for masking, kinds in (
        (Masking(0.5, 1.0, 0.0), {"mask"}),
        (Masking(0.5, 0.0, 0.0), {"same"}),
        (Masking(0.5, 0.0, 1.0), {"other", "same"}),
    ):
        found = set[str]()
        for batch in MaskedBatches({"en": tokens}, PIECES, 40, 8, seed=1, masking=masking):
            for read, wanted in zip(batch.ids[batch.target != -100], batch.target[batch.target != -100], strict=True):
                found.add("mask" if read == MASK else "same" if read == wanted else "other")
        assert found == kinds
    for make, match in (
        (lambda: Masking(0.0), "share must lie strictly between 0 and 1, got 0.0"),
        (lambda: Masking(0.15, 0.8, 0.3), "at most 1 together, got 0.8 and 0.3"),
    ):
        with pytest.raises(ValueError, match=match):
            make()


def test_each_text_has_its_share_and_all_its_rows_come_before_any_comes_again():
    texts = {"en": stream(drawn_lengths(300)), "de": stream(drawn_lengths(40, 1), 1)}
    batches = MaskedBatches(texts, PIECES, 40, 7, seed=1, shares=(0.25, 0.75))
    total = sum(batches.rows)
    seen: list[Counter[tuple[int, ...]]] = [Counter(), Counter()]
    for _ in range(4):
        per_epoch = Counter[int]()
        for batch in batches:
            for row, mask, text in zip(original(batch), batch.mask, batch.texts.tolist(), strict=True):
                per_epoch[text] += 1
                seen[text][tuple(row[mask].tolist())] += 1
        assert [per_epoch[0], per_epoch[1]] == [round(0.25 * total), round(0.75 * total)]
    for text, counted in enumerate(seen):
        assert len(counted) == min(batches.rows[text], sum(counted.values()))
        assert max(counted.values()) - min(counted.values()) <= 1
    assert max(seen[1].values()) > 10


def test_masks_differ_from_time_to_time_and_are_the_same_for_the_same_time():
    tokens = {"en": stream(drawn_lengths(40))}

    def masks(seed: int, **options) -> list[dict[tuple[int, ...], tuple[int, ...]]]:
        """The hidden places of every row, epoch by epoch."""
        batches, epochs = MaskedBatches(tokens, PIECES, 40, seed=seed, **options), []
        for _ in range(2):
            rows = {}
            for batch in batches:
                for row, target in zip(original(batch), target_rows(batch), strict=True):
                    rows[tuple(row[row != PAD].tolist())] = target
            epochs.append(rows)
        return epochs

    def target_rows(batch: MaskedBatch) -> list[tuple[int, ...]]:
        return [tuple((target != -100).nonzero().squeeze(1).tolist()) for target in batch.target]

    first, second = masks(1, batch_size=4)
    assert first.keys() == second.keys() and first != second
    # Neither the size of batches nor the order of rows has part in it.
    assert masks(1, batch_size=7)[0] == first == masks(1, batch_size=3, in_order=True)[0]
    assert masks(2, batch_size=4)[0] != first


def test_segments_part_a_row_where_a_line_begins():
    both = Counter[bool]()
    for batch in MaskedBatches({"en": stream(drawn_lengths(200))}, PIECES, 40, 8, seed=1):
        for row, mask, segments in zip(original(batch), batch.mask, batch.segments, strict=True):
            assert not segments[~mask].any() and int(segments[0]) == 0
            ones = segments.nonzero().squeeze(1)
            has_lines = int((row[mask] == SEP).sum()) > 1
            both[bool(len(ones))] += 1
            assert bool(len(ones)) == has_lines
            if len(ones):
                assert torch.equal(ones, torch.arange(int(ones[0]), int(mask.sum()))) and row[ones[0] - 1] == SEP
    assert both[True] > 50
    for batch in MaskedBatches({"en": stream(drawn_lengths(20))}, PIECES, 40, 8, seed=1, two_segments=False):
        assert not batch.segments.any()


@each("world_size", [1, 3])
def test_a_state_resumes_exactly_on_any_number_of_ranks(world_size: int):
    texts = {"en": stream(drawn_lengths(60)), "de": stream(drawn_lengths(20, 1), 1)}

    def make(rank: int = 0, ranks: int = 1) -> MaskedBatches:
        return MaskedBatches(texts, PIECES, 40, 5, seed=1, shares=(0.5, 0.5), rank=rank, world_size=ranks)

    whole = make()
    number = 2 * len(whole) + 3
    batches = []
    while len(batches) < number:
        batches += list(whole)
    parts = [make(rank, world_size) for rank in range(world_size)]
    for part in parts:
        state = make().state_dict() | {"epoch": 1, "position": 2}
        part.load_state_dict(state)
    for expected, *shares in zip(batches[len(whole) + 2 : number], *parts, strict=False):
        for field, tensor in zip(MaskedBatch._fields, expected, strict=True):
            # A rank without a row reads a "[CLS]" of no target.
            own = [getattr(share, field)[share.mask.sum(1) > 1] for share in shares]
            assert torch.equal(torch.cat(own), tensor)
    other = MaskedBatches(texts, PIECES, 40, 5, seed=2, shares=(0.5, 0.5))
    with pytest.raises(ValueError, match=r"the same batches, but it was made with seed 1 \(now 2\)"):
        other.load_state_dict(make().state_dict())


def test_the_stream_stays_as_it_is_and_what_is_none_is_refused():
    tokens = stream([4, 5])
    before = tokens.clone()
    list(islice(MaskedBatches({"en": tokens}, PIECES, 12, 1, seed=1, masking=replace(Masking(), share=0.9)), 3))
    assert torch.equal(tokens, before)
    # Nothing can be hidden of lines of special words.
    (batch,) = MaskedBatches({"en": torch.tensor([PIECES.unk, SEP])}, PIECES, 12, 1, seed=1)
    assert bool((batch.target == -100).all())
    for options, match in (
        ({"block": 1}, "block must be at least 2, got 1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"shares": (0.5, 0.5)}, "shares must be one for each of 1 texts, and left out in order"),
    ):
        with pytest.raises(ValueError, match=match):
            MaskedBatches({"en": tokens}, PIECES, **{"block": 12, "batch_size": 1, "seed": 1} | options)
