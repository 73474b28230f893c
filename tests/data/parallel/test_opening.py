"""Parallel text from files, tables, folders and rows: the same pairs from each, and what does not pair by its line."""

import gzip
import json
import os
from pathlib import Path

import pytest

from anymax.data import (
    ParallelCorpus,
    ParallelText,
    parallel_from_files,
    parallel_from_table,
    parallel_in_folder,
    parallel_of_files,
    parallel_of_rows,
)
from anymax.data.parallel.corpus import Counted

ENGLISH = [f"The cat no. {number} sat." for number in range(20)]
GERMAN = [f"Die Katze Nr. {number} saß." for number in range(20)]


def write(path: Path, lines: list[str], pack=bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack("".join(f"{line}\n" for line in lines).encode()))
    return path


def pairs_of(corpus: ParallelCorpus) -> dict[str, list[tuple[str, str]]]:
    return {split: [(pair.source, pair.target) for pair in corpus.pairs(split)] for split in corpus.sources}


def cut(pairs: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    return {"train": pairs[:-2], "valid": pairs[-2:-1], "test": pairs[-1:]}


def test_two_files_and_both_kinds_of_tables_are_cut_alike(tmp_path: Path):
    pairs = list(zip(ENGLISH, GERMAN, strict=True))
    en, de = write(tmp_path / "a.en.gz", ENGLISH, gzip.compress), write(tmp_path / "a.de", GERMAN)
    named = [f"{target}\tx\t{source}" for source, target in [("en", "de"), *pairs]]
    rows = [{"en": source, "de": target, "id": 3} for source, target in pairs]
    wrapped = [{"translation": row} for row in rows]
    tables = [
        write(tmp_path / "bare.tsv", [f"{source}\t{target}" for source, target in pairs]),
        write(tmp_path / "named.tsv.gz", named, gzip.compress),
        write(tmp_path / "rows.jsonl", [json.dumps(row) for row in rows]),
        write(tmp_path / "wrapped.jsonl.gz", [json.dumps(row) for row in wrapped], gzip.compress),
    ]
    texts = [
        ParallelText(source=en, target=de),
        *(ParallelText(path=table, languages=("en", "de")) for table in tables),
    ]
    for text in texts:
        corpus = text.open()
        assert pairs_of(corpus) == cut(pairs), text.name
        assert corpus.splitting == "marked"
    assert pairs_of(ParallelText(path=tables[2], languages=("de", "en")).open())["valid"] == [(GERMAN[18], ENGLISH[18])]
    assert pairs_of(ParallelText(path=tables[0]).open()) == cut(pairs)


def test_the_held_out_share_can_be_chosen(tmp_path: Path):
    en, de = write(tmp_path / "a.en", ENGLISH), write(tmp_path / "a.de", GERMAN)
    sizes = {split: len(pairs) for split, pairs in pairs_of(parallel_from_files(en, de, valid=0.1, test=0)).items()}
    assert sizes == {"train": 18, "valid": 2}
    text = ParallelText(source=en, target=de, held_out=0.25)
    assert [len(pairs) for pairs in pairs_of(text.open()).values()] == [10, 5, 5]


def test_splits_of_a_folder_are_found_by_their_names(tmp_path: Path):
    folder, train, rest = tmp_path / "pairs", slice(0, 15), slice(15, 20)
    for language, lines in (("en", ENGLISH), ("de", GERMAN), ("fr", GERMAN)):
        write(folder / f"train.lc.tok.{language}.gz", lines[train], gzip.compress)
        write(folder / f"dev.{language}.txt", lines[rest])
    tables = tmp_path / "tables"
    for split, part in (("train", train), ("validation", rest)):
        rows = zip(ENGLISH[part], GERMAN[part], strict=True)
        write(tables / f"{split}.tsv", [f"{source}\t{target}" for source, target in rows])
    sides = tmp_path / "sides"
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        write(sides / language / "train.txt", lines[train])
        write(sides / language / "valid.txt", lines[rest])
    expected = {
        "train": list(zip(ENGLISH[train], GERMAN[train], strict=True)),
        "valid": list(zip(ENGLISH[rest], GERMAN[rest], strict=True)),
    }
    assert pairs_of(ParallelText(path=folder, languages=("en", "de")).open()) == expected
    assert pairs_of(ParallelText(path=tables).open()) == expected
    assert pairs_of(ParallelText(source=sides / "en", target=sides / "de").open()) == expected
    with pytest.raises(ValueError, match=r"must have files that end in \.en and in \.ro.*got those of de, en, fr; add"):
        parallel_in_folder(folder, ("en", "ro"))
    with pytest.raises(ValueError, match=r"languages must say which is the source.*\(--data\.languages en de\)"):
        parallel_in_folder(folder, None)
    (folder / "dev.de.txt").unlink()
    with pytest.raises(
        ValueError, match=r"a file in en and one in de for each split, got .*valid.* in en and train in de"
    ):
        parallel_in_folder(folder, ("en", "de"))
    (sides / "de" / "valid.txt").unlink()
    with pytest.raises(ValueError, match=r"must have files for the same splits, got train, valid and train; add"):
        parallel_from_files(sides / "en", sides / "de")


def test_rows_of_a_data_set_in_memory_are_pairs():
    rows = [{"id": 1, "translation": {"de": "Ja,\nnein.", "en": "Yes,\r\nno.", "fr": "Oui."}}]
    corpus = parallel_of_rows("mine", {"train": rows}, ("de", "en"))
    assert pairs_of(corpus) == {"train": [("Ja, nein.", "Yes, no.")]}
    with pytest.raises(
        ValueError, match=r'mine train row 1 must hold a text for each language: \{"de": "\.\.\.", "ro"'
    ):
        parallel_of_rows("mine", {"train": rows}, ("de", "ro"))
    with pytest.raises(ValueError, match="mine has no test split, only train"):
        corpus.source("test")


@pytest.mark.parametrize("ours", [3, 7])
def test_files_of_different_lengths_are_refused_with_the_first_line_that_has_no_partner(tmp_path: Path, ours: int):
    en, de = write(tmp_path / "a.en", ENGLISH[:ours]), write(tmp_path / "a.de", GERMAN[:5])
    longer = "a.de line 4" if ours == 3 else "a.en line 6"
    match = rf"a\.en and .*a\.de must have as many sentences.*got {ours} and 5: .*{longer} has no translation; find"
    with pytest.raises(ValueError, match=match):
        parallel_from_files(en, de)
    with pytest.raises(ValueError, match=match):
        parallel_of_files({"train": (en, de)}).count("train", cache=tmp_path)


def test_a_line_that_is_empty_on_one_side_is_refused_or_left_out_by_name_and_counted(tmp_path: Path):
    en = write(tmp_path / "a.en", ["a", " ", "c", "", "e"])
    de = write(tmp_path / "a.de", ["A", "B", "\t", "\u00a0", "E"])
    strict = parallel_of_files({"train": (en, de)})
    match = r"a\.en line 2 must hold the translation of .*a\.de line 2, got an empty line; mend.*drop_empty=True"
    for read in (lambda: strict.count("train", cache=tmp_path), lambda: strict.lines("train")):
        with pytest.raises(ValueError, match=match):
            read()
    lenient = parallel_of_files({"train": (en, de)}, drop_empty=True)
    assert lenient.lines("train") == (["a", "e"], ["A", "E"])
    assert lenient.count("train", cache=tmp_path) == Counted(pairs=2, blank=1, one_sided=2)
    assert lenient.places("train", 1) == (f"{en} line 5", f"{de} line 5")


def test_counts_are_kept_and_made_anew_when_a_file_changes_or_they_were_damaged(tmp_path: Path, monkeypatch):
    en, de = write(tmp_path / "a.en", ["a", "b"]), write(tmp_path / "a.de", ["A", "B"])
    corpus, cache = parallel_of_files({"train": (en, de)}), tmp_path / "cache"
    assert corpus.count("train", cache=cache).pairs == 2
    with monkeypatch.context() as patched:
        patched.setattr(ParallelCorpus, "_count", None)
        assert corpus.count("train", cache=cache).pairs == 2
    write(en, ["a", "b", "c"])
    write(de, ["A", "B", "C"])
    assert corpus.count("train", cache=cache).pairs == 3
    for file in cache.iterdir():
        file.write_text('{"pairs": 3}')
    assert corpus.count("train", cache=cache) == Counted(3, 0, 0)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (
            "[1]",
            r'rows\.jsonl line 2 must hold a text for each language: \{"en": "...", "de": "..."\}, got \[1\]; mend',
        ),
        ('{"en": "a"}', r"rows\.jsonl line 2 must hold a text for each language"),
        ('{"en": "a", "de": 3}', r"rows\.jsonl line 2 must hold a text for each language"),
        ('{"en": "a", "de"', r"rows\.jsonl line 2 must be a JSON object, got"),
        ("[" * 100_000, r"rows\.jsonl line 2 must be a JSON object, got \[\[\["),
        (r'{"en": "a\ud800", "de": "b"}', r"rows\.jsonl line 2 holds half of a surrogate pair"),
        ('{"en": "a", "de": ""}', r"rows\.jsonl line 2 \(de\) must hold the translation of .*line 2 \(en\)"),
    ],
)
def test_a_wrong_row_is_refused_with_its_line(tmp_path: Path, line: str, match: str):
    good = '{"en": "a", "de": "A"}'
    path = write(tmp_path / "rows.jsonl", [good, line, *[good] * 5])
    with pytest.raises(ValueError, match=match):
        parallel_from_table(path, ("en", "de")).count("train", cache=tmp_path)


