"""The import order: a folder imports itself and the folders before it in ORDER, never one after it."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import anymax
from tests.each import each
from tests.installed import is_importable

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "anymax"
ORDER = [
    "display",
    "distributed",
    "kernels",
    "transforms",
    "mappings",
    "losses",
    "regularizers",
    "structured",
    "vocabulary",
    "attention",
]
ORDER += ["latent", "models", "data", "decoding", "evaluation", "training", "analysis", "recipes", "bench"]
ORDER += ["compat", "hf", "cli"]
# Modules beside the folders, which import nothing of them when loaded and may be imported from everywhere.
FREE = {"checks", "files", "lazy", "plain", "version"}
FILES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = {file.relative_to(PACKAGE).parts[0] for file in FILES if file.parent != PACKAGE}


def imported_modules(file: Path) -> Iterator[str]:
    """Every module an import statement of the file names, inside functions too, in full."""
    package = [PACKAGE.name, *file.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def imported_folders(file: Path) -> Iterator[str]:
    for module in imported_modules(file):
        top, *rest = module.split(".")
        if top == PACKAGE.name:
            assert rest, f"{file.relative_to(ROOT)} imports the whole package; name the folder it needs"
            yield rest[0]


@each("file", FILES)
def test_a_module_imports_only_its_own_folder_and_those_before_it(file: Path):
    if file.parent == PACKAGE:
        return
    own = file.relative_to(PACKAGE).parts[0]
    allowed = {*ORDER[: ORDER.index(own) + 1], *FREE}
    wrong = sorted(set(imported_folders(file)) - allowed)
    assert not wrong, f"{file.relative_to(ROOT)} imports {', '.join(wrong)}, which {own} may not"


def test_every_folder_has_a_place_in_the_order():
    assert sorted(FOLDERS - set(ORDER)) == []


def test_the_readme_and_the_guide_give_the_same_order():
    order = [folder for folder in ORDER if folder in FOLDERS]
    tree = re.search(r"^anymax/\n((?:  .*\n)+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    guide = re.search(r"^`display`.*$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert tree is not None and re.findall(r"^  (\w+)/", tree[1], re.MULTILINE) == order
    assert guide is not None and re.findall(r"`(\w+)`", guide[0]) == order


def test_relative_and_nested_imports_are_seen():
    modules = list(imported_modules(PACKAGE / "cli" / "bench.py"))
    assert "anymax.bench.mappings" in modules and "pathlib.Path" in modules


def test_the_build_of_the_kernels_needs_the_standard_library_only():
    tops = {module.split(".")[0] for module in imported_modules(PACKAGE / "kernels" / "build.py")}
    assert sorted(tops - sys.stdlib_module_names) == []


def test_kernels_are_reached_through_their_dispatcher_alone():
    backend_module = re.compile(r"anymax\.kernels\.\w+\.(native|reference)\b")
    above = [file for file in FILES if "kernels" not in file.relative_to(PACKAGE).parts]
    past = {str(file.relative_to(ROOT)) for file in above if any(map(backend_module.match, imported_modules(file)))}
    assert past == set(), "choose a backend through the operator's folder"
    assert any(map(backend_module.match, imported_modules(PACKAGE / "kernels" / "dropout" / "native.py")))


def test_every_folder_is_an_attribute_of_the_package_and_offered_by_dir():
    assert set(dir(anymax)) - set(anymax.__all__) == FOLDERS
    for folder in filter(is_importable, FOLDERS):
        assert getattr(anymax, folder).__name__ == f"anymax.{folder}"
