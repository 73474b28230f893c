"""Data sets of the hub with a `translation` column, through a stand-in for the datasets package."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from anymax.data import ParallelText


def rows(*pairs: tuple[str, str]) -> list[dict]:
    return [{"id": 0, "translation": {"de": source, "en": target}} for source, target in pairs]


SETS = {
    ("opus", "de-en"): {
        "train": rows(("Ja.", "Yes."), ("Nein,\nnein.", "No,\r\nno.")),
        "validation": rows(("Hund", "dog")),
        "test": rows(("Katze", "cat")),
    },
    ("whole", None): {"train": rows(*((f"D{number}", f"E{number}") for number in range(20)))},
    ("broken", None): {"train": rows(("Ja.", "Yes.")), "validation": [{"translation": {"de": "Ja."}}]},
    ("held-out", None): {"test": rows(("Ja.", "Yes."))},
}


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple]:
    """What the stand-in was asked for."""
    asked: list[tuple] = []

    def load_dataset(name: str, subset: str | None, *, split: str, streaming: bool) -> Iterator[dict]:
        assert streaming
        asked.append((name, subset, split))
        return iter(SETS[name, subset][split])

    module = ModuleType("datasets")
    module.load_dataset = load_dataset
    module.get_dataset_split_names = lambda name, subset: list(SETS[name, subset])
    # As `save_to_disk` leaves it: a dictionary of splits, or one table.
    module.load_from_disk = lambda path: (
        SETS["opus", "de-en"] if Path(path).name == "dict" else SETS["whole", None]["train"]
    )
    module.__spec__ = importlib.util.spec_from_loader("datasets", loader=None)
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setenv("ANYMAX_CACHE", str(tmp_path / "cache"))
    return asked


def test_splits_are_brought_once_and_serve_both_directions(asked: list[tuple]):
    said: list[str] = []
    text = ParallelText(hub="opus", subset="de-en", languages=("de", "en"))
    corpus = text.open(progress=said.append)
    assert asked == [("opus", "de-en", split) for split in ("validation", "test", "train")]
    assert said == [f"bringing opus {split}: {n} pairs" for split, n in (("valid", 1), ("test", 1), ("train", 2))]
    assert corpus.lines("train") == (["Ja.", "Nein, nein."], ["Yes.", "No, no."])
    assert corpus.lines("valid") == (["Hund"], ["dog"])
    back = ParallelText(hub="opus", subset="de-en", languages=("en", "de")).open()
    assert back.lines("test") == (["cat"], ["Katze"]) and len(asked) == 3


def test_a_set_of_one_split_is_cut():
    corpus = ParallelText(hub="whole", languages=("de", "en"), held_out=0.1).open()
    assert [len(corpus.lines(split).sources) for split in ("train", "valid", "test")] == [16, 2, 2]
    assert corpus.lines("test").sources == ["D18", "D19"]


def test_a_set_that_was_saved_to_disk_is_read_from_there(tmp_path: Path, asked: list[tuple]):
    for name, sizes in (("dict", [2, 1, 1]), ("table", [18, 1, 1])):
        (tmp_path / name).mkdir()
        corpus = ParallelText(hub=str(tmp_path / name), languages=("de", "en")).open()
        assert [len(corpus.lines(split).sources) for split in ("train", "valid", "test")] == sizes
    assert asked == []


def test_a_set_that_was_saved_again_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved = tmp_path / "table"
    saved.mkdir()
    (saved / "state.json").write_text("{}")
    text = ParallelText(hub=str(saved), languages=("de", "en"))
    assert text.open().lines("test").sources == ["D19"]
    monkeypatch.setitem(SETS["whole", None], "train", SETS["whole", None]["train"][:19])
    assert text.open().lines("test").sources == ["D19"]
    (saved / "state.json").write_text('{"_fingerprint": 1}')
    assert text.open().lines("test").sources == ["D18"]


def test_what_cannot_be_brought_leaves_nothing_and_says_why(tmp_path: Path):
    for name, match in (
        ("broken", r"broken could not be brought from the hub \(row 1 of broken valid must hold a text for each lang"),
        ("held-out", r"held-out could not be brought from the hub \(it must have a train split, got test\)"),
    ):
        with pytest.raises(ValueError, match=match):
            ParallelText(hub=name, languages=("de", "en")).open()
        assert list((tmp_path / "cache" / "hub").iterdir()) == []
    with pytest.raises(ValueError, match=r"languages must say which of opus is the source.*--data\.languages de en"):
        ParallelText(hub="opus").open()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'anymax\[hub\]'; or write it to a \.jsonl file"):
        ParallelText(hub="opus", languages=("de", "en")).open()
