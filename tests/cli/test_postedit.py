"""Correcting translations as one types it: files, a terminal with both beside each other, and what is refused."""

import gzip
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from anymax.training import open_post_editor
from tests.cli.commands import code_of, complaint, out

pytestmark = pytest.mark.usefixtures("one_thread", "desk")
ROOT = Path(__file__).parents[2]
SOURCES, TRANSLATIONS = ["ba ca da", "fa ba", "ma na ga ba"], ["ab ac ab", "af ab", "am an ag ab"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("made"))
        options = ["--toy", "--steps", "6", "--threads", "1", "--evaluate-every", "3", "--checkpoint-every", "3"]
        assert code_of("train", "ape_small.self_tied", *options, "--folder", "run") == 0
        return Path("run").absolute()


@pytest.fixture
def texts(run: Path) -> list[str]:
    """The options that name two texts, on the desk."""
    for name, lines in (("src", SOURCES), ("mt", TRANSLATIONS)):
        Path(name).write_text("".join(f"{line}\n" for line in lines))
    return ["--src", "src", "--mt", "mt"]


def test_a_line_of_output_for_each_sentence(run: Path, texts: list[str], capsys: pytest.CaptureFixture[str]):
    expected = "".join(f"{line}\n" for line in open_post_editor(run).correct(SOURCES, TRANSLATIONS))
    assert out(capsys, "postedit", run, *texts) == expected
    Path("src.gz").write_bytes(gzip.compress(Path("src").read_bytes()))
    assert out(capsys, "postedit", run, "--src", "src.gz", "--mt", "mt", "--batch-size", "1") == expected
    assert out(capsys, "postedit", run, *texts, "--ensemble", run) == expected
    assert out(capsys, "postedit", run, *texts, "--output", "written") == "Wrote written\n"
    assert Path("written").read_text() == expected
    options = ["--beam", "1", "--max-length", "2", "--step", "3"]
    assert all(len(line.split()) <= 2 for line in out(capsys, "postedit", run, *texts, *options).splitlines())
    assert out(capsys, "postedit", run, *texts, "--average", "2").count("\n") == 3


def test_a_terminal_shows_translations_beside_their_corrections(run: Path, texts: list[str]):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "anymax", "postedit", str(run), *texts]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, stdin=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:
        # The end of a terminal.
        pass
    assert process.wait(timeout=60) == 0
    text = shown.decode()
    # What was taken out is struck through, what was put in is green.
    assert re.search(r"\x1b\[9;31m", text) and "\x1b[32m" in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    for number, (translation, correction) in enumerate(
        zip(TRANSLATIONS, open_post_editor(run).correct(SOURCES, TRANSLATIONS), strict=True), 1
    ):
        assert re.search(rf"{number}\W+{translation}\W+{correction[:20]}", plain)


def test_measuring_prints_what_leaving_translations_as_they_are_reaches(run: Path, capsys: pytest.CaptureFixture[str]):
    printed = out(capsys, "evaluate", run, "--beam", "2")
    assert "as it is" in printed and "corrected" in printed and "got better" in printed
    assert (run / "evaluations" / "test-beam-2.json").exists()


def test_what_cannot_be_corrected_is_refused_before_any_work(
    run: Path, texts: list[str], capsys: pytest.CaptureFixture[str]
):
    Path("short").write_text("ab\n")
    Path("empty").write_text("ab\n\nab\n")
    Path("long").write_text("ab\nab\n" + "ab " * 65 + "\n")
    for options, said in (
        (["--src", "src", "--mt", "short"], "src and short must have as many lines as each other, got 3 and 1"),
        (["--src", "empty", "--mt", "mt"], "empty line 2 must hold words, got an empty line"),
        (["--src", "src", "--mt", "empty"], "empty line 2 must hold words, got an empty line"),
        (["--src", "src", "--mt", "long"], "line 3 must have a translation of at most the model's 64 positions"),
        (["--src", "src", "--mt", "nowhere"], "nowhere"),
        ([*texts, "--output", "mt"], "--output must be another file than --mt"),
        ([*texts, "--average", "2", "--step", "3"], "--average takes the last checkpoints, got --step 3 too"),
    ):
        assert said in complaint(capsys, "postedit", run, *options)
    assert "must hold a run" in complaint(capsys, "postedit", "none", *texts)
    assert "run must be of a translator" in complaint(capsys, "translate", run, "src")
