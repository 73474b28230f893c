"""What one does with a run that is trained, as one types it: evaluate, generate and finetune."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from anymax.cli.finetune import second_stage
from anymax.training import AtEpoch, AveragedSGDConfig, NonMonotone, SGDConfig, read_config
from anymax.training.run_folder.folder import write_config
from tests.cli.commands import QUICK, code_of, complaint, out

pytestmark = pytest.mark.usefixtures("one_thread", "desk")


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
    assert config["optimizer"]["kind"] == "AveragedSGDConfig" and config["evaluate_every"] == "epoch"
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
    expected = AveragedSGDConfig(3.0, weight_decay=0.1, begin=AtEpoch(0))
    for optimizer, every in ((SGDConfig(3.0, weight_decay=0.1), None), (replace(expected, begin=NonMonotone(2)), 7)):
        write_config(run, replace(first, optimizer=optimizer, evaluate_every=every))
        config = second_stage(run, [])
        window = 5 if isinstance(optimizer, SGDConfig) else 2
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
    strides = out(
        capsys,
        *("evaluate", "run", "--split", "valid", "--context", "7", "--block", "12", "--first-window", "stride"),
        *("--no-baselines", "--choices"),
    )
    assert "windows of 12 tokens, context 7, stride 5 from the first window on" in strides
    file = run / "evaluations" / "valid-block-12-context-7-first-window-stride.json"
    measured = json.loads(file.read_text())["perplexity"]
    assert measured["first_window"] == "stride" and measured["num_tokens"] == written["perplexity"]["num_tokens"]
    assert "context must be between 0 and 11" in complaint(
        capsys, "evaluate", "run", "--context", "12", "--block", "12"
    )


def test_the_seed_decides_what_is_written(run: Path, capsys: pytest.CaptureFixture[str]):
    def written(*options: str) -> str:
        return out(capsys, "generate", "run", "The class", "--num-tokens", "12", *options)

    first = written("--seed", "3")
    assert first.startswith("The class") and len(first.split()) > 5
    assert written("--seed", "3") == first != written("--seed", "4")
    assert written("--top-k", "1", "--seed", "3") == written("--top-k", "1", "--seed", "4")
    both = written("--seed", "3", "--samples", "2").split("---\n")
    assert len(both) == 2 and both[0] != both[1]


def test_a_damaged_checkpoint_is_told_with_one_that_is_whole(run: Path, capsys: pytest.CaptureFixture[str]):
    file = run / "checkpoints" / "step_0000006" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    for verb in ("resume", "evaluate", "generate"):
        told = complaint(capsys, verb, "run")
        assert f"{file} is damaged" in told and "that of step 4 is whole: choose it with --step 4" in told
    assert out(capsys, "generate", "run", "--step", "4", "--num-tokens", "3")
    out(capsys, "resume", "run", "--step", "4")
    assert out(capsys, "generate", "run", "--num-tokens", "3")


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
