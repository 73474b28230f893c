"""`anymax evaluate RUN`: perplexity with all it depends on, beside models that count, and the loss by frequency."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from tyro.conf import Positional, arg

from anymax.cli.progress import Announcer

if TYPE_CHECKING:
    from anymax.analysis.evaluated import Evaluated
    from anymax.data.prepared import Announce
    from anymax.training.language_modeling import LanguageModelingTask

_AsConfig = arg(help_behavior_hint="(default: as the run's config has it)")


def evaluate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    split: Literal["valid", "test"] = "test",
    context: Annotated[int | None, _AsConfig] = None,
    block: Annotated[int | None, _AsConfig] = None,
    windows: Annotated[Literal["contiguous", "sentences", "single"] | None, _AsConfig] = None,
    step: Annotated[int | None, arg(metavar="STEP", help_behavior_hint="(default: the best)")] = None,
    baselines: bool = True,
) -> int:
    """Measure the model of a run: perplexity, what models reach that only count words, and the loss by frequency.

    The result is written to the folder `evaluations` of the run, with a picture where matplotlib is installed.

    Args:
        run: the folder of the run.
        split: the part of the corpus to score; every token is scored once.
        context: tokens of a window that only serve as context.
        block: tokens in a window, context included.
        windows: of one length, of whole sentences up to it, or of one sentence each.
        step: the checkpoint to measure.
        baselines: leave out the models that count.
    """
    from anymax.analysis.evaluated import evaluate_task

    with Announcer() as announce:
        task = open_language_model(run, step, announce)
        how = task.config.evaluation
        how = replace(
            how,
            block=how.block if block is None else block,
            context=how.context if context is None else context,
            windows=windows or how.windows,
        )
        evaluated = evaluate_task(task, split, evaluation=how, baselines=baselines, announce=announce)
    show(evaluated)
    given = {"block": block, "context": context, "windows": windows, "step": step}
    changed = [f"{name}-{value}" for name, value in given.items() if value is not None]
    for path in write(evaluated, run, "-".join([split, *changed])):
        Console().print(f"Wrote {path}", highlight=False, soft_wrap=True)
    return 0


def test(run: Path, announce: Announce) -> Evaluated:
    """Measure the best checkpoint of a run on the test split, and write it down."""
    from anymax.analysis.evaluated import evaluate_task

    evaluated = evaluate_task(open_language_model(run, None, announce), "test", announce=announce)
    write(evaluated, run, "test")
    return evaluated


def open_language_model(run: Path, step: int | None, announce: Announce) -> LanguageModelingTask:
    """The task of a run with the weights of a checkpoint, by default the best."""
    from anymax.training import open_run
    from anymax.training.language_modeling import LanguageModelingTask

    task = open_run(run, step=step, announce=announce).task
    assert isinstance(task, LanguageModelingTask), "every run trains a language model"
    return task


def write(evaluated: Evaluated, run: Path, name: str) -> list[Path]:
    """The numbers as JSON and, where matplotlib is installed, as a picture; the files that were written."""
    from anymax.evaluation import frequency_report
    from anymax.training.folder import EVALUATIONS, write_json

    folder = run / EVALUATIONS
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.json"]
    write_json(paths[0], evaluated.as_dict())
    if importlib.util.find_spec("matplotlib") is not None:
        paths.append(folder / f"{name}-frequency.png")
        frequency_report.plot(paths[1], {run.name: evaluated.by_frequency})
    return paths


def show(evaluated: Evaluated, *, frequency: bool = True) -> None:
    """Print what was measured."""
    from anymax.evaluation import frequency_report

    console = Console()
    console.print(f"{evaluated.split}: {evaluated.perplexity}", highlight=False, soft_wrap=True)
    if evaluated.baselines is not None:
        unigram, bigram = evaluated.baselines.unigram.perplexity, evaluated.baselines.bigram.perplexity
        console.print(f"For comparison, models that only count: unigram {unigram:,.2f}, ", highlight=False, end="")
        console.print(f"interpolated bigram {bigram:,.2f}", highlight=False)
    if frequency:
        console.print(frequency_report.terminal({"loss": evaluated.by_frequency}))
