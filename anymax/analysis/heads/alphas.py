"""The alpha that every head learned, and its path over training, from the records of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import nn

from anymax.attention.capture import Kind
from anymax.mappings import LearnedEntmax
from anymax.training import read_metrics

BINS = 15
# What a language model, whose attention is all of one kind, leaves out of the names of its heads.
ONLY_KIND: Kind = "decoder"
_NAME = re.compile(r"alpha/(?:(encoder|decoder|cross)/)?layer_(\d+)/head_(\d+)")


class Head(NamedTuple):
    """Which head, numbered from 0 as in the records of a run."""

    kind: Kind
    layer: int
    number: int

    def __str__(self) -> str:
        return f"layer {self.layer}, head {self.number}"


@dataclass(frozen=True)
class Alphas:
    """What heads learned.

    Args:
        low, high: what alphas stay between.
        now: of every head, in the weights that are looked at.
        steps: when the run recorded them.
        path: of every head, its alpha at each of the steps.
    """

    low: float
    high: float
    now: dict[Head, float]
    steps: list[int]
    path: dict[Head, list[float]]

    @property
    def kinds(self) -> list[Kind]:
        return list(dict.fromkeys(head.kind for head in self.now))

    def histogram(self, kind: Kind) -> list[int]:
        """How many heads of a kind have an alpha in each of fifteen equal parts of the range."""
        return histogram([alpha for head, alpha in self.now.items() if head.kind == kind], self.low, self.high)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "low": self.low,
            "high": self.high,
            "histogram": {kind: self.histogram(kind) for kind in self.kinds},
            "steps": self.steps,
            "path": [{**head._asdict(), "alphas": alphas} for head, alphas in self.path.items()],
        }


def learned(model: nn.Module, watched: Mapping[str, float], run: Path) -> Alphas | None:
    """What the heads of a model learned; None where none learns an alpha.

    Args:
        watched: what its task watches, as "alpha/encoder/layer_0/head_3".
        run: the folder with the records of training.
    """
    mappings = [module for module in model.modules() if isinstance(module, LearnedEntmax)]
    now = heads_in(watched)
    if not mappings or not now:
        return None
    steps, path = read_path(run, list(now))
    return Alphas(min(each.low for each in mappings), max(each.high for each in mappings), now, steps, path)


def read_path(run: Path, heads: Sequence[Head]) -> tuple[list[int], dict[Head, list[float]]]:
    """The steps at which all of some heads were recorded, and their alphas there."""
    records = [(record["step"], heads_in(record.get("watch"))) for record in read_metrics(run)]
    whole = [(step, found) for step, found in records if all(head in found for head in heads)]
    return [step for step, _ in whole], {head: [found[head] for _, found in whole] for head in heads}


def heads_in(watched: object) -> dict[Head, float]:
    """The alphas among watched values, which may come from any file."""
    found: dict[Head, float] = {}
    for name, value in watched.items() if isinstance(watched, Mapping) else ():
        match = _NAME.fullmatch(name)
        if match is not None and isinstance(value, int | float):
            found[Head(cast(Kind, match[1] or ONLY_KIND), int(match[2]), int(match[3]))] = float(value)
    return found


def histogram(values: Sequence[float], low: float, high: float, bins: int = BINS) -> list[int]:
    """How many values lie in each of equal parts of a range; its upper end is in the last."""
    counts = [0] * bins
    for value in values:
        counts[min(max(0, int((value - low) / (high - low) * bins)), bins - 1)] += 1
    return counts
