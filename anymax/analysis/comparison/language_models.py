"""Several recipes side by side: their runs, over several seeds, as one table and as curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from anymax.display import (
    COLOURS,
    Cell,
    Code,
    Figure,
    Noted,
    Page,
    Paragraph,
    Part,
    Row,
    Table,
    clean,
    legend_below,
)
from anymax.evaluation import Bin, FrequencyTable
from anymax.evaluation.choices import EPSILON
from anymax.evaluation.frequency import BY_PREVIOUS, BY_WORD, draw
from anymax.files import read_json
from anymax.training import read_metrics
from anymax.training.reporting import LOSS_PER_WORD
from anymax.training.run_folder.folder import SUMMARY, TESTED, reading_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COSTS = ("parameters", "words/s", "seconds", "memory")


@dataclass(frozen=True)
class Point:
    """An evaluation on the way.

    Args:
        words: of the training text that were read by then.
        seconds: of training by then.
        loss: on the validation split, per word.
        is_averaged: whether it was that of averaged weights.
        train: the mean training loss per word since the evaluation before; None where it was not recorded.
    """

    words: float
    seconds: float
    loss: float
    is_averaged: bool = False
    train: float | None = None


class Reached(NamedTuple):
    """Where an evaluation stood, as means over seeds: perplexities, or losses where there are none.

    Args:
        valid: on the validation split.
        train: of training since the evaluation before; None where it was not recorded.
        epochs: of the training text that were read.
    """

    valid: float
    train: float | None
    epochs: float


class Chosen(NamedTuple):
    """How often the likeliest word is right, and the epsilon-perplexity, as `Choices` has them."""

    accuracy: float
    epsilon_perplexity: float


class InContext(NamedTuple):
    """A run measured with windows of which the first tokens are only read: losses per word.

    Args:
        window: how many tokens a window has.
        context: how many of them are only read.
    """

    window: int
    context: int
    valid: float
    test: float


# By the share of a window that is context: a measurement for each result, None where a model reads no windows.
Contexts = Mapping[float, Sequence[InContext | None]]


@dataclass(frozen=True)
class Result:
    """What one run left in its folder.

    Args:
        loss: on the test split, per word.
        is_likelihood: whether the loss is in nats, so that its exponential is a perplexity.
        words: of the training text that were read, those read again included.
        train_words: in the training text.
        seconds: of training, without evaluations and checkpoints.
        memory: the most bytes the process held.
        frequency: the loss by the training frequency of the word, and of the word before it.
        chosen: None where that was not measured.
    """

    recipe: str
    seed: int
    loss: float
    is_likelihood: bool
    unigram: float
    bigram: float
    parameters: int
    words: float
    train_words: int
    seconds: float
    memory: int
    curve: tuple[Point, ...]
    frequency: FrequencyTable
    chosen: Chosen | None = None

    @property
    def score(self) -> float:
        """The perplexity, or the loss where there is none."""
        return self.as_score(self.loss)

    def as_score(self, loss: float) -> float:
        """The perplexity of a loss, or the loss where there is none."""
        return math.exp(loss) if self.is_likelihood else loss


@dataclass(frozen=True)
class Summary:
    """A recipe over its seeds: means, but for the spread, which is the standard deviation of the score.

    Args:
        scores: the perplexity of each seed, or the loss where there is none.
        best, last: the evaluation on the way with the least loss, whose weights are tested, and the last; None where
            there was none.
        chosen: None where that was not measured for all seeds.
    """

    recipe: str
    is_likelihood: bool
    scores: tuple[float, ...]
    best: Reached | None
    last: Reached | None
    chosen: Chosen | None
    parameters: int
    words_per_second: float
    seconds: float
    memory: float

    @property
    def score(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def spread(self) -> float | None:
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


def takes(folder: Path) -> bool:
    """Whether a finished run is one of a language model, which was tested by its perplexity."""
    return "perplexity" in read_json(folder / TESTED)


def read_result(folder: Path, recipe: str, seed: int) -> Result:
    """What a finished run left."""
    with reading_results(folder):
        tested, summary = (read_json(folder / name) for name in (TESTED, SUMMARY))
        choices = tested.get("choices")
        words = summary["items"] * tested["train_words"] / tested["train_tokens"]
        return Result(
            recipe=recipe,
            seed=seed,
            loss=tested["perplexity"]["loss"],
            is_likelihood=tested["perplexity"]["perplexity"] is not None,
            unigram=tested["unigram"]["perplexity"],
            bigram=tested["bigram"]["perplexity"],
            parameters=summary["num_parameters"],
            words=words,
            train_words=tested["train_words"],
            seconds=summary["training_seconds"],
            memory=summary["peak_memory_bytes"],
            curve=tuple(_curve(folder, words / summary["steps"])),
            frequency=FrequencyTable.from_dict(tested["by_frequency"]),
            chosen=None if choices is None else Chosen(choices["accuracy"], choices["epsilon_perplexity"]),
        )


def read_in_context(valid: Path, test: Path) -> InContext:
    """What `anymax evaluate` wrote of both splits."""
    with reading_results(valid.parent.parent):
        of_valid, of_test = (read_json(file)["perplexity"] for file in (valid, test))
        return InContext(of_test["block"], of_test["context"], of_valid["loss"], of_test["loss"])


def _curve(folder: Path, words_per_step: float) -> Iterator[Point]:
    seconds, items, is_averaged = 0.0, 0, False
    losses: list[tuple[float, int]] = []
    for record in read_metrics(folder):
        if record["kind"] == "train":
            read = record["items"] - items
            seconds += read / record["items_per_second"]
            items = record["items"]
            is_averaged = bool(record["log"].get("averaging", False))
            losses.append((record["log"].get(LOSS_PER_WORD, record["loss"]), read))
        else:
            train = statistics.fmean(*zip(*losses, strict=True)) if losses else None
            yield Point(record["step"] * words_per_step, seconds, record["metrics"]["loss"], is_averaged, train)
            losses.clear()


def rows_of(results: Sequence[Result]) -> list[Summary]:
    """One row for each recipe, in their order."""
    by_recipe: dict[str, list[Result]] = {}
    for result in results:
        by_recipe.setdefault(result.recipe, []).append(result)
    return [
        Summary(
            recipe,
            runs[0].is_likelihood,
            tuple(run.score for run in runs),
            _mean_reached([(run, min(run.curve, key=lambda point: point.loss)) for run in runs if run.curve]),
            _mean_reached([(run, run.curve[-1]) for run in runs if run.curve]),
            _mean_chosen(runs),
            runs[0].parameters,
            statistics.fmean(run.words / run.seconds for run in runs),
            statistics.fmean(run.seconds for run in runs),
            statistics.fmean(run.memory for run in runs),
        )
        for recipe, runs in by_recipe.items()
    ]


def _mean_reached(reached: Sequence[tuple[Result, Point]]) -> Reached | None:
    if not reached:
        return None
    trained = [run.as_score(point.train) for run, point in reached if point.train is not None]
    return Reached(
        statistics.fmean(run.as_score(point.loss) for run, point in reached),
        statistics.fmean(trained) if trained else None,
        statistics.fmean(point.words / run.train_words for run, point in reached),
    )


def _mean_chosen(runs: Sequence[Result]) -> Chosen | None:
    measured = [run.chosen for run in runs if run.chosen is not None]
    if len(measured) < len(runs):
        return None
    return Chosen(*(statistics.fmean(of_runs) for of_runs in zip(*measured, strict=True)))


def needs_choices(results: Sequence[Result]) -> bool:
    """Whether perplexity does not compare them, since some have none."""
    return any(not result.is_likelihood for result in results)


def pooled_spread(rows: Sequence[Summary]) -> float | None:
    """The standard deviation of perplexity over seeds, of all recipes together; None where no recipe has two seeds."""
    rows = [row for row in rows if row.is_likelihood]
    squares = [(score - row.score) ** 2 for row in rows for score in row.scores]
    freedom = sum(len(row.scores) - 1 for row in rows)
    return math.sqrt(sum(squares) / freedom) if freedom else None


def verdict(row: Summary, rows: Sequence[Summary], spread: float | None) -> str:
    """How far a row is behind the best, and whether seeds alone would explain it."""
    if not row.is_likelihood:
        return "a loss, no perplexity"
    best = min((row for row in rows if row.is_likelihood), key=lambda row: row.score)
    if row is best:
        return "best"
    behind = row.score - best.score
    if spread is None:
        return f"{behind:+.1f}"
    # The standard error of the difference of two means.
    error = spread * math.sqrt(1 / len(row.scores) + 1 / len(best.scores))
    return f"{behind:+.1f}" if behind > 2 * error else f"{behind:+.1f}, within 2 errors"


def page(results: Sequence[Result], command: str, contexts: Contexts | None = None) -> Page:
    """The tables, what their columns mean, the picture, and the command that made it."""
    parts: list[Part] = [
        Code(f"$ {command}"),
        table(results),
        Paragraph(_meaning(results), is_dim=True),
        course_table(results),
        Paragraph(COURSE, is_dim=True),
    ]
    if contexts:
        parts += [*context_tables(results, contexts), Paragraph(CONTEXT, is_dim=True)]
    if any(result.is_likelihood for result in results):
        parts += [*frequency_tables(results), Paragraph(FREQUENCY, is_dim=True), figure(results)]
    return Page("Recipes side by side", tuple(parts))


def table(results: Sequence[Result]) -> Table:
    """A row for each recipe, with its choices where some have no perplexity, and below them models that count."""
    choices = ("accuracy", "eps-perplexity") if needs_choices(results) else ()
    columns = ("recipe", "valid", "test", "spread", "behind", *choices, *COSTS)
    blank, some = ("",) * (len(columns) - 3), results[0]
    rows = (
        *_rows(results),
        ("interpolated bigram", "", f"{some.bigram:.2f}", *blank),
        ("unigram", "", f"{some.unigram:.2f}", *blank),
    )
    return Table(columns, rows)


def _rows(results: Sequence[Result]) -> Iterator[Row]:
    rows = rows_of(results)
    spread = pooled_spread(rows)
    for row in rows:
        yield (
            row.recipe,
            _score(None if row.best is None else row.best.valid, row),
            _score(row.score, row),
            _score(row.spread, row),
            verdict(row, rows, spread),
            *(_shown(row.chosen) if needs_choices(results) else ()),
            f"{row.parameters:,}",
            f"{row.words_per_second:,.0f}",
            f"{row.seconds:,.0f}",
            f"{row.memory / 1e6:,.0f} MB",
        )


def _score(value: float | None, row: Summary) -> str:
    """A perplexity in two decimals, a loss in four; empty for None."""
    return "" if value is None else f"{value:.2f}" if row.is_likelihood else f"{value:.4f}"


def _shown(chosen: Chosen | None) -> tuple[str, str]:
    return ("", "") if chosen is None else (f"{chosen.accuracy:.2%}", f"{chosen.epsilon_perplexity:.2f}")


def _meaning(results: Sequence[Result]) -> str:
    """Of the columns."""
    seeds = sorted({result.seed for result in results})
    spread = pooled_spread(rows_of(results))
    pooled = "" if spread is None else f", {spread:.2f} pooled over all recipes"
    of_choices = (
        "`accuracy`: how often the likeliest word is right. `eps-perplexity`: of probabilities with "
        f"{EPSILON:g} added to each, which those without a perplexity have too; their `test` is the loss they train. "
    )
    return (
        "`valid`: perplexity per word of the validation split, the best of the evaluations on the way; `test`: that of "
        f"the test split with the same weights; means over seeds {', '.join(map(str, seeds))}. `spread`: the standard "
        f"deviation of `test` over seeds{pooled}. `behind`: the distance to the best; what lies within two standard "
        f"errors may be luck. {of_choices if needs_choices(results) else ''}`words/s` and `seconds`: of training, "
        "words counted alike whatever a recipe cuts them into. `memory`: the most that the process held."
    )


# What the columns of `course_table` mean.
COURSE = (
    "Perplexities per word. `best` is the evaluation on the way with the least loss, whose weights are tested, `last` "
    "that at the end: a model overfits where the last is above the best while `train` falls. `train`: of the batches "
    "since the evaluation before, as they are trained, with dropout. `epochs`: of the training text read by then."
)


def course_table(results: Sequence[Result]) -> Table:
    """A row for each recipe: training and validation at its best evaluation, and at its last."""
    columns = ("recipe", "best valid", "train then", "epochs then", "last valid", "last train", "epochs")
    rows = [(row.recipe, *_at(row.best, row), *_at(row.last, row)) for row in rows_of(results)]
    return Table(columns, tuple(rows), "Training and validation")


def _at(reached: Reached | None, row: Summary) -> Row:
    if reached is None:
        return ("", "", "")
    return (_score(reached.valid, row), _score(reached.train, row), f"{reached.epochs:.2f}")


# What the columns of `context_tables` mean.
CONTEXT = (
    "A column is the share of every window's tokens that is only read; behind a perplexity stands how many these are. "
    "Windows move on by the rest, so that more context takes more time. A row without numbers is of a recipe that "
    "carries its state through the text and reads no windows."
)


def context_tables(results: Sequence[Result], contexts: Contexts) -> tuple[Table, Table]:
    """Perplexity of the validation and of the test split, a row for each recipe and a column for each context."""
    columns = ("recipe", "window", *(f"{share:g}" for share in contexts))
    valid, test = (
        Table(columns, tuple(_context_rows(results, contexts, split)), f"Perplexity of {split} by context")
        for split in ("valid", "test")
    )
    return valid, test


def _context_rows(results: Sequence[Result], contexts: Contexts, split: str) -> Iterator[Row]:
    for row in rows_of(results):
        windows, cells = "", list[Cell]()
        for measured in contexts.values():
            runs = [
                (run, found)
                for run, found in zip(results, measured, strict=True)
                if run.recipe == row.recipe and found is not None
            ]
            if not runs:
                cells.append("")
                continue
            some = runs[0][1]
            mean = statistics.fmean(run.as_score(getattr(found, split)) for run, found in runs)
            cells.append(Noted(_score(mean, row), f"{some.context:,}"))
            windows = f"{some.window:,}"
        yield (row.recipe, windows, *cells)


# What the columns of `frequency_tables` mean.
FREQUENCY = (
    "Test loss per word in nats, the mean over seeds; a column has the words whose count in the training text is at "
    "most its number and above that of the column before."
)


def frequency_tables(results: Sequence[Result]) -> tuple[Table, ...]:
    """The test loss by the training frequency of the word, and by that of the word before it.

    Recipes are rows and bins without words are left out, as are recipes without a perplexity. Above the recipes stands
    which share of the words a bin has, once for all that count words alike.
    """
    results = [result for result in results if result.is_likelihood]
    recipes = list(dict.fromkeys(result.recipe for result in results))
    return tuple(
        _bins_table(title, {recipe: _mean_bins(results, recipe)[kind] for recipe in recipes})
        for kind, title in enumerate((BY_WORD, BY_PREVIOUS))
    )


def _bins_table(title: str, of_recipes: Mapping[str, Sequence[Bin]]) -> Table:
    some = next(iter(of_recipes.values()))
    filled = [place for place in range(len(some)) if any(bins[place].num_words for bins in of_recipes.values())]
    by_shares: dict[Row, list[Row]] = {}
    for recipe, bins in of_recipes.items():
        losses = ("" if (loss := bins[place].loss) is None else f"{loss:.3f}" for place in filled)
        shares = tuple(f"{bins[place].share:.1%}" for place in filled)
        by_shares.setdefault(shares, []).append((recipe, *losses))
    rows = [row for shares, rows in by_shares.items() for row in (("share of words", *shares), *rows)]
    return Table(("recipe", *(some[place].label for place in filled)), tuple(rows), title)


def figure(results: Sequence[Result]) -> Figure:
    """Validation perplexity by words read and by seconds; the test loss by frequency of the word and of the previous.

    At least one must have a perplexity; those without are skipped. A dot stands where an optimizer began to average,
    a diamond for a run that was evaluated once.
    """
    # Losses of another kind are no neighbours of nats.
    results = [result for result in results if result.is_likelihood]
    colours = {recipe: COLOURS[i % len(COLOURS)] for i, recipe in enumerate(dict.fromkeys(r.recipe for r in results))}

    def draw_all(canvas: Canvas) -> None:
        (by_words, by_seconds), by_frequency = canvas.subplots(2, 2)
        _draw_curves(by_words, results, colours, "words")
        _draw_curves(by_seconds, results, colours, "seconds")
        by_words.set(title="Validation perplexity by words read", xlabel="million words", ylabel="perplexity per word")
        by_seconds.set(
            title="Validation perplexity by time", xlabel="seconds of training", ylabel="perplexity per word"
        )
        for kind, (axes, of) in enumerate(zip(by_frequency, ("word", "previous word"), strict=True)):
            draw(axes, {recipe: _mean_bins(results, recipe)[kind] for recipe in colours})
            axes.set(title=f"Test loss by the training frequency of the {of}", ylabel="loss per word")
            axes.set_xlabel(f"count of the {of} up to; share of the words")
        legend_below(canvas, by_words)

    return Figure(
        "Validation perplexity in training, and test loss by the frequency of words and of previous words",
        draw_all,
        size=(13, 9),
    )


def _draw_curves(axes: Axes, results: Sequence[Result], colours: Mapping[str, str], by: str) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, ScalarFormatter

    drawn = set()
    for result in results:
        places = [point.words / 1e6 if by == "words" else point.seconds for point in result.curve]
        label = None if result.recipe in drawn else result.recipe
        drawn.add(result.recipe)
        reached = [math.exp(point.loss) for point in result.curve]
        # A line needs two points; a run that was evaluated once is a diamond.
        marker = "D" if len(reached) == 1 else ""
        axes.plot(places, reached, color=colours[result.recipe], label=label, linewidth=1.4, marker=marker)
        first = next((i for i, point in enumerate(result.curve) if point.is_averaged), 0)
        if first > 0:
            axes.plot(places[first - 1], reached[first - 1], "o", color=colours[result.recipe])
    if all(len(result.curve) == 1 for result in results):
        # Of single points matplotlib shows a sliver around the first.
        axes.set_xlim(left=0)
    scores = {math.exp(point.loss) for result in results for point in result.curve}
    if len(scores) == 1:
        # A logarithmic axis needs two ends.
        axes.set_ylim(min(scores) / 2, 2 * min(scores))
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    # Curves that lie close together have hardly a power of ten between them.
    axes.yaxis.set_major_locator(MaxNLocator(8) if high < 5 * low else LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.minorticks_off()
    clean(axes)


def _mean_bins(results: Sequence[Result], recipe: str) -> tuple[list[Bin], list[Bin]]:
    """The bins of a recipe by word and by previous word, with the mean of their losses over seeds."""
    tables = [result.frequency for result in results if result.recipe == recipe]
    by_word, by_previous = (
        [_mean_bin(bins) for bins in zip(*of_seeds, strict=True)]
        for of_seeds in ([table.by_word for table in tables], [table.by_previous for table in tables])
    )
    return by_word, by_previous


def _mean_bin(bins: Sequence[Bin]) -> Bin:
    losses = [bin.loss for bin in bins if bin.loss is not None]
    return replace(bins[0], loss=statistics.fmean(losses) if losses else None)
