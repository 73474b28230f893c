"""How output layers grow with the vocabulary: time and memory of one training step from a thousand words up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.bench.harness import machine
from anymax.bench.harness.comparison import Comparison, Contestant, compare
from anymax.bench.harness.report import MIB, Report
from anymax.bench.harness.timing import Budget
from anymax.bench.outputs import contestant, zipf
from anymax.display import COLOURS, Figure, clean
from anymax.vocabulary import AdaptiveOutput, Bands, FullOutput, SparseOutput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Announce = Callable[[str], None]
EAGER = "F.cross_entropy(F.linear)"
SIZE_BUDGET = Budget(seconds=30.0, rounds=9)
SIZES = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 800_000)


@dataclass(frozen=True)
class Settings:
    """What to measure and for how long.

    Args:
        sizes: vocabularies.
        most_eager_bytes: where torch's scores, their log-softmax and its gradient would take more, it is skipped.
        std: deviation of the scores.
    """

    sizes: tuple[int, ...] = SIZES
    tokens: int = 512
    dim: int = 256
    std: float = 3.0
    num_bands: int = 3
    most_eager_bytes: int = 8 * 2**30
    threads: int | None = None
    budget: Budget = SIZE_BUDGET

    @property
    def num_steps(self) -> int:
        """How many times `measure` announces something."""
        return len(self.sizes)


def quick(threads: int | None = None) -> Settings:
    """Half a minute: up to thirty thousand words."""
    return Settings(sizes=SIZES[:4], tokens=128, threads=threads, budget=Budget(seconds=2.0, rounds=5, least=2))


def measure(settings: Settings, announce: Announce = lambda step: None) -> Report:
    """One comparison per size of the vocabulary; `announce` is called with each as it begins."""
    notes = (
        f"each step is a forward and backward of {settings.tokens} tokens of dimension {settings.dim} with targets by "
        f"Zipf's law, bands by cost, and scores of deviation {settings.std:g}",
        "extra memory is the most that is allocated at once, over the inputs and the gradients",
        "below 1 is better",
        *machine.warnings(),
    )
    with machine.threads(settings.threads):
        comparisons = []
        for size in settings.sizes:
            announce(f"{size} words")
            comparisons.append(_comparison(size, settings))
        return Report("growth", machine.describe(), tuple(comparisons), notes)


def _comparison(size: int, settings: Settings) -> Comparison:
    generator = torch.Generator().manual_seed(0)
    hidden_TD = torch.randn(settings.tokens, settings.dim, generator=generator).requires_grad_()
    target_T = zipf(settings.tokens, size, generator)
    counts = (1e9 / torch.arange(1, size + 1)).tolist()
    bands = Bands.optimal(counts, settings.num_bands, dim=settings.dim)

    def of(layer: nn.Module) -> Contestant:
        return contestant(type(layer).__name__, lambda: layer(hidden_TD, target_T), [hidden_TD, *layer.parameters()])

    full, sparse = FullOutput(size, settings.dim), SparseOutput(size, settings.dim)
    with torch.no_grad():
        for layer in (full, sparse):
            layer.table.mul_(settings.std)
    contestants = [of(full), of(sparse), of(AdaptiveOutput(bands, settings.dim))]
    # Scores, their log-softmax and its gradient.
    if 3 * 4 * settings.tokens * size <= settings.most_eager_bytes:

        def eager() -> Tensor:
            return F.cross_entropy(F.linear(hidden_TD, full.table), target_T)

        contestants.append(contestant(EAGER, eager, [hidden_TD, full.table]))
    return compare(f"{size} words", contestants, settings.budget)


def figure(report: Report) -> Figure:
    """Time and extra memory against the vocabulary, both on logarithmic scales."""

    def draw(canvas: "Canvas") -> None:
        time_axes, memory_axes = canvas.subplots(1, 2)
        for colour, first in zip(COLOURS, report.comparisons[0].entries, strict=False):
            _draw(time_axes, memory_axes, report, first.name, colour)
        time_axes.set(title="One training step", ylabel="seconds")
        memory_axes.set(title="Memory over inputs and gradients", ylabel="MiB")
        for axes in (time_axes, memory_axes):
            axes.set(xscale="log", yscale="log", xlabel="words in the vocabulary")
            clean(axes)
            axes.legend(frameon=False)

    return Figure("Time and memory of a training step by the size of the vocabulary", draw, size=(11, 4.2))


def _draw(time_axes: "Axes", memory_axes: "Axes", report: Report, name: str, colour: str) -> None:
    """The lines of one layer, which may be missing at large vocabularies."""
    points = [
        (int(comparison.job.split()[0]), entry)
        for comparison in report.comparisons
        for entry in comparison.entries
        if entry.name == name
    ]
    sizes = [size for size, _ in points]
    seconds = [entry.timing.milliseconds.median / 1e3 for _, entry in points]
    mebibytes = [max(entry.num_bytes or 0, 1) / MIB for _, entry in points]
    for axes, values in ((time_axes, seconds), (memory_axes, mebibytes)):
        axes.plot(sizes, values, "--" if name == EAGER else "-", color=colour, marker="o", label=name)
