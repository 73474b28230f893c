"""Files that are replaced: whole or not at all, with the mode of any new file, whatever other threads do."""

import os
import stat
from pathlib import Path

import pytest

from anymax.files import replacing


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def test_a_file_gets_the_mode_of_any_new_file_and_the_umask_is_never_touched(tmp_path: Path, umask, monkeypatch):
    for mask in (0o077, 0o027, 0o000):
        umask(mask)
        with monkeypatch.context() as patch:
            # Other threads create files too: even for a moment the umask must stay.
            patch.delattr(os, "umask")
            with replacing(tmp_path / "ours") as file:
                file.write(b"x")
        (tmp_path / "plain").unlink(missing_ok=True)
        (tmp_path / "plain").touch()
        modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "plain")}
        assert modes == {0o666 & ~mask}


def test_a_failure_leaves_the_file_as_it_was(tmp_path: Path):
    (tmp_path / "kept").write_bytes(b"before")

    def write_half() -> None:
        with replacing(tmp_path / "kept") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("kept", b"before")]


@pytest.mark.parametrize("name", ["x" * 255, "ä" * 127, os.fsdecode(b"\xff\xe9 caf\xe9")])
def test_any_name_that_a_file_may_have_can_be_replaced(tmp_path: Path, name: str):
    for text in (b"one", b"two"):
        with replacing(tmp_path / name) as file:
            file.write(text)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"two"
