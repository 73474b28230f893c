"""Processes of `anymax train` and `anymax resume` that are killed: the short form of `killed_runs`."""

import pytest

from tests.training.killed_runs import main


def test_a_run_that_is_killed_and_resumed_ends_as_if_it_had_never_been_killed(capsys: pytest.CaptureFixture[str]):
    code = main(runs=2, kills=1)
    lines = capsys.readouterr().out.splitlines()
    assert code == 0, "\n".join(lines)
    assert lines[-1] == "2 of 2 runs ended as if they had never been killed"
    assert not any("killed never" in line for line in lines)
