"""`anymax report` as a page: its sections in the order they are read, each by what the runs have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anymax.analysis.heads.study import study_heads, takes
from anymax.analysis.report.attention import attention
from anymax.analysis.report.frequencies import frequencies
from anymax.analysis.report.latents import TITLES, latents
from anymax.analysis.report.learning import learning
from anymax.analysis.report.opening import opening, settings_of, warnings
from anymax.analysis.report.runs import Run, read_runs
from anymax.analysis.report.side_by_side import best_run, comparison
from anymax.analysis.report.vocabulary import next_words
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.display import Heading, Notice, Page, Paragraph, Part
from anymax.display.printable import printable
from anymax.training import open_run
from anymax.training.run_folder.folder import reading_results
from anymax.training.task import Task
from anymax.training.task_config import TaskConfig
from anymax.training.tasks.language_modeling.task import LanguageModelingTask

LATENTS = "Latents"


@dataclass(frozen=True)
class Looks:
    """What is looked at.

    Args:
        split: the part of the data that examples are from.
        limit: examples that heads are measured on, at most.
        texts: examples that the model writes texts for, at most.
        seed: which examples, where there are more.
        step: the checkpoint; by default the best.
        lines: your own examples in place of those of the split, for texts.
    """

    split: Split = "valid"
    limit: int = 200
    texts: int = 100
    seed: int = 1
    step: int | None = None
    lines: tuple[str, ...] | None = None


def report(
    folders: Sequence[Path], looks: Looks, tasks: Collection[type[TaskConfig]] = (), *, announce: Announce
) -> Page:
    """The page of one run, or of several: their results and curves together, and details of the best.

    Args:
        tasks: further tasks that runs may be of, as those of a user's own file.
    """
    runs = read_runs(folders, tasks)
    if len(runs) == 1:
        parts: list[Part] = opening(runs[0])
        title = printable(runs[0].folder.resolve().name)
    else:
        parts = [*warnings(runs), *_section("comparison", lambda: comparison(runs), None)]
        title = f"{len(runs)} runs side by side"
    details = _details(runs, looks, announce)
    # A latent shows its own records, better named.
    without = TITLES if len(runs) == 1 and any(part == Heading(LATENTS) for part in details) else ()
    curves = _section("learning", lambda: learning(runs, without), "Learning")
    return Page(title, (*parts, *curves, *details, *settings_of(runs)))


def _details(runs: Sequence[Run], looks: Looks, announce: Announce) -> list[Part]:
    """The sections that need a model: of the run, or of the best of several."""
    run = runs[0] if len(runs) == 1 else best_run(runs)
    if run.config is None:
        return []
    parts: list[Part] = []
    if len(runs) > 1:
        said = f"What follows is of {run.label}, the best of the runs; report another alone to see its details."
        parts.append(Paragraph(said))
    try:
        opened = open_run(run.folder, config=run.config, step=looks.step, announce=announce)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        return [*parts, Notice(f"The model cannot be looked into: {printable(str(error))}")]
    step = f"{printable(run.folder.resolve().name)}/checkpoints/step_{opened.step}"
    task, source = opened.task, f"{step}, {looks.split} split, seed {looks.seed}"
    sections: dict[str, Callable[[], list[Part]]] = {
        "Attention": lambda: _attention(task, run, looks, source, announce),
        "Vocabulary": lambda: _vocabulary(task, runs, looks, source, announce),
        LATENTS: lambda: latents(task, run.folder, step),
        "Text": lambda: _texts(task, looks, step, announce),
    }
    for name, build in sections.items():
        parts += _section(name, _reading(run, build), name)
    return parts


def _reading(run: Run, build: Callable[[], list[Part]]) -> Callable[[], list[Part]]:
    """The same, which says whose files lack something where they do."""

    def read() -> list[Part]:
        with reading_results(run.folder):
            return build()

    return read


def _vocabulary(task: Task, runs: Sequence[Run], looks: Looks, source: str, announce: Announce) -> list[Part]:
    if not isinstance(task, LanguageModelingTask):
        return []
    frequent = frequencies({run.label: run.folder for run in runs})
    return [*frequent, *next_words(task, looks.split, seed=looks.seed, source=source, announce=announce)]


def _texts(task: Task, looks: Looks, step: str, announce: Announce) -> list[Part]:
    if looks.lines is not None:
        found = task.texts_for(looks.lines, announce=announce)
    else:
        found = task.texts(looks.split, limit=looks.texts, seed=looks.seed, announce=announce)
    return [replace(texts, source=f"{step}, {texts.source}") for texts in found]


def _attention(task: Task, run: Run, looks: Looks, source: str, announce: Announce) -> list[Part]:
    if takes(task) is not None:
        return []
    heads = study_heads(task, run.folder, looks.split, limit=looks.limit, seed=looks.seed, most=0, announce=announce)
    observed = task.observe(looks.split, limit=looks.limit, seed=looks.seed)
    return attention(heads, observed, source)


def _section(name: str, build: Callable[[], list[Part]], heading: str | None) -> list[Part]:
    """A section with its heading; where something it needs is missing or damaged, the sentence that says so."""
    try:
        parts = build()
    except (ValueError, OSError, ModuleNotFoundError) as error:
        parts = [Notice(f"No {name.lower()} can be shown: {printable(str(error))}")]
    return [Heading(heading), *parts] if heading and parts else parts
