"""`anymax evaluate RUN`: perplexity with all it depends on, beside models that count, and the loss by frequency."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from anymax.cli.console import Console, show_page
from anymax.cli.progress import Announcer, shown
from anymax.evaluation.adaptation_config import Adaptation, CachePointer, DynamicEvaluation

if TYPE_CHECKING:
    from anymax.analysis.evaluated import Evaluated
    from anymax.data.prepared import Announce
    from anymax.training.language_modeling import LanguageModelingTask
    from anymax.training.task import Task

Adapt = Literal["cache", "dynamic"]

# Adaptations that nothing was said about.
CACHE, DYNAMIC = CachePointer(), DynamicEvaluation()
_AsConfig = arg(help_behavior_hint="(default: as the run's config has it)")


def evaluate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    split: Literal["valid", "test"] = "test",
    context: Annotated[int | None, _AsConfig] = None,
    block: Annotated[int | None, _AsConfig] = None,
    windows: Annotated[Literal["contiguous", "sentences", "single"] | None, _AsConfig] = None,
    first_window: Annotated[Literal["block", "stride"] | None, _AsConfig] = None,
    rows: Annotated[int | None, _AsConfig] = None,
    step: Annotated[int | None, arg(metavar="STEP", help_behavior_hint="(default: the best)")] = None,
    baselines: bool = True,
    choices: bool = False,
    adapt: Annotated[Adapt | None, arg(help_behavior_hint="(default: the model stays as it is)")] = None,
    cache: CachePointer = CACHE,
    dynamic: DynamicEvaluation = DYNAMIC,
) -> int:
    """Measure the model of a run: perplexity, what models reach that only count words, and the loss by frequency.

    The result is written to the folder `evaluations` of the run, with a picture where matplotlib is installed.

    Args:
        run: the folder of the run.
        split: the part of the corpus to score; every token is scored once.
        context: tokens of a window that only serve as context.
        block: tokens in a window, context included.
        windows: of one length, of whole sentences up to it, or of one sentence each.
        first_window: "stride" has no window score more than the block less the context, as fairseq does; "block" scores
            a whole first block.
        rows: for models that carry a state: how many parts of the text are read side by side; 1 is exact, and what
            --adapt takes.
        step: the checkpoint to measure.
        baselines: leave out the models that count.
        choices: look at what the model chooses too: how often it is right, how many words it considers, and an
            epsilon-perplexity that sparse outputs have as well. Of those it is always done.
        adapt: let the model follow the text: by a cache of its last words, or by going on to learn from it.
        cache: for --adapt cache.
        dynamic: for --adapt dynamic.
    """
    from anymax.analysis.evaluated import evaluate_task
    from anymax.training import LanguageModeling, read_config

    adaptation = _adaptation(adapt, cache, dynamic)
    if adapt is not None and choices:
        raise ValueError(
            f"--choices must be left out with --adapt {adapt}: they are those of a model that stays as it is"
        )
    if adapt is not None and rows not in (None, 1):
        raise ValueError(f"--rows must be 1 with --adapt {adapt}, which follows one text from front to end, got {rows}")
    given = {
        "block": block,
        "context": context,
        "windows": windows,
        "first-window": first_window,
        "rows": rows,
        "adapt": adapt,
    }
    if not isinstance(read_config(run).task, LanguageModeling):
        flags = {"baselines": None if baselines else baselines, "choices": choices or None}
        return _measure(run, split, step, {**given, **flags})
    with Announcer() as announce:
        task = open_language_model(run, step, announce)
        how = task.config.evaluation
        how = replace(
            how,
            block=how.block if block is None else block,
            context=how.context if context is None else context,
            windows=windows or how.windows,
            first_window=first_window or how.first_window,
            rows=how.rows if rows is None else rows,
        )
        evaluated = evaluate_task(
            task,
            split,
            evaluation=how,
            baselines=baselines,
            choices=choices,
            adapt=adaptation,
            announce=announce,
        )
    show(evaluated)
    changed = [f"{name}-{value}" for name, value in {**given, "step": step}.items() if value is not None]
    changed += [f"{name}-{value}" for name, value in (*_changed(cache, CACHE), *_changed(dynamic, DYNAMIC))]
    for path in write(evaluated, run, "-".join([split, *changed])):
        Console().print(f"Wrote {path}", soft_wrap=True)
    return 0


def _measure(run: Path, split: Literal["valid", "test"], step: int | None, of_language: dict[str, object]) -> int:
    """Measure a run that is no language model by what its task tells of itself."""
    needless = [f"--{name}" for name, value in of_language.items() if value is not None]
    if needless:
        raise ValueError(f"{' and '.join(needless)} must be left out for {run}, which is no language model")
    name = "-".join([split, *([] if step is None else [f"step-{step}"])])
    from anymax.training import open_run

    file = measure(open_run(run, step=step).task, run, split, name)
    Console().print(f"Wrote {file}", soft_wrap=True)
    return 0


def measure(task: Task, run: Path, split: Literal["valid", "test"], name: str) -> Path:
    """Show what the task of a run tells of its model, and write it down."""
    import torch

    from anymax.training.folder import EVALUATIONS, write_json

    task.model.eval()
    with torch.no_grad():
        metrics = task.evaluate(task.model, split)
    for metric, value in metrics.items():
        Console().print(f"{metric} {shown(value)}")
    file = run / EVALUATIONS / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    write_json(file, {"split": split, "metrics": metrics})
    return file


def _adaptation(adapt: Adapt | None, cache: CachePointer, dynamic: DynamicEvaluation) -> Adaptation | None:
    for name, given, default in (("cache", cache, CACHE), ("dynamic", dynamic, DYNAMIC)):
        changed = [f"--{name}.{option.replace('_', '-')}" for option, _ in _changed(given, default)]
        if changed and adapt != name:
            raise ValueError(f"{' and '.join(changed)} must come with --adapt {name}, got --adapt {adapt}")
    return {None: None, "cache": cache, "dynamic": dynamic}[adapt]


def _changed(given: Adaptation, default: Adaptation) -> Iterator[tuple[str, object]]:
    """The settings that differ from the default ones, by name."""
    for field in fields(given):
        if getattr(given, field.name) != getattr(default, field.name):
            yield field.name, getattr(given, field.name)


def test(run: Path, announce: Announce) -> Evaluated:
    """Measure the best checkpoint of a run on the test split, and write it down."""
    from anymax.analysis.evaluated import evaluate_task

    evaluated = evaluate_task(open_language_model(run, None, announce), "test", announce=announce)
    write(evaluated, run, "test")
    return evaluated


def add_choices(run: Path, announce: Announce) -> None:
    """Measure what the best checkpoint of a run chooses, and write it to what was measured on the test split."""
    from anymax.analysis.evaluated import choices_of
    from anymax.files import read_json
    from anymax.training.folder import TESTED, write_json

    tested = read_json(run / TESTED)
    chosen = choices_of(open_language_model(run, None, announce), "test", announce=announce)
    write_json(run / TESTED, {**tested, "choices": chosen.metrics()})


def open_language_model(run: Path, step: int | None, announce: Announce) -> LanguageModelingTask:
    """The task of a run with the weights of a checkpoint, by default the best."""
    from anymax.training import open_run, read_config
    from anymax.training.language_modeling import LanguageModelingTask

    read_config(run).language_modeling()
    task = open_run(run, step=step, announce=announce).task
    assert isinstance(task, LanguageModelingTask)
    return task


def write(evaluated: Evaluated, run: Path, name: str) -> list[Path]:
    """The numbers as JSON and, where matplotlib is installed, as a picture; the files that were written."""
    from anymax.training.folder import EVALUATIONS, write_json

    folder, page = run / EVALUATIONS, evaluated.page(run.name)
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.json"
    write_json(file, page.as_dict())
    return [file, *page.save_figures(folder, f"{name}-frequency")]


def show(evaluated: Evaluated, *, frequency: bool = True) -> None:
    """Print what was measured."""
    show_page(evaluated.page(frequency=frequency))
