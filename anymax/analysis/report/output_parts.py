"""What is special to an output layer, as parts of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from anymax.analysis.report.outputs import Bandwise, Curve, Experts, OfOutput, Supports
from anymax.display import Axis, Chart, Paragraph, Part, Row, Table, bars
from anymax.display.printable import printable

# Characters of a word.
LONGEST = 40
FOLLOWS = "follows in the text"
# Pixels of the height of a line of fields.
FIELD = 26


def of_output(found: OfOutput, contexts: Sequence[str], num_tokens: int, source: str) -> list[Part]:
    """What was measured of an output layer.

    Args:
        contexts: what stands for each context that is shown.
        num_tokens: of the text.
    """
    match found:
        case Supports():
            return [_sizes(found, source), _support_words(found, contexts, source)]
        case Experts():
            return [_experts(found, contexts, num_tokens, source)]
        case Bandwise():
            return _bands(found, num_tokens, source)
        case other:
            assert_never(other)


def of_transform(curve: Curve, source: str) -> Chart:
    """The transform, and below it how many scores there are, of all words and of those that follow."""
    # Moved so that both lines meet in the middle.
    middle = len(curve.scores) // 2
    values = tuple(value - curve.values[middle] + curve.scores[middle] for value in curve.values)
    columns = {"score": curve.scores, "value": values, "all words": curve.counts, FOLLOWS: curve.follow}
    plots = [
        {"height": 220, "layer": [_line("score", strokeDash=[3, 3]), _line("value", strokeWidth=2.5)]},
        {"height": 110, **_counts()},
    ]
    outside = "" if curve.outside is None else f" {curve.outside:.2%} of them lie beyond the pieces, ±{curve.bound:g}."
    note = (
        f"Below, the scores of all words for {curve.num_tokens:,} tokens.{outside} Dashed: scores as they are. The "
        "softmax takes differences only, so that slopes matter and heights do not; both lines meet in the middle."
    )
    title = f"{curve.transform} of the scores"
    spec = {"concat": plots, "columns": 1}
    return Chart(title, columns, spec, source=source, note=note, height=420)


def shown_word(word: str) -> str:
    """A word as it can be shown, and no longer than there is room for."""
    return printable(word if len(word) <= LONGEST else f"{word[: LONGEST - 1]}…")


def _sizes(found: Supports, source: str) -> Chart:
    """How many words are kept, by powers of two."""
    # Of n words, the place is (n - 1).bit_length().
    counts = Counter((size - 1).bit_length() for size in found.sizes)
    places = range(max(counts) + 1)
    labels = [f"{2**place:,}" for place in places]
    shares = [counts[place] / len(found.sizes) for place in places]
    spec = bars(
        Axis("size", "words with a probability above zero, up to", "nominal", order=tuple(labels)),
        Axis("share", "share of tokens", starts_at_zero=True, format="~%"),
    )
    median = sorted(found.sizes)[len(found.sizes) // 2]
    note = (
        f"Entmax with alpha {found.alpha:.3f} over {len(found.sizes):,} tokens: from {min(found.sizes):,} to "
        f"{max(found.sizes):,} words, {sum(found.sizes) / len(found.sizes):,.1f} on average, {median:,} in the median. "
        f"The word that follows has probability zero in {found.zero_targets:.1%} of the places."
    )
    return Chart("Sizes of the support", {"size": labels, "share": shares}, spec, source=source, note=note)


def _support_words(found: Supports, contexts: Sequence[str], source: str) -> Table:
    rows: list[Row] = []
    for context, support in zip(contexts, found.of_contexts, strict=True):
        more = support.size - len(support.words)
        words = " ".join(shown_word(candidate.word) for candidate in support.words)
        rows.append((context, f"{support.size:,}", f"{words} … and {more:,} more" if more else words))
    head = ("context", "size", "words, the likeliest first")
    return Table(head, tuple(rows), "Words of the support", text_columns=head[2:], source=source)


def _experts(found: Experts, contexts: Sequence[str], num_tokens: int, source: str) -> Chart:
    """A field for every expert and context, coloured by weight."""
    labels = ("average", *contexts)
    rows = [
        (label, expert, weight)
        for label, weights in zip(labels, (found.average, *found.of_contexts), strict=True)
        for expert, weight in enumerate(weights, 1)
    ]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(("context", "expert", "weight"))}
    x, y = Axis("expert", "expert", "ordinal"), Axis("context", "", "nominal", order=labels)
    weight = {"field": "weight", "type": "quantitative", "title": "weight"}
    encoding = {
        "x": x.encoding(),
        "y": {**y.encoding(), "axis": {"labelLimit": 300}},
        "color": {**weight, "scale": {"domainMin": 0}, "legend": {"format": ".0%"}},
        "tooltip": [{"field": "context"}, {"field": "expert"}, {**weight, "format": ".1%"}],
    }
    note = f"The weights of a line add up to one. The average is over {num_tokens:,} tokens."
    spec = {"mark": "rect", "encoding": encoding}
    return Chart("Weights of the experts", columns, spec, source=source, note=note, height=FIELD * len(labels) + 40)


def _bands(found: Bandwise, num_tokens: int, source: str) -> list[Part]:
    rows = tuple(
        (
            f"{band.first:,} to {band.first + band.size - 1:,}",
            f"{band.size:,}",
            f"{band.dim:,}",
            f"{band.num_tokens / num_tokens:.1%}",
            f"{band.mass:.1%}",
            *map(_loss, (band.loss, band.loss_of_band, band.loss_of_word)),
        )
        for band in found.bands
    )
    head = ("ids by frequency", "words", "width", "share of text", "probability", "loss", "of the band", "of the word")
    note = (
        f"Over {num_tokens:,} tokens. Probability is what the words of the band get together, on average; where it is "
        "below the share of the text, the model expects too few of them. The loss is that of the band and that of the "
        "word in the band."
    )
    return [Table(head, rows, "Bands of the vocabulary", source=source), Paragraph(note, is_dim=True)]


def _line(column: str, **mark: object) -> dict[str, Any]:
    tooltip = [{"field": name, "type": "quantitative", "format": ".4f"} for name in ("score", "value")]
    y = Axis(column, "value for the softmax").encoding()
    return {"mark": {"type": "line", **mark}, "encoding": {"x": _score(), "y": y, "tooltip": tooltip}}


def _counts() -> dict[str, Any]:
    """How many scores lie where, of all words and of those that follow, with room for a few beside very many."""
    kinds = ["all words", FOLLOWS]
    number = {"field": "number", "type": "quantitative", "title": "scores", "scale": {"type": "symlog"}, "stack": None}
    colour = Axis("of", "", "nominal", order=tuple(kinds)).encoding()
    return {
        "transform": [{"fold": kinds, "as": ["of", "number"]}],
        "mark": {"type": "area", "interpolate": "step", "opacity": 0.5},
        "encoding": {
            "x": _score(),
            "y": {**number, "axis": {"values": [1, 100, 10_000, 1_000_000]}},
            "color": colour,
        },
    }


def _score() -> Mapping[str, Any]:
    return {**Axis("score", "score").encoding(), "scale": {"zero": False, "nice": False}}


def _loss(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.3f}"
