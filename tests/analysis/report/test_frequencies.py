"""Losses by frequency as runs have them; a run is left out where its results are missing or damaged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anymax.analysis.report.frequencies import Counted, Results, frequencies, read_results
from anymax.display import Chart, Noted, Paragraph, Table
from anymax.evaluation.frequency import Bin, FrequencyTable
from anymax.files import DamagedError
from anymax.recipes import find
from anymax.training import open_run, train
from anymax.training.run_folder.folder import TESTED

BINS = (Bin(None, 10, 30, 0.3, 6.0), Bin(10, 100, 70, 0.7, 2.0), Bin(100, None, 0, 0.0, None))
COUNTED = (Bin(None, 10, 30, 0.3, 9.0), Bin(10, 100, 70, 0.7, 4.0), Bin(100, None, 0, 0.0, None))
GOOD = {
    "perplexity": {"loss": 3.2, "loss_name": "negative log-probability"},
    "by_frequency": FrequencyTable(BINS, BINS[::-1]).as_dict(),
    "unigram": {"loss": 5.5, "by_frequency": FrequencyTable(COUNTED, COUNTED).as_dict()},
    # As older versions wrote it.
    "bigram": {"loss": 4.5},
}


def write(folder: Path, values: Any) -> Path:
    (folder / TESTED).parent.mkdir(parents=True, exist_ok=True)
    (folder / TESTED).write_text(values if isinstance(values, str) else json.dumps(values))
    return folder


def charts(parts: list[Any]) -> list[Chart]:
    return [part for part in parts if isinstance(part, Chart)]


def test_bins_with_words_are_shown_for_every_run(tmp_path: Path) -> None:
    runs = {name: write(tmp_path / name, GOOD) for name in ("one", "two")}
    by_word, by_previous, table = frequencies(runs)
    assert isinstance(by_word, Chart) and isinstance(by_previous, Chart) and isinstance(table, Table)
    assert by_word.columns["run"] == ["one", "one", "two", "two", "unigram", "unigram"]
    assert by_word.columns["count"] == ["10", "100"] * 3
    assert by_word.columns["loss"] == [6.0, 2.0, 6.0, 2.0, 9.0, 4.0]
    assert by_word.source == table.source == "evaluations/test.json"
    assert "one 3.200; two 3.200" in by_word.note
    assert by_word.note.count("The unigram, which only counts, has 5.500.") == 1
    assert by_word.note.count("The interpolated bigram, which only counts, has 4.500.") == 1
    rows = [row for row in table.rows if isinstance(row, tuple)]
    wanted = [("10", "30", "30.0%", "6.000", "6.000", "9.000"), ("100", "70", "70.0%", "2.000", "2.000", "4.000")]
    assert rows == wanted * 2


def test_runs_on_other_texts_and_other_losses_stand_side_by_side_and_say_so(tmp_path: Path) -> None:
    others = (Bin(None, 10, 20, 0.2, 7.0), Bin(10, 100, 70, 0.7, 2.5), Bin(100, 1000, 10, 0.1, 1.0))
    other = {
        "perplexity": {"loss": 1.5, "loss_name": "SparseOutput loss"},
        "by_frequency": FrequencyTable(others, others).as_dict(),
        "unigram": {"loss": 6.5},
        "bigram": {"loss": 5},
    }
    runs = {"a": write(tmp_path / "a", GOOD), "b": write(tmp_path / "b", other)}
    by_word, _, table = frequencies(runs)
    assert isinstance(by_word, Chart) and isinstance(table, Table)
    assert "unigram of a, which only counts, has 5.500" in by_word.note
    assert "bigram of b, which only counts, has 5.000" in by_word.note
    assert "That of b is the SparseOutput loss" in by_word.note
    rows = [row for row in table.rows if isinstance(row, tuple)][:3]
    assert [row[0] for row in rows] == ["10", "100", "1K"]
    assert [row[3:5] for row in rows] == [("6.000", Noted("7.000", "20.0%")), ("2.000", "2.500"), ("", "1.000")]
    assert table.columns[3:] == ("a", "b", "unigram of a")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    counted = {"unigram": Counted(5.5, FrequencyTable(COUNTED, COUNTED)), "bigram": Counted(4.5, None)}
    wanted = Results(3.2, "negative log-probability", FrequencyTable(BINS, BINS[::-1]), counted)
    assert read_results(write(tmp_path, GOOD)) == wanted


def changed(place: str, value: Any) -> dict[str, Any]:
    """Good results with another value at a place as "by_frequency.by_word.0.loss"."""
    values: Any = json.loads(json.dumps(GOOD))
    *way, last = place.split(".")
    inner = values
    for name in way:
        inner = inner[int(name) if name.isdigit() else name]
    inner[int(last) if last.isdigit() else last] = value
    return dict(values)


DAMAGED: dict[str, Any] = {
    "no JSON": "{",
    "a list": "[]",
    "empty": {},
    "deep": "[" * 100_000,
    "a long number": '{"perplexity": ' + "9" * 10_000 + "}",
    "loss as text": changed("perplexity.loss", "3"),
    "loss is NaN": changed("perplexity.loss", float("nan")),
    "loss is huge": changed("perplexity.loss", 10**400),
    "loss is true": changed("perplexity.loss", True),
    "name is null": changed("perplexity.loss_name", None),
    "no bins": changed("by_frequency.by_word", []),
    "bins are an object": changed("by_frequency.by_word", {"0": {}}),
    "many bins": changed("by_frequency.by_word", [GOOD["by_frequency"]["by_word"][0]] * 1000),
    "a bin is a list": changed("by_frequency.by_previous.1", [1, 2]),
    "a bound is a text": changed("by_frequency.by_word.0.most", "<script>"),
    "a count is below zero": changed("by_frequency.by_word.0.num_words", -1),
    "a count is a fraction": changed("by_frequency.by_word.0.num_words", 1.5),
    "a share is missing": changed("by_frequency.by_word.0.share", None),
    "a loss is infinite": changed("by_frequency.by_word.0.loss", float("inf")),
    "baseline is a number": changed("unigram", 3.0),
    "bins of a baseline are a number": changed("unigram.by_frequency", 3.0),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_results_are_left_out_with_a_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(DamagedError, match=r"evaluations/test\.json"):
        read_results(write(tmp_path / "bad", DAMAGED[name]))
    parts = frequencies({"\x1bbad": tmp_path / "bad", "good": write(tmp_path / "good", GOOD)})
    last = parts[-1]
    assert isinstance(last, Paragraph) and last.is_dim and last.text.startswith("\\x1bbad is not among")
    assert set(charts(parts)[0].columns["run"]) == {"good", "unigram"}


def test_missing_results_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "folder" / TESTED).mkdir(parents=True)
    (tmp_path / "file").touch()
    names = ["none", "folder", "file", "a\0b", "n" * 5000]
    parts = frequencies({name: tmp_path / name for name in names})
    assert len(parts) == len(names) and all(isinstance(part, Paragraph) for part in parts)
    assert frequencies({}) == []


def test_without_baselines_none_are_named(tmp_path: Path) -> None:
    values = {**GOOD, "unigram": None, "bigram": None}
    assert "only count" not in charts(frequencies({"run": write(tmp_path, values)}))[0].note


def test_the_results_of_a_run_are_read(tmp_path: Path) -> None:
    train(replace(find("ptb.linear")().toy(), steps=2, epochs=None, evaluate_every=None), tmp_path / "run")
    report = open_run(tmp_path / "run").task.report("test", announce=lambda text: None)
    tested = read_results(write(tmp_path / "run", report.as_dict()))
    bins = tested.by_frequency.by_word
    mean = sum(bin.share * bin.loss for bin in bins if bin.loss is not None)
    assert tested.loss == pytest.approx(mean) and [*tested.counted] == ["unigram", "bigram"]
    for counted in tested.counted.values():
        assert counted.by_frequency is not None
        for of_kind in (counted.by_frequency.by_word, counted.by_frequency.by_previous):
            mean = sum(bin.share * bin.loss for bin in of_kind if bin.loss is not None)
            assert counted.loss == pytest.approx(mean)
    assert len(frequencies({"run": tmp_path / "run"})) == 3
