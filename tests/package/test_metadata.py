"""What is said of the package, in its metadata and beside it, fits what it is; `installs.py` builds and installs it."""

import re
import tomllib
from pathlib import Path

from anymax.version import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
INSTALL = (ROOT / "docs" / "how-to" / "install.md").read_text()


def package_name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def test_the_citation_is_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == __version__
    assert "- name: the anymax authors\n" in citation
    assert re.search(r"^license: (.+)$", citation, re.MULTILINE)[1] == PROJECT["project"]["license"]


def test_every_extra_is_in_the_table_of_installs():
    assert sorted(re.findall(r"^\| `(\w+)` \|", INSTALL, re.MULTILINE)) == sorted(EXTRAS)


def test_extras_that_messages_and_pages_name_are_there():
    files = [*ROOT.glob("anymax/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    named = {
        extra
        for file in files
        for listed in re.findall(r"(?:'anymax|'\.)\[([\w,]+)\]", file.read_text())
        for extra in listed.split(",")
    }
    assert {"hub", "report"} <= named <= EXTRAS.keys()


def test_every_package_that_is_asked_for_is_pinned_for_development():
    asked = [*PROJECT["project"]["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    pins = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    assert {package_name(one) for one in asked} <= {package_name(pin) for pin in pins}
    assert len({package_name(pin) for pin in pins}) == len(pins)


def test_python_files_are_the_only_ones_that_need_no_mention_to_be_packaged():
    listed = PROJECT["tool"]["setuptools"]["package-data"]["anymax"]
    packaged = {file for pattern in listed for file in ROOT.glob(f"anymax/{pattern}")}
    built = re.compile(r"\.(so|dylib|pyc|md)$")
    others = {file for file in ROOT.glob("anymax/**/*") if file.is_file() and file.suffix != ".py"}
    assert sorted(file.name for file in others - packaged if not built.search(file.name)) == []
