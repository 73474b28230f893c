"""Your own text as a recipe: steps by its size, and files found in folders."""

import gzip
from pathlib import Path

import pytest

from anymax.data import open_corpus
from anymax.data.text.corpus import num_bytes
from anymax.recipes import own_text
from anymax.training import NonMonotone


def test_epochs_fall_with_the_root_of_the_size_so_that_steps_rise_with_it():
    sizes = (20_000, 100_000, 300_000, 1_000_000, 5_000_000, 30_000_000, 120_000_000)
    assert [own_text.epochs_of(size) for size in sizes] == [39, 17, 10, 5, 2, 1, 0.5]
    assert own_text.epochs_of(1) == own_text.MOST_EPOCHS
    read = [size * own_text.epochs_of(size) for size in sizes]
    assert read == sorted(read)


def test_a_short_text_is_evaluated_every_epoch_and_read_with_more_dropout(tmp_path: Path):
    short, long = tmp_path / "short.txt", tmp_path / "long.txt"
    short.write_text("a word\n" * 1_000)
    with open(long, "wb") as file:
        file.truncate(5_000_000)
    runs = [own_text.own_text(path) for path in (short, long)]
    assert [run.evaluate_every for run in runs] == ["epoch", 500]
    assert [run.task.model.body.dropout for run in runs] == [0.3, 0.1]
    assert all(run.stop == NonMonotone(3) for run in runs)
    assert [run.task.data.path for run in runs] == [short, long]
    assert own_text.toy(short).task.data.path == short and own_text.toy(short).steps is not None


def test_a_folder_of_texts_is_one_text_and_a_folder_of_splits_is_not(tmp_path: Path):
    texts, splits = tmp_path / "texts", tmp_path / "splits"
    texts.mkdir()
    (texts / "b.txt").write_text("".join(f"b{i}, too\n" for i in range(10)))
    (texts / "a.txt").write_text("".join(f"a{i}\n" for i in range(10)))
    (texts / "notes.md").write_text("left out\n")
    (texts / ".hidden.txt").write_text("left out\n")
    corpus = open_corpus(texts)
    lines = {split: list(corpus.source(split).lines()) for split in ("train", "valid", "test")}
    assert lines["train"] == [f"a{i}" for i in range(10)] + [f"b{i}, too" for i in range(8)]
    assert (lines["valid"], lines["test"], corpus.name) == (["b8, too"], ["b9, too"], "texts")
    assert next(corpus.sentences("test")) == ["b9", ",", "too"]
    assert num_bytes(texts) == sum((texts / name).stat().st_size for name in ("a.txt", "b.txt"))
    splits.mkdir()
    (splits / "train.txt").write_text("a b\n" * 5)
    (splits / "valid.txt").write_text("a\n")
    assert num_bytes(splits) == 20 and open_corpus(splits).splitting == "spaces"
    (splits / "train.txt").unlink()
    with pytest.raises(ValueError, match=r"splits has no train file, only valid.txt"):
        num_bytes(splits)


def test_a_packed_text_counts_as_about_what_it_unpacks_to(tmp_path: Path):
    packed = tmp_path / "book.txt.gz"
    packed.write_bytes(gzip.compress(b"a few words\n" * 9))
    assert num_bytes(packed) == 3 * packed.stat().st_size
