"""What the folders of runs hold, read as far as it can be: a run may be unfinished, older, or damaged."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anymax.display.printable import printable
from anymax.files import DamagedError, read_json
from anymax.plain import as_plain
from anymax.training import read_metrics
from anymax.training.config import RunConfig
from anymax.training.run_folder.folder import COMMANDS, CONFIG, SUMMARY, TESTED, read_config
from anymax.training.run_folder.metrics import METRICS
from anymax.training.task_config import TaskConfig

# What `anymax compare` puts behind the name of a recipe.
_SEED = re.compile(r"-seed-\d+$")
_SEPARATOR = re.compile(r"([^A-Za-z0-9]+)")


@dataclass(frozen=True)
class Run:
    """A run as its files have it.

    Args:
        label: a short name, which no other run of the page has.
        group: that of the runs that differ in their seed alone.
        config: None where it cannot be read.
        records: those of training and of evaluations.
        summary: how it ended; empty where it has not.
        tested: what it reached on the test split; empty where it was not tested.
        command: that started it; "" where that is not known.
        problems: what could not be read, as sentences.
    """

    folder: Path
    label: str
    group: str
    config: RunConfig | None
    records: list[dict[str, Any]] = field(repr=False)
    summary: dict[str, Any]
    tested: dict[str, Any] = field(repr=False)
    command: str
    problems: tuple[str, ...]

    @property
    def trained(self) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == "train"]

    @property
    def evaluated(self) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == "evaluation"]

    @property
    def recipe(self) -> str:
        """What was trained by its name: the first word behind `anymax train`; "" where the command is not known."""
        try:
            words = shlex.split(self.command)
        except ValueError:
            return ""
        return words[2] if words[:2] == ["anymax", "train"] and len(words) > 2 and not words[2].startswith("-") else ""

    @property
    def step(self) -> int:
        """The last step that was recorded."""
        return max((record["step"] for record in self.records), default=0)

    @property
    def seed(self) -> int | None:
        return None if self.config is None else self.config.seed


def read_runs(folders: Sequence[Path], tasks: Collection[type[TaskConfig]] = ()) -> list[Run]:
    """Runs with names short enough to read: what differs between those of their folders.

    Args:
        tasks: further tasks that they may be of, as those of a user's own file.
    """
    if not folders:
        raise ValueError("folders must name a run at least, got none; write anymax report RUN")
    doubled = [folder for number, folder in enumerate(folders) if folder.resolve() in _resolved(folders[:number])]
    if doubled:
        raise ValueError(f"folders must name each run once, got {doubled[0]} twice; leave one out")
    return _named([_read(folder, tasks) for folder in folders])


def _resolved(folders: Sequence[Path]) -> list[Path]:
    return [folder.resolve() for folder in folders]


def _read(folder: Path, tasks: Collection[type[TaskConfig]]) -> Run:
    if not folder.is_dir():
        raise ValueError(f"{folder} must be the folder of a run, but there is no such folder; check its name")
    if not any((folder / name).exists() for name in (CONFIG, METRICS, SUMMARY)):
        raise ValueError(
            f"{folder} must be the folder of a run, but it has no {CONFIG}; name one that `anymax train` made, not the "
            "folder above it"
        )
    problems: list[str] = []

    def read(reading: Any, otherwise: Any) -> Any:
        try:
            return reading()
        except (ValueError, OSError) as error:
            problems.append(str(error))
            return otherwise

    config = read(lambda: read_config(folder, tasks), None)
    records = read(lambda: read_metrics(folder), [])
    summary = read(lambda: _optional(folder / SUMMARY), {})
    tested = read(lambda: _optional(folder / TESTED), {})
    command = read(lambda: _command(folder), "")
    return Run(folder, "", "", config, records, summary, tested, command, tuple(problems))


def _optional(file: Path) -> dict[str, Any]:
    found = read_json(file) if file.exists() else {}
    if not isinstance(found, dict):
        raise DamagedError(f"{file} must hold named values; it is ignored")
    return found


def _command(folder: Path) -> str:
    """The first of the commands that trained a run, which are its file's lines."""
    file = folder / COMMANDS
    return next(iter(file.read_text(encoding="utf-8", errors="replace").splitlines()), "") if file.is_file() else ""


def _named(runs: Sequence[Run]) -> list[Run]:
    """The same with labels, and with groups of those whose configs are alike but for the seed."""
    alike = [_but_for_seed(run) for run in runs]
    names = short_names([_SEED.sub("", os.path.normpath(run.folder.resolve())) for run in runs])
    groups = [names[alike.index(own)] if own else name for own, name in zip(alike, names, strict=True)]
    several = {group for group in groups if groups.count(group) > 1}
    found: list[Run] = []
    for run, group in zip(runs, groups, strict=True):
        label = f"{group}, seed {run.seed}" if group in several and run.seed is not None else group
        taken = [each.label for each in found]
        label = label if label not in taken else f"{label} ({taken.count(label) + 1})"
        found.append(replace(run, label=label, group=group))
    return found


def _but_for_seed(run: Run) -> str:
    if run.config is None:
        return ""
    values = as_plain(run.config)
    # Where a run computes decides no number that it is compared by.
    values.update(seed=None, threads=None, device=None, tensorboard=None, keep=None)
    return json.dumps(values, sort_keys=True)


def short_names(paths: Sequence[str]) -> list[str]:
    """What differs between names of folders, the words that they begin and end with left out; at least their last part.

    Words are what stands between anything but letters and digits. Of one folder it is its own name.
    """
    names = [printable(Path(path).name) for path in paths]
    if len(set(names)) < len(set(paths)):
        names = [printable(f"{Path(path).parent.name}/{Path(path).name}") for path in paths]
    words = [_SEPARATOR.split(name) for name in names]
    if len(set(names)) < 2:
        return names
    front = _shared(words)
    back = _shared([each[front:][::-1] for each in words])
    cut = ["".join(each[front : len(each) - back]).strip("._- ") for each in words]
    # One that has nothing of its own, as `adaptive` beside `adaptive_tied`, keeps its last word.
    return [part or name for part, name in zip(cut, names, strict=True)]


def _shared(words: Sequence[Sequence[str]]) -> int:
    """How many words all begin with, as whole words; never all there are of one."""
    number = 0
    for column in zip(*words, strict=False):
        if len(set(column)) > 1:
            break
        number += 1
    return min(number, min(map(len, words)) - 1)


def differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Settings in which runs differ, each with its values in their order; "" where a run has no such setting."""
    leaves = [dict(settings(run.config)) if run.config is not None else {} for run in runs]
    names = dict.fromkeys(name for each in leaves for name in each)
    values = {name: [each.get(name, "") for each in leaves] for name in names}
    return {name: found for name, found in values.items() if len(set(found)) > 1}


def settings(config: RunConfig) -> list[tuple[str, str]]:
    """Every setting of a config under the name it has as an option, with its value; first the task."""
    found = dict(_leaves(as_plain(config), ""))
    # That the whole is a run goes without saying.
    return [("task", found.pop("task.kind")), *((name, value) for name, value in found.items() if name != "kind")]


def _leaves(values: Any, place: str) -> Any:
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _leaves(value, f"{place}.{name}" if place else name)
    else:
        shown = "none" if values is None else json.dumps(values, ensure_ascii=False).strip('"')
        yield place if place == "task.kind" else place.removeprefix("task."), printable(shown)
