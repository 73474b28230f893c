"""What was measured of a bottleneck as a page: sentences, the words that lose most, and the singular values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from anymax.analysis.bottleneck.measure import Bottleneck, LosingWord
from anymax.display import COLOURS, Figure, Page, Paragraph, Row, Table, clean
from anymax.display.printable import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

HEAD = ("word", "count", "probability", "nats", "nats each", "lost", "model - pairs")


def page(measured: Bottleneck) -> Page:
    """The rank, the choices, and the words that lose most."""
    losing = (
        f"Words that lose most if pairs, as counted, come from a softmax of rank {measured.limit:,}; in all "
        f"{measured.divergence:.4f} nats per word, after {measured.num_previous:,} previous words"
    )
    meaning = (
        "nats: added to the loss per word of text, and each time the word occurs. lost: of its probability. "
        "model - pairs: the model's loss less that of the counted pairs, each time the word occurs in the contexts."
    )
    parts = (
        Paragraph(f"{measured.split}: {measured.rank}"),
        Paragraph(_about_limit(measured)),
        Paragraph(f"Choices: {measured.choices}"),
        Paragraph(losing),
        Table(HEAD, tuple(_rows(measured.words))),
        Paragraph(meaning, is_dim=True),
        figure(measured),
    )
    return Page("Bottleneck", parts, measured.as_dict())


def figure(measured: Bottleneck) -> Figure:
    """The singular values, the tolerance and the rank that a softmax as wide could have."""
    values, rank = measured.rank.singular_values, measured.rank
    largest = values[0].item() or 1.0
    name = {True: "most that this output can have", False: "most of a softmax this wide"}[measured.is_bound]
    title = f"Log-probabilities of {rank.num_contexts:,} contexts x {rank.num_words:,} words ({measured.output})"

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        axes.plot(range(1, len(values) + 1), (values / largest).tolist(), color=COLOURS[0], linewidth=1.6)
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
        axes.set_title(title)
        clean(axes)
        axes.legend(frameon=False)

    return Figure(f"Singular values: {title}", draw, size=(8, 4.8))


def _about_limit(measured: Bottleneck) -> str:
    if measured.is_bound:
        return f"This {measured.output} can have rank {measured.limit:,} at most."
    return f"A softmax as wide as this {measured.output} could have rank {measured.limit:,} at most."


def _rows(words: tuple[LosingWord, ...]) -> Iterator[Row]:
    for word in words:
        of_model = "" if word.model_nats_each is None else f"{word.model_nats_each:+.3f}"
        numbers = (f"{word.count:,}", f"{word.prob:.2%}", f"{word.nats:.5f}", f"{word.nats_each:.3f}")
        # A word may hold commands to the terminal.
        yield (printable(word.word), *numbers, f"{word.lost:.1%}", of_model)
