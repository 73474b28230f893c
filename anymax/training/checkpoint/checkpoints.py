"""Checkpoints on disk: each is there whole or not at all, and what was damaged since is noticed."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from safetensors import SafetensorError
from safetensors.torch import save_file

from anymax.files import DamagedError, load_tensors, read_json
from anymax.plain import from_plain
from anymax.training.checkpoint.tensors import Tensors
from anymax.training.progress import Evaluated
from anymax.training.run_folder.folder import write_json
from anymax.training.run_folder.lock import FolderLock
from anymax.version import __version__

FORMAT = 1
STATE = "state.json"
BEST = "best.json"
DIVERGED = "diverged.json"
# The weights must be there; the optimizer may hold nothing, and most tasks carry nothing.
MODEL = "model.safetensors"

# "best" is the one that was evaluated best, or the last where none was. After a divergence, "last" is the one to resume
# from.
Which = int | Literal["last", "best"]


@dataclass(frozen=True)
class Divergence:
    """A run whose numbers became infinite or undefined.

    Args:
        step: the last step whose weights were finite.
        resume_from: the checkpoint to resume from; None where none was saved.
    """

    step: int
    resume_from: int | None


Note = TypeVar("Note", Evaluated, Divergence)


@dataclass(frozen=True)
class FileRecord:
    """What a file must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Header:
    """What every state holds, whatever was saved with it."""

    format: int
    version: str
    step: int
    files: dict[str, FileRecord]
    identity: dict[str, str]

    def __post_init__(self) -> None:
        for name in self.files:
            if not re.fullmatch(r"\w+\.safetensors", name):
                raise ValueError(f"files must be named as model.safetensors is, got {name!r}")
        if MODEL not in self.files:
            raise ValueError(f"files must name {MODEL}")


@dataclass(frozen=True)
class Checkpoint:
    """What was saved after a step.

    Args:
        header: what the state of every checkpoint holds.
        state: all of the state, as plain values; but for the header they are not checked.
        tensors: by the names of the files, without their ending.
    """

    path: Path
    step: int
    header: Header
    state: dict[str, Any]
    tensors: dict[str, Tensors]

    def file(self, name: str) -> Path:
        """Where tensors lie, to name it in messages."""
        return self.path / f"{name}.safetensors"

    def check_identity(self, identity: Mapping[str, str]) -> None:
        """Refuse weights that belong to something else."""
        theirs = self.header.identity
        for name in {**theirs, **identity}:
            if theirs.get(name) != identity.get(name):
                raise ValueError(
                    f"{self.path} must belong to this {name}, but was trained with {theirs.get(name)} and this is "
                    f"{identity.get(name)}; bring back the one it was trained with, or train anew in another folder"
                )


