"""Translating as one types it: files, standard input, a conversation; columns, ensembles, and what is refused."""

import gzip
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anymax.training.tasks.translation.translating import open_translator
from tests.cli.commands import code_of, complaint, out

pytestmark = pytest.mark.usefixtures("one_thread", "desk")
ROOT = Path(__file__).parents[2]
LINES = ["ba ca da", "", "fa ba", "ma na ga ba"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("made"))
        options = ["--toy", "--steps", "60", "--threads", "1", "--evaluate-every", "20", "--checkpoint-every", "20"]
        assert code_of("train", "drawn.copy", *options, "--keep", "3", "--optimizer.lr", "0.03", "--folder", "run") == 0
        return Path("run").absolute()


@pytest.fixture
def translator(made: Path) -> Path:
    Path("text").write_text("".join(f"{line}\n" for line in LINES))
    return Path(shutil.copytree(made, "run"))


def typed(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))


def test_a_line_of_output_for_each_of_input_whatever_it_comes_from(
    translator: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    expected = "".join(f"{line}\n" for line in open_translator(translator).translate(LINES))
    assert [bool(line) for line in expected.splitlines()] == [True, False, True, True]
    assert out(capsys, "translate", translator, "text") == expected
    Path("text.gz").write_bytes(gzip.compress(Path("text").read_bytes()))
    assert out(capsys, "translate", translator, "text.gz", "--batch-size", "1") == expected
    typed(monkeypatch, Path("text").read_bytes().replace(b"\n", b"\r\n"))
    assert out(capsys, "translate", translator) == expected
    assert out(capsys, "translate", translator, "text", "--output", "written") == "Wrote written\n"
    assert Path("written").read_text() == expected


def test_columns_have_line_rank_score_and_log_probability(translator: Path, capsys: pytest.CaptureFixture[str]):
    plain = out(capsys, "translate", translator, "text").splitlines()
    rows = [line.split("\t") for line in out(capsys, "translate", translator, "text", "--n-best", "3").splitlines()]
    assert [row[:2] for row in rows] == [[str(line), str(rank)] for line in (1, 3, 4) for rank in (1, 2, 3)]
    assert [row[4] for row in rows[::3]] == [plain[0], plain[2], plain[3]]
    for row in rows:
        # The score is the mean over the words and the end.
        assert float(row[2]) == pytest.approx(float(row[3]) / (len(row[4].split()) + 1), abs=1e-4)
    scored = out(capsys, "translate", translator, "text", "--scores", "--length-penalty", "none").splitlines()
    assert all(row[2] == row[3] for row in (line.split("\t") for line in scored)) and len(scored) == 3
    gnmt = ["--scores", "--length-penalty", "gnmt", "--alpha", "1"]
    for row in (line.split("\t") for line in out(capsys, "translate", translator, "text", *gnmt).splitlines()):
        assert float(row[2]) == pytest.approx(float(row[3]) * 6 / (5 + len(row[4].split()) + 1), abs=1e-4)


def test_checkpoints_and_runs_are_put_together(translator: Path, capsys: pytest.CaptureFixture[str]):
    for options, expected in (
        (["--ensemble", "run"], open_translator([translator, translator])),
        (["--average", "2"], open_translator(translator, average=2)),
        (["--step", "20"], open_translator(translator, which=20)),
    ):
        assert out(capsys, "translate", translator, "text", *options).splitlines() == expected.translate(LINES)


def test_what_is_typed_on_a_terminal_is_answered_line_by_line(translator: Path):
    here, there = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "anymax", "translate", "run"],
        stdin=there,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    os.close(there)
    os.write(here, b"ba ca da\n\nfa ba\n\x04")
    printed, problems = process.communicate(timeout=120)
    os.close(here)
    assert (process.returncode, problems) == (0, "")
    expected = open_translator(translator).translate(LINES[:3])
    answers = printed.replace("> ", "").splitlines()
    assert answers[0] == "Type a sentence to translate; Ctrl-D ends." and answers[1:4] == expected


