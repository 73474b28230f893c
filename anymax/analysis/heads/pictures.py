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
from anymax.display import COLOURS, Figure, clean
from anymax.display.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Inches of a plot, and of a unit of a sentence and the names beside it.
PLOT, UNIT, MARGIN = (4.2, 2.9), 0.24, 1.3
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
        for row in grid:
            row[0].legend(frameon=False, fontsize=8)

    return Figure("Densities and diversity of heads by layer", draw, size=(_width(len(measured.kinds)), 2 * PLOT[1]))


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

    return Figure("Alphas that heads learned", draw, size=(_width(len(alphas.kinds)), 2 * PLOT[1] + 0.5))


def sentences_figure(named: Named) -> Figure:
    """The sentences in which a head is clearest, as heat maps with exact zeros white."""
    examples = named.examples
    widths = [UNIT * len(example.keys) + MARGIN for example in examples]
    heights = [UNIT * len(example.queries) + MARGIN + 0.4 for example in examples]
    alpha = "" if named.alpha is None else f", alpha {named.alpha:.2f}"
    title = printable(f"{named.role.name}: {named.head.kind}, {named.head}{alpha}, confidence {named.confidence:.1%}")

    def draw(canvas: Canvas) -> None:
        canvas.suptitle(title, fontsize=10, parse_math=False)
        panels = canvas.subplots(1, len(examples), squeeze=False, width_ratios=widths)[0]
        for axes, example in zip(panels, examples, strict=True):
            _draw_sentence(axes, example)
        image = panels[-1].images[0]
        canvas.colorbar(image, ax=list(panels), label="weight; white is exactly 0", shrink=0.7, extend="min", pad=0.01)

    return Figure(title, draw, size=(sum(widths) + 1.2, max(heights)))


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
    axes.legend(frameon=False, fontsize=7, ncols=2)


def _draw_sentence(axes: Axes, example: Drawn) -> None:
    from matplotlib.colors import LogNorm

    shown_QK = example.weights.float().masked_fill(example.weights <= 0, float("nan")).numpy()
    norm = LogNorm(FAINTEST, 1, clip=True)
    axes.imshow(shown_QK, cmap="viridis_r", norm=norm, interpolation="nearest", aspect="equal")
    axes.set_xticks(range(len(example.keys)), [_short(unit) for unit in example.keys], rotation=90, fontsize=8)
    axes.set_yticks(range(len(example.queries)), [_short(unit) for unit in example.queries], fontsize=8)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        # A word may hold what would be read as a formula.
        label.set_parse_math(False)
    axes.tick_params(length=0, pad=2)
    outside = f"; {example.outside:.0%} of the weight is outside" if example.outside >= 0.005 else ""
    axes.set_title(f"{example.score:.1%} here{outside}", fontsize=8)


def _short(unit: str) -> str:
    unit = printable(unit)
    return unit if len(unit) <= MOST_OF_UNIT else f"{unit[: MOST_OF_UNIT - 1]}…"


def _width(num_kinds: int) -> float:
    return PLOT[0] * num_kinds + 0.6
