"""Pictures of heads: densities and diversity by layer, alphas and their paths, and sentences as heat maps.

Shapes: Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from anymax.analysis.heads.alphas import BINS, Alphas
from anymax.analysis.heads.examples import Drawn, Named
from anymax.analysis.heads.measure import Measured
from anymax.analysis.heads.study import Heads
from anymax.attention.capture import Kind
from anymax.display import COLOURS, Figure, clean, legend_below
from anymax.display.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Inches of a plot; of a unit of a sentence, the names of units beside it, the titles above it, and a bar of colours.
PLOT, UNIT, LABELS, ABOVE, COLOUR_BAR = (4.2, 2.9), 0.24, 1.2, 1.05, 1.0
# Inches that the title of a sentence needs.
TITLE = 1.7
# Characters of a unit, and the least weight with a colour of its own.
MOST_OF_UNIT, FAINTEST = 14, 1e-3


def figures(heads: Heads, run: str) -> Iterator[Figure]:
    """All pictures: of layers, of alphas where heads learn them, and of each head with a role."""
    yield layers_figure(heads.measured, run)
    if heads.alphas is not None:
        yield alphas_figure(heads.alphas, run)
    for named in heads.named:
        if named.examples:
            yield sentences_figure(named)


def layers_figure(measured: Measured, run: str) -> Figure:
    """For each kind of attention the density of every head, layer by layer, with that of the union; and diversity."""

    def draw(canvas: Canvas) -> None:
        canvas.suptitle(run, fontsize=10, parse_math=False)
        grid = canvas.subplots(2, len(measured.kinds), squeeze=False, sharex="col", sharey="row")
        for column, kind in enumerate(measured.kinds):
            _draw_density(grid[0, column], measured, kind)
            _draw_diversity(grid[1, column], measured, kind)
            grid[0, column].set_title(kind, fontsize=9)
        grid[0, 0].set_ylabel("density")
        grid[1, 0].set_ylabel("Jensen-Shannon diversity")
        named = [axes.get_legend_handles_labels() for axes in grid[:, 0]]
        handles, labels = ([each for part in parts for each in part] for parts in zip(*named, strict=True))
        canvas.legend(handles, labels, loc="outside lower center", ncols=2 * len(measured.kinds), frameon=False)

    size = (_width(len(measured.kinds)), 2 * PLOT[1] + 0.4)
    return Figure("Densities and diversity of heads by layer", draw, size=size)


def alphas_figure(alphas: Alphas, run: str) -> Figure:
    """For each kind of attention a histogram of the alphas that heads learned, and their paths over training."""

    def draw(canvas: Canvas) -> None:
        canvas.suptitle(run, fontsize=10, parse_math=False)
        grid = canvas.subplots(2, len(alphas.kinds), squeeze=False, sharey="row")
        for column, kind in enumerate(alphas.kinds):
            _draw_histogram(grid[0, column], alphas, kind)
            _draw_paths(grid[1, column], alphas, kind)
            grid[0, column].set_title(kind, fontsize=9)
        grid[0, 0].set_ylabel("heads")
        grid[1, 0].set_ylabel("alpha")
        legend_below(canvas, grid[1, 0], columns=4 * len(alphas.kinds))

    return Figure("Alphas that heads learned", draw, size=(_width(len(alphas.kinds)), 2 * PLOT[1] + 0.8))


def sentences_figure(named: Named) -> Figure:
    """The sentences in which a head is clearest, side by side as heat maps with exact zeros white."""
    examples = named.examples
    alpha = "" if named.alpha is None else f"alpha {named.alpha:.2f}, "
    title = printable(f"{named.role.name}: {named.head.kind}, {named.head}")
    white = "exactly 0, or after the query" if named.head.kind == "decoder" else "exactly 0"
    # Where units are squares of one size, layouts of matplotlib leave no room for the names beside them.
    rooms = [LABELS + max(UNIT * len(example.keys), TITLE) for example in examples]
    tallest = max(TITLE, *(UNIT * len(example.queries) for example in examples))
    width, height = sum(rooms) + COLOUR_BAR, ABOVE + tallest + LABELS

    def draw(canvas: Canvas) -> None:
        canvas.set_layout_engine("none")
        text = f"{title}\n{alpha}confidence {named.confidence:.1%}"
        canvas.suptitle(text, x=0.1 / width, y=1 - 0.08 / height, ha="left", va="top", fontsize=10, parse_math=False)
        for number, example in enumerate(examples):
            wide, tall = UNIT * len(example.keys), UNIT * len(example.queries)
            left, bottom = sum(rooms[:number]) + LABELS, height - ABOVE - tall
            axes = canvas.add_axes((left / width, bottom / height, wide / width, tall / height))
            _draw_sentence(axes, example)
        bar = canvas.add_axes((1 - 0.8 * COLOUR_BAR / width, LABELS / height, 0.15 / width, tallest / height))
        canvas.colorbar(axes.images[0], cax=bar, extend="min").set_label(f"weight; white: {white}", fontsize=8)
        bar.tick_params(labelsize=8)

    return Figure(title, draw, size=(width, height))


def _draw_density(axes: Axes, measured: Measured, kind: Kind) -> None:
    layers = [layer for layer in measured.layers if layer.kind == kind]
    places = [layer.layer for layer in layers]
    for layer in layers:
        densities = sorted(each.density for each in measured.of_kind(kind) if each.head.layer == layer.layer)
        # Side by side, the sparsest first.
        middle, step = (len(densities) - 1) / 2, 0.6 / max(1, len(densities))
        beside = [layer.layer + step * (number - middle) for number in range(len(densities))]
        label = None if layer is not layers[0] else "each head"
        axes.bar(beside, densities, width=0.9 * step, color=COLOURS[4], label=label)
    axes.plot(places, [layer.union for layer in layers], "D", color=COLOURS[3], markersize=5, label="their union")
    axes.set_ylim(0, 1.05)
    axes.set_xticks(places)
    clean(axes)


def _draw_diversity(axes: Axes, measured: Measured, kind: Kind) -> None:
    found = [layer for layer in measured.layers if layer.kind == kind]
    by_heads = [(each.layer, each.diversity_by_heads) for each in found if each.diversity_by_heads is not None]
    by_keys = [(each.layer, each.diversity_by_keys) for each in found if each.diversity_by_keys is not None]
    for label, values, colour in (("by log heads", by_heads, COLOURS[0]), ("by log keys", by_keys, COLOURS[1])):
        places, heights = [place for place, _ in values], [height for _, height in values]
        axes.plot(places, heights, color=colour, marker="o", markersize=4, linewidth=1.4, label=label)
    axes.set_xticks([each.layer for each in found])
    axes.set_xlabel("layer")
    axes.set_ylim(bottom=0)
    clean(axes)


def _draw_histogram(axes: Axes, alphas: Alphas, kind: Kind) -> None:
    width = (alphas.high - alphas.low) / BINS
    middles = [alphas.low + width * (number + 0.5) for number in range(BINS)]
    axes.bar(middles, alphas.histogram(kind), width=0.92 * width, color=COLOURS[0])
    axes.set_xlim(alphas.low, alphas.high)
    axes.set_xlabel("alpha")
    axes.locator_params(axis="y", integer=True)
    clean(axes)


def _draw_paths(axes: Axes, alphas: Alphas, kind: Kind) -> None:
    paths = {head: path for head, path in alphas.path.items() if head.kind == kind}
    labelled: set[int] = set()
    for head, path in paths.items():
        label = None if head.layer in labelled else f"layer {head.layer}"
        labelled.add(head.layer)
        axes.plot(alphas.steps, path, color=COLOURS[head.layer % len(COLOURS)], linewidth=1.0, label=label)
    axes.set_xlabel("step")
    axes.set_ylim(alphas.low, alphas.high)
    axes.locator_params(axis="x", nbins=5)
    clean(axes)


def _draw_sentence(axes: Axes, example: Drawn) -> None:
    from matplotlib.colors import LogNorm

    shown_QK = example.weights.float().masked_fill(example.weights <= 0, float("nan")).numpy()
    norm = LogNorm(FAINTEST, 1, clip=True)
    axes.imshow(shown_QK, cmap="viridis_r", norm=norm, interpolation="nearest", aspect="auto")
    axes.set_xticks(range(len(example.keys)), [_short(unit) for unit in example.keys], rotation=90, fontsize=8)
    axes.set_yticks(range(len(example.queries)), [_short(unit) for unit in example.queries], fontsize=8)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        # A word may hold what would be read as a formula.
        label.set_parse_math(False)
    axes.tick_params(length=0, pad=2)
    outside = f"\n{example.outside:.0%} of the weight is outside" if example.outside >= 0.005 else ""
    axes.set_title(f"{example.score:.1%} here{outside}", fontsize=8, loc="left")


def _short(unit: str) -> str:
    unit = printable(unit)
    return unit if len(unit) <= MOST_OF_UNIT else f"{unit[: MOST_OF_UNIT - 1]}…"


def _width(num_kinds: int) -> float:
    return PLOT[0] * num_kinds + 0.6
