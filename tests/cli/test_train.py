"""Training as one types it: recipes, train and resume, and what they say of mistakes."""

import json
import math
import re
import shlex
import signal
from pathlib import Path

import pytest

from anymax.cli.progress import Terminal
from anymax.cli.train import new_run
from anymax.data.batches.config import RandomLengths
from anymax.latent import ScoreFunctionConfig
from anymax.plain import as_plain
from anymax.recipes import names
from anymax.training import ExponentialAverageConfig, NonMonotone, read_config, read_metrics
from anymax.training.config import run_config
from anymax.training.run_folder.folder import SUMMARY, TESTED
from tests.cli.commands import PLAIN, QUICK, code_of, complaint, out, own_text

pytestmark = pytest.mark.usefixtures("one_thread", "desk")


def test_recipes_are_listed_with_a_line_each_and_can_be_narrowed_down(capsys: pytest.CaptureFixture[str]):
    lines = [line for line in out(capsys, "recipes").splitlines() if line.startswith("    ")]
    assert sorted(line.split()[0] for line in lines) == sorted(names())
    assert all(len(line.split()) > 3 for line in lines)
    narrowed = [line for line in out(capsys, "recipes", "grave").splitlines() if line.startswith("    ")]
    assert narrowed and all(line.split()[0].startswith("grave.") for line in narrowed)
    assert "`anymax recipes` lists them all" in complaint(capsys, "recipes", "graves")


def test_recipes_that_run_here_stand_first_and_others_name_the_data_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ANYMAX_DATA", str(tmp_path))
    (tmp_path / "ptb").mkdir()
    headings = {}
    for line in out(capsys, "recipes").splitlines():
        if line and not line.startswith(" "):
            heading = line
        elif line.startswith("    "):
            headings[line.split()[0]] = heading
    assert headings["drawn.copy"] == "Run here, and need no data set:"
    assert headings["ptb.linear"] == f"Run here, with data found in {tmp_path}:"
    assert headings["wikitext2.softmax"] == f"Need wikitext-2, not in {tmp_path}:"
    assert headings["latent.signalling_features"] == f"Need features, not in {tmp_path}:"
    order = list(dict.fromkeys(headings.values()))
    assert order[:2] == [headings["drawn.copy"], headings["ptb.linear"]]
    monkeypatch.delenv("ANYMAX_DATA")
    shown = out(capsys, "recipes", "ptb.linear")
    assert "Need ptb, not here; the environment variable ANYMAX_DATA names the folder of data sets:" in shown
    assert "3 to 21 minutes on two cores" in shown


def test_training_tells_what_it_does_tests_the_model_and_shows_what_it_writes(capsys: pytest.CaptureFixture[str]):
    assert code_of("train", *QUICK) == 0
    captured = capsys.readouterr()
    assert "for 2 steps on cpu, in runs/sotu.adaptive_tied" in captured.err
    assert re.search(
        r"step 2/2  loss [\d.]+  perplexity [\d.,]+  [\d,]+ tokens/s  lr [\d.e-]+  0:00 left", captured.err
    )
    assert re.search(r"step 2  valid: loss [\d.]+  perplexity [\d.]+ .* \(best so far\)", captured.err)
    assert re.search(r"^test: perplexity [\d.]+ per word .* over 2,\d+ words", captured.out)
    assert "unigram" in captured.out and "A sample:" in captured.out
    tested = json.loads(Path("runs/sotu.adaptive_tied/evaluations/test.json").read_text())
    assert f"perplexity {tested['perplexity']['perplexity']:.2f} per word" in captured.out


def test_training_on_subwords_shows_its_loss_per_word_as_evaluations_do(capsys: pytest.CaptureFixture[str]):
    assert code_of("train", "sotu.bpe_tied", *QUICK, "--folder", "run") == 0
    shown = re.search(r"step 2/2  loss ([\d.]+) per word  perplexity ([\d.,]+) per word", capsys.readouterr().err)
    record = [record for record in read_metrics(Path("run")) if record["kind"] == "train"][-1]
    assert float(shown[1]) == pytest.approx(record["log"]["loss_per_word"], abs=1e-3)
    assert float(shown[2].replace(",", "")) == pytest.approx(math.exp(record["log"]["loss_per_word"]), rel=1e-3)
    assert record["log"]["loss_per_word"] > record["loss"]


