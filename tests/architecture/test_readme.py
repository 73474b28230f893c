"""What the README and the guide name is there. Their examples run with those of the docs, in test_docs.py."""

import fnmatch
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from anymax import cli
from tests.each import each
from tests.installed import is_importable

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TEXTS = {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")}
IGNORED = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def code(text: str) -> Iterator[str]:
    """Every line of a fenced block that is not Python, without its comment, and every span of code in the prose."""
    for language, block in FENCE.findall(text):
        if language != "python":
            yield from (line.partition("#")[0].strip() for line in block.splitlines())
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def commands(program: str) -> list[tuple[str, ...]]:
    """The words that follow a program wherever a text gives it as a command."""
    found = {tuple(line.split()[1:]) for text in TEXTS.values() for line in code(text) if line.split()[:1] == [program]}
    return sorted(words for words in found if words)


def folders(parent: Path) -> Iterator[Path]:
    """The folders that hold a file git would take."""
    for folder in sorted(path for path in parent.iterdir() if path.is_dir()):
        if not folder.name.startswith(".") and any(is_kept(file.relative_to(ROOT)) for file in folder.rglob("*.*")):
            yield folder


def is_kept(path: Path) -> bool:
    return not any(fnmatch.fnmatch(part, pattern) for part in path.parts for pattern in IGNORED)


def test_the_tree_shows_the_folders_on_disk():
    (tree,) = [block for _, block in FENCE.findall(README) if block.startswith("anymax/\n")]
    shown, parent = [], ""
    for line in tree.splitlines():
        indent, name = re.match(r"( *)([\w-]+/)", line).groups()
        shown.append(parent + name if indent else name)
        parent = parent if indent else name
    on_disk = [*folders(ROOT), *folders(ROOT / "anymax")]
    assert sorted(shown) == sorted(f"{folder.relative_to(ROOT)}/" for folder in on_disk)


def test_the_readme_shows_an_example_with_its_output_and_a_picture():
    assert len(re.findall(r"^```python\n.*?^```\n\n```text\n.+?^```", README, re.MULTILINE | re.DOTALL)) == 1
    assert "](docs/pictures/mappings.png)" in README


def promised() -> Iterator[tuple[str, str]]:
    """The folder and the name of everything in the table of what is inside; a row without a folder goes on with it."""
    folder = ""
    for named, names in re.findall(r"^\| (\w*) *\| (.*?) \|.*\|$", README, re.MULTILINE):
        folder = named or folder
        yield from ((folder, name) for name in re.findall(r"`([\w.]+)`", names))


@each("folder_and_name", sorted(pair for pair in promised() if is_importable(pair[0])))
def test_a_name_in_the_table_is_in_its_folder(folder_and_name: tuple[str, str]):
    folder, name = folder_and_name
    if name.startswith("anymax."):
        assert name.startswith(f"anymax.{folder}.") and importlib.import_module(name)
    elif not hasattr(importlib.import_module(f"anymax.{folder}"), name):
        importlib.import_module(f"anymax.{folder}.{name}")


def test_the_table_is_read():
    found = set(promised())
    assert {("mappings", "entmax"), ("latent", "NVIL"), ("recipes", "ptb"), ("kernels", "use_backend")} <= found


def test_commands_are_found_in_the_texts():
    assert ("demo",) in commands("make") and ("test",) in commands("make")
    assert ("doctor",) in commands("anymax")


@pytest.mark.parametrize("words", commands("make"), ids=" ".join)
def test_a_named_make_target_exists(words: tuple[str, ...]):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words[0] in targets


@pytest.mark.parametrize("words", commands("anymax"), ids=" ".join)
def test_a_named_verb_exists(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("a reader's own text .\n" * 20)
    # An unknown verb is answered with the help of what stands before it.
    with pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    assert f"usage: anymax {' '.join(words)} " in capsys.readouterr().out
