"""Training as one types it: recipes, train, resume, evaluate, generate and compare, and what they say of mistakes."""

import json
import re
import shlex
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from anymax import cli
from anymax.cli.finetune import second_stage
from anymax.cli.progress import Terminal
from anymax.cli.train import new_run
from anymax.recipes import names
from anymax.training import SGD, AtEpoch, AveragedSGD, NonMonotone, read_config
from anymax.training.folder import write_config

LINES = ["the people are many , and the words are few", "all people have words", "words are what people have ."]
QUICK = ["--toy", "--steps", "2", "--threads", "1"]
# One that takes any text, however few its words.
PLAIN = "sotu.softmax_tied"


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to work in, a wide terminal, and texts that are encoded once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYMAX_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A run of six steps of the default recipe, in the folder that it gets by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trained"))
        patch.setenv("ANYMAX_CACHE", str(cache))
        assert cli.main(["train", "--toy", "--threads", "1"]) == 0
        return Path("runs/sotu.adaptive_tied").absolute()


@pytest.fixture
def run(trained: Path) -> Path:
    """A copy of that run to do anything with."""
    return Path(shutil.copytree(trained, "run"))


def own_text(name: str = "my.txt", encoding: str = "utf-8", extra: str = "") -> str:
    """A text of a hundred lines; its name."""
    Path(name).write_text("".join(f"{line}{extra}\n" for line in LINES * 33 + LINES[:1]), encoding=encoding)
    return name


def code_of(*arguments: str) -> int:
    """The exit code of a command; the parser leaves by SystemExit."""
    try:
        return cli.main(arguments)
    except SystemExit as leaving:
        return int(leaving.code or 0)


def out(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints where all goes well."""
    capsys.readouterr()
    assert code_of(*arguments) == 0
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command says of a mistake."""
    capsys.readouterr()
    assert code_of(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    return captured.err


def test_recipes_are_listed_with_a_line_each_and_can_be_narrowed_down(capsys: pytest.CaptureFixture[str]):
    lines = out(capsys, "recipes").splitlines()
    assert [line.split()[0] for line in lines] == names()
    assert all(len(line.split()) > 3 for line in lines)
    narrowed = out(capsys, "recipes", "grave").splitlines()
    assert narrowed and all(line.startswith("grave.") for line in narrowed)
    assert "`anymax recipes` lists them all" in complaint(capsys, "recipes", "graves")


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


def test_on_a_terminal_training_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert code_of("train", PLAIN, *QUICK, "--data.path", own_text()) == 0
    bar = capsys.readouterr().err
    assert "2/2" in bar and "tokens/s" in bar


def test_what_training_says_to_try_next_can_be_tried(capsys: pytest.CaptureFixture[str]):
    text = out(capsys, "train", *QUICK)
    commands = [shlex.split(line) for line in text.partition("Try next:\n")[2].splitlines()]
    assert [command[:2] for command in commands] == [["anymax", verb] for verb in ("generate", "evaluate", "resume")]
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


def test_steps_take_the_place_of_epochs_and_epochs_that_of_steps():
    by_epochs, by_steps = "sotu.adaptive_tied", "wikitext103.adaptive_tied"
    changed = new_run(by_epochs, ["--steps", "7"]).config
    assert (changed.steps, changed.epochs) == (7, None)
    changed = new_run(by_epochs, ["--epochs", "0.5"]).config
    assert (changed.steps, changed.epochs) == (None, 0.5)
    changed = new_run(by_steps, ["--toy", "--epochs=2"]).config
    assert (changed.steps, changed.epochs) == (None, 2.0)
    assert new_run(by_steps, ["--task.data.root", "there"]).config.task.data.root == Path("there")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--toy", "--lr", "3"], r"--lr[\s\S]*--optimizer\.lr"),
        (["train", "--toy", "--optimizer.lr", "fast"], r"--optimizer\.lr.*'fast'"),
        (["train", "--toy", "--steps", "0"], "steps must be at least 1, got 0"),
        (["train", "sotu.adaptiv_tied"], "got 'sotu.adaptiv_tied'; perhaps sotu.adaptive_tied"),
        (["train", "!"], "anymax recipes lists them"),
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
        (["compare", PLAIN, "sotu.bpe", "--toy", "--lr", "3"], r"--lr[\s\S]*--optimizer\.lr"),
        (["compare", PLAIN, "--steps", "2", "--tokens", "100"], "one budget must be given at most"),
    ],
)
def test_a_mistake_is_told_in_words_and_nothing_is_left_behind(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert re.search(said, complaint(capsys, *arguments))
    assert not [path for path in Path().rglob("*") if path.is_file()]


def test_a_folder_that_holds_a_run_is_refused_and_the_hint_goes_on_with_it(
    run: Path, capsys: pytest.CaptureFixture[str]
):
    assert "go on with it by `anymax resume run`" in complaint(capsys, "train", *QUICK, "--folder", "run")
    assert out(capsys, "resume", "run").startswith("test: perplexity")


def test_runs_of_one_text_get_numbers_and_a_failed_start_takes_none(capsys: pytest.CaptureFixture[str]):
    Path("my.txt").touch()
    complaint(capsys, "train", PLAIN, *QUICK, "--data.path", "my.txt")
    own_text()
    for _ in range(2):
        assert code_of("train", PLAIN, *QUICK, "--data.path", "my.txt") == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["my", "my-2"]


def test_resume_says_what_is_changed_and_keeps_it(run: Path, capsys: pytest.CaptureFixture[str]):
    assert code_of("resume", "run", "--steps", "8", "--optimizer.lr", "0.02") == 0
    told = capsys.readouterr().err
    before = json.loads((run / "config.json").read_text())
    assert re.search(r"going on with another config: .*optimizer\.lr [\d.]+ -> 0\.02.*steps 6 -> 8", told)
    assert ", from step 6" in told
    assert (before["steps"], before["optimizer"]["lr"]) == (8, 0.02)
    assert json.loads((run / "summary.json").read_text())["steps"] == 8


def test_a_run_can_be_taken_back_to_an_earlier_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]):
    assert code_of("resume", "run", "--step", "4") == 0
    told = capsys.readouterr().err
    assert "removing the checkpoints of later steps: 6" in told and "from step 4" in told
    assert "step must be one that was saved, 4, 6, got 3" in complaint(capsys, "resume", "run", "--step", "3")