def test_on_a_terminal_training_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert code_of("train", PLAIN, *QUICK, "--data.path", own_text()) == 0
    bar = capsys.readouterr().err
    assert "2/2" in bar and "tokens/s" in bar


def test_what_training_says_to_try_next_can_be_tried(capsys: pytest.CaptureFixture[str]):
    text = out(capsys, "train", *QUICK)
    commands = [shlex.split(line) for line in text.partition("Try next:\n")[2].splitlines()]
    assert [command[:2] for command in commands] == [
        ["anymax", verb] for verb in ("generate", "report", "evaluate", "resume")
    ]
    for command in commands:
        assert out(capsys, *command[1:])
    assert json.loads(Path("runs/sotu.adaptive_tied/summary.json").read_text())["steps"] == 4


def test_options_change_any_setting_of_a_recipe():
    text = own_text()
    options = ["--optimizer.lr", "0.5", "--data.path", text, "--model.body.num-heads", "1", "--seed=7"]
    assert code_of("train", PLAIN, *QUICK, *options, "--folder", "here") == 0
    config = json.loads(Path("here/config.json").read_text())
    assert (config["steps"], config["seed"], config["optimizer"]["lr"]) == (2, 7, 0.5)
    assert (
        config["task"]["data"]["path"] == str(Path(text).absolute())
        and config["task"]["model"]["body"]["num_heads"] == 1
    )
    assert "people" in Path("here/lexicon.txt").read_text()


def test_every_choice_of_a_transformer_block_is_an_option():
    options = ["--model.body.activation", "gelu", "--model.body.no-norm-first", "--model.body.norm-eps", "1e-12"]
    body = new_run("sotu.adaptive_tied", options).config.task.model.body
    assert (body.activation, body.norm_first, body.norm_eps) == ("gelu", False, 1e-12)


def test_published_forms_are_options_that_a_config_keeps():
    options = ["--model.input.windows", "padded", "--evaluation.first-window", "block"]
    config = new_run("wikitext103.character_cnn", options).config
    assert (config.task.model.input.windows, config.task.evaluation.first_window) == ("padded", "block")
    assert run_config(json.loads(json.dumps(as_plain(config)))) == config


def test_steps_take_the_place_of_epochs_and_epochs_that_of_steps():
    by_epochs, by_steps = "sotu.adaptive_tied", "wikitext103.adaptive_tied"
    changed = new_run(by_epochs, ["--steps", "7"]).config
    assert (changed.steps, changed.epochs) == (7, None)
    changed = new_run(by_epochs, ["--epochs", "0.5"]).config
    assert (changed.steps, changed.epochs) == (None, 0.5)
    changed = new_run(by_steps, ["--toy", "--epochs=2"]).config
    assert (changed.steps, changed.epochs) == (None, 2.0)
    assert new_run(by_steps, ["--task.data.root", "there"]).config.task.data.root == Path("there")


def test_a_part_that_a_recipe_leaves_out_is_there_where_options_set_something_of_it(capsys: pytest.CaptureFixture[str]):
    config = new_run("grave.full", ["--stop.window=3"]).config
    assert (config.stop, config.evaluate_every, config.task.batching.random_lengths) == (NonMonotone(3), "epoch", None)
    assert new_run("grave.full", ["--stop.window=3", "--evaluate-every", "9"]).config.evaluate_every == 9
    average = new_run("grave.full", ["--average.weight-at-least", "0.01"]).config.average
    assert average == ExponentialAverageConfig(0.01)
    config = new_run("grave.full", ["--task.batching.random-lengths.short", "0.5"]).config
    assert config.task.batching.random_lengths == RandomLengths(short=0.5) and config.stop is None
    config = new_run("latent.signalling", ["--pick.baseline", "average"]).config
    assert config.task.pick == ScoreFunctionConfig("average")
    # What is no option says nothing of parts.
    assert new_run("grave.full", ["--data.path", "stop.txt"]).config.stop is None
    assert "--stop.windo" in complaint(capsys, "train", "grave.full", "--stop.windo", "3")


