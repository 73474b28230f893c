"""The top of the page: what was trained on what, what it reached, and what to run next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from anymax.analysis.report.learning import is_number, words
from anymax.analysis.report.runs import Run, differing, settings
from anymax.display import Code, Heading, Notice, Part, Table
from anymax.display.printable import printable
from anymax.training.run_folder.folder import COMMANDS, CONFIG, SUMMARY, TESTED
from anymax.training.task_config import short

# Parts of a config that say what is read; in them names of your own data, and of data that is used without.
_READ = ("data", "images")
_OWN = ("path", "paths", "source", "target", "hub")
_NAMED = ("corpus", "corpora", "name")


def opening(run: Run) -> list[Part]:
    """The facts of one run, warnings before them and commands after them."""
    rows = tuple((name, value) for name, value in facts(run) if value)
    commands = "\n".join(f"$ {printable(command)}" for command in _commands(run))
    source = ", ".join((CONFIG, SUMMARY, TESTED, COMMANDS))
    return [*warnings([run]), Table(("run", "value"), rows, text_columns=("value",), source=source), Code(commands)]


def warnings(runs: Sequence[Run]) -> list[Part]:
    """What a reader should know before anything else."""
    return [Notice(f"{run.label}: {text}" if len(runs) > 1 else text) for run in runs for text in _warnings(run)]


def _warnings(run: Run) -> Iterator[str]:
    for problem in run.problems:
        yield printable(problem)
    if not run.summary and not run.problems:
        yield f"The run is not finished: its last record is of step {run.step:,}."
    ended = run.summary.get("ended_by")
    if ended == "diverged":
        yield f"Training diverged: its numbers became infinite after step {run.step:,}."
    elif isinstance(ended, str) and ended not in ("steps", "stop"):
        yield f"The run was stopped ({printable(ended)}) at step {run.step:,}; it can be resumed."
    elif ended == "stop":
        yield "Training ended early, by the results of evaluations."
    bigram, own = (_loss(run.tested.get(name)) for name in ("bigram", "perplexity"))
    if bigram is not None and own is not None and own > bigram:
        yield f"Worse than the bigram: {own:.3f} nats a word on test, and counts of pairs of words reach {bigram:.3f}."
    before, after = untouched(run).get("ter"), tested(run).get("ter")
    if before is not None and after is not None and after >= before:
        yield f"Not better than no correction: TER {after:.2f} on test, and {before:.2f} of translations as they are."


def facts(run: Run) -> Iterator[tuple[str, str]]:
    """What a run is and what it reached, by name."""
    yield "folder", printable(str(run.folder))
    yield "recipe", printable(run.recipe)
    yield "task", "" if run.config is None else type(run.config.task).__name__.removesuffix("Config")
    yield "data", _data(run)
    yield "parameters", _count(run.summary.get("num_parameters"))
    yield "steps", _count(run.summary.get("steps", run.step))
    yield f"{run.summary.get('item', 'item')}s seen".replace("_", " "), _count(run.summary.get("items"))
    yield "training time", _duration(run.summary.get("training_seconds"))
    yield "computed on", _machine(run)
    for split, found in (("best on validation", best(run)), ("on the test split", tested(run))):
        yield split, ", ".join(f"{words(name)} {short(value)}" for name, value in found.items())
    yield "left as it is", ", ".join(f"{words(name)} {short(value)}" for name, value in untouched(run).items())
    yield "test conditions", _conditions(run)


def best(run: Run) -> dict[str, float]:
    """The metrics of the best evaluation; of a run that is not finished, of the last that was the best so far."""
    found = run.summary.get("best")
    if not isinstance(found, dict):
        found = next((record for record in reversed(run.evaluated) if record.get("is_best")), {})
    return _numbers(found.get("metrics"))


def tested(run: Run) -> dict[str, float]:
    """What the run reached on the test split, by metric."""
    loss = run.tested.get("perplexity")
    if isinstance(loss, dict):
        return _numbers({name: loss.get(name) for name in ("loss", "perplexity", "bits_per_byte")})
    return _numbers(run.tested.get("metrics"))


def untouched(run: Run) -> dict[str, float]:
    """The scores of translations that a post-editor was given; of no other run."""
    scores = run.tested.get("untouched")
    if not isinstance(scores, dict):
        return {}
    return _numbers({name: each.get("value") for name, each in scores.items() if isinstance(each, dict)})


def settings_of(runs: Sequence[Run]) -> list[Part]:
    """All settings of one run, or those in which several differ."""
    if len(runs) > 1:
        # Of runs that differ in their seed alone, one.
        first = [next(run for run in runs if run.group == group) for group in dict.fromkeys(run.group for run in runs)]
        rows = tuple((name, *values) for name, values in differing(first).items())
        columns = ("setting", *(run.group for run in first))
        table = Table(columns, rows, "Settings that differ", text_columns=columns[1:], source=CONFIG)
        return [Heading("Settings"), table] if rows else []
    config = runs[0].config
    if config is None:
        return []
    table = Table(("setting", "value"), tuple(settings(config)), text_columns=("value",), source=CONFIG)
    return [Heading("Settings"), table]


def _commands(run: Run) -> Iterator[str]:
    if run.command:
        yield run.command
    yield shlex.join(["anymax", "resume", str(run.folder)])
    yield shlex.join(["anymax", "evaluate", str(run.folder)])


def _data(run: Run) -> str:
    """What the run read: settings of its data that name something."""
    if run.config is None:
        return ""
    parts = {tuple(name.split(".")): value for name, value in settings(run.config) if value not in ("none", "[]")}
    read = {name[1]: value for name, value in parts.items() if len(name) == 2 and name[0] in _READ}
    named = _OWN if any(name in read for name in _OWN) else _NAMED
    found = [read[name] for name in (*named, "languages") if name in read]
    return " ".join(found).translate(str.maketrans("", "", '[]"'))


def _machine(run: Run) -> str:
    device, threads = run.summary.get("device"), run.summary.get("threads")
    world, version = run.summary.get("world_size"), run.summary.get("version")
    parts = [str(device) if device else "", f"{threads} thread{'s' if threads != 1 else ''}" if threads else ""]
    parts += [f"{world} ranks" if is_number(world) and world > 1 else "", f"anymax {version}" if version else ""]
    return printable(", ".join(part for part in parts if part))


def _conditions(run: Run) -> str:
    """Under which the test result holds, as its report has them."""
    values = run.tested.get("perplexity", run.tested)
    if not isinstance(values, dict):
        return ""
    named = ("unit", "num_units", "context", "block", "windows", "num_sentences", "search", "decoding", "tokenize")
    found = [(name, values[name]) for name in named if isinstance(values.get(name), str | int) and values[name] != ""]
    return ", ".join(
        f"{words(name.removeprefix('num_'))} {value:,}"
        if is_number(value)
        else f"{words(name)} {printable(str(value))}"
        for name, value in found
    )


def _loss(values: Any) -> float | None:
    loss = values.get("loss") if isinstance(values, dict) else None
    return float(loss) if is_number(loss) else None


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, dict):
        return {}
    return {name: float(value) for name, value in values.items() if is_number(value) and not name.startswith("num_")}


def _count(value: Any) -> str:
    return f"{value:,}" if is_number(value) else ""


def _duration(value: Any) -> str:
    if not is_number(value) or not math.isfinite(value):
        return ""
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
