"""Losses by training frequency: bins by hand, words of subwords, any order of stretches, tables and a picture."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from anymax.distributed.ranks import Ranks
from anymax.evaluation import FrequencyTable, LossByFrequency, Scored
from anymax.evaluation.frequency import CHUNK, WordNumbers, figure, tables

EOS = 0
# Words 1 and 2 lie on either side of an edge, 3 has never been seen.
COUNTS = [150, 10, 11, 0, 2_000_000, 1_000_000]
WORDS = torch.tensor([1, 4, 2, EOS, 3, 1, EOS, 5])
LOSSES = torch.tensor([8.0, 1.0, 4.0, 2.0, 16.0, 32.0, 64.0, 0.5])


def scored(tokens: Tensor, losses: Tensor, *cuts: int) -> list[Scored]:
    edges = [0, *cuts, len(tokens)]
    return [Scored(start, tokens[start:end].long(), losses[start:end]) for start, end in pairwise(edges)]


def table(*cuts: int) -> FrequencyTable:
    by_frequency = LossByFrequency(WORDS, COUNTS, eos=EOS)
    for stretch in scored(WORDS, LOSSES, *cuts):
        by_frequency.add(stretch)
    return by_frequency.table()


@pytest.mark.parametrize("cuts", [(), (1,), (3, 4), (1, 2, 3, 4, 5, 6, 7)], ids=str)
def test_bins_are_those_counted_by_hand(cuts: tuple[int, ...]) -> None:
    found = table(*cuts)
    assert [bin.label for bin in found.by_word] == ["10", "100", "1K", "10K", "100K", "1M", "1M+"]
    assert [(bin.num_words, bin.loss) for bin in found.by_word] == [
        (3, (8 + 16 + 32) / 3),
        (1, 4.0),
        (2, (2 + 64) / 2),
        (0, None),
        (0, None),
        (1, 0.5),
        (1, 1.0),
    ]
    # The words before: eos 1 4 2 eos 3 1 eos.
    assert [(bin.num_words, bin.loss) for bin in found.by_previous] == [
        (3, (1 + 32 + 64) / 3),
        (1, 2.0),
        (3, (8 + 16 + 0.5) / 3),
        (0, None),
        (0, None),
        (0, None),
        (1, 4.0),
    ]
    assert [bin.share for bin in found.by_word] == [3 / 8, 1 / 8, 2 / 8, 0, 0, 1 / 8, 1 / 8]


def test_stretches_may_come_in_any_order() -> None:
    by_frequency = LossByFrequency(WORDS, torch.tensor(COUNTS), eos=EOS)
    for stretch in reversed(scored(WORDS, LOSSES, 2, 5)):
        by_frequency.add(stretch)
    assert by_frequency.table() == table()


def test_shares_of_ranks_add_up() -> None:
    halves = [LossByFrequency(WORDS, COUNTS, eos=EOS) for _ in range(2)]
    for half, stretch in zip(halves, scored(WORDS, LOSSES, 4), strict=True):
        half.add(stretch)
    sums: list[list[float]] = []

    class Halves(Ranks):
        def sum(self, values: Sequence[float]) -> list[float]:
            sums.append(list(values))
            return [sum(each) for each in zip(*sums, strict=True)]

    assert [half.table(Halves(rank, 2)) for rank, half in enumerate(halves)][1] == table()


# The same eight words as subwords: ids from 10 on continue a word, those below 10 end a word.
SUBWORDS = torch.tensor([10, 11, 1, 4, 12, 2, EOS, 13, 10, 3, 1, EOS, 14, 5], dtype=torch.uint16)
SUBWORD_LOSSES = torch.tensor([4.0, 2, 2, 1, 3, 1, 2, 8, 4, 4, 32, 64, 0.25, 0.25])


@pytest.mark.parametrize("cuts", [(), (1,), (2, 9), (5, 8, 13), tuple(range(1, 14))], ids=str)
def test_the_loss_of_a_word_is_the_sum_over_its_subwords_wherever_stretches_are_cut(cuts: tuple[int, ...]) -> None:
    by_frequency = LossByFrequency(WORDS, COUNTS, eos=EOS, subwords=SUBWORDS, ends_word=torch.arange(15) < 10)
    for stretch in scored(SUBWORDS, SUBWORD_LOSSES, *cuts):
        by_frequency.add(stretch)
    assert by_frequency.table() == table()


def test_words_are_numbered_wherever_one_looks() -> None:
    length = 2 * CHUNK + 500
    subwords = torch.randint(0, 4, (length,), dtype=torch.int32)
    ends_word = torch.tensor([True, False, True, False])
    numbers = WordNumbers(subwords, ends_word)
    expected, number = [], 0
    for ends in ends_word[subwords.long()].tolist():
        expected.append(number)
        number += ends
    assert len(numbers) == number
    spans = [(0, 10), (5, 5), (CHUNK - 3, CHUNK + 4), (CHUNK, CHUNK + 1), (100, 2 * CHUNK + 7), (length - 2, length)]
    for start, end in spans:
        assert numbers.of(start, end).tolist() == expected[start:end]


def test_own_edges_make_own_bins() -> None:
    by_frequency = LossByFrequency(WORDS, COUNTS, eos=EOS, edges=(500, 1_500))
    assert [bin.label for bin in by_frequency.table().by_word] == ["500", "1500", "1500+"]
    assert all(bin.loss is None and bin.share == 0 for bin in by_frequency.table().by_word)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="subwords and ends_word must be given together"):
        LossByFrequency(WORDS, COUNTS, eos=EOS, subwords=SUBWORDS)
    with pytest.raises(ValueError, match=r"words must be those that the subwords make, 8, got 7; encode the same text"):
        LossByFrequency(WORDS[1:], COUNTS, eos=EOS, subwords=SUBWORDS, ends_word=torch.arange(15) < 10)
    with pytest.raises(ValueError, match=r"edges must rise, got \(10, 5\)"):
        LossByFrequency(WORDS, COUNTS, eos=EOS, edges=(10, 5))


def test_tables_have_a_column_for_each_model() -> None:
    by_word, by_previous = tables({"one": table(), "other": table()})
    assert by_word.title == "Loss by the training frequency of the word"
    assert by_word.columns == by_previous.columns == ("count up to", "words", "share", "one", "other")
    assert by_word.rows[0] == ("10", "3", "37.5%", "18.667", "18.667")
    assert by_word.rows[3] == ("10K", "0", "0.0%", "", "")
    assert by_previous.title == "Loss by the training frequency of the previous word"
    assert by_previous.rows[1] == ("100", "1", "12.5%", "2.000", "2.000")


def test_the_table_is_plain_values() -> None:
    values = json.loads(json.dumps(table().as_dict()))
    assert values["by_word"][0] == {
        "label": "10",
        "above": None,
        "most": 10,
        "num_words": 3,
        "share": 0.375,
        "loss": pytest.approx(56 / 3),
    }


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    # Neither a formula nor a command to a terminal.
    figure({"one": table(), "a$b$^{\x1b[31m\udcff": table()}).save(tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_models_measured_on_other_words_are_not_compared() -> None:
    other = LossByFrequency(WORDS, [1] * 6, eos=EOS)
    for stretch in scored(WORDS, LOSSES):
        other.add(stretch)
    with pytest.raises(ValueError, match="'other' differs from 'one'; measure both on one text"):
        tables({"one": table(), "other": other.table()})
    with pytest.raises(ValueError, match="models must hold at least one, got none"):
        figure({})