def test_a_run_that_resumes_can_be_given_when_to_stop(run: Path):
    assert code_of("resume", "run", "--steps", "8", "--stop.window", "3") == 0
    config = read_config(run)
    assert (config.steps, config.stop) == (8, NonMonotone(3))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--toy", "--lr", "3"], r"--lr[\s\S]*--optimizer\.lr"),
        (["train", "--toy", "--optimizer.lr", "fast"], r"--optimizer\.lr.*'fast'"),
        (["train", "--toy", "--steps", "0"], "steps must be at least 1, got 0"),
        (["train", "sotu.adaptiv_tied"], "got 'sotu.adaptiv_tied'; perhaps sotu.adaptive_tied"),
        (["train", "!"], "anymax recipes lists them"),
        (["train", ""], "RECIPE must be named"),
        (["train", "sotu"], "got 'sotu'; perhaps sotu.bpe"),
        (["train", "absent.txt"], "RECIPE must be a text file or a folder of them where it is a path, but absent.txt"),
        (["train", "sotu.bpe", "sotu.softmax"], "RECIPE must be one, got sotu.bpe and sotu.softmax"),
        (["train", "--config"], "--config must be followed by a file"),
        (["train", "--config", "absent.json"], "absent.json does not exist"),
        (["train", "--config", "run.yaml"], "must be followed by the config.json of a run, got run.yaml"),
        (["train", "sotu.bpe", "--config", "a.json"], "--config a.json and sotu.bpe; drop one of the two"),
        (["train", "sotu.bpe", "--from", __file__], "must define a task, a subclass of TaskConfig, but has none"),
        (["train", "--toy", "--data.corpus", "sherlock"], "corpus must be one of .*pydoc"),
        (["train", "--toy", "--data.path", "absent.txt"], "absent.txt"),
        (["resume"], "write anymax resume RUN"),
        (["resume", "absent"], "absent/config.json is missing"),
        (["finetune"], "write anymax finetune RUN"),
        (["finetune", "absent"], "absent/config.json is missing"),
        (["train", "--toy", "--evaluate-every", "year"], r"--evaluate-every[\s\S]*year"),
        (["train", "--toy", "--start", "absent"], "absent/config.json is missing"),
        (["evaluate", "absent"], "absent/config.json is missing"),
        (["generate", "absent"], "absent/config.json is missing"),
        (["compare", PLAIN, PLAIN], "recipes must differ"),
        (["compare", PLAIN, str(Path(__file__).parent)], "compare needs recipes, got the text .*--data.path"),
        (["compare", PLAIN, "sotu.bpe", "--toy", "--lr", "3"], r"--lr[\s\S]*--optimizer\.lr"),
        (["compare", PLAIN, "--steps", "2", "--tokens", "100"], "one budget must be given at most"),
        (["compare", PLAIN, "--seeds", "2", "--seed", "3"], "--seed cannot be given"),
        (["compare", PLAIN, "--toy", "--data.path", "absent.txt", "--tokens", "9"], "absent.txt is neither"),
        (["compare", PLAIN, "--toy", "--threads", "1", "--data.path", "absent.txt", "--seconds", "1"], "absent.txt is"),
        (["prepare", "absent.txt"], "absent.txt is neither"),
        (["prepare", "pydoc", "--bpe", "2"], "size must be at least"),
        (["analyze", "dirichlet", "--dims"], "dims must be at least 1"),
    ],
)
def test_a_mistake_is_reported_and_nothing_is_left_behind(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert re.search(said, complaint(capsys, *arguments))
    assert not list(Path().iterdir())


def test_a_folder_that_holds_a_run_is_refused_and_the_hint_resumes_it(run: Path, capsys: pytest.CaptureFixture[str]):
    assert "continue it with `anymax resume run`" in complaint(capsys, "train", *QUICK, "--folder", "run")
    assert out(capsys, "resume", "run").startswith("test: perplexity")


def test_resume_says_what_is_changed_and_keeps_it(run: Path, capsys: pytest.CaptureFixture[str]):
    assert code_of("resume", "run", "--steps", "8", "--optimizer.lr", "0.02") == 0
    printed = capsys.readouterr().err
    before = json.loads((run / "config.json").read_text())
    assert re.search(r"resuming with another config: .*optimizer\.lr [\d.]+ -> 0\.02.*steps 6 -> 8", printed)
    assert ", from step 6" in printed
    assert (before["steps"], before["optimizer"]["lr"]) == (8, 0.02)
    assert json.loads((run / "summary.json").read_text())["steps"] == 8


def test_a_run_can_be_taken_back_to_an_earlier_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]):
    assert code_of("resume", "run", "--step", "4") == 0
    printed = capsys.readouterr().err
    assert "removing the checkpoints of later steps: 6" in printed and "from step 4" in printed
    assert "step must be one that was saved, 4, 6, got 3" in complaint(capsys, "resume", "run", "--step", "3")


