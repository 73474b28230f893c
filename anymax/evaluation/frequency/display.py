"""Losses by frequency as tables and as a figure, for one model or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from anymax.data.printable import printable
from anymax.display import COLOURS, Figure, Row, Table, clean, legend_below
from anymax.evaluation.frequency.frequency import Bin, FrequencyTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

BY_WORD = "Loss by the training frequency of the word"
BY_PREVIOUS = "Loss by the training frequency of the previous word"

# By the names of the models.
Models = Mapping[str, FrequencyTable]


def tables(models: Models) -> tuple[Table, ...]:
    """A table by word and one by previous word, with a column for each model."""
    head = ("count up to", "words", "share", *models)
    return tuple(Table(head, tuple(_rows(of_models)), title) for title, of_models in _kinds(models))


def figure(models: Models) -> Figure:
    """Both tables as groups of bars, one bar for each model; bins without words are left out."""
    kinds = _kinds(models)

    def draw_both(canvas: Canvas) -> None:
        for axes, (title, of_models) in zip(canvas.subplots(1, 2), kinds, strict=True):
            draw(axes, of_models)
            below = "count in training text up to; below it the share of words"
            axes.set(title=title, xlabel=below, ylabel="loss per word")
        legend_below(canvas, axes, columns=5)

    return Figure("Loss by the training frequency of the word and of the previous word", draw_both)


def draw(axes: Axes, of_models: Mapping[str, Sequence[Bin]]) -> None:
    """Groups of bars, one bar for each model; bins without words are left out."""
    some = next(iter(of_models.values()))
    filled = [place for place, bin in enumerate(some) if bin.num_words]
    width = 0.8 / len(of_models)
    for number, (name, bins) in enumerate(of_models.items()):
        shift = (number - (len(of_models) - 1) / 2) * width
        losses = [bins[place].loss or 0.0 for place in filled]
        places = [at + shift for at in range(len(filled))]
        # A name is no formula.
        label = printable(name).replace("$", r"\$")
        axes.bar(places, losses, width * 0.92, label=label, color=COLOURS[number % len(COLOURS)])
    axes.set_xticks(range(len(filled)), [f"{some[place].label}\n{some[place].share:.1%}" for place in filled])
    clean(axes)


def _rows(of_models: Mapping[str, tuple[Bin, ...]]) -> Iterator[Row]:
    for of_bin in zip(*of_models.values(), strict=True):
        first = of_bin[0]
        losses = ["" if bin.loss is None else f"{bin.loss:.3f}" for bin in of_bin]
        yield (first.label, f"{first.num_words:,}", f"{first.share:.1%}", *losses)


def _kinds(models: Models) -> list[tuple[str, dict[str, tuple[Bin, ...]]]]:
    if not models:
        raise ValueError("models must hold at least one, got none")
    (first, some), *others = models.items()
    for name, table in others:
        if _words(table) != _words(some):
            raise ValueError(
                f"models must be measured on the same words in the same bins, but {name!r} differs from {first!r}; "
                "measure both on one text, with the counts of one lexicon"
            )
    return [
        (BY_WORD, {name: table.by_word for name, table in models.items()}),
        (BY_PREVIOUS, {name: table.by_previous for name, table in models.items()}),
    ]


def _words(table: FrequencyTable) -> list[tuple[int | None, int]]:
    return [(bin.most, bin.num_words) for bin in (*table.by_word, *table.by_previous)]
