"""A trained BERT measured on a split: how well it tells hidden pieces, by text, beside one that only counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from anymax.data.batches.batches import IGNORE_INDEX
from anymax.data.batches.masked import MaskedBatches
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.display import Table
from anymax.training.task_config import Report
from anymax.training.tasks.masked_language_modeling.task import MaskedLanguageModelingTask, Measured

# What a piece counts that the training text does not have.
UNSEEN = 1.0


@dataclass(frozen=True)
class MaskedReport(Report):
    """How well hidden pieces are told.

    Args:
        measured: by the model, of each text.
        counted: by how often each piece occurs in the training text of the same name.
    """

    split: Split
    measured: dict[str, Measured]
    counted: dict[str, Measured]

    def as_dict(self) -> dict[str, Any]:
        return {
            "split": self.split,
            "metrics": _whole(self.measured).metrics(),
            "unigram": _whole(self.counted).metrics(),
            "texts": {
                name: self.measured[name].metrics()
                | {"hidden": self.measured[name].hidden, "unigram": self.counted[name].metrics()}
                for name in self.measured
            },
        }

    def lines(self) -> list[str]:
        model, counted = _whole(self.measured), _whole(self.counted)
        found, trivial = model.metrics(), counted.metrics()
        return [
            f"{self.split}: of {model.hidden:,.0f} hidden pieces {found['accuracy']:.2%} told, "
            f"loss {found['loss']:.4f} nats",
            f"For comparison, a model that only counts pieces: {trivial['accuracy']:.2%} told, "
            f"loss {trivial['loss']:.4f} nats",
        ]

    def tables(self) -> list[Table]:
        rows = tuple(
            (name, f"{model.hidden:,.0f}", *_cells(model), *_cells(self.counted[name]))
            for name, model in self.measured.items()
        )
        columns = ("text", "hidden", "loss", "told", "loss of counting", "told by counting")
        return [Table(columns, rows, title="Hidden pieces by text")] if len(rows) > 1 else []


def report_on(task: MaskedLanguageModelingTask, split: Split, *, announce: Announce) -> MaskedReport:
    """Measure the model of a task, and what counting reaches on the same hidden pieces."""
    announce(f"telling hidden pieces of {split}")
    measured = task.measure(split)
    return MaskedReport(split, measured, count_pieces(task, split))


def count_pieces(task: MaskedLanguageModelingTask, split: Split) -> dict[str, Measured]:
    """What the frequencies of pieces in training reach on the hidden pieces of a split, text by text."""
    batches: MaskedBatches = task.ordered(split)
    tokens = {name: encoded.tokens() for name, encoded in task.prepared.split("train").items()}
    size, special = len(task.prepared.pieces), list(task.prepared.pieces.specials)
    log_probs = []
    for name in batches.names:
        counts = torch.bincount(tokens[name].long(), minlength=size).double() + UNSEEN
        # They are never hidden.
        counts[special] = 0
        log_probs.append(counts.div(counts.sum()).log())
    sums = torch.zeros(len(batches.names), 3, dtype=torch.float64)
    for batch in batches:
        for text, target in zip(batch.texts.tolist(), batch.target, strict=True):
            wanted = target[target != IGNORE_INDEX]
            likeliest = log_probs[text].argmax()
            sums[text] += torch.tensor(
                [-log_probs[text][wanted].sum(), (wanted == likeliest).sum(), len(wanted)], dtype=torch.float64
            )
    total = task.ranks.sum(sums.flatten().tolist())
    return {name: Measured(*total[3 * text : 3 * text + 3]) for text, name in enumerate(batches.names)}


def _whole(measured: dict[str, Measured]) -> Measured:
    return Measured(*map(sum, zip(*measured.values(), strict=True)))


def _cells(measured: Measured) -> tuple[str, str]:
    metrics = measured.metrics()
    return f"{metrics['loss']:.4f}", f"{metrics['accuracy']:.2%}"