def test_a_typed_line_that_does_not_fit_ends_nothing(
    translator: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    config = json.loads((translator / "config.json").read_text())
    config["task"]["model"]["max_positions"] = 256
    (translator / "config.json").write_text(json.dumps(config))
    terminal = io.StringIO("ba " * 300 + "\nba ca da\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    capsys.readouterr()
    assert code_of("translate", translator) == 0
    captured = capsys.readouterr()
    assert "line 1 must have at most the model's 256 positions, got 301" in captured.err
    assert open_translator(translator).translate(LINES[:1])[0] in captured.out
    # In a file it ends the work, with what came before written.
    Path("long").write_text("ba ca\n" + "ba " * 300)
    assert "line 2 must have at most" in complaint(capsys, "translate", translator, "long")


def test_mistakes_are_told_in_one_line_before_anything_is_written(
    translator: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    before = Path("text").read_bytes()
    for arguments, said in {
        "translate nothing text": "nothing/config.json is missing",
        "translate run nothing": "nothing does not exist",
        "translate run text --output text": "--output must be another file than the text",
        "translate run text --beam 0": "beam must be at least 1, got 0",
        "translate run text --n-best 6": "--n-best must be at most the beam, 5, got 6; give --beam 6",
        "translate run text --beam 50": "beam must be at most the vocabulary size, 14, got 50",
        "translate run text --alpha 1": "alpha is for the length penalty gnmt, got it with None",
        "translate run text --average 2 --step 20": "--average takes the last checkpoints, got --step 20 too",
        "translate run text --average 9": "9",
        "translate run text --step 7": "7",
        "translate run text --ensemble nothing": "nothing/config.json is missing",
        "generate run ba": "run must be of a language model, got run, which translates; use anymax translate run",
    }.items():
        assert said in complaint(capsys, *arguments.split()), arguments
    assert Path("text").read_bytes() == before
    typed(monkeypatch, b"ba\n\xff\n")
    assert "standard input must be UTF-8, but its line 2 is not" in complaint(capsys, "translate", translator)


def test_a_run_of_a_language_model_is_named(run: Path, capsys: pytest.CaptureFixture[str]):
    Path("text").write_text("ba\n")
    printed = complaint(capsys, "translate", "run", "text")
    assert "run must be of a translator, got run (LanguageModelingConfig); anymax generate" in printed


def test_a_run_is_evaluated_by_other_searches_and_scores(translator: Path, capsys: pytest.CaptureFixture[str]):
    usual = out(capsys, "evaluate", translator)
    assert "beam 5, length penalty average" in usual and "tok:none" in usual and "case:mixed" in usual
    options = ["--beam", "2", "--length-penalty", "gnmt", "--alpha", "1", "--tokenize", "13a", "--lowercase"]
    other = out(capsys, "evaluate", translator, "--split", "valid", *options)
    assert "valid: 20 sentences, beam 2, length penalty gnmt:1" in other and "tok:13a" in other and "case:lc" in other
    (name,) = re.findall(r"Wrote (.*)", other)
    written = json.loads(Path(name).read_text())
    assert (written["search"], written["tokenize"], written["lowercase"]) == (
        "beam 2, length penalty gnmt:1",
        "13a",
        True,
    )
    assert len(written["translations"]) == len(written["references"]) == 20
    assert "greedy" in out(capsys, "evaluate", translator, "--beam", "1")
    assert "alpha is for the length penalty gnmt" in complaint(capsys, "evaluate", translator, "--alpha", "1")


def test_a_text_of_your_own_takes_the_place_of_that_of_any_recipe(capsys: pytest.CaptureFixture[str]):
    pairs = [("a dog runs .", "ein hund rennt ."), ("the cat sees a dog", "die katze sieht einen hund")] * 15
    Path("a.en").write_text("".join(f"{source}\n" for source, _ in pairs))
    Path("a.de.gz").write_bytes(gzip.compress("".join(f"{target}\n" for _, target in pairs).encode()))
    Path("y.jsonl").write_text("".join(json.dumps({"en": source, "de": target}) + "\n" for source, target in pairs))
    for recipe, options in (
        ("multi30k.raw", ["--data.source", "a.en", "--data.target", "a.de.gz"]),
        ("correia.kftt_entmax", ["--data.path", "y.jsonl", "--data.languages", "en", "de"]),
        ("multi30k.softmax", ["--data.corpus", "reverse"]),
    ):
        printed = out(capsys, "train", recipe, "--toy", "--steps", "3", "--threads", "1", *options)
        assert "BLEU" in printed and "A sample:\n  source " in printed and "anymax translate runs/" in printed
    assert sorted(path.name for path in Path("runs").iterdir()) == ["a", "multi30k.softmax", "y"]
    assert "(--data.languages de en)" in complaint(capsys, "train", "drawn.copy", "--toy", "--data.path", "y.jsonl")
    assert code_of("train", "multi30k.raw", "--data.path", "y.jsonl", "--data.form", "raw") == 2
    # What an option of a resumed run leaves out stays as it is.
    moved = shutil.move("y.jsonl", "z.jsonl")
    out(capsys, "resume", "runs/y", "--steps", "4", "--data.path", moved)


def test_translators_of_other_sentences_are_not_compared(capsys: pytest.CaptureFixture[str]):
    said = "multi30k.softmax and multi30k.raw cannot be compared, as they are tested on other sentences"
    assert said in complaint(capsys, "compare", "multi30k.softmax", "multi30k.raw", "--folder", "other")
    assert not Path("other").exists()


def test_alphas_are_recorded_by_attention_layer_and_head(capsys: pytest.CaptureFixture[str]):
    tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out(capsys, "train", "multi30k.learned_entmax", "--toy", "--threads", "1", "--tensorboard", "--folder", "run")
    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    names = {
        f"alpha/{kind}/layer_{layer}/head_{head}"
        for kind in ("encoder", "decoder", "cross")
        for layer in (0, 1)
        for head in (0, 1)
    }
    watched = [record["watch"] for record in records if record["kind"] == "train"]
    assert watched and all(each.keys() == names and all(1 < value < 2 for value in each.values()) for each in watched)
    files = tensorboard.EventAccumulator(str(next(Path("run").rglob("events.out*")).parent))
    files.Reload()
    shown = {tag for tag in files.Tags()["scalars"] if "alpha" in tag}
    assert {tag[tag.index("alpha/") :] for tag in shown} == names