def test_wrong_uses_of_runs_and_files_are_reported(run: Path, capsys: pytest.CaptureFixture[str]):
    text = own_text()
    Path("other").mkdir()
    Path("other/config.json").write_text('{"format": 2, "steps": 3, "mine": 1}')
    assert code_of("train", "dirichlet.linear", "--toy", "--folder", "another task") == 0
    mistakes = {
        f"train --toy --folder {text}": f"folder must be new or empty, but {text} is a file",
        "train --toy --start 'another task' --folder new": "start must be a run of the same task, Lang",
        f"prepare {text} --encoding greek9": "must be one that Python knows, such as utf-8 or latin-1, got 'greek9'",
        "resume run --steps 3": "steps must be at least the 6 that were taken, got 3",
        "resume other": "other/config.json must be the config of a run, but RunConfig has no field 'mine'",
        "evaluate run --block 0": "block must be at least 1, got 0",
        "generate run --seed 99999999999999999999": "seed must be an integer of 64 bits",
    }
    for command, said in mistakes.items():
        assert said in complaint(capsys, *shlex.split(command))
    assert not Path("new").exists() and read_config(run).steps == 6


def test_commands_to_copy_are_quoted_for_the_shell(capsys: pytest.CaptureFixture[str]):
    folder = 'it\'s [my] "run" $1 :fire:'
    text = out(capsys, "train", PLAIN, *QUICK, "--data.path", own_text(), "--folder", folder)
    commands = [shlex.split(line) for line in text.partition("Try next:\n")[2].splitlines()]
    assert [command[2] for command in commands] == [folder] * 4 and commands[0][3] == "the people are"
    assert f"Wrote {folder}/evaluations/test.json" in out(capsys, "evaluate", folder, "--no-baselines")
    printed = [complaint(capsys, "train", *QUICK, "--folder", folder), complaint(capsys, "finetune", folder)]
    for verb, message in zip(("resume", "finetune"), printed, strict=True):
        assert shlex.join(["anymax", verb, folder]) in message


def test_ctrl_c_saves_says_how_to_resume_and_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(terminal: Terminal, step: int, loss: float) -> None:
        if step == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Terminal, "advanced", interrupted)
        assert code_of("train", "--toy", "--threads", "1", "--folder", "run") == 130
    captured = capsys.readouterr()
    assert "stopped and saved at step 4 of 6" in captured.err
    assert captured.out == "Resume with: anymax resume run\n"
    assert code_of("resume", "run") == 0
    assert ", from step 4" in capsys.readouterr().err


def test_a_finished_run_that_is_resumed_and_stopped_is_neither_finished_nor_tested(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    assert (run / SUMMARY).exists() and (run / TESTED).exists()
    monkeypatch.setattr(Terminal, "advanced", lambda terminal, step, loss: signal.raise_signal(signal.SIGTERM))
    assert code_of("resume", "run", "--steps", "9") == 130
    assert not (run / SUMMARY).exists() and not (run / TESTED).exists()


def test_ctrl_c_while_the_finished_model_is_tested_stops_without_a_traceback(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("anymax.cli.evaluate.test", interrupted)
    assert code_of("resume", "run") == 130
    assert capsys.readouterr().err.endswith("anymax: stopped\n")
