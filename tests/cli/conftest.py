"""Shared by the tests of commands: where they are typed, and a run that is there already."""

import shutil
from pathlib import Path

import pytest

from tests.cli.commands import code_of


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to work in, and a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps of the default recipe, in the folder that it gets by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trained"))
        assert code_of("train", "--toy", "--threads", "1") == 0
        return Path("runs/sotu.adaptive_tied").absolute()


@pytest.fixture
def run(desk: None, trained: Path) -> Path:
    """A copy of that run to do anything with."""
    return Path(shutil.copytree(trained, "run"))
