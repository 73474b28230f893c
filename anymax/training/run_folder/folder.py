"""The folder of a run: its config, its summary, and whether it has room. Imports no torch."""

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from anymax.files import DamagedError, read_json, replacing
from anymax.plain import as_plain, shown
from anymax.training.config import RunConfig, run_config
from anymax.training.run_folder.lock import is_free
from anymax.training.task_config import TaskConfig
from anymax.version import __version__

CONFIG = "config.json"
# The format of that file. It rises when a kind or a field is renamed, so that runs written before are refused as such.
CONFIG_FORMAT = 2
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"
EVALUATIONS = "evaluations"
# Answers of `anymax analyze`.
ANALYSES = "analyses"
# The commands that trained a run, a line each, where it was trained by the command line.
COMMANDS = "commands.txt"
# What a run reaches on the test split, written when it ends.
TESTED = f"{EVALUATIONS}/test.json"


def read_config(folder: str | os.PathLike[str], tasks: Collection[type[TaskConfig]] = ()) -> RunConfig:
    """The config of a run.

    Args:
        folder: of the run.
        tasks: further tasks that it may be of, as those of a user's own file.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import read_config, train
        >>> config = recipes.find("dirichlet.linear")().toy()
        >>> _ = train(config, "run")
        >>> read_config("run") == config
        True
    """
    return _config_of(Path(folder) / CONFIG, read_plain_config(folder), tasks)


def read_config_file(file: Path, tasks: Collection[type[TaskConfig]] = ()) -> RunConfig:
    """The config that a file holds, as the config.json of a run does; `tasks` as in `read_config`."""
    return _config_of(file, _read_plain(file, "name the config.json of a run"), tasks)


def read_plain_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The config of a run as the plain values of its file."""
    file = Path(folder) / CONFIG
    if not file.exists():
        raise ValueError(f"folder must hold a run, but {file} is missing; name the folder that `anymax train` made")
    return _read_plain(file, "bring back the config the run was started with")


def _read_plain(file: Path, advice: str) -> dict[str, Any]:
    try:
        values = read_json(file)
    except DamagedError as error:
        raise DamagedError(f"{error}; {advice}") from None
    found = values.pop("format", None)
    if type(found) is not int or found != CONFIG_FORMAT:
        raise ValueError(
            f"{file} must have format {CONFIG_FORMAT}, which this anymax {__version__} reads, got "
            f"{'none' if found is None else shown(found)}; train anew, or use the anymax that wrote it"
        )
    return values


def _config_of(file: Path, values: dict[str, Any], tasks: Collection[type[TaskConfig]]) -> RunConfig:
    try:
        return run_config(values, tasks)
    except ValueError as error:
        raise DamagedError(f"{file} must be the config of a run, but {error}") from None


def write_config(folder: Path, config: RunConfig) -> None:
    write_json(folder / CONFIG, {"format": CONFIG_FORMAT, **as_plain(config)})


@contextlib.contextmanager
def reading_results(folder: Path) -> Iterator[None]:
    """Where the files that a finished run left lack something, say whose they are and what to do."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise DamagedError(
            f"{folder} must hold the results of a finished run, but {TESTED}, {SUMMARY} or its metrics lack some "
            f"({type(error).__name__}: {error}); measure it with `anymax evaluate {folder}`, or train anew"
        ) from None


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    """Write values so that the file is there whole or not at all."""
    with replacing(file) as opened:
        opened.write((json.dumps(values, indent=2) + "\n").encode())


def add_command(folder: Path, command: str | None) -> None:
    """Write down a command that trains a run."""
    if command is not None:
        with open(folder / COMMANDS, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(command.replace("\n", " ") + "\n")


def changes(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """What differs between two configs as plain values, as "steps 100 -> 200"."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            yield from changes(before.get(name), after.get(name), f"{place}.{name}" if place else name)
    elif before != after:
        yield f"{place} {json.dumps(before)} -> {json.dumps(after)}"


def check_new(folder: Path) -> None:
    """Refuse to train anew where a run, or anything else, lies."""
    if (folder / CONFIG).exists():
        resume = ["anymax", "resume", str(folder)]
        raise ValueError(
            f"folder must be new, but {folder} holds a run; continue it with `{shlex.join(resume)}`, or name another"
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder must be new or empty, but {folder} is a file; name another")
    if not is_free(folder):
        raise ValueError(f"folder must be new or empty, but {folder} holds other files; name another")


def remove_leftovers(folder: Path) -> None:
    """Remove what writes left that were killed halfway."""
    for path in folder.glob(".*.part"):
        path.unlink()


def check_room(folder: Path, needed: int) -> None:
    """Refuse to begin what the disk has no room for."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(
            f"the disk of {folder} must have room for {_size(needed)} of checkpoints, but {_size(free)} are free; "
            "make room, lower keep, or name another folder"
        )


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"
