"""`anymax train [RECIPE]` and `anymax resume RUN`: the settings of a run as options, and the run itself."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import tyro
from tyro.conf import Positional, arg

from anymax.cli import own_file, subject
from anymax.cli.console import escaping
from anymax.cli.progress import Announcer, Terminal, say
from anymax.plain import as_plain, with_absolute_paths
from anymax.training.config import RunConfig
from anymax.training.run_folder.folder import CONFIG
from anymax.training.task_config import TaskConfig

if TYPE_CHECKING:
    from anymax.training import Outcome

RUNS = Path("runs")
# What a shell reports of a process that Ctrl-C ended.
INTERRUPTED = 130
HELP = ("--help", "-h")
_STYLE = (tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)
_Folder = arg(metavar="FOLDER", help_behavior_hint="(default: runs/RECIPE, or runs/TEXT)")
_OF_TASK = "--task."
# Parts of a config that can be left out, and do not depend on its other settings.
_OPTIONAL = ("stop", "average", "random_lengths", "pick")
_Arguments = TypeVar("_Arguments")
_Config = TypeVar("_Config")


@dataclass(frozen=True)
class Settings(RunConfig):
    """The config of a run, whose task has no name of its own in options: --data.path, not --task.data.path."""

    task: Annotated[TaskConfig, arg(name="")]

    def config(self) -> RunConfig:
        """The same as a run holds it."""
        return RunConfig(**vars(self))


@dataclass(frozen=True)
class NewRun:
    """A run to start.

    Args:
        settings: those of the recipe.
        folder: the folder of the run.
        toy: everything tiny, to try it out in seconds: small model, few steps, text that is in every Python.
    """

    settings: Annotated[Settings, arg(name="")]
    folder: Annotated[Path | None, _Folder] = None
    toy: Annotated[bool, arg(help_behavior_hint="")] = False

    @property
    def config(self) -> RunConfig:
        return self.settings.config()


@dataclass(frozen=True)
class OldRun:
    """A run to resume.

    Args:
        settings: those of the run; what is changed here holds from now on.
        step: the checkpoint to resume from; later ones are removed.
    """

    settings: Annotated[Settings, arg(name="")]
    step: Annotated[int | None, arg(metavar="STEP", help_behavior_hint="(default: the last)")] = None


@dataclass(frozen=True)
class _Resume:
    """Continue a run where it stopped.

    Every setting of the run is an option too, and a changed one holds from now on: --steps, --optimizer.lr and so on.
    `anymax resume RUN --help` lists them with the values of the run. A run of your own task needs its file:
    --from my_task.py.

    Args:
        run: the folder of the run.
        step: the checkpoint to continue from; later ones are removed.
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    step: Annotated[int | None, arg(metavar="STEP", help_behavior_hint="(default: the last)")] = None


def train(arguments: Sequence[str]) -> int:
    """Train a recipe or a text of your own, by default a small Transformer on embedded text."""
    tasks, rest = own_file.take_option(arguments)
    if rest[:1] == [""]:
        raise ValueError("RECIPE must be named, got ''; anymax recipes lists them")
    name, options = chosen(*subject.subject_of(*name_and_options(rest, "")))
    given = new_run(name, options, tasks=tasks, says_what=any(word in HELP for word in options))
    config = with_absolute_paths(given.config)
    return train_in(given.folder, config, default=RUNS / config.task.run_name(subject.name_of_run(name)))


def train_in(folder: Path | None, config: RunConfig, *, default: Path) -> int:
    """Train in a folder, or where none was named in the default, with the next number where that is taken."""
    from anymax.training import train as start

    with Terminal(is_likelihood=config.task.is_likelihood) as terminal:
        outcome = start(
            config,
            folder or default,
            number=folder is None,
            command=typed(),
            reporter=terminal,
            announce=terminal.announce,
        )
    return finish(outcome, config)


def typed() -> str:
    """The command of this process, as a shell reads it."""
    return shlex.join(["anymax", *sys.argv[1:]])


def chosen(recipe: str, options: list[str]) -> tuple[str, list[str]]:
    """A recipe with the choice that options make of it, as --estimator dense, and the other options."""
    from anymax.recipes import choices, names

    offered = choices(recipe) if recipe in names() else None
    if offered is None:
        return recipe, options
    for place, word in enumerate(options):
        option, _, value = word.partition("=")
        if option == f"--{offered.argument}":
            given = [value] if value else options[place + 1 : place + 2]
            rest = options[:place] + options[place + (1 if value else 2) :]
            return f"{recipe}.{given[0] if given else ''}", rest
    return recipe, options


def new_run(
    recipe: str, options: list[str], *, tasks: Sequence[type[TaskConfig]] = (), says_what: bool = False
) -> NewRun:
    """A recipe, or what else can be trained, with the settings that options change.

    Args:
        tasks: as in `subject.find`.
        says_what: whether help begins with what a recipe may be.
    """
    function, description = subject.find(recipe, toy="--toy" in options, tasks=tasks)
    if says_what:
        description = f"{subject.WHAT}\n\n{recipe}: {description}"
    return parse(NewRun(settings_of(function(), options)), options, f"anymax train {recipe}", description)


