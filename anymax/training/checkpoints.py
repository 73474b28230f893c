"""Checkpoints on disk: each is there whole or not at all, and what was damaged since is noticed."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from anymax.data.writing import replacing
from anymax.training.tensors import Tensors
from anymax.version import __version__

FORMAT = 1
STATE = "state.json"
BEST = "best.json"

# "best" is the one that was evaluated best, or the last where none was.
Which = int | Literal["last", "best"]


class DamagedError(ValueError):
    """A checkpoint that is not as it was written."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved after a step.

    Args:
        state: plain values.
        tensors: by the names of the files, without their ending.
    """

    path: Path
    step: int
    state: dict[str, Any]
    tensors: dict[str, Tensors]

    def file(self, name: str) -> Path:
        """Where tensors lie, to name it in messages."""
        return self.path / f"{name}.safetensors"

    def check_identity(self, identity: Mapping[str, str]) -> None:
        """Refuse weights that belong to something else."""
        theirs: dict[str, str] = self.state["identity"]
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
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """The steps that were saved, rising."""
        if not self.folder.is_dir():
            return []
        names = (re.fullmatch(r"step_(\d+)", path.name) for path in self.folder.iterdir())
        return sorted(int(name[1]) for name in names if name is not None)

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step:07d}"

    def save(self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Tensors]) -> Path:
        """Write a checkpoint under another name and rename it when all of it is on the disk."""
        path, part = self.path(step), self.folder / f".step_{step:07d}.part"
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(parents=True)
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
            return _read(self.path(step), step)
        except DamagedError as error:
            raise DamagedError(f"{error}; {self._what_else(step)}") from error

    def find(self, which: Which) -> int:
        """The step of a checkpoint."""
        steps = self.steps()
        if not steps:
            raise ValueError(f"{self.folder} must hold a checkpoint, but none was saved yet; train for longer")
        best = self.best()
        if which == "best" and best is not None:
            which = best["step"]
        if isinstance(which, str):
            return steps[-1]
        if which not in steps:
            raise ValueError(f"step must be one that was saved, {', '.join(map(str, steps))}, got {which}")
        return which

    def best(self) -> dict[str, Any] | None:
        """The step that was evaluated best and its metrics; None where none was evaluated."""
        file = self.folder / BEST
        if not file.exists():
            return None
        try:
            best: dict[str, Any] = json.loads(file.read_text())
        except ValueError:
            raise DamagedError(f"{file} is damaged; remove it and choose a step, as with --step N") from None
        return best

    def settle(self, best: Mapping[str, Any] | None) -> None:
        """Note the best and remove what is neither last nor best."""
        if best is None:
            (self.folder / BEST).unlink(missing_ok=True)
        else:
            with replacing(self.folder / BEST) as file:
                file.write((json.dumps(best, indent=2) + "\n").encode())
        for step in self.steps()[: -self.keep]:
            if best is None or step != best["step"]:
                self._remove(step)

    def remove_after(self, step: int) -> None:
        """Remove the checkpoints of later steps, which a run that goes back will take anew."""
        for later in self.steps():
            if later > step:
                self._remove(later)

    def remove_leftovers(self) -> None:
        """Remove what writes and removals left that were killed halfway."""
        for path in self.folder.glob(".*.part"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _remove(self, step: int) -> None:
        # Renamed first, so that a checkpoint is never there in part.
        part = self.folder / f".removed_{step:07d}.part"
        self.path(step).rename(part)
        shutil.rmtree(part)

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
    state = _read_state(path, step)
    tensors = {}
    for name, description in state["files"].items():
        _check_file(path / name, description)
        tensors[name.removesuffix(".safetensors")] = load_file(path / name)
    return Checkpoint(path, step, state, tensors)


def _read_state(path: Path, step: int) -> dict[str, Any]:
    file = path / STATE
    try:
        state: dict[str, Any] = json.loads(file.read_text())
        newest, stated = state["format"], state.pop("sha256")
    except FileNotFoundError:
        raise DamagedError(f"{file} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedError(f"{file} is damaged") from None
    if isinstance(newest, int) and newest > FORMAT:
        raise ValueError(
            f"{file} has format {newest}, and this anymax {__version__} reads up to {FORMAT}; use a newer anymax"
        )
    if stated != _digest_of_state(state) or state["step"] != step:
        raise DamagedError(f"{file} is damaged: its hash differs")
    return state


def _check_file(file: Path, description: Mapping[str, Any]) -> None:
    if not file.exists():
        raise DamagedError(f"{file} is missing")
    size, expected = file.stat().st_size, description["bytes"]
    if size != expected:
        raise DamagedError(f"{file} is damaged: it has {size} of its {expected} bytes")
    if _digest(file) != description["sha256"]:
        raise DamagedError(f"{file} is damaged: its hash differs")


def _is_whole(path: Path, step: int) -> bool:
    try:
        for name, description in _read_state(path, step)["files"].items():
            _check_file(path / name, description)
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
