"""`anymax train bert.small` on your own texts, and `anymax export`: what they print, write and say of mistakes."""

from pathlib import Path

import pytest

from anymax.data import WordPieces
from anymax.models import load_bert
from tests.cli.commands import QUICK, complaint, out, own_text

pytestmark = pytest.mark.usefixtures("desk")


def test_a_bert_of_two_texts_is_trained_and_exported(capsys: pytest.CaptureFixture[str]):
    texts = ["--data.paths", own_text("en.txt"), own_text("de.txt"), "--data.shares", "3", "1"]
    names = ["--data.languages", "english", "german"]
    printed = out(capsys, "train", "bert.small", *QUICK, "--steps", "3", *texts, *names, "--folder", "run")
    assert "hidden pieces" in printed and "anymax export run exported" in printed
    printed = out(capsys, "evaluate", "run", "--split", "valid")
    assert "english" in printed and "german" in printed and "a model that only counts pieces" in printed
    printed = out(capsys, "export", "run", "exported", "--step", "2")
    written = [Path(line.removeprefix("Wrote ")) for line in printed.splitlines()]
    assert sorted(path.name for path in written) == sorted(path.name for path in Path("exported").iterdir())
    model, left_out = load_bert("exported")
    WordPieces.load("exported").check_fits(model.vocabulary_size)
    assert left_out == () and model.vocabulary_size == len(WordPieces.load("exported"))
    assert "folder must be new or empty, got exported" in complaint(capsys, "export", "run", "exported")


def test_a_run_without_another_layout_is_refused(capsys: pytest.CaptureFixture[str], run: Path):
    said = complaint(capsys, "export", run, "exported")
    assert "LanguageModelingConfig has no other layout; `anymax export` takes runs of BERT" in said
    assert not Path("exported").exists()
