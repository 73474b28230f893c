"""Public names: each is documented, is found where it is promised, and is known to type checkers."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import anymax
from tests.each import each
from tests.installed import is_importable

FOLDER = Path(anymax.__path__[0])
FILES = sorted(file.relative_to(FOLDER.parent) for file in FOLDER.rglob("*.py") if file.name != "__main__.py")
MODULES = [
    ".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in FILES if is_importable(file.parts[1])
]


def public_names(module: ModuleType) -> list[str]:
    return list(module.__all__) if hasattr(module, "__all__") else []


@each("name", MODULES)
def test_a_module_and_its_public_names_are_documented(name: str):
    module = importlib.import_module(name)
    assert module.__doc__
    without = [
        public for public in public_names(module) if not public.startswith("__") and not getattr(module, public).__doc__
    ]
    assert without == []


@each("name", anymax.__all__)
def test_a_top_level_name_is_found_and_listed(name: str):
    assert getattr(anymax, name) is not None
    assert name in dir(anymax)


def test_no_name_is_promised_twice():
    assert len(set(anymax.__all__)) == len(anymax.__all__)


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="no attribute 'softmaks'"):
        _ = anymax.softmaks


def test_a_name_that_a_folder_has_is_said_to_be_there_without_importing_it():
    script = """
import sys
import anymax

assert not hasattr(anymax, "AdaptiveInput")
try:
    anymax.Budget
except AttributeError as error:
    print(error)
try:
    from anymax import AdaptiveInput
except ImportError as error:
    print(error)
assert "torch" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (result.stdout.splitlines(), result.stderr) == (
        [
            "module 'anymax' has no attribute 'Budget'; use `from anymax.structured import Budget`",
            "module 'anymax' has no attribute 'AdaptiveInput'; use `from anymax.vocabulary import AdaptiveInput`",
        ],
        "",
    )


def test_the_folder_that_is_said_to_have_a_name_has_it():
    names = {
        name for module in MODULES if module.count(".") == 1 for name in public_names(importlib.import_module(module))
    }
    hidden = sorted(name for name in names if name not in dir(anymax))
    assert "AdaptiveInput" in hidden
    for name in hidden:
        with pytest.raises(AttributeError, match="use `from anymax") as caught:
            getattr(anymax, name)
        exec(str(caught.value).split("`")[1], {})


def test_a_package_offers_what_its_stub_lists_from_where_the_stub_has_it():
    stubs = sorted(FOLDER.rglob("*.pyi"))
    assert FOLDER / "__init__.pyi" in stubs
    for stub in stubs:
        package = importlib.import_module(".".join(stub.parent.relative_to(FOLDER.parent).parts))
        nodes = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
        imports = [(node.module, alias) for node in nodes for alias in node.names]
        # Only a name that is imported as itself is offered by a stub.
        assert all(alias.asname == alias.name for _, alias in imports)
        assert sorted(alias.name for _, alias in imports) == dir(package)
        for home, alias in imports:
            assert getattr(importlib.import_module(home), alias.name) is getattr(package, alias.name)
        folders = {alias.name for home, alias in imports if home == package.__name__}
        assert sorted({*dir(package)} - folders) == package.__all__


def test_a_file_of_the_same_name_does_not_hide_a_public_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "packed"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from anymax import lazy\n__getattr__, __dir__, __all__ = lazy.attach(__name__)\n"
    )
    (package / "__init__.pyi").write_text("from packed.twice import twice as twice\n")
    (package / "twice.py").write_text("def twice(number):\n    return 2 * number\n")
    (package / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        file = importlib.import_module("packed.twice")
        other = importlib.import_module("packed.other")
        packed = sys.modules["packed"]
        assert packed.twice is file.twice and packed.twice(3) == 6
        assert packed.other is other
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "packed"]:
            del sys.modules[name]
