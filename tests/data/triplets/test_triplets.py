"""Triplets: from files to rows with two segments, what is held out and repeated, and what is refused."""

import gzip
from collections import Counter
from pathlib import Path

import pytest
import torch

from anymax.data import DrawnTriplets, PairBatches, Pieces, Triplets, WordPieces, prepare_triplets, reopen_triplets
from anymax.data.batches.triplets import triplets_of
from anymax.data.triplets.opening import Triplet
from tests.each import each

pytestmark = pytest.mark.usefixtures("one_thread")


def write(folder: Path, split: str, triplets: list[tuple[str, str, str]], *, packed: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    for side, lines in zip(("src", "mt", "pe"), zip(*triplets, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in lines)
        if packed:
            (folder / f"{split}.{side}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"{split}.{side}").write_text(text)
    return folder


def numbered(count: int, name: str = "w") -> list[tuple[str, str, str]]:
    return [(f"{name}{i} a", f"{name}{i} b c", f"{name}{i} b") for i in range(count)]


def config(folder: Path, **changes: object) -> Triplets:
    return Triplets(path=folder, pieces=Pieces(200, min_count=1, splitting="spaces"), **changes)


@each("packed", [False, True])
def test_a_row_has_the_sentence_then_its_translation_each_from_position_zero(packed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("triplets")
    for split in ("train", "dev", "test"):
        write(folder, split, [("one two", "eins zwei drei", "eins zwei"), ("four", "vier", "vier fünf")], packed=packed)
    prepared = prepare_triplets(config(folder), cache=folder / "cache")
    assert prepared.triplets("valid")[0] == Triplet("one two", "eins zwei drei", "eins zwei")
    pieces, pairs = prepared.pieces, prepared.split("valid")
    batches = PairBatches(pairs, 1000, seed=None, eos=pieces.last)
    (pair_batch,) = list(batches)
    batch = triplets_of(pair_batch, pieces, max_positions=8)
    texts = {}
    for row, (source, mask, segments, positions) in enumerate(zip(*batch.inputs, strict=True)):
        sides = [source[mask & (segments == side)] for side in (0, 1)]
        texts[pieces.text(sides[0])] = pieces.text(sides[1])
        assert segments[mask].tolist() == sorted(segments[mask].tolist())
        assert positions[mask].tolist() == [*range(len(sides[0])), *range(len(sides[1]))][: mask.sum()]
        assert set(source[~mask].tolist()) <= {pieces.pad} and not segments[~mask].any() and positions.max() < 8
        length = int((batch.target[row] != -100).sum())
        assert batch.target[row, length - 1] == pieces.last and batch.ids[row, 0] == pieces.first
        assert batch.ids[row, 1:length].equal(batch.target[row, : length - 1])
    assert texts == {"one two": "eins zwei drei", "four": "vier"}
    sentences, translations = prepared.segments("valid")
    assert sentences.tolist() == [len(pieces.encode(text)) for text in ("one two", "four")]
    assert translations.tolist() == [len(pieces.encode(text)) for text in ("eins zwei drei", "vier")]


def test_a_rank_without_rows_reads_one_piece_and_predicts_nothing():
    prepared = prepare_triplets(Triplets().toy())
    batches = PairBatches(prepared.split("train"), 1, seed=1, eos=prepared.pieces.last, rank=1, world_size=2)
    batch = triplets_of(next(iter(batches)), prepared.pieces, max_positions=64)
    assert batch.inputs.mask.sum() == 1 and (batch.target == -100).all() and not batch.inputs.segments.any()


def test_what_is_held_out_depends_on_the_seed_alone_and_overlaps_with_nothing(tmp_path: Path):
    folder = write(tmp_path / "one", "train", numbered(40))
    parts = {}
    for seed in (1, 1, 2):
        corpus = config(folder, held_out=5, held_out_seed=seed).open()
        found = {split: [pair.target for pair in corpus.pairs(split)] for split in ("train", "valid", "test")}
        assert [len(each) for each in found.values()] == [30, 5, 5]
        assert len({text for texts in found.values() for text in texts}) == 40
        assert parts.setdefault(seed, found) == found
    assert parts[1] != parts[2]
    with pytest.raises(ValueError, match=r"has 40 triplets, of which 20 would go to valid .*--data.held-out"):
        config(folder, held_out=20).open()


def test_a_share_of_train_is_within_a_larger_one_and_leaves_valid_and_test_as_they_are(tmp_path: Path):
    cut = write(tmp_path / "cut", "train", numbered(50))
    given = write(tmp_path / "given", "train", numbered(40))
    write(given, "dev", numbered(3, "d"))
    for folder, changes in ((cut, {"held_out": 5}), (given, {})):
        whole, half, quarter = (
            {split: {pair.target for pair in corpus.pairs(split)} for split in corpus.sources}
            for share in (1.0, 0.5, 0.25)
            for corpus in [config(folder, train_share=share, **changes).open()]
        )
        assert [len(parts["train"]) for parts in (whole, half, quarter)] == [40, 20, 10]
        assert quarter["train"] < half["train"] < whole["train"]
        assert all(parts[split] == whole[split] for parts in (half, quarter) for split in whole if split != "train")
    both = [config(cut, held_out=5, train_share=share) for share in (1.0, 0.25)]
    prepared = [prepare_triplets(each, cache=tmp_path / "cache") for each in both]
    assert [len(each.split("train")) for each in prepared] == [40, 10]
    assert both[0].tested_on() == both[1].tested_on()


def test_own_triplets_come_as_often_as_asked_beside_further_ones(tmp_path: Path):
    own = write(tmp_path / "own", "train", numbered(7))
    write(own, "dev", numbered(2, "d"))
    further = write(tmp_path / "further", "train", numbered(5, "f"))
    prepared = prepare_triplets(config(own, further=(further,), oversample=3), cache=tmp_path / "cache")
    batches = PairBatches(prepared.split("train"), 30, seed=1, eos=prepared.pieces.last)
    seen = Counter(prepared.pieces.text(row[row >= 0][:-1]) for batch in batches for row in batch.target)
    assert seen == {f"w{i} b": 3 for i in range(7)} | {f"f{i} b": 1 for i in range(5)}
    assert len(prepared.split("valid")) == 2
    assert prepared.corpus.places("train", 8)[1] == f"{further / 'train.pe'} line 2"


def test_long_triplets_leave_train_alone(tmp_path: Path):
    long = ("x " * 5, "y " * 5, "z " * 6)
    folder = write(tmp_path / "one", "train", [*numbered(4), long])
    write(folder, "dev", [long])
    for changes, left in (({}, 5), ({"most_source": 9}, 4), ({"most_source": 10}, 5), ({"most_target": 5}, 4)):
        prepared = prepare_triplets(config(folder, **changes), cache=tmp_path / "cache")
        assert (len(prepared.split("train")), len(prepared.split("valid"))) == (left, 1)
    prepared.check_lengths("valid", max_positions=7)
    with pytest.raises(ValueError, match=r"dev.pe line 1: the correction has 7 word pieces, .* model has 6 positions"):
        prepared.check_lengths("valid", max_positions=6)
    with pytest.raises(
        ValueError,
        match=r"dev.mt line 1: the sentence has 5 word pieces, and the model has 4 .* take it out of",
    ):
        prepared.check_lengths("valid", max_positions=4)
    with pytest.raises(ValueError, match="leave out all 5"):
        prepare_triplets(config(folder, most_source=1), cache=tmp_path / "cache")


def test_a_changed_text_and_other_pieces_are_refused(tmp_path: Path):
    folder = write(tmp_path / "one", "train", numbered(9))
    chosen = config(folder, held_out=2)
    prepared = prepare_triplets(chosen, cache=tmp_path / "cache")
    prepared.save(tmp_path)
    assert reopen_triplets(chosen, tmp_path, cache=tmp_path / "cache").pieces == prepared.pieces
    write(folder, "train", [*numbered(8), ("new", "neu", "neu")])
    with pytest.raises(ValueError, match="the text must be the one that"):
        reopen_triplets(chosen, tmp_path, cache=tmp_path / "cache")


def test_files_that_are_no_triplets_are_refused_with_the_line(tmp_path: Path):
    def uneven(folder: Path) -> None:
        (folder / "train.mt").write_text("b\n")

    def empty(side: str) -> object:
        def blank(folder: Path) -> None:
            lines = (folder / f"train.{side}").read_text().splitlines()
            (folder / f"train.{side}").write_text("\n".join([lines[0], " ", *lines[2:]]) + "\n")

        return blank

    cases = (
        (uneven, r"must have as many lines as each other, got train.src 9, train.mt 1, train.pe 9"),
        (empty("src"), r"train.src line 2 must hold the sentence of a triplet, got an empty line.*--data.drop-empty"),
        (empty("mt"), r"train.mt line 2 must hold the translation of a triplet"),
        (empty("pe"), r"train.pe line 2 must hold the correction of a triplet"),
        (lambda folder: (folder / "train.pe").unlink(), r"none ends in .pe; add it"),
    )
    for number, (spoil, message) in enumerate(cases):
        folder = write(tmp_path / str(number), "train", numbered(9))
        spoil(folder)
        with pytest.raises(ValueError, match=message):
            prepare_triplets(config(folder, held_out=2), cache=tmp_path / "cache")
    dropped = prepare_triplets(config(tmp_path / "1", held_out=2, drop_empty=True), cache=tmp_path / "cache")
    assert sum(len(dropped.split(split)) for split in ("train", "valid", "test")) == 8
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        config(tmp_path / "nowhere").open()


def test_settings_without_effect_and_vocabularies_without_ends_are_refused(tmp_path: Path):
    for changes, message in (
        ({"corpus": "wmt"}, "corpus must be one of"),
        ({"corpus": "drawn", "held_out": 5}, "held_out is for files, got 5 with drawn"),
        ({"corpus": "drawn", "train_share": 0.5}, "train_share is for files, got 0.5 with drawn"),
        ({"train_share": 0.0}, "train_share must be"),
        ({"train_share": 1.5}, "train_share must be between 0 and 1"),
        ({"drawn": DrawnTriplets(mistakes=0.5)}, "drawn is for corpus drawn"),
        ({"oversample": 2}, "oversample must be 1 without further triplets, got 2"),
        ({"pieces": Pieces()}, "pieces.splitting must be 'spaces'"),
    ):
        with pytest.raises(ValueError, match=message):
            Triplets(**changes)
    vocabulary = tmp_path / "vocab.txt"
    for missing, message in (("<T>", "lacks <T>"), ("[SEP]", r"lacks \[SEP\]")):
        words = [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>", "w") if word != missing]
        vocabulary.write_text("\n".join(words) + "\n")
        chosen = Triplets("drawn", pieces=Pieces(vocabulary=vocabulary, splitting="spaces"))
        with pytest.raises(ValueError, match=message):
            prepare_triplets(chosen, cache=tmp_path / "cache")


def test_special_words_in_a_text_are_no_special_pieces():
    pieces = WordPieces.train({"a": 5, "b": 5}, 20, splitting="spaces")
    assert not {pieces.sep, pieces.last, pieces.first, pieces.pad} & {*pieces.encode("a [SEP] b <T> <S> [PAD]")}
    assert torch.tensor(pieces.encode("a b")).numel() == 2