def test_a_wrong_table_is_refused_with_its_line(tmp_path: Path):
    path = write(tmp_path / "rows.tsv", ["a\tA", "", "b\tB\tC", "c\tC"])
    with pytest.raises(
        ValueError, match=r"rows\.tsv line 3 must have 2 columns with a tab between two, got 3: b\tB\tC"
    ):
        parallel_from_table(path)
    named = write(tmp_path / "named.tsv", ["id\tde\ten", "1\tA\ta", "B\tb"])
    with pytest.raises(ValueError, match=r"named\.tsv line 3 must have 3 columns with a tab between two, got 2"):
        parallel_from_table(named, ("en", "de"))
    with pytest.raises(ValueError, match="languages must say which is the source and which the target, got None"):
        parallel_from_table(write(tmp_path / "rows.jsonl", ["{}"]))
    with pytest.raises(ValueError, match=r"a\.csv must be a table of pairs whose name ends in \.tsv or \.jsonl"):
        parallel_from_table(write(tmp_path / "a.csv", ["a,A"]))


def test_a_sentence_with_the_end_mark_is_refused_where_it_would_be_a_word(tmp_path: Path):
    en, de = write(tmp_path / "a.en", ["a", "b"]), write(tmp_path / "a.de", ["A", "the <eos> B"])
    with pytest.raises(ValueError, match=r"a\.de line 2 must not hold the word <eos>, which ends every sentence"):
        parallel_of_files({"train": (en, de)}, splitting="spaces").count("train", cache=tmp_path)
    assert parallel_of_files({"train": (en, de)}).count("train", cache=tmp_path).pairs == 2


