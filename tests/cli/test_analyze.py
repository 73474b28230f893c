"""Questions to a run as one types them: its bottleneck, what a sparse output chooses, models that follow their text."""

import json
import math
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from anymax.data.text.config import Words
from anymax.evaluation import Perplexity
from anymax.recipes import find
from anymax.training import open_run, train
from anymax.vocabulary import SparseOutputConfig
from tests.cli.commands import code_of, complaint, out

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide terminal, and empty pictures, which are drawn elsewhere."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr("anymax.display.Figure.save", lambda figure, path: Path(path).touch())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Transformer with an adaptive softmax, one with a sparse output, and an LSTM, all of one small text."""
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "text.txt"
    text.write_text(small_text())
    recipes = {"adaptive": "sotu.adaptive_tied", "sparse": "sotu.softmax", "lstm": "grave.full"}
    for name, recipe in recipes.items():
        config = find(recipe)().toy()
        task = replace(config.task, data=replace(config.task.data, path=text, units=Words()))
        if name == "sparse":
            task = replace(task, model=replace(task.model, output=SparseOutputConfig(alpha=2.0)))
        train(replace(config, task=task, steps=2, evaluate_every=None), folder / name)
    return folder


def small_text() -> str:
    """Lines in which each word is followed by one of three."""
    generator, lines = random.Random(0), []
    for _ in range(250):
        words = [generator.randrange(100)]
        while len(words) < 9:
            words.append((7 * words[-1] + generator.randrange(3)) % 100)
        lines.append(" ".join(f"word{word}" for word in words))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "command", ["analyze --help", "analyze bottleneck --help", "analyze heads --help", "evaluate --help"]
)
def test_help_needs_no_torch(command: str) -> None:
    script = "import sys\nfrom anymax.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
    script += "assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", script, *command.split()], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("name", ["adaptive", "lstm"])
