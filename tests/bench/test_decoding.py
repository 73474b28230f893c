"""The bench of decoding at tiny sizes: what is compared, and that all of it finds the same. Never how fast."""

from pathlib import Path

import pytest

from anymax import cli
from anymax.bench import decoding
from anymax.bench.decoding import ALONE, Settings
from anymax.bench.harness.timing import Budget

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = Settings(
    sentences=5,
    batch_sizes=(2, 5),
    beam=2,
    vocabulary=40,
    dim=16,
    layers=1,
    prompt=2,
    longest=8,
    threads=1,
    budget=Budget(seconds=0.01, rounds=2, least=2, turn_seconds=1e-6),
)


def test_batches_are_compared_with_single_sentences_and_find_the_same() -> None:
    announced: list[str] = []
    report = decoding.measure(TINY, announced.append)
    assert announced == list(decoding.MODELS) and TINY.num_steps == len(announced)
    assert [one.job for one in report.comparisons] == announced
    for comparison in report.comparisons:
        assert [entry.name for entry in comparison.entries] == [ALONE, "batches of 2", "batches of 5"]
        assert comparison.entries[0].timing.ratio.median == 1
    agreed = [note for note in report.notes if "are the same as one at a time" in note]
    assert len(agreed) == 3 and all("of 5 sentences, 5 and 5 are the same" in note for note in agreed)


def test_the_command_shows_the_tables_and_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decoding, "quick", lambda threads: TINY)
    page = tmp_path / "decoding.md"
    assert cli.main(["bench", "decoding", "--quick", "--output", str(page)]) == 0
    text = page.read_text()
    assert "$ anymax bench decoding --quick" in text and "| batches of 5 |" in text
    assert "Transformer, adaptive output" in capsys.readouterr().out
