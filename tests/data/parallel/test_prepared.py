"""Prepared parallel text: the pairs of two files as ids of joint or separate units, filtered, counted, saved, found."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from anymax.data import (
    BPE,
    Lexicon,
    ParallelText,
    PreparedParallel,
    Subwords,
    Units,
    Words,
    prepare_parallel,
    reopen_parallel,
)
from anymax.data.prepared import encoded
from anymax.data.text.words import split_line

ENGLISH = ["The cat sat.", "“A dog” ran, and ran.", "I saw the cat- and dog-food!", "No.", "The end ."] * 3
GERMAN = ["Die Katze saß.", "„Ein Hund“ lief und lief.", "Ich sah Katzen- und Hundefutter!", "Nein.", "Das Ende ."] * 3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYMAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three splits; the second line of valid has words that train does not have."""
    folder = tmp_path / "cats"
    folder.mkdir()
    for language, lines, other in (("en", ENGLISH, "An owl sat."), ("de", GERMAN, "Ein Uhu saß.")):
        (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"valid.{language}").write_text(f"{lines[2]}\n{other}\n")
        (folder / f"test.{language}").write_text(f"{lines[1]}\n")
    return folder


def text(folder: Path, **options) -> ParallelText:
    return ParallelText(path=folder, languages=("en", "de"), **{"units": BPE(120), **options})


def sentences(prepared: PreparedParallel, split: str) -> list[tuple[str, str]]:
    """The pairs as text; each sentence ends with its <eos> and holds no other."""
    pairs = prepared.split(split)
    found = []
    for number in range(len(pairs)):
        source, target = pairs.source(number).tolist(), pairs.target(number).tolist()
        assert source.index(prepared.source_units.lexicon.eos) == len(source) - 1 == pairs.source_lengths[number] - 1
        assert target.index(prepared.target_units.lexicon.eos) == len(target) - 1 == pairs.target_lengths[number] - 1
        found.append((prepared.source_units.text(source[:-1]), prepared.target_units.text(target[:-1])))
    return found


@pytest.mark.parametrize("joint", [True, False])
def test_pairs_come_back_as_they_were_written(folder: Path, joint: bool):
    prepared = prepare_parallel(text(folder, joint=joint))
    assert sentences(prepared, "train") == list(zip(ENGLISH, GERMAN, strict=True))
    assert sentences(prepared, "test") == list(zip(*prepared.lines("test"), strict=True)) == [(ENGLISH[1], GERMAN[1])]
    assert prepared.dropped == {split: {"blank": 0, "one-sided": 0, "long": 0} for split in ("train", "valid", "test")}
    assert (prepared.source_units is prepared.target_units) == joint


def test_joint_units_are_learned_from_the_summed_counts_of_both_sides(folder: Path):
    words = Counter(word for line in ENGLISH + GERMAN for word in [*split_line(line, "marked"), "<eos>"])
    joint = prepare_parallel(text(folder, units=Words()))
    assert joint.source_units.lexicon == Lexicon.from_counts(words)
    subwords = Subwords.train(words, 110)
    learned = prepare_parallel(text(folder, units=BPE(110, pad_to_multiple=16))).source_units
    assert learned.subwords == subwords
    assert learned.lexicon == Lexicon.from_counts(subwords.count(words), keep=subwords.vocabulary, pad_to_multiple=16)


def test_separate_units_are_those_of_each_side(folder: Path):
    prepared = prepare_parallel(text(folder, units=Words(), target_units=Words(min_count=4), joint=False))
    english, german = (
        Counter(word for line in lines for word in [*split_line(line, "marked"), "<eos>"])
        for lines in (ENGLISH, GERMAN)
    )
    assert prepared.source_units.lexicon == Lexicon.from_counts(english)
    assert prepared.target_units.lexicon == Lexicon.from_counts(german, min_count=4)
    both = prepare_parallel(text(folder, units=Words(min_count=4), joint=False))
    assert both.target_units == prepared.target_units


def test_long_pairs_are_left_out_of_train_alone_and_counted(folder: Path):
    said: list[str] = []
    plain = prepare_parallel(text(folder))
    lengths = [(len(plain.split("train").source(n)), len(plain.split("train").target(n))) for n in range(15)]
    most_source, most_target = sorted({s for s, _ in lengths})[-2], sorted({t for _, t in lengths})[-2]
    short = [n for n, (source, target) in enumerate(lengths) if source <= most_source and target <= most_target]
    limited = text(folder, most_source=most_source, most_target=most_target)
    prepared = prepare_parallel(limited, progress=said.append)
    train = prepared.split("train")
    assert 0 < len(train) == len(short) < 15 and train.numbers.tolist() == short
    assert sentences(prepared, "train") == [(ENGLISH[n], GERMAN[n]) for n in short]
    assert prepared.dropped["train"] == {"blank": 0, "one-sided": 0, "long": 15 - len(short)}
    assert len(prepared.split("valid")) == 2 and prepared.split("valid").num_long == 1
    limits = f"longer than {most_source} or {most_target} units"
    assert f"cats train: {len(short)} pairs; left out {15 - len(short)} {limits}" in said
    assert f"cats valid: 2 pairs; 1 {limits} are kept" in said
    # The text and the lengths are checked against a model's positions by the place in the files.
    longest = int(plain.split("valid").source_lengths.max())
    plain.check_lengths("valid", most_source=longest)
    with pytest.raises(
        ValueError, match=rf"valid\.en line 1 has {longest} units with its <eos>, and the model has 9 po"
    ):
        plain.check_lengths("valid", most_source=9)
    least = max(target for n, (_, target) in enumerate(lengths) if n in short)
    where = next(n for n in short if lengths[n][1] == least)
    with pytest.raises(ValueError, match=rf"train\.de line {where + 1} has {least} units"):
        prepared.check_lengths("train", most_target=least - 1)
    with pytest.raises(ValueError, match=r"must leave some pair of cats train, got 2 and None, which leave out all 15"):
        prepare_parallel(text(folder, most_source=2, most_target=None))