def test_the_bottleneck_of_a_run_is_reported_written_and_drawn(
    name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = out(capsys, "analyze", "bottleneck", runs / name, "--contexts", "100", "--words", "90", "--most", "3")
    file = runs / name / "analyses" / "bottleneck-test.json"
    found = json.loads(file.read_text())
    assert f"Wrote {file}" in printed and f"rank {found['rank']['rank']} of 100 contexts x 90 words" in printed
    assert found["is_bound"] and found["rank"]["rank"] == found["limit"] < 90
    assert found["choices"]["num_tokens"] == 100 and 0 < found["choices"]["entropy"] < math.log(102)
    assert len(found["words"]) == 3 and found["divergence"] > 0
    nats = [word["nats"] for word in found["words"]]
    assert nats == sorted(nats, reverse=True) and all(word["word"] in printed for word in found["words"])
    assert file.with_suffix(".png").exists() == (f"Wrote {file.with_suffix('.png')}" in printed)


def test_more_than_there_is_takes_what_there_is(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out(capsys, "analyze", "bottleneck", runs / "adaptive", "--split", "valid", "--contexts", "999999999")
    found = json.loads((runs / "adaptive" / "analyses" / "bottleneck-valid.json").read_text())
    task = open_run(runs / "adaptive").task
    assert found["rank"]["num_contexts"] == len(task.prepared.split("valid"))
    assert found["rank"]["num_words"] == len(task.prepared.lexicon) == len(found["rank"]["singular_values"])


def test_the_heads_of_a_run_are_reported_written_and_drawn(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--word-class", "word1", "word7", "--token", "word0"]
    command = ["analyze", "heads", runs / "adaptive", "--limit", "5", "--seed", "3", *words]
    folder = runs / "adaptive" / "analyses"
    left = folder / "heads-valid-99.png"
    folder.mkdir(exist_ok=True)
    left.touch()
    printed = out(capsys, *command, "--most", "1")
    found = json.loads((folder / "heads-valid.json").read_text())
    assert "5 examples (at most 5, drawn by seed 3)" in printed and not left.exists()
    assert found["roles"]['words to "word0"'].startswith("the weight on 'word0' from word1, word7")
    # Softmax keeps all keys.
    assert {head["density"] for head in found["heads"]} == {1.0} and found["alphas"] is None
    assert {len(each["examples"]) for each in found["named"]} <= {0, 1}
    assert (folder / "heads-valid-2.png").exists() == (f"Wrote {folder / 'heads-valid-2.png'}" in printed)
    assert "merging, whole words too" in out(capsys, *command, "--whole-words", "--most", "0", "--split", "test")
    assert (folder / "heads-test.json").exists()


def test_a_run_without_heads_or_with_nothing_to_look_at_is_reported(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "a run whose model has heads of attention, but LSTMLM has no layers of attention" in complaint(
        capsys, "analyze", "heads", runs / "lstm"
    )
    assert not (runs / "lstm" / "analyses" / "heads-valid.json").exists()
    assert "limit must be at least 1, got 0" in complaint(capsys, "analyze", "heads", runs / "adaptive", "--limit", "0")
    assert "words and token must be words" in complaint(capsys, "analyze", "heads", runs / "adaptive", "--token", "")


def test_a_sparse_output_is_looked_at_where_a_least_log_probability_is_named(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["analyze", "bottleneck", runs / "sparse", "--contexts", "60", "--words", "50"]
    assert "raise them to a least value with clamp" in complaint(capsys, *command)
    assert "A softmax as wide as this SparseOutput could have rank" in out(capsys, *command, "--clamp=-20")


def test_a_sparse_output_is_evaluated_by_its_choices_and_has_no_perplexity(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = out(capsys, "evaluate", runs / "sparse", "--no-baselines")
    assert "SparseOutput loss" in printed and "Choices: accuracy" in printed and "(epsilon 1e-06)" in printed
    assert "nats) over" not in printed
    written = json.loads((runs / "sparse" / "evaluations" / "test.json").read_text())
    assert written["perplexity"]["perplexity"] is None and written["adapt"] is None
    assert written["choices"]["support"] < len(open_run(runs / "sparse").task.prepared.lexicon)
    printed = out(capsys, "evaluate", runs / "adaptive", "--no-baselines")
    assert "Choices" not in printed
    assert json.loads((runs / "adaptive" / "evaluations" / "test.json").read_text())["choices"] is None


@pytest.mark.parametrize("name", ["adaptive", "lstm"])
def test_a_model_follows_the_text_by_a_cache(name: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--no-baselines", "--adapt", "cache", "--cache.window", "30", "--cache.weight", "0.2"]
    printed = out(capsys, "evaluate", runs / name, *options)
    assert "test, with a cache of 30 words (theta 1, weight 0.2): perplexity" in printed
    written = json.loads((runs / name / "evaluations" / "test-adapt-cache-window-30-weight-0.2.json").read_text())
    assert written["adapt"] == {"kind": "CachePointer", "window": 30, "theta": 1.0, "weight": 0.2, "only_full": False}
    alone = measured(runs / name)
    assert written["perplexity"]["loss"] != alone.loss
    assert written["perplexity"]["num_units"] == alone.num_units


@pytest.mark.parametrize(
    ("name", "block"), [("adaptive", None), ("adaptive", "4"), ("lstm", None), ("lstm", "8"), ("sparse", None)]
)
def test_a_model_follows_the_text_by_learning_from_it(
    name: str, block: str | None, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--no-baselines", "--adapt", "dynamic", "--dynamic.max-batches", "3", "--dynamic.batch-size", "8"]
    options += [] if block is None else ["--dynamic.block", block]
    printed = out(capsys, "evaluate", runs / name, *options)
    every = "" if block is None else f" every {block} tokens"
    assert (
        f"test, with dynamic evaluation{every} (rms, lr 0.002, decay 0.02, epsilon 0.001, sum of squares): " in printed
    )
    changed = ("" if block is None else f"-block-{block}") + "-batch-size-8-max-batches-3"
    written = json.loads((runs / name / "evaluations" / f"test-adapt-dynamic{changed}.json").read_text())
    assert (written["adapt"]["kind"], written["adapt"]["max_batches"]) == ("DynamicEvaluation", 3)
    alone = measured(runs / name)
    assert written["perplexity"]["loss"] < alone.loss and written["perplexity"]["num_units"] == alone.num_units


def measured(run: Path) -> Perplexity:
    """What the model reaches as it is."""
    task = open_run(run).task
    return task.perplexity(task.model, "test")


def test_plain_steps_read_no_training_text(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--no-baselines", "--adapt", "dynamic", "--dynamic.rule", "sgd", "--dynamic.lr", "0.1"]
    assert code_of("evaluate", runs / "lstm", *options) == 0
    captured = capsys.readouterr()
    assert "(sgd, lr 0.1, decay 0.02)" in captured.out and "measuring gradients" not in captured.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cache.window", "3"], "--cache.window must come with --adapt cache, got --adapt None"),
        (["--adapt", "cache", "--dynamic.max-batches", "3"], "--dynamic.max-batches must come with --adapt dynamic"),
        (["--adapt", "cache", "--cache.window", "999999"], "window must be less than the"),
        (["--adapt", "dynamic", "--dynamic.block", "99"], "dynamic.block must be at most the 16 tokens of a window"),
        (["--adapt", "cache", "--cache.weight", "2"], "weight must be below 1"),
    ],
)
def test_a_mistake_is_reported(options: list[str], said: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in complaint(capsys, "evaluate", runs / "adaptive", *options)


def test_a_folder_without_a_run_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "config.json is missing" in complaint(capsys, "analyze", "bottleneck", tmp_path)
    assert list(tmp_path.iterdir()) == []
