"""A trained post-editor measured on a split, beside leaving the translations as they are."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.display import Table
from anymax.evaluation.translation import NAMES, Changes, Score, Tokenize, count_changes, score_translations
from anymax.training.task_config import Report
from anymax.training.tasks.post_editing.task import PostEditingTask
from anymax.training.tasks.translation.config import TranslationOptions

# What post-editing is measured by first.
SHOWN = {name: NAMES[name] for name in ("ter", "bleu", "chrf")}


@dataclass(frozen=True)
class PostEditingReport(Report):
    """What a post-editor reaches on a split.

    Args:
        scores, untouched: by name, as "ter", each with its signature: of the corrections, and of the translations as
            they are.
        changes: how many sentences came nearer to their references.
        loss: the mean over pieces of the references, those before each given; without label smoothing.
        search: how translations were corrected.
        tokenize, lowercase: how words were found for BLEU, and whether case was ignored.
        translations, references: the corrections and references of all sentences.
    """

    split: Split
    scores: dict[str, Score]
    untouched: dict[str, Score]
    changes: Changes
    loss: float
    search: str
    tokenize: Tokenize
    lowercase: bool
    translations: list[str]
    references: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {
            "split": self.split,
            "metrics": {name: score.value for name, score in self.scores.items()} | {"loss": self.loss},
            "scores": {name: asdict(score) for name, score in self.scores.items()},
            "untouched": {name: asdict(score) for name, score in self.untouched.items()},
            "changes": asdict(self.changes),
            "search": self.search,
            "tokenize": self.tokenize,
            "lowercase": self.lowercase,
            "translations": self.translations,
            "references": self.references,
        }

    def lines(self) -> list[str]:
        case, changes = "ignored" if self.lowercase else "counted", self.changes
        return [
            f"{self.split}: {len(self.translations):,} sentences, {self.search}; loss {self.loss:.4f} per piece "
            f"(perplexity {math.exp(self.loss):.2f}); case is {case}",
            *(f"{shown}: {self.scores[name].signature}" for name, shown in SHOWN.items()),
            f"by the TER of each sentence: {changes.better:,} got better, {changes.worse:,} got worse, "
            f"{changes.same:,} stayed, {changes.untouched:,} of them unchanged",
        ]

    def tables(self) -> list[Table]:
        rows = (("as it is", self.untouched), ("corrected", self.scores))
        return [
            Table(
                ("translation", *SHOWN.values()),
                tuple((what, *(f"{scores[name].value:.2f}" for name in SHOWN)) for what, scores in rows),
                title="Less TER is better, more BLEU and chrF are",
            )
        ]


def report_on(
    task: PostEditingTask, split: Split, options: TranslationOptions, *, announce: Announce
) -> PostEditingReport:
    """Correct a split with the model of a task, and score it."""
    search = options.search(task.config.search)

    def progress(now: int, total: int) -> None:
        announce(f"correcting {split}: {now:,} of {total:,} sentences")

    done = task.correct_split(split, search=search, progress=progress)
    tokenize, lowercase = options.tokenize or task.tokenize(), options.lowercase
    announce(f"scoring {split}")
    corrected, untouched = (
        score_translations(texts, done.references, tokenize=tokenize, lowercase=lowercase)
        for texts in (done.corrections, done.translations)
    )
    return PostEditingReport(
        split,
        corrected,
        untouched,
        count_changes(done.translations, done.corrections, done.references, lowercase=lowercase),
        task.losses(task.model, split)["loss"],
        search.sentence(),
        tokenize,
        lowercase,
        done.corrections,
        done.references,
    )
