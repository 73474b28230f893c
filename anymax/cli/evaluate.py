"""`anymax evaluate RUN`: what the task of a run measures of its model, with the options that the task has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from anymax.cli import own_file
from anymax.cli.console import Console
from anymax.cli.progress import Announcer, say
from anymax.cli.train import is_help_alone, name_and_options, parse, print_help
from anymax.training.run_folder.folder import EVALUATIONS, read_config, write_json
from anymax.training.task_config import EvaluationOptions, Report

if TYPE_CHECKING:
    from anymax.data.prepared.prepared import Announce
    from anymax.training.config import RunConfig
    from anymax.training.task import Task

_Best = arg(metavar="STEP", help_behavior_hint="(default: the best)")


@dataclass(frozen=True)
class _Evaluate:
    """Measure the model of a run: perplexity for language models, the metrics of the task for others.

    A task may have further options; `anymax evaluate RUN --help` lists those of a run. A run of a task of your own
    needs its file: --from my_task.py.

    Args:
        run: the folder of the run.
        split: the part of the data to measure.
        step: the checkpoint to measure.
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    split: Literal["valid", "test"] = "test"
    step: Annotated[int | None, _Best] = None


@dataclass(frozen=True)
class _Options:
    """How to measure a run.

    Args:
        options: those of its task.
        split: the part of the data to measure.
        step: the checkpoint to measure.
    """

    options: Annotated[EvaluationOptions, arg(name="")]
    split: Literal["valid", "test"] = "test"
    step: Annotated[int | None, _Best] = None


def evaluate(arguments: Sequence[str]) -> int:
    """Measure the model of a run: perplexity beside models that count words, or the metrics of its task."""
    name, options = name_and_options(arguments, "")
    if is_help_alone(name, options):
        return print_help(_Evaluate, "anymax evaluate")
    if not name:
        raise ValueError("evaluate needs the folder of a run, got none; write anymax evaluate RUN")
    tasks, options = own_file.take_option(options)
    config = read_config(name, tasks)
    usual = _Options(config.task.evaluation_options)
    given = parse(usual, options, f"anymax evaluate {name}", "Measure the model of a run.")
    run = Path(name)
    from anymax.training import open_run

    with Announcer() as announce:
        task = open_run(run, config=config, step=given.step, announce=announce).task
        report = task.report(given.split, given.options, announce=announce)
    for line in report.lines():
        say(line)
    for table in report.tables():
        Console().print(table.terminal())
    step = [] if given.step is None else [f"step-{given.step}"]
    for path in write(report, run, "-".join([given.split, *step, *given.options.changed()])):
        say(f"Wrote {path}")
    return 0


def test(run: Path, config: RunConfig, announce: Announce) -> tuple[Task, Report]:
    """Measure the best checkpoint of a run on the test split, and write it down."""
    from anymax.training import open_run

    task = open_run(run, config=config, announce=announce).task
    report = task.report("test", announce=announce)
    write(report, run, "test")
    return task, report


def write(report: Report, run: Path, name: str) -> list[Path]:
    """The numbers as JSON and, where matplotlib is installed, the figures; the files that were written."""
    folder = run / EVALUATIONS
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.json"]
    write_json(paths[0], report.as_dict())
    for title, figure in report.figures(run.name).items():
        if figure.can_be_drawn():
            paths.append(folder / f"{name}-{title}.png")
            figure.save(paths[-1])
    return paths
