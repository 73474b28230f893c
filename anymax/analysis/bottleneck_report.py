"""What was measured of a bottleneck, as sentences and a table on a terminal, and as a picture."""

from __future__ import annotations

import os

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anymax.analysis.bottleneck import Bottleneck, LosingWord
from anymax.data.printable import printable
from anymax.display import COLOURS, clean

HEAD = ("word", "count", "probability", "nats", "nats each", "lost", "model - pairs")


def terminal(measured: Bottleneck) -> RenderableType:
    """The rank, the choices, and the words that lose most."""
    return Group(
        Text(f"{measured.split}: {measured.rank}"),
        Text(_about_limit(measured)),
        Text(f"Choices: {measured.choices}"),
        "",
        Text(
            f"Words that lose most if pairs, as counted, come from a softmax of rank {measured.limit:,}; in all "
            f"{measured.divergence:.4f} nats per word, after {measured.num_previous:,} previous words"
        ),
        _table(measured.words),
        Text(
            "nats: added to the loss per word of text, and each time the word occurs. lost: of its probability. "
            "model - pairs: the model's loss less that of the counted pairs, each time the word occurs in the contexts."
        ),
    )


def plot(path: str | os.PathLike[str], measured: Bottleneck) -> None:
    """Draw the singular values, the tolerance and the rank that a softmax as wide could have."""
    from matplotlib.figure import Figure

    values, rank = measured.rank.singular_values, measured.rank
    figure = Figure(figsize=(8, 4.8), dpi=120, facecolor="white", layout="constrained")
    axes = figure.subplots()
    largest = values[0].item() or 1.0
    axes.plot(range(1, len(values) + 1), (values / largest).tolist(), color=COLOURS[0], linewidth=1.6)
    name = {True: "most that this output can have", False: "most of a softmax this wide"}[measured.is_bound]
    axes.axvline(measured.limit, color=COLOURS[1], linewidth=1.2, label=f"{name}: {measured.limit:,}")
    axes.axhline(
        rank.tolerance / largest,
        color=COLOURS[3],
        linewidth=1.2,
        linestyle="--",
        label=f"tolerance ({rank.rule}): rank {rank.rank:,}",
    )
    axes.set(xscale="log", yscale="log", xlabel="number of the singular value", ylabel="size, of the largest")
    # What rounding leaves of a zero would stretch the scale for nothing.
    axes.set_ylim(bottom=0.1 * max(rank.tolerance, rank.floor) / largest)
    axes.set_title(
        f"Log-probabilities of {rank.num_contexts:,} contexts x {rank.num_words:,} words ({measured.output})"
    )
    clean(axes)
    axes.legend(frameon=False)
    figure.savefig(path)


def _about_limit(measured: Bottleneck) -> str:
    if measured.is_bound:
        return f"This {measured.output} can have rank {measured.limit:,} at most."
    return f"A softmax as wide as this {measured.output} could have rank {measured.limit:,} at most."


def _table(words: tuple[LosingWord, ...]) -> Table:
    table = Table()
    for name in HEAD:
        table.add_column(name, justify="left" if name == "word" else "right", overflow="fold")
    for word in words:
        of_model = "" if word.model_nats_each is None else f"{word.model_nats_each:+.3f}"
        numbers = (f"{word.count:,}", f"{word.prob:.2%}", f"{word.nats:.5f}", f"{word.nats_each:.3f}")
        # A word may look like markup, or hold commands to the terminal.
        table.add_row(Text(printable(word.word)), *numbers, f"{word.lost:.1%}", of_model)
    return table
