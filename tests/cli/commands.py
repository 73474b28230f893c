"""Commands as one types them: their exit code, what they print, what they say of a mistake; and a text to give them."""

from pathlib import Path

import pytest

from anymax import cli
from anymax.training.run_folder.lock import BusyError, FolderLock

QUICK = ["--toy", "--steps", "2", "--threads", "1"]
# A recipe that takes any text, however few its words.
PLAIN = "sotu.softmax_tied"
LINES = ["the people are many , and the words are few", "all people have words", "words are what people have ."]


def code_of(*arguments: str | Path) -> int:
    """The exit code of a command; the parser leaves by SystemExit."""
    try:
        return cli.main([str(argument) for argument in arguments])
    except SystemExit as leaving:
        return int(leaving.code or 0)


def out(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command prints where all goes well."""
    capsys.readouterr()
    assert code_of(*arguments) == 0
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command says of a mistake."""
    capsys.readouterr()
    assert code_of(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    return captured.err


def own_text(name: str = "my.txt", encoding: str = "utf-8", extra: str = "") -> str:
    """A text of a hundred lines; its name."""
    Path(name).write_text("".join(f"{line}{extra}\n" for line in LINES * 33 + LINES[:1]), encoding=encoding)
    return name


def is_unlocked(folder: Path) -> bool:
    """Whether no process writes to a folder; one that ended may still be listed."""
    try:
        FolderLock(folder).release()
    except BusyError:
        return False
    return True
