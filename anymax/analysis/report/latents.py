"""The section of discrete latents: what their values stand for, what they generate, and how sparse they became.

Shapes: C classes of images, V values of a latent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from anymax.analysis.latents import Looked
from anymax.analysis.report.learning import FEW
from anymax.display import LOW, Axis, Chart, Part, Picture, Pictures, Table, bars, lines
from anymax.training.latent_view import BitEffects, Gallery
from anymax.training.task import Task

# Classes and values of a plot or a table, the most frequent first, and points of a curve.
MOST_CLASSES, MOST_VALUES, MOST_POINTS = 40, 40, 500
SPLIT, RECORDS = "test split", "metrics.jsonl"
# Of every run, and shown where its learning is.
LOSS = "loss"
# Other quantities of records and evaluations by their names there.
TITLES = {
    "calls": "Calls of the decoder for each example",
    "entropy": "Entropy of the latent, in nats",
    "exact": "Share of images whose code is certified",
    "support": "Classes with a probability, for each image",
    "messages": "Messages with a probability, for each image",
    "used": "Messages that are the likeliest of some image",
    "success": "Games won by the likeliest message",
    "expected_success": "Games won by messages as they are drawn",
    "accuracy": "Images whose likeliest class is the right one",
    "rate": "Rate: divergence of the code from the prior, in nats",
    "distortion": "Distortion: expected loss of the pixels, in nats",
    "bits_per_dim": "Likelihood in bits for each pixel",
}
NOTES = {
    "calls": "Of the network that reads the latent, a receiver in a game, by the estimator of the run.",
    "exact": "With top-k sparsemax: fewer than k bit-vectors have a probability, so no others would have one either. "
    "With SparseMAP: the solver converged.",
}


def latents(task: Task, folder: Path, checkpoint: str) -> list[Part]:
    """What the discrete latent of a trained task does; empty for a task without one.

    Args:
        folder: of the run, with its records.
        checkpoint: what the task was opened from.
    """
    view = task.latent_view()
    if view is None:
        return []
    found = parts(Looked.of(view, folder))
    return [replace(part, source=f"{checkpoint}, {SPLIT}") if part.source == SPLIT else part for part in found]


def parts(looked: Looked) -> list[Pictures | Chart | Table]:
    """What there is to see of a latent, for a page."""
    view, found = looked.view, list[Pictures | Chart | Table]()
    if view.gallery is not None:
        found.append(pictures(view.gallery))
    if view.bits is not None:
        found += _of_bits(view.bits)
    if view.by_class is not None:
        found += [by_class(view.by_class, view.values), most_frequent(view.by_class, view.values)]
        found.append(usage(view.by_class.sum(0), view.values))
    if view.support:
        found.append(_support(view.support, view.values))
    return [*found, *last_evaluation(looked), *curves(looked)]


def pictures(gallery: Gallery) -> Pictures:
    """Images from 0 to 1 as pictures, dark on white."""
    side = math.isqrt(gallery.images.shape[-1])
    levels = ((1 - gallery.images.clamp(0, 1)) * 255).round().byte()
    rows = (
        (name, tuple(Picture(side, bytes(pixels.tolist())) for pixels in row))
        for name, row in zip(gallery.rows, levels, strict=True)
    )
    return Pictures(gallery.title, tuple(rows), tuple(gallery.columns or ()), gallery.source)


def by_class(counts: Tensor, values: str) -> Chart:
    """How images of each class are shared out among the likeliest values, as a map of shares.

    Args:
        counts: (C, V) images.
    """
    classes, frequent = _most(counts.sum(1), MOST_CLASSES), _most(counts.sum(0), MOST_VALUES)
    cells = [(name, value, int(counts[name, value])) for name in sorted(classes) for value in frequent]
    cells = [cell for cell in cells if cell[2]]
    totals = counts.sum(1).tolist()
    columns: dict[str, list[Any]] = {
        "class": [str(name) for name, _, _ in cells],
        "value": [str(value) for _, value, _ in cells],
        "images": [number for _, _, number in cells],
        "share": [number / totals[name] for name, _, number in cells],
    }
    spec = {
        "mark": {"type": "rect"},
        "encoding": {
            "x": Axis(
                "value", f"{values}, the most frequent first", "ordinal", order=tuple(map(str, frequent))
            ).encoding(),
            "y": Axis("class", "image shows", "ordinal", order=tuple(map(str, sorted(classes)))).encoding(),
            "color": {
                "field": "share",
                "type": "quantitative",
                "title": "share of the class",
                "scale": {"domain": [0, 1]},
            },
            "tooltip": [
                {"field": name, "type": "nominal" if name in ("class", "value") else "quantitative"} for name in columns
            ],
        },
    }
    return Chart(
        f"The likeliest {values} of images, by what they show",
        columns,
        spec,
        SPLIT,
        f"{_shown(counts.sum(0), frequent, values)} {_shown(counts.sum(1), classes, 'classes')}",
        height=24 * len(classes) + 40,
    )


def most_frequent(counts: Tensor, values: str) -> Table:
    """Of each class the value that is most often the likeliest, with its share and how many others there are."""
    rows = []
    for name in sorted(_most(counts.sum(1), MOST_CLASSES)):
        of_class = counts[name]
        share, value = float(of_class.max() / of_class.sum()), int(of_class.argmax())
        different = int((of_class > 0).sum())
        rows.append((str(name), f"{int(of_class.sum()):,}", str(value), f"{share:.1%}", f"{different:,}"))
    return Table(
        ("image shows", "images", "most frequent", "its share", f"different {values}"),
        tuple(rows),
        title=f"The most frequent of the likeliest {values}, by what images show",
        source=SPLIT,
    )


def usage(counts: Tensor, values: str) -> Chart:
    """How many images have each value as their likeliest.

    Args:
        counts: (V,) images.
    """
    used = _most(counts, len(counts))
    names, images = [str(value) for value in used], [int(counts[value]) for value in used]
    spec = bars(
        Axis("value", f"{values}, the most frequent first", "ordinal", order=tuple(names)),
        Axis("images", "images", starts_at_zero=True),
    )
    note = f"{len(used):,} of {len(counts):,} {values} are the likeliest of some image."
    return Chart(f"Images by {values}", {"value": names, "images": images}, spec, SPLIT, note)


def last_evaluation(looked: Looked) -> list[Table]:
    """What the last evaluation on valid measured, in a table; none where there was no evaluation."""
    if not looked.curves:
        return []
    step, metrics = max(looked.curves.items())
    rows = tuple((TITLES.get(name, name), f"{value:.4g}") for name, value in metrics.items() if name != LOSS)
    return [Table(("quantity", "value"), rows, title=f"On the valid split at step {step:,}", source=RECORDS)]


def curves(looked: Looked) -> list[Chart]:
    """Every quantity of the latent that training or evaluations on valid recorded more than once, by step."""
    series: dict[str, list[tuple[int, float, str]]] = {}
    for name, by_step in (("training", looked.logs), ("valid", looked.curves)):
        for step, found in _thinned(by_step).items():
            for quantity, value in found.items():
                series.setdefault(quantity, []).append((step, value, name))
    return [_curve(name, points) for name, points in series.items() if name != LOSS and len(points) > 1]


def _of_bits(bits: BitEffects) -> list[Pictures | Chart | Table]:
    numbers = list(range(1, len(bits.on) + 1))
    x = Axis("bit", "bit", "ordinal")
    spec_on, spec_change = (
        bars(x, Axis(column, title, starts_at_zero=True))
        for column, title in (("share", "share of images"), ("change", "mean change of a pixel"))
    )
    change = "Of a pixel between 0 and 1, where the bit is turned in the likeliest codes of a few images."
    return [
        pictures(bits.turned),
        Chart(
            "How much each bit changes", {"bit": numbers, "change": bits.change.tolist()}, spec_change, SPLIT, change
        ),
        Chart("How often each bit is on", {"bit": numbers, "share": bits.on.tolist()}, spec_on, SPLIT),
    ]


def _support(support: Mapping[int, int], values: str) -> Chart:
    columns = {"values": sorted(support), "images": [support[number] for number in sorted(support)]}
    spec = bars(
        Axis("values", f"{values} with a probability", "ordinal"), Axis("images", "images", starts_at_zero=True)
    )
    mean = sum(number * images for number, images in support.items()) / sum(support.values())
    return Chart(f"How many {values} have a probability", columns, spec, SPLIT, f"{mean:.2f} on average.")


def _curve(quantity: str, points: list[tuple[int, float, str]]) -> Chart:
    steps, values, names = (list(column) for column in zip(*points, strict=True))
    title, of = TITLES.get(quantity, quantity.replace("_", " ")), tuple(dict.fromkeys(names))
    spec: dict[str, Any] = lines(
        Axis("step", "step"),
        Axis("value", quantity.replace("_", " ")),
        Axis("measured in", "", "nominal", order=of) if len(of) > 1 else None,
        points=min(Counter(names).values()) <= FEW,
    )
    columns = {"step": steps, "value": values, "measured in": names}
    note = NOTES.get(quantity, "") or (f"On the {of[0]} split." if of[0] != "training" else "")
    return Chart(title, columns, spec, RECORDS, note, height=LOW)


def _most(counts: Tensor, most: int) -> list[int]:
    """The most frequent that occur, in the order of their frequency, of equal ones the first before the next."""
    order = counts.sort(descending=True, stable=True).indices
    return order[: min(most, int((counts > 0).sum()))].tolist()


def _shown(counts: Tensor, shown: list[int], what: str) -> str:
    """How many of all are shown, and how many there are."""
    return f"{len(shown):,} of {int((counts > 0).sum()):,} {what} that occur are shown."


def _thinned(by_step: Mapping[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    """At most `MOST_POINTS` of them, evenly spread, the last among them."""
    steps = list(by_step)
    every = math.ceil(len(steps) / MOST_POINTS) or 1
    return {step: by_step[step] for step in steps[::-1][::every][::-1]}
