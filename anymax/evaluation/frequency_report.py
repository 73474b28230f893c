"""Losses by frequency as tables on a terminal, as Markdown and as a picture, for one model or several."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anymax.data.printable import printable
from anymax.evaluation.frequency import Bin, FrequencyTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BY_WORD = "Loss by the training frequency of the word"
BY_PREVIOUS = "Loss by the training frequency of the previous word"
# Apart from each other for colour-blind eyes too, and in print by their lightness. Okabe and Ito 2008.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#000000", "#b8a800")

Tables = Mapping[str, FrequencyTable]


def terminal(tables: Tables) -> RenderableType:
    """A table by word and one by previous word, with a column for each model by its name."""
    parts: list[RenderableType] = []
    for title, of_models in _kinds(tables):
        parts += [Text(title, style="bold"), _terminal_table(of_models), ""]
    return Group(*parts[:-1])


def markdown(tables: Tables) -> str:
    """The same as Markdown."""
    lines: list[str] = []
    for title, of_models in _kinds(tables):
        head = _head(of_models)
        lines += [f"### {title}", "", f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in _rows(of_models)] + [""]
    return "\n".join(lines)


def plot(path: str | os.PathLike[str], tables: Tables) -> None:
    """Draw both tables as groups of bars, one bar for each model; bins without words are left out."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), dpi=120, facecolor="white", layout="constrained")
    for axes, (title, of_models) in zip(figure.subplots(1, 2), _kinds(tables), strict=True):
        draw(axes, of_models)
        axes.set(
            title=title, xlabel="count in training text up to; below it the share of words", ylabel="loss per word"
        )
        legend = axes.get_legend_handles_labels()
    figure.legend(*legend, loc="outside lower center", ncols=min(len(tables), 5), frameon=False)
    figure.savefig(path)


def draw(axes: "Axes", of_models: Mapping[str, Sequence[Bin]]) -> None:
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


def clean(axes: "Axes") -> None:
    """A light grid, and no frame where nothing is measured."""
    axes.grid(axis="y", color="#e9ecef")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _terminal_table(of_models: Mapping[str, tuple[Bin, ...]]) -> Table:
    table = Table()
    first, *rest = _head(of_models)
    table.add_column(first)
    for name in rest:
        table.add_column(name, justify="right")
    for row in _rows(of_models):
        table.add_row(*row)
    return table


def _head(of_models: Mapping[str, tuple[Bin, ...]]) -> list[str]:
    return ["count up to", "words", "share", *of_models]


def _rows(of_models: Mapping[str, tuple[Bin, ...]]) -> Iterator[list[str]]:
    for of_bin in zip(*of_models.values(), strict=True):
        first = of_bin[0]
        losses = ["" if bin.loss is None else f"{bin.loss:.3f}" for bin in of_bin]
        yield [first.label, f"{first.num_words:,}", f"{first.share:.1%}", *losses]


def _kinds(tables: Tables) -> list[tuple[str, dict[str, tuple[Bin, ...]]]]:
    if not tables:
        raise ValueError("tables must hold at least one model, got none")
    (first, some), *others = tables.items()
    for name, table in others:
        if _words(table) != _words(some):
            raise ValueError(
                f"tables must be of the same words in the same bins, but {name!r} differs from {first!r}; "
                "measure both on one text, with the counts of one lexicon"
            )
    return [
        (BY_WORD, {name: table.by_word for name, table in tables.items()}),
        (BY_PREVIOUS, {name: table.by_previous for name, table in tables.items()}),
    ]


def _words(table: FrequencyTable) -> list[tuple[int | None, int]]:
    return [(bin.most, bin.num_words) for bin in (*table.by_word, *table.by_previous)]
