"""Corpora from the hub, through a stand-in for the datasets package: rows become lines of files, all or nothing."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from anymax.data import open_corpus
from anymax.data.text import hub

# The words of the first held-out files of lm1b, here.
TEST_WORDS, VALID_WORDS = 5, 4
ROWS = {
    "wikitext-2-v1/test-": [" = Title = \n", "", " a <unk> b \n"],
    "wikitext-2-v1/validation-": [" c \n"],
    "wikitext-2-v1/train-": ["d\u2028e \n", ""],
    "penn_treebank/test/": ["a b"],
    "penn_treebank/validation/": ["c N"],
    "penn_treebank/train/": ["e f", "g"],
    "plain_text/test/": ["a b", "c d e", "f g", "h i", "j k l"],
    "plain_text/train/": ["x y", "z"],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the stand-in was asked for."""
    asked: list[str] = []

    def load_dataset(kind: str, *, data_files: dict, split: str, streaming: bool) -> Iterator[dict[str, str]]:
        assert kind == "parquet" and streaming
        url = data_files[split]
        asked.append(url)
        (rows,) = [rows for part, rows in ROWS.items() if part in url]
        return iter({"sentence" if "penn" in url else "text": row} for row in rows)

    module = ModuleType("datasets")
    module.load_dataset = load_dataset
    module.__spec__ = importlib.util.spec_from_loader("datasets", loader=None)
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(hub, "LM1B_TEST_WORDS", TEST_WORDS)
    monkeypatch.setattr(hub, "LM1B_VALID_WORDS", VALID_WORDS)
    return asked


def read(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}


def test_rows_become_the_lines_of_three_files(tmp_path: Path, asked: list[str]):
    said: list[str] = []
    folder = hub.bring("wikitext-2", tmp_path / "data", progress=said.append)
    assert folder == tmp_path / "data" / "wikitext-2"
    assert read(folder) == {
        "test.txt": " = Title = \n\n a <unk> b \n",
        "train.txt": "d\u2028e \n\n",
        "valid.txt": " c \n",
    }
    assert said == [f"bringing wikitext-2 {split} lines" for split in ("test: 3", "valid: 1", "train: 2")]
    assert asked[0] == "hf://datasets/Salesforce/wikitext/wikitext-2-v1/test-*.parquet"
    corpus = open_corpus("wikitext-2", root=tmp_path / "data")
    assert list(corpus.words("test")) == ["=", "Title", "=", "<eos>", "<eos>", "a", "<unk>", "b", "<eos>"]


@pytest.mark.usefixtures("asked")
def test_sets_that_are_programs_are_read_from_their_copies(tmp_path: Path, asked: list[str]):
    assert read(hub.bring("ptb", tmp_path)) == {"test.txt": "a b\n", "train.txt": "e f\ng\n", "valid.txt": "c N\n"}
    assert all("ptb_text_only@refs%2Fconvert%2Fparquet/penn_treebank/" in url for url in asked)


@pytest.mark.usefixtures("asked")
def test_the_billion_words_are_tested_on_the_first_held_out_file_and_validated_on_the_second(tmp_path: Path):
    assert read(hub.bring("lm1b", tmp_path)) == {
        "test.txt": "a b\nc d e\n",
        "train.txt": "x y\nz\n",
        "valid.txt": "f g\nh i\n",
    }


@pytest.mark.usefixtures("asked")
def test_held_out_files_of_other_words_are_refused_before_the_rest_is_brought(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(hub, "LM1B_TEST_WORDS", 4)
    with pytest.raises(ValueError, match="its test file must hold 4 words, they hold 5"):
        hub.bring("lm1b", tmp_path)


@pytest.mark.usefixtures("asked")
def test_a_failure_leaves_nothing_and_says_which_files_to_put_where(tmp_path: Path, monkeypatch):
    def fail(*given: object, **options: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", fail)
    with pytest.raises(ValueError, match=r"\(no network\).* put its files train\.txt, valid\.txt and test\.txt.*ptb$"):
        hub.bring("ptb", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_it_says_what_to_install_and_which_files_to_put_where(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'anymax\[hub\]'; or put its files .*/wikitext-103$"):
        hub.bring("wikitext-103", tmp_path)