class Checkpoints:
    """The checkpoints of a run, in one folder that the first rank alone writes to.

    Args:
        folder: the run's folder for them.
        keep: how many of the last stay; the best stays besides.
        lock: of the run's folder; nothing is saved where it no longer holds.
    """

    def __init__(self, folder: Path, *, keep: int = 2, lock: FolderLock | None = None) -> None:
        self.folder = folder
        self.keep = keep
        self.lock = lock

    def steps(self) -> list[int]:
        """The steps that were saved, rising."""
        if not self.folder.is_dir():
            return []
        names = {path.name: re.fullmatch(r"step_(\d+)", path.name) for path in self.folder.iterdir()}
        steps = {name: int(match[1]) for name, match in names.items() if match is not None}
        return sorted(step for name, step in steps.items() if self.path(step).name == name)

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step:07d}"

    def save(
        self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Tensors], *, diverged: bool = False
    ) -> Path:
        """Write a checkpoint under another name and rename it when all of it is on the disk.

        Args:
            diverged: whether its weights led to numbers that are not finite. Such a checkpoint is none of `steps`, and
                only `load` of its step finds it.
        """
        if self.lock is not None:
            self.lock.check()
        path, part = self._aside(step) if diverged else self.path(step), self.folder / f".step_{step:07d}.part"
        _delete(part)
        try:
            self.folder.mkdir(exist_ok=True)
            part.mkdir()
            files = {name: _write_tensors(part / f"{name}.safetensors", held) for name, held in tensors.items() if held}
            described = {f"{name}.safetensors": description for name, description in files.items()}
            _write_state(part / STATE, {**state, "step": step, "version": __version__, "files": described})
            _sync(part)
            part.rename(path)
            _sync(self.folder)
        except (OSError, SafetensorError) as error:
            raise OSError(self._why_not_saved(step, error)) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return path

    def load(self, which: Which = "last") -> Checkpoint:
        """Read a checkpoint and check that it is as it was written."""
        step = self.find(which)
        try:
            return _read(self._saved_path(step), step)
        except DamagedError as error:
            raise DamagedError(f"{error}; {self._what_else(step)}") from error

    def find(self, which: Which) -> int:
        """The step of a checkpoint."""
        steps = self.steps()
        if isinstance(which, int):
            if which not in steps and not self._aside(which).exists():
                there = f"one that was saved, {', '.join(map(str, steps))}" if steps else "left out, as none was saved"
                raise ValueError(f"step must be {there}, got {which}")
            return which
        if not steps:
            raise ValueError(f"{self.folder} must hold a checkpoint, but none was saved yet; train for longer")
        if which == "best" and (best := self.best()) is not None:
            return self.find(best.step)
        diverged = self.divergence()
        return diverged.resume_from if diverged is not None and diverged.resume_from in steps else steps[-1]

    def best(self) -> Evaluated | None:
        """The step that was evaluated best and its metrics; None where none was evaluated."""
        return self._note(BEST, Evaluated, "remove it and choose a step, as with --step N")

    def divergence(self) -> Divergence | None:
        """What ended the run, where that was numbers that are not finite."""
        return self._note(DIVERGED, Divergence, "remove it")

    def settle(self, best: Evaluated | None) -> None:
        """Note the best and remove what is neither last nor best."""
        if best is None:
            (self.folder / BEST).unlink(missing_ok=True)
        else:
            write_json(self.folder / BEST, asdict(best))
        for step in self.steps()[: -self.keep]:
            if best is None or step != best.step:
                self._remove(step)

    def note_divergence(self, divergence: Divergence) -> None:
        """Have `last` be the checkpoint to resume from."""
        self.folder.mkdir(exist_ok=True)
        write_json(self.folder / DIVERGED, asdict(divergence))

    def go_back(self, step: int) -> None:
        """Remove the checkpoints after the one that a run resumes from, and the files of its divergence."""
        for later in self.steps():
            if later > step:
                self._remove(later)
        for aside in self.folder.glob("diverged_*"):
            if aside == self._aside(step):
                aside.rename(self.path(step))
            else:
                _delete(aside)
        (self.folder / DIVERGED).unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove what writes and removals left that were killed halfway."""
        for path in self.folder.glob(".*.part"):
            _delete(path)

    def _saved_path(self, step: int) -> Path:
        path = self.path(step)
        return path if path.exists() else self._aside(step)

    def _aside(self, step: int) -> Path:
        return self.folder / f"diverged_{step:07d}"

    def _note(self, name: str, kind: type[Note], remedy: str) -> Note | None:
        file = self.folder / name
        if not file.exists():
            return None
        try:
            return from_plain(kind, read_json(file))
        except ValueError as error:
            raise DamagedError(f"{file} is damaged: {error}; {remedy}") from None

    def _remove(self, step: int) -> None:
        # Renamed first, so that a checkpoint is never there in part.
        part = self.folder / f".removed_{step:07d}.part"
        self.path(step).rename(part)
        _delete(part)

    def _why_not_saved(self, step: int, error: Exception) -> str:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        steps = self.steps()
        rest = f"that of step {steps[-1]} is intact" if steps else "there is none before it"
        return f"could not write the checkpoint of step {step} to {self.folder}: {reason}; {rest}; make room and resume"

    def _what_else(self, damaged: int) -> str:
        for step in reversed(self.steps()):
            if step != damaged and _is_whole(self.path(step), step):
                return f"that of step {step} is whole: choose it with --step {step}"
        return "no other checkpoint is whole, so train anew in another folder"


def _delete(path: Path) -> None:
    """Remove a file, a folder or a link, where there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_tensors(file: Path, tensors: Tensors) -> dict[str, Any]:
    # Made first in the common way, as safetensors lets only the owner read.
    file.touch()
    mode = file.stat().st_mode
    save_file(tensors, file)
    file.chmod(mode)
    _sync(file)
    return {"bytes": file.stat().st_size, "sha256": _digest(file)}


def _write_state(file: Path, state: Mapping[str, Any]) -> None:
    # As JSON gives it back, so that the hash is of what will be read.
    state = json.loads(json.dumps({"format": FORMAT, **state}))
    file.write_text(json.dumps({**state, "sha256": _digest_of_state(state)}, indent=2) + "\n")
    _sync(file)


def _read(path: Path, step: int) -> Checkpoint:
    header, state = _read_state(path, step)
    tensors = {}
    for name, record in header.files.items():
        _check_file(path / name, record)
        try:
            tensors[name.removesuffix(".safetensors")] = load_tensors(path / name)
        except ValueError as error:
            raise DamagedError(str(error)) from None
    return Checkpoint(path, step, header, state, tensors)


def _read_state(path: Path, step: int) -> tuple[Header, dict[str, Any]]:
    file = path / STATE
    state = read_json(file)
    newest, stated = state.get("format"), state.pop("sha256", None)
    if isinstance(newest, int) and newest > FORMAT:
        raise ValueError(
            f"{file} has format {newest}, and this anymax {__version__} reads up to {FORMAT}; use a newer anymax"
        )
    if stated != _digest_of_state(state) or state.get("step") != step:
        raise DamagedError(f"{file} is damaged: its hash differs")
    try:
        return from_plain(Header, {field.name: state.get(field.name) for field in fields(Header)}), state
    except ValueError as error:
        raise DamagedError(f"{file} is damaged: {error}") from None


def _check_file(file: Path, record: FileRecord) -> None:
    if not file.is_file():
        raise DamagedError(f"{file} is {'no regular file' if file.exists() else 'missing'}")
    size = file.stat().st_size
    if size != record.bytes:
        raise DamagedError(f"{file} is damaged: it has {size} of its {record.bytes} bytes")
    if _digest(file) != record.sha256:
        raise DamagedError(f"{file} is damaged: its hash differs")


def _is_whole(path: Path, step: int) -> bool:
    try:
        header, _ = _read_state(path, step)
        for name, record in header.files.items():
            _check_file(path / name, record)
    except ValueError:
        return False
    return True


def _digest_of_state(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