def test_a_run_is_tuned_on_from_its_best_weights(run: Path, capsys: pytest.CaptureFixture[str]):
    told = complaint(capsys, "finetune", "run")
    assert "optimizer.lr must be given where a run was trained with Adam" in told
    assert "write anymax finetune run --optimizer.lr 1" in told and not Path("run-finetuned").exists()
    best = json.loads((run / "checkpoints" / "best.json").read_text())["metrics"]["loss"]
    options = ["--optimizer.lr", "1e-9", "--stop.window", "3", "--evaluate-every", "epoch"]
    assert code_of("finetune", "run", *options) == 0
    assert "averaging begins after step 0" in capsys.readouterr().err
    config = json.loads(Path("run-finetuned/config.json").read_text())
    assert config["start"] == str(run.absolute()) and config["stop"] == {"kind": "NonMonotone", "window": 3}
    assert config["optimizer"]["kind"] == "AveragedSGD" and config["evaluate_every"] == "epoch"
    assert config["optimizer"]["begin"] == {"kind": "AtEpoch", "epoch": 0}
    # A rate so small that the weights stay what they were.
    summary = json.loads(Path("run-finetuned/summary.json").read_text())
    assert summary["metrics"]["loss"] == pytest.approx(best, rel=1e-5)


def test_a_run_without_a_checkpoint_cannot_be_tuned(run: Path, capsys: pytest.CaptureFixture[str]):
    shutil.rmtree(run / "checkpoints")
    told = complaint(capsys, "finetune", "run", "--optimizer.lr", "1")
    assert "run/checkpoints must hold a checkpoint, but none was saved yet" in told
    assert not Path("run-finetuned").exists()


