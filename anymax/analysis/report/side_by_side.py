"""Several runs in one table, sorted by what they are trained for, with spreads over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from anymax.analysis.report.learning import is_number, words
from anymax.analysis.report.opening import best, facts, tested
from anymax.analysis.report.runs import Run
from anymax.display import Cell, Noted, Paragraph, Part, Table
from anymax.display.printable import printable
from anymax.training.run_folder.folder import CONFIG, SUMMARY, TESTED
from anymax.training.task_config import short


def comparison(runs: Sequence[Run]) -> list[Part]:
    """A row for every group of seeds, the best first, and what the tasks say of differences."""
    groups = _sorted([[run for run in runs if run.group == group] for group in dict.fromkeys(r.group for r in runs)])
    on_test = list(dict.fromkeys(name for run in runs for name in tested(run)))
    on_valid = list(dict.fromkeys(name for run in runs for name in best(run)))
    columns = ("run", "seeds", *(f"test {words(name)}" for name in on_test))
    columns += (*(f"valid {words(name)}" for name in on_valid), "parameters", "steps", "minutes")
    rows = tuple(
        (
            group[0].group,
            str(len(group)),
            *(_mean([tested(run).get(name) for run in group]) for name in on_test),
            *(_mean([best(run).get(name) for run in group]) for name in on_valid),
            _number(group[0].summary.get("num_parameters")),
            _number(group[0].summary.get("steps", group[0].step)),
            _minutes(group),
        )
        for group in groups
    )
    table = Table(columns, rows, source=f"{TESTED}, {SUMMARY} of each run")
    meaning = "The best stands first. Valid is the best evaluation on the validation split."
    if len(runs) > len(groups):
        meaning += " Means over seeds, with the standard deviation."
    return [*_shared(runs), table, Paragraph(meaning, is_dim=True), *significance(groups)]


def _shared(runs: Sequence[Run]) -> list[Part]:
    """What is true of all runs, by which their numbers compare."""
    first, *others = (dict(facts(run)) for run in runs)
    names = ("task", "data", "computed on", "test conditions")
    rows = [(name, first[name]) for name in names if first[name] and all(first[name] == each[name] for each in others)]
    source = f"{CONFIG}, {SUMMARY}, {TESTED} of each run"
    return [Table(("all runs", "value"), tuple(rows), text_columns=("value",), source=source)] if rows else []


def significance(groups: Sequence[Sequence[Run]]) -> list[Part]:
    """Tables of the task itself, as whether differences are more than luck; none where runs are of several tasks."""
    configs = [run.config for group in groups for run in group]
    tasks = [config.task for config in configs if config is not None]
    if len({type(task) for task in tasks}) > 1:
        return [Paragraph("The runs are of several tasks, so their numbers do not compare.")]
    tested_ones = {group[0].group: [run.folder for run in group if run.tested] for group in groups}
    # Seed by seed, as many as all have.
    number = min((len(folders) for folders in tested_ones.values() if folders), default=0)
    folders = {name: of_group[:number] for name, of_group in tested_ones.items() if of_group}
    if len(folders) < 2 or len(tasks) < len(configs):
        return []
    try:
        found = tasks[0].comparison(folders)
    except (ValueError, OSError) as error:
        return [Paragraph(f"Whether differences are more than luck cannot be said: {printable(str(error))}")]
    except (LookupError, TypeError, AttributeError):
        said = f"{TESTED} of a run is damaged or of an older version; measure it with `anymax evaluate`"
        return [Paragraph(f"Whether differences are more than luck cannot be said: {said}.")]
    return [replace(table, source=f"{TESTED} of each run") for table in found]


def best_run(runs: Sequence[Run]) -> Run:
    """The run with the best result, of which details are shown."""
    groups = _sorted([[run] for run in runs])
    return groups[0][0]


def _sorted(groups: Sequence[list[Run]]) -> list[list[Run]]:
    """By the metric that all have, or else some, those without one last."""
    goal = _goal(groups)
    if goal is None:
        return list(groups)
    name, of_test, larger_is_better = goal
    sign = -1.0 if larger_is_better else 1.0

    def key(group: Sequence[Run]) -> float:
        found = [(tested(run) if of_test else best(run)).get(name) for run in group]
        known = [value for value in found if value is not None]
        return sign * statistics.fmean(known) if known else float("inf")

    return sorted(groups, key=key)


def _goal(groups: Sequence[Sequence[Run]]) -> tuple[str, bool, bool] | None:
    """What runs are sorted by, whether it is of the test split, and whether it is best when large."""
    runs = [run for group in groups for run in group]
    own = [
        (str(run.summary["goal"]), run.summary.get("larger_is_better") is True)
        for run in runs
        if run.summary.get("goal")
    ]
    # Of texts, scores say more than the loss that the best checkpoint may be chosen by.
    wanted = [("bleu", True), ("ter", False), *own[:1], ("perplexity", False), ("loss", False)]
    on_test, on_valid = ([{name for run in group for name in of(run)} for group in groups] for of in (tested, best))
    # Where a run is not tested, all are compared by what evaluations found, as far as there are any.
    shared, some = set[str].intersection, set[str].union
    for of_test, names in ((True, shared(*on_test)), (False, shared(*on_valid)), (False, some(*on_valid))):
        for name, larger_is_better in wanted:
            if name in names:
                return name, of_test, larger_is_better
    return None


def _mean(values: Sequence[float | None]) -> Cell:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    mean = short(statistics.fmean(known))
    has_spread = len(known) > 1 and all(map(math.isfinite, known))
    return Noted(mean, f"± {statistics.stdev(known):.2g}") if has_spread else mean


def _minutes(group: Sequence[Run]) -> str:
    found = [run.summary.get("training_seconds") for run in group]
    known = [float(value) for value in found if is_number(value)]
    return f"{statistics.fmean(known) / 60:.1f}" if known else ""


def _number(value: object) -> str:
    return f"{value:,}" if is_number(value) else ""