def resume(arguments: Sequence[str]) -> int:
    """Resume a run where it stopped."""
    from anymax.training import read_config

    name, options = name_and_options(arguments, "")
    if is_help_alone(name, options):
        return print_help(_Resume, "anymax resume")
    if not name:
        raise ValueError("resume needs the folder of a run, got none; write anymax resume RUN")
    tasks, options = own_file.take_option(options)
    before = settings_of(read_config(name, tasks), options)
    given = parse(OldRun(before), options, f"anymax resume {name}", "Resume a run where it stopped.")
    config = given.settings.config()
    from anymax.training import resume as start

    with Terminal(is_likelihood=config.task.is_likelihood) as terminal:
        outcome = start(
            name, config=config, step=given.step, command=typed(), reporter=terminal, announce=terminal.announce
        )
    return finish(outcome, config)


def finish(outcome: Outcome, config: RunConfig) -> int:
    """Say how a run ended; one that ended well is tested, shows a sample, and prints what to try next."""
    run = outcome.folder
    if int(os.environ.get("RANK", 0)):
        return 0
    if outcome.stopped == "diverged":
        return 1
    if outcome.stopped == "signal":
        say(f"Resume with: {_command('resume', run)}")
        return INTERRUPTED
    if _is_shared():
        # Measuring needs no second process, and one alone cannot join the group again.
        say(f"Trained. Measure it with: {_command('evaluate', run)}")
        return 0
    from anymax.analysis import after_training
    from anymax.cli.evaluate import test

    with Announcer() as announce:
        task, report = test(run, config, announce)
    for line in report.lines():
        say(line)
    for picture in after_training(task, run):
        say(f"Drew {picture}")
    sample = task.sample()
    if sample is not None:
        say("\nA sample:")
        say(sample)
    longer = [] if outcome.is_early else [_command("resume", run, "--steps", str(2 * outcome.total_steps))]
    own = [_command(verb, run, *rest) for verb, *rest in task.next_commands()]
    _try_next(*own, _command("report", run), _command("evaluate", run), *longer)
    return 0


def _command(verb: str, run: Path, *options: str) -> str:
    """A command about a run as a shell reads it, whatever the name of the folder."""
    return shlex.join(["anymax", *verb.split(), str(run), *options])


def _try_next(*commands: str) -> None:
    say("\n  ".join(["\nTry next:", *commands]))


def name_and_options(arguments: Sequence[str], default: str) -> tuple[str, list[str]]:
    """The argument before the options, and the options; --help may come before it."""
    if arguments and arguments[0] in HELP:
        arguments = [*arguments[1:], arguments[0]]
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], list(arguments[1:])
    return default, list(arguments)


def is_help_alone(name: str, options: Sequence[str]) -> bool:
    """Whether help is asked for without a run whose settings it could show."""
    return any(option in HELP for option in options) and not (name and (Path(name) / CONFIG).exists())


def print_help(arguments: type, prog: str) -> int:
    """Print the help of a command that is missing its run."""
    tyro.cli(arguments, args=["--help"], prog=prog, config=_STYLE)
    raise AssertionError("the parser exits after it printed the help")


def parse(default: _Arguments, options: list[str], prog: str, description: str) -> _Arguments:
    """The same with what options change."""
    # Messages and config.json name a setting with its task, as task.data.path; that is understood too.
    plain = [f"--{word.removeprefix(_OF_TASK)}" if word.startswith(_OF_TASK) else word for word in options]
    # The config of a run may come from anybody, and help and errors show it.
    with escaping([prog, *_strings(as_plain(default))]):
        parsed: Any = tyro.cli(
            type(default), default=default, args=plain, prog=prog, description=description, config=_STYLE
        )
    return parsed


def _strings(value: Any) -> Iterator[str]:
    """The strings in plain values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _strings(entry)


def settings_of(config: RunConfig, options: list[str]) -> Settings:
    """A config as settings, in a form that options can change.

    Where they give steps, these take the place of epochs, and epochs that of steps. A part that can be left out, as
    `stop`, is there with its defaults where they set something of it, as --stop.window; a `stop` waits for evaluations,
    by default one an epoch.
    """
    given = {word.partition("=")[0] for word in options}
    if "--steps" in given and "--epochs" not in given:
        config = replace(config, epochs=None, steps=config.steps or sys.maxsize)
    elif "--epochs" in given and "--steps" not in given:
        config = replace(config, epochs=config.epochs or 1.0, steps=None)
    names = [
        word.removeprefix(_OF_TASK).removeprefix("--").replace("-", "_") for word in given if word.startswith("--")
    ]
    if config.evaluate_every is None and any(name.startswith("stop.") for name in names):
        config = replace(config, evaluate_every="epoch")
    config = replace(config, task=_with_parts(config.task.about_to_change(names), names))
    return Settings(**vars(_with_parts(config, names)))


def _with_parts(config: _Config, names: Sequence[str]) -> _Config:
    """The same with the defaults of optional parts that have something by these names, as stop.window."""
    parts = {}
    for field in fields(config):  # type: ignore[arg-type]
        beneath = [name.partition(".")[2] for name in names if name.startswith(f"{field.name}.")]
        if not beneath:
            continue
        part: Any = getattr(config, field.name)
        if part is None and field.name in _OPTIONAL:
            kind: Any = next(kind for kind in get_args(get_type_hints(type(config))[field.name]) if is_dataclass(kind))
            part = kind()
        if is_dataclass(part) and not isinstance(part, type):
            parts[field.name] = _with_parts(part, beneath)
    return replace(config, **parts)  # type: ignore[type-var]


def _is_shared() -> bool:
    """Whether torchrun started several processes."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1
