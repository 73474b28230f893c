"""The page of a run, or of several: what it shows is what the files of runs and `anymax analyze` have."""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anymax.analysis.heads.alphas import Head
from anymax.analysis.heads.page import page as tables_of_heads
from anymax.analysis.heads.study import study_heads
from anymax.analysis.report.attention import as_bytes
from anymax.analysis.report.learning import MOST_POINTS, learning
from anymax.analysis.report.report import Looks, report
from anymax.analysis.report.runs import read_runs
from anymax.analysis.report.side_by_side import best_run, comparison
from anymax.cli import main
from anymax.display import AttentionView, Chart, Heading, Notice, Page, Paragraph, Table, document
from anymax.display.chart import vega_script
from anymax.recipes import find
from anymax.training import open_run, read_metrics, train
from anymax.training.run_folder.metrics import METRICS

pytestmark = pytest.mark.usefixtures("one_thread")


def quiet(text: str) -> None:
    """Announce nothing."""


def trained(folder: Path, recipe: str, *, seed: int = 1, steps: int = 4) -> Path:
    config = replace(find(recipe)().toy(), steps=steps, epochs=None, seed=seed, log_every=1, evaluate_every=2)
    schedule = replace(config.schedule, warmup=1) if hasattr(config.schedule, "warmup") else config.schedule
    train(replace(config, schedule=schedule), folder)
    return folder


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "multi30k.learned_entmax", "multi30k.learned_entmax")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Language models: two seeds of one recipe and one of another."""
    folder = tmp_path_factory.mktemp("models")
    named = (("sotu.adaptive_tied", 1), ("sotu.adaptive_tied", 2), ("sotu.softmax", 1))
    return [trained(folder / f"{recipe}-seed-{seed}", recipe, seed=seed) for recipe, seed in named]


def headings(page: Page) -> list[str]:
    return [part.text for part in page.parts if isinstance(part, Heading)]


def charts(parts: Any) -> Iterator[Chart]:
    return (part for part in parts if isinstance(part, Chart))


def test_the_numbers_of_heads_are_those_of_analyze(translator: Path) -> None:
    page = report([translator], Looks(limit=5, texts=2), announce=quiet)
    assert {"Learning", "Attention", "Settings"} <= {*headings(page)}
    heads = study_heads(open_run(translator).task, translator, "valid", limit=5, seed=1, most=0, announce=quiet)
    # What `anymax analyze heads` writes as JSON.
    written = json.loads(json.dumps(tables_of_heads(heads, "").as_dict()))
    shown = {part.title: part.rows for part in page.parts if isinstance(part, Table)}
    wanted = [part for part in tables_of_heads(heads, "").parts if isinstance(part, Table)]
    assert len(wanted) == 4 and all(shown[table.title] == table.rows for table in wanted)
    (view,) = [part for part in page.parts if isinstance(part, AttentionView)]
    assert heads.alphas is not None
    for row, each in zip(view.heads, written["heads"], strict=True):
        assert (row.kind, row.layer, row.number) == (each["kind"], each["layer"], each["number"])
        layer = next(one for one in written["layers"] if (one["kind"], one["layer"]) == (row.kind, row.layer))
        own = {"density": each["density"], "entropy": each["entropy"], "diversity": layer["diversity_by_heads"]}
        alpha = heads.alphas.now[Head(row.kind, row.layer, row.number)]
        assert row.values == {**own, "alpha": alpha, **each["confidence"]}


def test_examples_of_heads_have_the_weights_that_were_observed(translator: Path) -> None:
    page = report([translator], Looks(limit=3, texts=2), announce=quiet)
    (view,) = [part for part in page.parts if isinstance(part, AttentionView)]
    observed = [
        one for batch in open_run(translator).task.observe("valid", limit=3, seed=1) for one in batch.examples()
    ]
    of_encoder = [example for example in observed if example.kind == "encoder"]
    assert len(view.examples) == 3
    for shown in view.examples:
        example = next(one for one in of_encoder if one.queries.units[:36] == shown["encoder"].queries)
        found = torch.tensor(list(shown["encoder"].weights)).view(example.weights[:, :36, :36].shape)
        cut = example.weights[:, :36, :36]
        assert ((found == 0) == (cut == 0)).all()
        assert (found.double() / 255).square().sub(cut).abs().max() < 0.005
    assert all(sorted(row.order) == [0, 1, 2] for row in view.heads)


def test_weights_as_bytes_keep_zero_apart_from_the_faintest() -> None:
    assert [*as_bytes(torch.tensor([0.0, 1e-12, 0.25, 1.0, 1.0000001]))] == [0, 1, 128, 255, 255]


def test_curves_are_what_the_records_have(models: list[Path]) -> None:
    run = read_runs(models[2:])
    found = {chart.title: chart for chart in charts(learning(run))}
    records = [record for record in read_metrics(models[2]) if record["kind"] == "train"]
    assert found["Training loss"].columns["value"] == [record["loss"] for record in records]
    assert found["Training loss"].columns["items"] == [record["items"] for record in records]
    valid = [record for record in read_metrics(models[2]) if record["kind"] == "evaluation"]
    assert found["Validation: loss"].columns["value"] == [record["metrics"]["loss"] for record in valid]
    assert found["Validation: loss"].columns["items"] == [records[1]["items"], records[3]["items"]]
    assert not any("num" in title for title in found)


def test_long_curves_are_means_of_neighbours(tmp_path: Path, models: list[Path]) -> None:
    run = tmp_path / "long"
    shutil.copytree(models[2], run)
    record = next(record for record in read_metrics(run) if record["kind"] == "train")
    lines = [json.dumps({**record, "step": step, "loss": float(step)}) for step in range(1, 1001)]
    (run / METRICS).write_text("\n".join(lines) + "\n")
    loss = next(charts(learning(read_runs([run]))))
    assert len(loss) <= MOST_POINTS and loss.columns["value"][0] == 2.5 and loss.columns["steps"][-1] == 1000


def test_seeds_are_a_band_and_a_row(models: list[Path]) -> None:
    runs = read_runs(models)
    loss = next(charts(learning(runs)))
    assert [*dict.fromkeys(loss.columns["run"])] == ["adaptive_tied", "softmax"] and "from the least" in loss.note
    table = comparison(runs)[1]
    assert isinstance(table, Table) and {row[0] for row in table.rows} == {"adaptive_tied", "softmax"}
    assert {(row[0], row[1]) for row in table.rows} == {("adaptive_tied", "2"), ("softmax", "1")}
    column = table.columns.index("valid loss")
    tied = next(row for row in table.rows if row[0] == "adaptive_tied")
    losses = [json.loads((run / "summary.json").read_text())["best"]["metrics"]["loss"] for run in models[:2]]
    assert float(tied[column].text) == pytest.approx(sum(losses) / 2, rel=1e-3)
    assert float(tied[column].note.removeprefix("± ")) == pytest.approx(
        abs(losses[0] - losses[1]) / math.sqrt(2), rel=0.05
    )
    order = [min(losses), json.loads((models[2] / "summary.json").read_text())["best"]["metrics"]["loss"]]
    assert (table.rows[0][0] == "adaptive_tied") == (sum(losses) / 2 < order[1])


def test_a_run_without_results_stands_last(models: list[Path], tmp_path: Path) -> None:
    losses = {"a": None, "b": 3.0, "c": 2.0, "d": 2.5}
    for clip, (name, loss) in enumerate(losses.items(), 1):
        shutil.copytree(models[2], tmp_path / name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        (tmp_path / name / "config.json").write_text(json.dumps({**config, "clip": clip / 10}))
        summary = {} if loss is None else {"best": {"metrics": {"loss": loss}}}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
        (tmp_path / name / METRICS).unlink()
    runs = read_runs([tmp_path / name for name in losses])
    (table,) = [part for part in comparison(runs) if isinstance(part, Table) and part.columns[0] == "run"]
    assert [row[0] for row in table.rows] == ["c", "d", "b", "a"] and best_run(runs).label == "c"


def test_differences_are_tested_between_the_runs_that_have_results(translator: Path, tmp_path: Path) -> None:
    references = [f"a b c d e f {number}" for number in range(20)]
    texts = {"good": references, "bad": ["a b c x e f 0"] * 20, "untested": None}
    for clip, (name, translations) in enumerate(texts.items(), 1):
        shutil.copytree(translator, tmp_path / name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        (tmp_path / name / "config.json").write_text(json.dumps({**config, "clip": clip / 10}))
        shutil.rmtree(tmp_path / name / "evaluations", ignore_errors=True)
        if translations is not None:
            metrics = {"bleu": 100.0 if name == "good" else 10.0}
            results = {"translations": translations, "references": references, "tokenize": "none", "lowercase": False}
            write_tested(tmp_path / name, {**results, "metrics": metrics})
    runs = read_runs([tmp_path / name for name in texts])
    (differences,) = [part for part in comparison(runs) if isinstance(part, Table) and "bootstrap" in part.title]
    assert differences.columns[3] == "p against good" and [row[0] for row in differences.rows] == ["good", "bad"]
    assert float(differences.rows[1][3]) < 0.05 and differences.source == "evaluations/test.json of each run"
    for lacking, said in (({}, "damaged or of an older"), ({**results, "references": ["x"] * 20}, "same sentences")):
        write_tested(tmp_path / "bad", {**lacking, "metrics": metrics})
        *_, last = comparison(read_runs([tmp_path / name for name in texts]))
        assert isinstance(last, Paragraph) and said in last.text


def write_tested(run: Path, results: dict[str, Any]) -> None:
    (run / "evaluations").mkdir(exist_ok=True)
    (run / "evaluations" / "test.json").write_text(json.dumps(results))


def test_runs_side_by_side_say_what_they_share(models: list[Path]) -> None:
    shared = comparison(read_runs(models))[0]
    assert isinstance(shared, Table) and ("data", "pydoc") in shared.rows
    assert ("task", "LanguageModeling") in shared.rows


def test_a_page_of_several_runs_says_whose_details_it_has(models: list[Path]) -> None:
    page = report(models, Looks(limit=2, texts=2), announce=quiet)
    assert page.title == "3 runs side by side"
    assert any("the best of the runs" in getattr(part, "text", "") for part in page.parts)
    html = document(page)
    assert "Settings that differ" in html and len(html) < 5_000_000


def notices(folder: Path) -> list[str]:
    page = report([folder], Looks(limit=2, texts=2), announce=quiet)
    document(page)
    return [part.text for part in page.parts if isinstance(part, Notice)]


def test_what_is_missing_is_said_where_it_would_be(models: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(models[2], run)
    assert notices(run) == []
    (run / "summary.json").unlink()
    assert notices(run) == ["The run is not finished: its last record is of step 4."]
    shutil.rmtree(run / "checkpoints")
    assert "The model cannot be looked into" in notices(run)[1]
    (run / "config.json").write_text("{}")
    assert len(notices(run)) == 1 and "must have format" in notices(run)[0]
    (run / METRICS).write_text(json.dumps({"kind": "train", "step": 1, "loss": math.inf, "log": 3, "lr": "x"}) + "\n")
    notices(run)
    odd = {"training_seconds": math.nan, "item": [], "goal": {}, "steps": 10**400, "num_parameters": "many", "best": []}
    (run / "summary.json").write_text(json.dumps(odd))
    shutil.copytree(run, tmp_path / "other")
    document(report([run, tmp_path / "other"], Looks(limit=2, texts=2), announce=quiet))
    notices(run)


def test_records_that_lack_what_a_section_needs_take_that_section_alone(translator: Path, tmp_path: Path) -> None:
    shutil.copytree(translator, tmp_path / "run")
    records = [json.loads(line) for line in (translator / METRICS).read_text().splitlines()]
    name = next(name for name in records[0]["watch"] if "alpha" in name)
    for record in records:
        if record["kind"] == "train":
            record["watch"][name] = 10**400
    (tmp_path / "run" / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
    page = report([tmp_path / "run"], Looks(limit=2, texts=2), announce=quiet)
    (said,) = [part.text for part in page.parts if isinstance(part, Notice)]
    assert said.startswith("No attention can be shown") and "Text" in headings(page)


def test_a_model_that_is_worse_than_pairs_of_words_is_said_to_be(models: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(models[2], run)
    write_tested(run, {"split": "test", "perplexity": {"loss": 6.0, "unit": "word"}, "bigram": {"loss": 5.5}})
    assert notices(run) == [
        "Worse than the bigram: 6.000 nats a word on test, and counts of pairs of words reach 5.500."
    ]


def test_the_verb_writes_a_page_beside_the_run_and_opens_it(
    translator: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or False)
    own = tmp_path / "own.txt"
    own.write_text("b <i>a</i> c\n\na a\n")
    assert main(["report", str(translator), "--limit", "3", "--examples", str(own), "--open"]) == 0
    page = (translator / "report.html").read_text()
    assert page.startswith("<!doctype html>") and "multi30k.learned_entmax" in page
    said = capsys.readouterr().out.replace("\n", "")
    assert f"Wrote {translator / 'report.html'}" in said and "No browser was found" in said
    assert opened == [(translator / "report.html").resolve().as_uri()]
    text = page.split('<figure class="texts">')[1]
    assert "b &lt;i&gt;a&lt;/i&gt; c" in text and text.count("<dl ") == 2


def test_without_what_draws_plots_the_verb_says_so_at_once(
    translator: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vega_script.cache_clear()
    monkeypatch.setattr("anymax.display.chart.can_be_drawn", lambda: False)
    assert main(["report", str(translator)]) != 0
    said = capsys.readouterr()
    assert "pip install 'anymax[report]'" in said.err and said.out == ""


def test_the_verb_refuses_what_it_cannot_use(
    tmp_path: Path, translator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {
        "must be the folder of a run": ["report", str(tmp_path)],
        "there is no such folder": ["report", str(tmp_path / "none")],
        "limit must be": ["report", str(translator), "--limit", "0"],
        "output must be a file": ["report", str(translator), "--output", str(tmp_path)],
        "does not exist": ["report", str(translator), "--examples", str(tmp_path / "none.txt")],
    }
    for said, command in wrong.items():
        assert main(command) == 2
        assert said in capsys.readouterr().err
