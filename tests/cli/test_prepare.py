"""`anymax prepare`: the table, what to type next, corpora that are brought, and mistakes in one line."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import tyro

from anymax.cli import prepare as verb
from anymax.cli import train
from anymax.cli.subject import DEFAULT_RECIPE
from anymax.data import BPE, Text, Words
from anymax.data.text import hub

FILES = {"train.txt": "the cat sat\nthe mat\n", "valid.txt": "the dog\n", "test.txt": "a cat\n\nthe cat\n"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYMAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ANYMAX_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data" / "ptb").mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / "data" / "ptb" / name).write_text(text)
    return tmp_path / "data"


def run(*arguments: str) -> int:
    return tyro.cli(verb.prepare, args=[str(argument) for argument in arguments])


def rows(output: str) -> dict[str, list[str]]:
    """The cells of each split."""
    lines = [line.strip("│").replace("│", " ").split() for line in output.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if cells and cells[0] in ("train", "valid", "test")}


def test_a_named_corpus_is_encoded_and_shown(root: Path, cache: Path, capsys: pytest.CaptureFixture[str]):
    assert run("ptb", "--root", root) == 0
    captured = capsys.readouterr()
    found = rows(captured.out)
    assert {split: cells[:4] for split, cells in found.items()} == {
        "train": ["2", "7", "0.00%", "5"],
        "valid": ["1", "3", "33.33%", "3"],
        "test": ["3", "7", "14.29%", "4"],
    }
    assert all((cache / cells[5]).exists() for cells in found.values())
    assert re.search(rf"^6 words, in [\d.]+ seconds\. Files lie in {cache}$", captured.out, re.MULTILINE)
    assert "<unk> does not occur in train" in captured.out
    printed = ["counting the words of ptb", *(f"encoding ptb {split}" for split in ("train", "valid", "test"))]
    assert captured.err.splitlines() == printed


def test_a_second_time_all_is_found(root: Path, capsys: pytest.CaptureFixture[str]):
    run("ptb", "--root", root, "--bpe", "30")
    first = capsys.readouterr()
    assert "learning 30 subwords from 6 words of ptb" in first.err and "subwords of 6 words" in first.out
    run("ptb", "--root", root, "--bpe", "30")
    again = capsys.readouterr()
    assert again.err == "" and rows(again.out).keys() == rows(first.out).keys()


def test_a_corpus_without_other_splits_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.txt").write_text("ein Café\n", encoding="latin-1")
    run(tmp_path / "mine", "--encoding", "latin-1")
    output = capsys.readouterr().out
    assert "mine has no valid and no test split; training needs valid" in output
    assert list(rows(output)) == ["train"]


@pytest.mark.parametrize(
    "text",
    [
        Text("ptb", root=Path("/some where"), units=Words(min_count=2, max_size=50)),
        Text(path=Path("my text.txt"), encoding="latin-1", splitting="spaces"),
        Text("wikitext-2", units=BPE(size=500, pad_to_multiple=8)),
        Text("pydoc", units=BPE(tokenizer=Path("tokenizer.json"))),
        Text(),
    ],
)
def test_what_to_type_next_trains_on_that_text(text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    if text.path is not None:
        text.path.write_text("some words\n")
    program, command, *rest = shlex.split(verb.next_command(text))
    assert (program, command) == ("anymax", "train")
    recipe = rest.pop(0) if not rest[0].startswith("--") else DEFAULT_RECIPE
    trained_on = train.new_run(recipe, rest).config.task.data
    assert trained_on == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ptb"], "ptb needs the folder it lies in; give root"),
        (["absent.txt"], "absent.txt is neither a file, nor a folder, nor the name of a corpus"),
        (["pydoc", "--bpe", "10"], "size must be at least"),
        (["pydoc", "--bpe", "500", "--min-count", "2"], "--min-count and --max-size are for words"),
        (["pydoc", "--bpe", "500", "--tokenizer", "t.json"], "--bpe learns subwords and --tokenizer brings them"),
        (["pydoc", "--tokenizer", "absent.json"], "absent.json"),
        (["pydoc", "--encoding", "latin-1"], "pydoc has fixed ones"),
        (["pydoc", "--min-count", "0"], "min_count must be at least 1, got 0"),
    ],
)
def test_mistakes_are_value_errors_that_name_what_is_wrong(arguments: list[str], message: str):
    with pytest.raises(ValueError, match=message):
        run(*arguments)


def test_an_absent_corpus_is_brought_where_the_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def bring(name: str, root: Path, *, progress) -> None:
        progress(f"bringing {name}")
        for file, text in FILES.items():
            (root / name).mkdir(parents=True, exist_ok=True)
            (root / name / file).write_text(text)

    monkeypatch.setattr(verb, "bring", bring)
    monkeypatch.setenv("ANYMAX_DATA", str(tmp_path / "new"))
    run("wikitext-2")
    captured = capsys.readouterr()
    assert captured.err.startswith("bringing wikitext-2\ncounting")
    assert captured.out.rstrip().endswith("Next: anymax train --data.corpus wikitext-2 --data.units.min-count 1")
    run("wikitext-2")
    assert capsys.readouterr().err == ""


def test_an_absent_corpus_without_package_or_network_names_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'anymax\[hub\]'; or put its files train\.txt"):
        run("lm1b", "--root", tmp_path)
    broken = ModuleType("datasets")
    monkeypatch.setitem(sys.modules, "datasets", broken)
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ValueError, match=r"lm1b could not be brought from the hub.*put its files train\.txt"):
        run("lm1b", "--root", tmp_path)


def test_on_a_terminal_progress_is_shown_in_place(root: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("FORCE_COLOR", "1")
    run("ptb", "--root", root)
    assert "\x1b[2K" in capsys.readouterr().err


def test_help_imports_no_torch():
    script = "import sys, tyro\nfrom anymax.cli.prepare import prepare\ntry:\n    tyro.cli(prepare, args=['--help'])\n"
    script += "except SystemExit:\n    pass\nassert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert "--bpe INT" in result.stdout and "CORPUS" in result.stdout
