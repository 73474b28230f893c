"""A trained post-editor measured on a split, beside leaving the translations as they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.display import Row, Table
from anymax.evaluation.translation import (
    NAMES,
    Changes,
    Difference,
    Score,
    Tokenize,
    count_changes,
    paired_bootstrap,
    score_translations,
)
from anymax.files import read_json
from anymax.training.run_folder.folder import TESTED
from anymax.training.task_config import Report
from anymax.training.tasks.post_editing.task import PostEditingTask
from anymax.training.tasks.translation.config import TranslationOptions

UNTOUCHED = "as it is"
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
        machine, translations, references: the machine translations, corrections and references of all sentences.
    """

    split: Split
    scores: dict[str, Score]
    untouched: dict[str, Score]
    changes: Changes
    loss: float
    search: str
    tokenize: Tokenize
    lowercase: bool
    machine: list[str]
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
            "machine": self.machine,
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
        rows = ((UNTOUCHED, self.untouched), ("corrected", self.scores))
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
        done.translations,
        done.corrections,
        done.references,
    )


def against_leaving(runs: Mapping[str, Sequence[Path]]) -> Table:
    """TER on the test split beside that of leaving translations as they are, and whether it differs by more than luck.

    Args:
        runs: of each recipe its runs, one for each seed, in the order of the seeds.
    """
    rows: list[Row] = []
    for number, folders in enumerate(zip(*runs.values(), strict=True), 1):
        tested = {recipe: read_json(folder / TESTED) for recipe, folder in zip(runs, folders, strict=True)}
        usual = next(iter(tested.values()))
        systems = {UNTOUCHED: usual["machine"], **{recipe: each["translations"] for recipe, each in tested.items()}}
        left, *others = paired_bootstrap(systems, usual["references"], lowercase=usual["lowercase"], metric="ter")
        if not rows:
            rows.append((UNTOUCHED, "", _with_interval(left), "", "", "", ""))
        for each in others:
            changes = tested[each.system]["changes"]
            counts = (f"{changes[name]:,}" for name in ("better", "worse", "same"))
            assert each.p_value is not None
            rows.append((each.system, str(number), _with_interval(each), f"{each.p_value:.3f}", *counts))
    return Table(
        ("recipe", "seed", "TER", f"p against {UNTOUCHED}", "better", "worse", "stayed"),
        tuple(rows),
        title="TER beside leaving translations as they are, by paired bootstrap over 1,000 samples of sentences",
    )


def _with_interval(found: Difference) -> str:
    return f"{found.value:.2f} ± {found.interval:.2f}"