def test_files_that_are_no_text_or_not_there_are_refused_when_a_corpus_is_opened(tmp_path: Path):
    en, de = write(tmp_path / "a.en", ["a"]), tmp_path / "a.de"
    for make, match in (
        (lambda: None, r"a\.de does not exist; check the name"),
        (lambda: write(de, []), r"a\.de is empty: a text must hold at least one word"),
        (lambda: de.write_bytes(b"\xff\xfe"), r"a\.de is not utf-8: byte 0xff at position 0, in line 1"),
        (lambda: (de.unlink(), os.mkfifo(de)), r"a\.de must be a text file, got a pipe"),
    ):
        make()
        with pytest.raises((ValueError, FileNotFoundError), match=match):
            parallel_of_files({"train": (en, de)})
    with pytest.raises(ValueError, match="files must name those of the train split, got valid"):
        parallel_of_files({"valid": (en, en)})
    with pytest.raises(FileNotFoundError, match="absent is not a folder"):
        parallel_in_folder(tmp_path / "absent", ("en", "de"))


def test_a_text_without_a_pair_is_refused(tmp_path: Path):
    en, de = write(tmp_path / "a.en", ["a", ""]), write(tmp_path / "a.de", ["", "B"])
    corpus = parallel_of_files({"train": (en, de)}, drop_empty=True)
    with pytest.raises(ValueError, match=r"must hold at least one pair with words on both sides, got none"):
        corpus.count("train", cache=tmp_path)


def test_each_side_is_a_corpus_with_a_line_for_every_pair(tmp_path: Path):
    en, de = write(tmp_path / "a.en", ["a b", "", "c"]), write(tmp_path / "a.de", ["A", "B", "C D"])
    corpus = parallel_of_files({"train": (en, de)}, ("en", "de"), splitting="spaces", drop_empty=True)
    assert [list(corpus.side(side).sentences("train")) for side in ("source", "target")] == [
        [["a", "b"], ["c"]],
        [["A"], ["C", "D"]],
    ]
    assert [corpus.side(side).name for side in ("source", "target")] == ["a.en-en", "a.en-de"]
    places = {corpus.side(side).source("train").place() for side in ("source", "target")}
    assert len(places) == 2
