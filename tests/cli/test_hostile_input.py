"""Texts, names and terminals that nobody would choose, as commands meet them: one line each, and no raw traceback."""

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest

from anymax import cli
from anymax.cli import recipes
from anymax.cli.console import Console
from tests.cli.commands import LINES, PLAIN, QUICK, code_of, complaint, own_text

pytestmark = pytest.mark.usefixtures("one_thread", "desk")

# Colours, the title of the window, the C1 form of ESC [, and a reversed direction.
EVIL = "\x1b[31mred\x1b]0;title\x9b2J\u202etxt"
WRITTEN_OUT = r"\x1b[31mred\x1b]0;title\x9b2J\u202etxt"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]):
    """What a command prints and says, which a terminal must not obey."""

    def run(*arguments: str | Path, code: int = 0) -> str:
        capsys.readouterr()
        assert code_of(*arguments) == code
        captured = capsys.readouterr()
        assert not OBEYED.search(captured.out + captured.err)
        assert code == 0 or captured.err.count("anymax: ") <= 1
        return captured.out + captured.err

    return run


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anymax.display.Figure.save", lambda figure, path: Path(path).touch())


def evil_text(folder: Path, extra: str) -> Path:
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("".join(f"{line} {extra}\n" for line in LINES * 20))
    return folder


def test_control_characters_of_a_text_never_reach_the_terminal(said):
    evil_text(Path("text"), EVIL)
    said("train", PLAIN, *QUICK, "--data.path", "text", "--folder", "run")
    assert EVIL in Path("run/lexicon.txt").read_text()
    assert WRITTEN_OUT in said("generate", "run", EVIL, "--num-tokens", "3")
    assert WRITTEN_OUT in said("analyze", "bottleneck", "run", "--contexts", "30", "--words", "13", "--most", "13")
    said("evaluate", "run", "--no-baselines")
    lexicon = Path("run/lexicon.txt").read_text()
    Path("run/lexicon.txt").write_text(lexicon.replace("anymax-lexicon 1", f"anymax-lexicon 1{EVIL}"))
    assert r"is a lexicon of version 1\x1b[31mred" in said("generate", "run", code=2)


def test_names_of_any_bytes_are_shown_as_text_and_work(said):
    name = os.fsdecode(b"caf\xe9 \x1b[31m [bold] $^{ :smile:")
    shown = r"caf\udce9 \x1b[31m [bold] $^{ :smile:"
    own_text(f"{name}.txt")
    assert f"in runs/{shown}" in said("train", PLAIN, *QUICK, "--data.path", f"{name}.txt")
    run = Path("runs") / name
    assert f"Wrote runs/{shown}/evaluations/valid.json" in said("evaluate", run, "--split", "valid", "--no-baselines")
    assert said("generate", run, "--num-tokens", "2")
    said("resume", run, "--steps", "3")
    # The parser shows the settings of the run.
    assert shown in said("resume", run, "--help").replace("\n", "")
    said("resume", run, "--steps", "many", code=2)
    assert shown in said("prepare", f"{name}.txt")
    assert f"{shown} is neither a file" in said("prepare", name, code=2)


def test_files_that_cannot_be_texts_are_one_line_that_names_them(said):
    os.mkfifo("pipe")
    Path("broken.txt").symlink_to("gone.txt")
    Path("folder").mkdir()
    for path, message in (
        ("pipe", "pipe must be a text file, got a pipe"),
        ("/dev/zero", "/dev/zero must be a text file, got a device"),
        ("broken.txt", "broken.txt is a link to gone.txt, which does not exist"),
        ("folder", "folder has no train file, nor any other file named for a split"),
        ("x" * 300, "File name too long"),
        ("x" * 9000, " ... "),
        ("/dev/null/text", "/dev/null/text is neither a file, nor a folder"),
    ):
        assert message in said("prepare", path, code=2)
    own_text()
    for command in (["prepare", "my.txt", "--encoding"], ["train", "--data.path", "my.txt", "--data.encoding"]):
        printed = said(*command, "nonsense", code=2)
        assert "--data.encoding" in printed and "must be one that Python knows, such as utf-8" in printed
    for wrong in ("pipe", "/dev/zero", "my.txt", "folder"):
        assert wrong in said("prepare", "my.txt", "--tokenizer", wrong, code=2)


def test_permission_that_is_missing_is_one_line(said, monkeypatch: pytest.MonkeyPatch):
    # For root every folder is readable.
    def denied(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    Path("closed").mkdir()
    monkeypatch.setattr(Path, "iterdir", denied)
    assert "Permission denied: 'closed'" in said("prepare", "closed", code=2)


def test_a_damaged_cache_does_not_pass_for_the_text(said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANYMAX_CACHE", str(tmp_path / "own"))
    text = own_text()
    for folder in ("one", "two"):
        said("train", PLAIN, *QUICK, "--data.path", text, "--folder", folder)
        (tokens,) = Path("own").glob("my-train-*.tokens")
        if folder == "one":
            whole = tokens.read_bytes()
            tokens.write_bytes(whole[: -(len(whole) - 4096) // 2].ljust(len(whole), b"\0"))
    assert tokens.read_bytes() == whole
    one, two = (json.loads(Path(folder, "summary.json").read_text())["metrics"] for folder in ("one", "two"))
    assert one == two


@pytest.mark.parametrize("arguments", [["recipes"], ["train", "--help"], ["doctor"], ["--help"], ["prepare", "my.txt"]])
def test_terminals_that_take_ascii_alone_get_it(arguments: list[str], monkeypatch: pytest.MonkeyPatch):
    own_text(extra=" café —")
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    # As on a terminal, where progress is drawn.
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert code_of(*arguments) == 0
    for stream in streams:
        stream.flush()
        stream.buffer.getvalue().decode("ascii")
    assert streams[0].buffer.getvalue()


def test_what_ascii_cannot_write_is_written_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    monkeypatch.setattr(recipes, "first_line", lambda docstring: "naïve — 日本")
    assert code_of("recipes", "sotu.softmax_tied") == 0
    sys.stdout.flush()
    assert rb"na\xefve \u2014 \u65e5\u672c" in sys.stdout.buffer.getvalue()


def test_an_error_is_one_line_of_bounded_length(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def failing(error: Exception):
        def verb(arguments: list[str]) -> int:
            raise error

        return verb

    for error in (
        ValueError(f"first {EVIL}\n  second"),
        OSError(5, "Input/output error", "a\nb\x1b"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        ModuleNotFoundError(f"no {'x' * 10_000} package"),
    ):
        monkeypatch.setitem(cli.WHOLE, "train", failing(error))
        printed = complaint(capsys, "train")
        assert printed.startswith("anymax: ") and printed.endswith("\n") and printed.count("\n") == 1
        assert not OBEYED.search(printed) and len(printed) < 2100
    # Mistakes of our own show where they were made.
    for error in (LookupError("ours"), RuntimeError("ours"), AssertionError("ours")):
        monkeypatch.setitem(cli.WHOLE, "train", failing(error))
        with pytest.raises(type(error), match="ours"):
            cli.main(["train"])


def test_a_console_shows_text_as_it_is_written(capsys: pytest.CaptureFixture[str]):
    Console().print(f"[bold]x[/red] :smile: {EVIL}", soft_wrap=True)
    assert capsys.readouterr().out == f"[bold]x[/red] :smile: {WRITTEN_OUT}\n"
    Console().print("a\x07\x08\x0b\x0c\rb")
    assert not OBEYED.search(capsys.readouterr().out)