def test_a_second_stage_keeps_the_sgd_of_the_first(run: Path):
    first = read_config(run)
    expected = AveragedSGD(3.0, weight_decay=0.1, begin=AtEpoch(0))
    for optimizer, every in ((SGD(3.0, weight_decay=0.1), None), (replace(expected, begin=NonMonotone(2)), 7)):
        write_config(run, replace(first, optimizer=optimizer, evaluate_every=every))
        config = second_stage(run, [])
        window = 5 if isinstance(optimizer, SGD) else 2
        assert (config.optimizer, config.start, config.stop) == (expected, run, NonMonotone(window))
        assert config.evaluate_every == (every or "epoch") and config.task == first.task


def test_evaluate_measures_as_it_is_told_and_writes_it_down(run: Path, capsys: pytest.CaptureFixture[str]):
    told = out(capsys, "evaluate", "run", "--split", "valid", "--context", "4", "--block", "12", "--no-baselines")
    assert "windows of 12 tokens, context 4, stride 8" in told and "unigram" not in told
    assert "Loss by the training frequency of the word" in told
    file = run / "evaluations" / "valid-block-12-context-4.json"
    assert f"Wrote {file}" in told
    written = json.loads(file.read_text())
    assert (written["split"], written["perplexity"]["block"], written["perplexity"]["context"]) == ("valid", 12, 4)
    assert f"perplexity {written['perplexity']['perplexity']:.2f} per word" in told and written["unigram"] is None
    assert "context must lie from 0 to 11" in complaint(capsys, "evaluate", "run", "--context", "12", "--block", "12")


def test_the_seed_decides_what_is_written(run: Path, capsys: pytest.CaptureFixture[str]):
    def written(*options: str) -> str:
        return out(capsys, "generate", "run", "The class", "--num-tokens", "12", *options)

    first = written("--seed", "3")
    assert first.startswith("The class") and len(first.split()) > 5
    assert written("--seed", "3") == first != written("--seed", "4")
    assert written("--top-k", "1", "--seed", "3") == written("--top-k", "1", "--seed", "4")
    both = written("--seed", "3", "--samples", "2").split("---\n")
    assert len(both) == 2 and both[0] != both[1]


def test_a_run_writes_and_needs_neither_its_text_nor_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    text = own_text()
    monkeypatch.setenv("ANYMAX_CACHE", str(tmp_path / "own cache"))
    out(capsys, "train", PLAIN, *QUICK, "--data.path", text, "--folder", "run")
    before = out(capsys, "generate", "run", "the people")
    Path(text).unlink()
    shutil.rmtree("own cache")
    Path("run").rename("moved")
    assert out(capsys, "generate", "moved", "the people") == before
    assert "my.txt" in complaint(capsys, "evaluate", "moved")


def test_a_text_that_changed_since_is_refused(capsys: pytest.CaptureFixture[str]):
    text = own_text()
    out(capsys, "train", PLAIN, *QUICK, "--data.path", text, "--folder", "run")
    own_text(extra=" indeed")
    assert "the text must be the one that run was made with" in complaint(capsys, "resume", "run", "--steps", "4")


def test_text_in_another_encoding_is_named_with_its_place_and_can_be_read(capsys: pytest.CaptureFixture[str]):
    text = own_text(encoding="latin-1", extra=" café")
    told = complaint(capsys, "train", PLAIN, *QUICK, "--data.path", text)
    assert "my.txt is not utf-8: byte 0xe9" in told and "latin-1" in told
    out(capsys, "train", PLAIN, *QUICK, "--data.path", text, "--data.encoding", "latin-1", "--folder", "run")
    assert "café" in Path("run/lexicon.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "my.txt is empty"), ("\n \n\n", "my.txt is empty"), ("just one line\n", "give a longer text")],
)
def test_a_text_too_short_to_be_cut_is_refused(text: str, said: str, capsys: pytest.CaptureFixture[str]):
    Path("my.txt").write_text(text)
    assert said in complaint(capsys, "train", PLAIN, *QUICK, "--data.path", "my.txt")


@pytest.mark.parametrize("recipe", [PLAIN, "sotu.bpe_tied", "sotu.adaptive_tied"])
def test_a_text_with_fewer_words_than_are_allowed_gives_a_smaller_vocabulary(
    recipe: str, capsys: pytest.CaptureFixture[str]
):
    out(capsys, "train", recipe, *QUICK, "--data.path", own_text(), "--folder", "run")
    assert 10 < len(Path("run/lexicon.txt").read_text().splitlines()) < 100


