"""What verbs say while they work, where there is no terminal."""

import pytest

from anymax.cli import progress
from anymax.cli.progress import SECONDS_BETWEEN_LINES, Announcer


def test_a_new_thing_is_said_at_once_and_a_changed_one_after_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with Announcer() as announce:
        announce("encoding: 1 line")
        announce("encoding: 2 lines")
        now += SECONDS_BETWEEN_LINES
        announce("encoding: 3 lines")
        now += SECONDS_BETWEEN_LINES
        announce("encoding: 3 lines")
        announce("scoring: 1 word")
    assert capsys.readouterr().err.splitlines() == ["encoding: 1 line", "encoding: 3 lines", "scoring: 1 word"]
