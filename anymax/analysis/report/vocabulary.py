"""What a language model predicts next, as parts of a page: the likeliest words, and what its output layer does."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, assert_never

from anymax.analysis.report.next_words import Context, NextWords, measure_next_words
from anymax.analysis.report.outputs import Bandwise, Curve, Experts, OfOutput, Supports
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.display import Axis, Chart, Paragraph, Part, Table, bars
from anymax.display.printable import printable
from anymax.training.tasks.language_modeling.task import LanguageModelingTask

# Characters of a word, and of a line of words above a plot.
LONGEST = 40
LINE = 58
LIKELY, FOLLOWS = "likeliest", "follows in the text"


def next_words(
    task: LanguageModelingTask,
    split: Split,
    *,
    contexts: int = 8,
    seed: int = 1,
    checkpoint: str = "",
    announce: Announce,
) -> list[Part]:
    """The next-word distributions in contexts of a split, and what is special to the output layer.

    Args:
        contexts, seed: as in `measure_next_words`.
        checkpoint: where the weights of the task are from.
    """
    return parts(measure_next_words(task, split, contexts=contexts, seed=seed, announce=announce), checkpoint)


def parts(measured: NextWords, checkpoint: str = "") -> list[Part]:
    """What was measured as parts of a page; arguments as in `next_words`."""
    source = ", ".join([*([checkpoint] if checkpoint else []), f"{measured.split} split, seed {measured.seed}"])
    found: list[Part] = [_distributions(measured.contexts, source)]
    if measured.of_output is not None:
        found += _of_output(measured.of_output, measured, source)
    if measured.transform is not None:
        found.append(_curve(measured.transform, source))
    return found


def _distributions(contexts: Sequence[Context], source: str) -> Chart:
    """A plot of bars for every context, below the words before."""
    rows = [row for number, context in enumerate(contexts, 1) for row in _bars_of(number, context)]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(("context", "place", "word", "p", "is"))}
    word = {"field": "word", "type": "nominal", "title": None, "sort": {"field": "place", "op": "min"}}
    encoding = {
        "y": {**word, "axis": {"labelLimit": 130, "ticks": False, "domain": False}},
        "x": Axis("p", "probability", starts_at_zero=True, format="~%").encoding(),
    }
    colour = {**Axis("is", "", "nominal", order=(LIKELY, FOLLOWS)).encoding(), "legend": {"orient": "top"}}
    tooltip = [{"field": "word"}, {"field": "p", "type": "quantitative", "title": "probability", "format": ".3~%"}]
    tooltip.append({"field": "place", "type": "quantitative", "title": "place by probability"})
    value = {"field": "p", "type": "quantitative", "format": ".2~%"}
    layers = [
        {"mark": "bar", "encoding": {"color": colour, "tooltip": tooltip}},
        {"mark": {"type": "text", "align": "left", "dx": 3, "fontSize": 10}, "encoding": {"text": value}},
    ]
    header = {"labelExpr": r"split(datum.label, '\n')", "labelAnchor": "start", "labelAlign": "left"}
    spec = {
        "facet": {"field": "context", "type": "nominal", "sort": None, "title": None, "header": header},
        "columns": 2,
        "spec": {"width": 320, "height": {"step": 15}, "encoding": encoding, "layer": layers},
        "resolve": {"scale": {"y": "independent"}},
        "autosize": "pad",
    }
    note = (
        "Above each plot the last words that the model has read, and below them the likeliest next words. The word "
        "that follows in the text is marked; where it is not among the likeliest, it is the last, with its place."
    )
    return Chart("Next words", columns, spec, source=source, note=note, height=15 * 13)


def _bars_of(number: int, context: Context) -> Iterator[tuple[str, int, str, float, str]]:
    before = " ".join([f"{number}.", *map(_word, context.before), "…"])
    title = "\n".join(textwrap.wrap(before, LINE, break_on_hyphens=False))
    words = [candidate.word for candidate in context.likeliest]
    for place, candidate in enumerate(context.likeliest, 1):
        what = FOLLOWS if candidate.word == context.follows else LIKELY
        yield title, place, _word(candidate.word), candidate.prob, what
    if context.follows not in words:
        yield title, context.rank, f"{_word(context.follows)} (no. {context.rank:,})", context.prob, FOLLOWS


def _of_output(found: OfOutput, measured: NextWords, source: str) -> list[Part]:
    match found:
        case Supports():
            return _supports(found, measured, source)
        case Experts():
            return [_experts(found, measured, source)]
        case Bandwise():
            return _bands(found, measured, source)
        case other:
            assert_never(other)


def _supports(found: Supports, measured: NextWords, source: str) -> list[Part]:
    """How many words are kept, over the text, and which in the contexts."""
    # Of n words, the part is (n - 1).bit_length().
    counts = Counter((size - 1).bit_length() for size in found.sizes)
    places = range(max(counts) + 1)
    labels = [f"{2 ** (place - 1) + 1:,} to {2**place:,}" if place > 1 else str(place + 1) for place in places]
    shares = [counts[place] / len(found.sizes) for place in places]
    spec = bars(
        Axis("size", "words with a probability above zero", "nominal", order=tuple(labels)),
        Axis("share", "share of tokens", starts_at_zero=True, format="~%"),
    )
    spec["encoding"]["x"]["axis"] = {"labelAngle": 0}
    middle = sorted(found.sizes)[len(found.sizes) // 2]
    note = (
        f"Entmax with alpha {found.alpha:.3f} over {len(found.sizes):,} tokens: from {min(found.sizes):,} to "
        f"{max(found.sizes):,} words, {sum(found.sizes) / len(found.sizes):,.1f} on average, {middle:,} in the median. "
        f"The word that follows has probability zero in {found.zero_targets:.1%}."
    )
    rows = tuple(
        (f"{number}. {_last(context)}", f"{support.size:,}", _listed(support.size, [c.word for c in support.words]))
        for number, (context, support) in enumerate(zip(measured.contexts, found.of_contexts, strict=True), 1)
    )
    table = Table(("context", "size", "words"), rows, "Supports", text_columns=("words",), source=source)
    return [Chart("Sizes of the support", {"size": labels, "share": shares}, spec, source=source, note=note), table]


def _experts(found: Experts, measured: NextWords, source: str) -> Chart:
    """A field for every expert and context, coloured by weight."""
    labels = ["average", *(f"{number}. {_last(context)}" for number, context in enumerate(measured.contexts, 1))]
    rows = [
        (label, expert, weight)
        for label, weights in zip(labels, (found.average, *found.of_contexts), strict=True)
        for expert, weight in enumerate(weights, 1)
    ]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(("context", "expert", "weight"))}
    axes = (
        Axis("expert", "expert", "ordinal"),
        Axis("context", "", "nominal", order=tuple(labels)),
        Axis("weight", "weight", format=".1%"),
    )
    spec = _fields(*axes)
    note = f"The weights of each line add up to one. The average is over {measured.num_tokens:,} tokens."
    return Chart("Weights of the experts", columns, spec, source=source, note=note, height=26 * (len(labels) + 1))


def _fields(x: Axis, y: Axis, colour: Axis) -> dict[str, Any]:
    tooltip = [{"field": axis.column, "type": axis.kind} for axis in (y, x)]
    tooltip.append({"field": colour.column, "type": "quantitative", "format": colour.format or ""})
    scale = {"scheme": "viridis", "domainMin": 0}
    fill = {"field": colour.column, "type": "quantitative", "title": colour.title, "scale": scale}
    across, down = x.encoding(), {**y.encoding(), "axis": {"labelLimit": 300}}
    return {"mark": "rect", "encoding": {"x": across, "y": down, "color": fill, "tooltip": tooltip}}


def _bands(found: Bandwise, measured: NextWords, source: str) -> list[Part]:
    total = sum(band.num_tokens for band in found.bands)
    rows = tuple(
        (
            f"{band.first:,} to {band.first + band.size - 1:,}",
            f"{band.size:,}",
            f"{band.dim:,}",
            f"{band.num_tokens / total:.1%}",
            f"{band.mass:.1%}",
            _loss(band.loss),
            _loss(band.loss_of_band),
            _loss(None if band.loss is None or band.loss_of_band is None else band.loss - band.loss_of_band),
        )
        for band in found.bands
    )
    head = ("ids by frequency", "words", "width", "share of text", "probability", "loss", "of the band", "of the word")
    note = (
        f"Over {measured.num_tokens:,} tokens. Probability is what the words of the band get together, on average; "
        "where it is below the share of the text, the model expects too few of them. The loss of a word is that of its "
        "band and that of the word in the band."
    )
    return [Table(head, rows, "Bands of the vocabulary", source=source), Paragraph(note, is_dim=True)]


def _curve(curve: Curve, source: str) -> Chart:
    """The transform, and below it how many scores there are, of all words and of those that follow."""
    columns: dict[str, tuple[float, ...]] = {
        "score": curve.scores,
        "value": curve.values,
        "all words": curve.counts,
        FOLLOWS: curve.follow,
    }
    across = {"x": Axis("score", "score").encoding()}
    tooltip = [{"field": name, "type": "quantitative"} for name in columns]
    learned = {
        "mark": {"type": "line", "strokeWidth": 2, "tooltip": True},
        "encoding": {"y": _value("value"), "tooltip": tooltip},
    }
    same = {"mark": {"type": "line", "strokeDash": [3, 3], "opacity": 0.6}, "encoding": {"y": _value("score")}}
    colour = Axis("of", "", "nominal", order=("all words", FOLLOWS)).encoding()
    number = {"field": "number", "type": "quantitative", "title": "scores", "scale": {"type": "symlog"}, "stack": None}
    below = {
        "transform": [{"fold": ["all words", FOLLOWS], "as": ["of", "number"]}],
        "mark": {"type": "area", "interpolate": "step", "opacity": 0.5},
        "encoding": {**across, "y": {**number, "axis": {"values": [1, 100, 10_000, 1_000_000]}}, "color": colour},
    }
    above = {"encoding": across, "layer": [same, learned]}
    plots = [{"width": 820, "height": 220, **above}, {"width": 820, "height": 110, **below}]
    spec = {"vconcat": plots, "autosize": "pad"}
    outside = "" if curve.outside is None else f" {curve.outside:.2%} of them lie beyond the pieces, ±{curve.bound:g}."
    note = (
        f"The scores of all words for {curve.num_tokens:,} tokens.{outside} Dashed: scores as they are. The softmax "
        "takes differences only, so that the slope matters and the height does not."
    )
    return Chart(f"{curve.transform} of the scores", columns, spec, source=source, note=note, height=420)


def _value(column: str) -> dict[str, Any]:
    return Axis(column, "value for the softmax").encoding()


def _listed(size: int, words: Sequence[str]) -> str:
    more = f" … and {size - len(words):,} more" if size > len(words) else ""
    return " ".join(map(_word, words)) + more


def _last(context: Context) -> str:
    return " ".join(map(_word, context.before[-4:])) + " …"


def _loss(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.3f}"


def _word(word: str) -> str:
    """A word as it can be shown, and no longer than a plot has room for."""
    return printable(word if len(word) <= LONGEST else f"{word[: LONGEST - 1]}…")