def test_bands_that_begin_after_the_last_word_are_refused(capsys: pytest.CaptureFixture[str]):
    told = complaint(capsys, "train", "grave.adaptive", "--data.path", own_text())
    assert "cutoffs must rise strictly and lie from 1 to" in told


def test_ctrl_c_saves_says_how_to_go_on_and_exits_with_130(
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
    assert captured.out == "Go on with: anymax resume run\n"
    assert code_of("resume", "run") == 0
    assert ", from step 4" in capsys.readouterr().err


def test_ctrl_c_while_the_finished_model_is_tested_stops_without_a_traceback(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("anymax.cli.evaluate.test", interrupted)
    assert code_of("resume", "run") == 130
    assert capsys.readouterr().err.endswith("anymax: stopped\n")


def test_a_damaged_checkpoint_is_told_with_one_that_is_whole(run: Path, capsys: pytest.CaptureFixture[str]):
    file = run / "checkpoints" / "step_0000006" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    for verb in ("resume", "evaluate", "generate"):
        told = complaint(capsys, verb, "run")
        assert f"{file} is damaged" in told and "that of step 4 is whole: choose it with --step 4" in told
    assert out(capsys, "generate", "run", "--step", "4", "--num-tokens", "3")
    out(capsys, "resume", "run", "--step", "4")
    assert out(capsys, "generate", "run", "--num-tokens", "3")


def test_recipes_are_compared_side_by_side_and_not_trained_twice(capsys: pytest.CaptureFixture[str]):
    command = ["compare", PLAIN, "sotu.adaptive", *QUICK, "--jobs", "2", "--folder", "both"]
    told = out(capsys, *command)
    assert PLAIN in told and "sotu.adaptive" in told and "interpolated bigram" in told
    page = Path("both/comparison.md").read_text()
    assert f"anymax {' '.join(command)}" in page and f"| {PLAIN} |" in page
    finished = {path: path.stat().st_mtime_ns for path in Path("both").glob("*/summary.json")}
    assert len(finished) == 2
    assert out(capsys, *command) == told
    assert {path: path.stat().st_mtime_ns for path in Path("both").glob("*/summary.json")} == finished
    assert "steps 2 -> 3; name another --folder" in complaint(capsys, *command, "--steps", "3")


def test_outputs_without_a_perplexity_are_compared_by_what_they_choose(capsys: pytest.CaptureFixture[str]):
    told = out(capsys, "compare", "ptb.linear", "ptb.sparse", *QUICK, "--folder", "both")
    assert "accuracy" in told and "eps-perplexity" in told
    for recipe in ("ptb.linear", "ptb.sparse"):
        tested = json.loads(Path(f"both/{recipe}-seed-1/evaluations/test.json").read_text())
        (row,) = [line for line in told.splitlines() if recipe in line and "%" in line]
        assert f"{tested['choices']['accuracy']:.2%}" in row
        assert f"{tested['choices']['epsilon_perplexity']:.2f}" in row


def test_a_recurrent_model_is_measured_in_as_many_rows_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    out(capsys, "train", "ptb.linear", *QUICK, "--folder", "awd")
    for asked, said in (([], "4 parallel rows of the stream"), (["--rows", "1"], "the whole stream")):
        assert said in out(capsys, "evaluate", "awd", "--no-baselines", *asked)
    assert "rows must be at least 1, got 0" in complaint(capsys, "evaluate", "awd", "--rows", "0")
    wrong = ["evaluate", "awd", "--adapt", "cache"]
    assert "--rows must be 1 with --adapt cache" in complaint(capsys, *wrong, "--rows", "4")
    assert "--choices must be left out with --adapt cache" in complaint(capsys, *wrong, "--choices")
    assert "epsilon-perplexity" in out(capsys, "evaluate", "awd", "--no-baselines", "--choices")
    written = json.loads(Path("awd/evaluations/test.json").read_text())
    # Of the same reading: a little probability more changes little.
    assert written["choices"]["epsilon_perplexity"] == pytest.approx(written["perplexity"]["perplexity"], rel=1e-3)
    assert "the whole stream" in out(
        capsys, "evaluate", "awd", "--no-baselines", "--adapt", "cache", "--cache.window", "9"
    )
