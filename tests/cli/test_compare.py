"""Recipes side by side as one types it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anymax.cli import compare
from anymax.cli.train import new_run
from anymax.training import read_metrics, train
from anymax.training.run_folder.lock import locked
from tests.cli.commands import PLAIN, QUICK, code_of, complaint, is_unlocked, out
from tests.training.differences import differences
from tests.training.toys import patient

pytestmark = pytest.mark.usefixtures("one_thread", "desk")


def test_recipes_are_compared_side_by_side_and_not_trained_twice(capsys: pytest.CaptureFixture[str]):
    command = ["compare", PLAIN, "sotu.adaptive", *QUICK, "--jobs", "2", "--folder", "both"]
    printed = out(capsys, *command)
    assert PLAIN in printed and "sotu.adaptive" in printed and "interpolated bigram" in printed
    page = Path("both/comparison.md").read_text()
    assert f"anymax {' '.join(command)}" in page and f"| {PLAIN} |" in page
    finished = {path: path.stat().st_mtime_ns for path in Path("both").glob("*/summary.json")}
    assert len(finished) == 2
    assert out(capsys, *command) == printed
    assert {path: path.stat().st_mtime_ns for path in Path("both").glob("*/summary.json")} == finished
    # A setting that a config does not name yet has its default.
    config = json.loads(Path(f"both/{PLAIN}-seed-1/config.json").read_text())
    assert config["task"]["evaluation"].pop("rows") == 1
    Path(f"both/{PLAIN}-seed-1/config.json").write_text(json.dumps(config))
    assert out(capsys, *command) == printed
    assert "steps 2 -> 3; name another --folder" in complaint(capsys, *command, "--steps", "3")


def test_outputs_without_a_perplexity_are_compared_by_what_they_choose(capsys: pytest.CaptureFixture[str]):
    printed = out(capsys, "compare", "ptb.linear", "ptb.sparse", *QUICK, "--folder", "both")
    assert "accuracy" in printed and "eps-perplexity" in printed
    for recipe in ("ptb.linear", "ptb.sparse"):
        tested = json.loads(Path(f"both/{recipe}-seed-1/evaluations/test.json").read_text())
        (row,) = [line for line in printed.splitlines() if recipe in line and "%" in line]
        assert f"{tested['choices']['accuracy']:.2%}" in row
        assert f"{tested['choices']['epsilon_perplexity']:.2f}" in row


def test_contexts_are_measured_as_evaluate_does_and_not_twice(capsys: pytest.CaptureFixture[str]):
    # One reads windows of 16 tokens, the other carries a state.
    recipes = [PLAIN, "wikitext2.awd_linear"]
    command = ["compare", *recipes, *QUICK, "--folder", "both", "--contexts", "0", "0.5", "0.9"]
    printed = out(capsys, *command)
    folder = Path("both", f"{PLAIN}-seed-1", "evaluations")
    names = ["test-context-14.json", "test-context-8.json", "valid-context-14.json", "valid-context-8.json"]
    assert sorted(path.name for path in folder.glob("*-context-*.json")) == names
    out(capsys, "evaluate", folder.parent, "--context", "8", "--split", "valid", "--no-baselines")
    evaluated = json.loads((folder / "valid-context-8.json").read_text())["perplexity"]
    assert (evaluated["block"], evaluated["context"]) == (16, 8)
    _, valid, test = Path("both/comparison.md").read_text().split("### Perplexity of ")
    assert valid.startswith("valid by context") and f"| {evaluated['perplexity']:.2f} `8` |" in valid
    usual = json.loads((folder / "test.json").read_text())["perplexity"]["perplexity"]
    assert f"| {PLAIN} | 16 | {usual:.2f} `0` |" in test and f"| {recipes[1]} |  |  |  |  |" in test
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    assert out(capsys, *command) == printed
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.json")} == finished
    # A training that ended later has another best checkpoint.
    (folder.parent / "summary.json").touch()
    out(capsys, *command)
    later = {path.name for path, time in finished.items() if path.stat().st_mtime_ns > time}
    assert later == {*names, "valid.json"}


# Says that it is there, and leaves a file where it was asked to stop.
STAND_IN = """
import sys, time
from pathlib import Path
from anymax.training.signals import StopSignals, end_with_parent
end_with_parent(int(sys.argv[1]), sys.stdin.buffer.read)
with StopSignals() as stop:
    Path(sys.argv[2], "started").touch()
    while stop.received is None:
        time.sleep(0.01)