def test_pairs_without_words_are_left_out_and_counted(folder: Path):
    with open(folder / "train.en", "a") as en, open(folder / "train.de", "a") as de:
        en.write("\nx\n\n")
        de.write("y\n\n\n")
    with pytest.raises(ValueError, match=r"train\.en line 16 must hold the translation of .*train\.de line 16"):
        prepare_parallel(text(folder))
    said: list[str] = []
    prepared = prepare_parallel(text(folder, drop_empty=True), progress=said.append)
    assert prepared.dropped["train"] == {"blank": 1, "one-sided": 2, "long": 0}
    assert "cats train: 15 pairs; left out 1 blank, 2 empty on one side" in said
    assert prepared.lines("train") == (ENGLISH, GERMAN)


def test_every_split_is_checked_before_anything_is_counted(folder: Path, cache: Path):
    (folder / "test.de").write_text("eins\nzwei\n")
    said: list[str] = []
    with pytest.raises(ValueError, match=r"test\.de line 2 has no translation"):
        prepare_parallel(text(folder), progress=said.append)
    assert said == [] and list(cache.glob("*words*")) == []


def test_a_second_time_nothing_is_made(folder: Path, monkeypatch: pytest.MonkeyPatch):
    for config in (text(folder), text(folder, units=Words(min_count=2), joint=False)):
        first = prepare_parallel(config)
        with monkeypatch.context() as patched:
            patched.setattr(encoded, "_write_tokens", None)
            patched.setattr(Subwords, "train", None)
            again = prepare_parallel(config)
        assert again.identity() == first.identity()
        assert sentences(again, "valid") == sentences(first, "valid")


@pytest.mark.parametrize("options", [{}, {"joint": False}, {"units": Words()}, {"units": Words(), "joint": False}])
def test_a_run_reopens_its_text_with_its_units_and_refuses_another(folder: Path, tmp_path: Path, options: dict):
    run, config = tmp_path / "run", text(folder, **options)
    assert PreparedParallel.saved_units(run) is None
    with pytest.raises(ValueError, match=r"run holds no data\.json, so no text was prepared there"):
        reopen_parallel(config, run)
    prepared = prepare_parallel(config)
    prepared.save(run)
    units = PreparedParallel.saved_units(run)
    assert units == (prepared.source_units, prepared.target_units)
    assert (units[0] is units[1]) == config.joint
    again = reopen_parallel(config, run)
    assert again.identity() == prepared.identity() and again.is_joint == config.joint
    with pytest.raises(ValueError, match=r"but it differs in limits 256 256 \(now 256 40\); restore"):
        reopen_parallel(replace(config, most_target=40), run)
    (folder / "valid.de").write_text("Ende\nAnders.\n")
    with pytest.raises(ValueError, match=r"the one that .*run was made with, cats, but it differs in valid target"):
        reopen_parallel(config, run)


def test_units_that_were_changed_in_a_run_are_refused(folder: Path, tmp_path: Path):
    prepared, run = prepare_parallel(text(folder, joint=False)), tmp_path / "run"
    prepared.save(run)
    prepared.source_units.lexicon.save(run / "target" / "lexicon.txt")
    with pytest.raises(ValueError, match="target holds another lexicon than was saved there"):
        PreparedParallel.saved_units(run)


def test_a_tokenizer_is_used_and_refused_where_it_cannot_have_marked_words(folder: Path, tmp_path: Path):
    learned = prepare_parallel(text(folder)).source_units
    assert learned.subwords is not None
    learned.subwords.save(tmp_path / "tokenizer.json")
    given = prepare_parallel(text(folder, units=BPE(tokenizer=tmp_path / "tokenizer.json")))
    assert given.source_units == learned
    Subwords.train(Counter(" ".join(ENGLISH + GERMAN).split()), 120).save(tmp_path / "unmarked.json")
    for joint in (True, False):
        with pytest.raises(ValueError, match=r"unmarked\.json must hold the character '▁', with which words begin"):
            prepare_parallel(text(folder, units=BPE(tokenizer=tmp_path / "unmarked.json"), joint=joint))
    spaced = text(folder, units=BPE(tokenizer=tmp_path / "unmarked.json"), splitting="spaces")
    assert sentences(prepare_parallel(spaced), "test") == [(ENGLISH[1], GERMAN[1])]
    with pytest.raises(ValueError, match=r"valid\.de is not a tokenizer\.json of byte-pair encoding"):
        prepare_parallel(text(folder, units=BPE(tokenizer=folder / "valid.de")))


def test_prepared_pairs_of_tests_need_no_files():
    prepared = prepare_parallel(ParallelText().toy())
    assert {split: len(pairs) for split, pairs in prepared.splits.items()} == {"train": 200, "valid": 20, "test": 20}
    assert sentences(prepared, "test") == list(zip(*prepared.lines("test"), strict=True))
    assert isinstance(prepared.source_units, Units)
