"""What a language model predicts next, as parts of a page: the likeliest words, and what its output layer does."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from anymax.analysis.report.next_words import Context, NextWords, measure_next_words
from anymax.analysis.report.output_parts import FOLLOWS, of_output, of_transform, shown_word
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.display import Axis, Chart, Part
from anymax.training.tasks.language_modeling.task import LanguageModelingTask

# Characters of a line above a plot; pixels of the height of a bar, and of the names beside the bars of each plot.
LINE = 62
HEIGHT = 15
NAMES = 125
# Words that stand for a context where there is no room for all.
LAST = 4
LIKELY = "likeliest"


def next_words(
    task: LanguageModelingTask,
    split: Split,
    *,
    contexts: int = 8,
    seed: int = 1,
    source: str = "",
    announce: Announce,
) -> list[Part]:
    """The next-word distributions in contexts of a split, and what is special to the output layer.

    Args:
        contexts, seed: as in `measure_next_words`.
        source: the checkpoint, the split and the seed, to be named below; by default the last two.
    """
    return parts(measure_next_words(task, split, contexts=contexts, seed=seed, announce=announce), source)


def parts(measured: NextWords, source: str = "") -> list[Part]:
    """What was measured as parts of a page; `source` as in `next_words`."""
    source = source or f"{measured.split} split, seed {measured.seed}"
    found: list[Part] = [_distributions(measured.contexts, source)]
    if measured.of_output is not None:
        labels = [
            " ".join([f"{number}.", *map(shown_word, context.before[-LAST:]), "…"])
            for number, context in enumerate(measured.contexts, 1)
        ]
        found += of_output(measured.of_output, labels, measured.num_tokens, source)
    if measured.transform is not None:
        found.append(of_transform(measured.transform, source))
    return found


def _distributions(contexts: Sequence[Context], source: str) -> Chart:
    """A plot of bars for every context, below the words before."""
    rows = [row for number, context in enumerate(contexts, 1) for row in _rows(number, context)]
    names = ("context", "place", "word", "probability", "is")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    most = max((row[3] for row in rows), default=1.0)
    plots = [_bars(number, context, most) for number, context in enumerate(contexts, 1)]
    note = (
        "Above each plot the last words that the model has read, and below them the likeliest next words. The word "
        "that follows in the text is marked; where it is not among the likeliest, it is the last, with its place."
    )
    spec = {"concat": plots, "columns": 2}
    return Chart("Next words", columns, spec, source=source, note=note)


def _bars(number: int, context: Context, most: float) -> dict[str, Any]:
    """A bar for each word, with its probability behind it.

    Args:
        most: the largest probability in any context, for one scale.
    """
    probability = {"field": "probability", "type": "quantitative"}
    axis = {"labelLimit": NAMES, "minExtent": NAMES, "maxExtent": NAMES, "ticks": False, "domain": False}
    tooltip = [{"field": "word"}, {**probability, "format": ".3~%"}, {"field": "place", "type": "quantitative"}]
    colour = Axis("is", "", "nominal", order=(LIKELY, FOLLOWS)).encoding()
    # Without a domain a plot that lacks the marked word would give its colour to the others.
    colour |= {"scale": {"domain": [LIKELY, FOLLOWS]}, "legend": {"orient": "top"}}
    before = " ".join([f"{number}.", *map(shown_word, context.before)])
    title = "\n".join(textwrap.wrap(before, LINE, break_on_hyphens=False)) + " …"
    return {
        "title": {"text": title.split("\n"), "anchor": "start", "fontWeight": "normal", "fontSize": 12},
        "height": {"step": HEIGHT},
        "transform": [{"filter": {"field": "context", "equal": number}}],
        "encoding": {
            "y": {"field": "word", "type": "nominal", "title": None, "sort": None, "axis": axis},
            # With room for the number behind the longest bar.
            "x": Axis("probability", "", format="~%", domain=(0.0, 1.15 * most)).encoding(),
        },
        "layer": [
            {"mark": "bar", "encoding": {"color": colour, "tooltip": tooltip}},
            {
                "mark": {"type": "text", "align": "left", "dx": 3, "fontSize": 10},
                "encoding": {"text": {**probability, "format": ".2~%"}},
            },
        ],
    }


def _rows(number: int, context: Context) -> Iterator[tuple[int, int, str, float, str]]:
    for place, candidate in enumerate(context.likeliest, 1):
        what = FOLLOWS if candidate.word == context.follows else LIKELY
        yield number, place, shown_word(candidate.word), candidate.prob, what
    if context.follows not in {candidate.word for candidate in context.likeliest}:
        yield number, context.rank, f"{shown_word(context.follows)} (no. {context.rank:,})", context.prob, FOLLOWS