Path(sys.argv[2], "saved").touch()
sys.exit(130)
"""
# A comparison whose trainings are stand-ins.
COMPARISON = """
import os, signal, sys
from anymax.cli import compare, main
compare._command = lambda job, options: [sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]]
# Where tests run in the background of a shell, it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(["compare", "sotu.softmax_tied", "--toy", "--folder", sys.argv[2]]))
"""


def test_no_training_outlives_its_comparison_whatever_ends_that():
    ways = {"kill": -signal.SIGKILL, "interrupt": 130, "terminate": 130, "interrupt and no reader": 141}
    started = {}
    for way in ways:
        Path(way).mkdir()
        command = [sys.executable, "-c", COMPARISON, STAND_IN, way]
        started[way] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for way, process in started.items():
        patient(Path(way, "started").exists, seconds=120)
        if way.endswith("no reader"):
            process.stdout.close()
            process.stderr.close()
        process.send_signal({"kill": signal.SIGKILL, "terminate": signal.SIGTERM}.get(way, signal.SIGINT))
        assert process.wait(timeout=120) == ways[way]
        if way == "kill":
            patient(Path(way, "saved").exists, seconds=120)
        assert Path(way, "saved").exists()
        if not way.endswith("no reader"):
            assert "Traceback" not in process.stderr.read()
            process.stdout.close()
            process.stderr.close()


def test_a_comparison_that_was_killed_resumes_to_the_same_bits():
    options = ["--toy", "--steps", "40", "--checkpoint-every", "7", "--threads", "1"]
    command = ["compare", PLAIN, *options, "--folder", "killed"]
    run = Path("killed", f"{PLAIN}-seed-1")
    with subprocess.Popen([sys.executable, "-m", "anymax", *command], stderr=subprocess.DEVNULL) as process:
        patient(lambda: len(read_metrics(run)) > 9, seconds=120)
        process.kill()
    patient(lambda: is_unlocked(run), seconds=120)
    assert code_of(*command) == 0
    train(new_run(PLAIN, options).config, "whole")
    assert differences(Path("whole"), run) == []


def test_a_training_that_was_stopped_or_failed_is_not_counted_as_trained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(compare, "SECONDS_BETWEEN_LOOKS", 0.05)
    stopped = f"not finished, as stopped by a signal: {PLAIN}-seed-1; continue with: anymax compare {PLAIN} --toy"
    ends = {
        "sys.exit(130)": (130, stopped),
        "os.kill(os.getpid(), 15)": (130, stopped),
        "sys.exit('anymax: no room')": (2, f"a training failed: {PLAIN}-seed-1: no room (more in both/"),
        "os.kill(os.getpid(), 9)": (2, f"a training failed: {PLAIN}-seed-1: it ended with code -9"),
    }
    for script, (code, said) in ends.items():
        command = [sys.executable, "-c", f"import os, sys; {script}"]
        monkeypatch.setattr(compare, "_command", lambda job, options, command=command: command)
        assert code_of("compare", PLAIN, *QUICK, "--folder", "both") == code
        printed = capsys.readouterr()
        assert said in printed.err and "1 of 1 trained" not in printed.err and printed.out == ""


def test_a_second_comparison_in_the_same_folder_is_refused_with_the_process_that_writes_there(
    capsys: pytest.CaptureFixture[str],
):
    with locked(Path("both")):
        printed = complaint(capsys, "compare", PLAIN, *QUICK, "--folder", "both")
    assert f"process {os.getpid()} is writing to both; wait until it ends" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "compare needs the names of recipes, got none; write anymax compare RECIPE RECIPE"),
        ([PLAIN, "--jobs", "0"], "jobs must be at least 1, got 0"),
        ([PLAIN, "--seeds", "0"], "seeds must be at least 1, got 0"),
        ([PLAIN, "--seconds", "0"], "seconds must be above 0"),
        ([PLAIN, "--tokens", "-5"], "tokens must be at least 1, got -5"),
        ([PLAIN, "--contexts", "0", "1"], "contexts must be shares of a window, at least 0 and below 1, got 1"),
        ([PLAIN, "--contexts", "0", "0.0"], "contexts must differ from each other, got 0 0"),
        (
            ["ptb.linear", "--contexts", "0.5"],
            "--contexts cannot be given for ptb.linear: none reads a text by windows",
        ),
        (["latent.bits_quick", "--contexts", "0"], "--contexts cannot be given for latent.bits_quick"),
    ],
)
def test_a_comparison_of_nothing_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert said in complaint(capsys, "compare", *arguments)
    assert not list(Path().iterdir())
