"""Every public name has a summary and an example that runs: `pytest tests/docs/test_examples.py -k mappings`."""

import doctest
import inspect
import re
from pathlib import Path

import public_names
import pytest
import torch

import anymax
from anymax.kernels import backend
from tests.installed import is_importable

FOLDERS = [folder for folder in public_names.folders() if is_importable(folder)]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def documented(folder: str) -> dict[str, object]:
    """The public names that can have a docstring: classes and functions, but no constants and no names for types."""
    packages = public_names.packages_of(folder).values()
    values = {name: getattr(package, name) for package in packages for name in package.__all__}
    return {name: value for name, value in values.items() if public_names.has_docstring(value)}


def docstring(name: str, value: object) -> str:
    """What was written for a name; dataclasses and named tuples give themselves their signature."""
    written = inspect.cleandoc(vars(value).get("__doc__") or "" if inspect.isclass(value) else value.__doc__ or "")
    return "" if written.startswith(f"{name}(") else written


def example(written: str) -> str:
    """The section of a docstring under `Example:`, up to the next line that is not indented."""
    found = re.search(r"^Example:\n((?: .*\n|\n)+)", written + "\n", re.MULTILINE)
    return found[1] if found else ""


def failures(name: str, code: str) -> str:
    """What running an example prints that it does not show. It has `torch` and `anymax` imported, and a seed."""
    printed: list[str] = []
    test = doctest.DocTestParser().get_doctest(
        code, {"__name__": "example", "anymax": anymax, "torch": torch}, name, None, 0
    )
    torch.manual_seed(0)
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=printed.append)
    return "".join(printed)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_public_name_has_a_summary_and_an_example(folder: str):
    names = documented(folder)
    written = {name: docstring(name, value) for name, value in names.items()}
    assert [name for name, text in written.items() if not public_names.summary(text).endswith((".", ":"))] == []
    assert [name for name, text in written.items() if ">>> " not in example(text)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_examples_print_what_they_show(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # One of them registers a backend.
    monkeypatch.setattr(backend, "_backends", backend._backends)
    found = []
    for name, value in documented(folder).items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.append(failures(name, example(docstring(name, value))))
    if any(found):
        pytest.fail("".join(found), pytrace=False)


def test_an_example_that_prints_something_else_is_reported():
    text = "Do it.\n\nExample:\n    >>> 1 + 1\n    3\n\nAfter it.\n"
    assert "Expected:\n    3\nGot:\n    2\n" in failures("name", example(text))
    assert failures("name", example(text.replace("3", "2"))) == ""
    assert example("Do it.\n\nArgs:\n    a: >>> 1\n") == ""


def test_a_docstring_that_python_writes_is_none():
    from dataclasses import dataclass

    @dataclass
    class Bare:
        size: int

    class Inheriting(Path):
        pass

    assert Bare.__doc__ == "Bare(size: int)"
    assert docstring("Bare", Bare) == docstring("Inheriting", Inheriting) == ""
