"""Your own texts as they are given to commands: encodings, words, and texts that are too short or have changed."""

import shutil
from pathlib import Path

import pytest

from tests.cli.commands import PLAIN, QUICK, code_of, complaint, out, own_text

pytestmark = pytest.mark.usefixtures("one_thread", "desk")


def test_runs_of_one_text_get_numbers_and_a_failed_start_takes_none(capsys: pytest.CaptureFixture[str]):
    Path("my.txt").touch()
    complaint(capsys, "train", PLAIN, *QUICK, "--data.path", "my.txt")
    own_text()
    for _ in range(2):
        assert code_of("train", PLAIN, *QUICK, "--data.path", "my.txt") == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["my", "my-2"]


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
    printed = complaint(capsys, "train", PLAIN, *QUICK, "--data.path", text)
    assert "my.txt is not utf-8: byte 0xe9" in printed and "latin-1" in printed
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
    printed = complaint(capsys, "train", "grave.adaptive", "--data.path", own_text())
    assert "cutoffs must rise strictly and lie from 1 to" in printed
