"""A trained translator measured on a split: BLEU, chrF, TER and loss, the translations, and how runs differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.display import Row, Table
from anymax.evaluation.translation import NAMES, Score, Tokenize, paired_bootstrap, score_translations
from anymax.files import read_json
from anymax.training.run_folder.folder import TESTED
from anymax.training.task_config import Report
from anymax.training.tasks.translation.config import TranslationOptions
from anymax.training.tasks.translation.task import TranslationTask


@dataclass(frozen=True)
class TranslationReport(Report):
    """What a translator reaches on a split.

    Args:
        scores: by name, as "bleu", each with its signature.
        loss: the mean over target tokens, those before each given; without label smoothing.
        is_likelihood: whether the exponential of the loss is a perplexity.
        search: how sentences were translated.
        num_proven: of how many sentences no other translation has a better score.
        tokenize, lowercase: how words were found for BLEU, and whether case was ignored.
        translations, references: of all sentences.
    """

    split: Split
    scores: dict[str, Score]
    loss: float
    is_likelihood: bool
    search: str
    num_proven: int
    tokenize: Tokenize
    lowercase: bool
    translations: list[str]
    references: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {
            "split": self.split,
            "metrics": {name: score.value for name, score in self.scores.items()} | {"loss": self.loss},
            "scores": {name: asdict(score) for name, score in self.scores.items()},
            "search": self.search,
            "num_proven": self.num_proven,
            "tokenize": self.tokenize,
            "lowercase": self.lowercase,
            "translations": self.translations,
            "references": self.references,
        }

    def lines(self) -> list[str]:
        loss = f"loss {self.loss:.4f} per token"
        if self.is_likelihood:
            loss += f" (perplexity {math.exp(self.loss):.2f} per token)"
        number = len(self.translations)
        return [
            f"{self.split}: {number:,} sentences, {self.search}; {loss}",
            *(f"{NAMES[name]} {score.value:.2f} ({score.signature})" for name, score in self.scores.items()),
            f"proven to be the best that the model has, by its own score: {self.num_proven:,} of {number:,}",
        ]


def report_on(
    task: TranslationTask, split: Split, options: TranslationOptions, *, announce: Announce
) -> TranslationReport:
    """Translate a split with the model of a task, and score it."""
    search = options.search(task.config.search)

    def progress(now: int, total: int) -> None:
        announce(f"translating {split}: {now:,} of {total:,} sentences")

    done = task.translate_split(split, search=search, progress=progress)
    tokenize = options.tokenize or task.tokenize()
    announce(f"scoring {split}")
    return TranslationReport(
        split,
        score_translations(done.translations, done.references, tokenize=tokenize, lowercase=options.lowercase),
        task.losses(task.model, split)["loss"],
        task.config.is_likelihood,
        search.sentence(),
        sum(each.is_proven_best for each in done.found),
        tokenize,
        options.lowercase,
        done.translations,
        done.references,
    )


def significance(runs: Mapping[str, Sequence[Path]]) -> Table:
    """Whether recipes differ from the first in BLEU on the test split, seed by seed, by more than luck with sentences.

    Args:
        runs: of each recipe its runs, one for each seed, in the order of the seeds.
    """
    rows: list[Row] = []
    first = next(iter(runs))
    for number, folders in enumerate(zip(*runs.values(), strict=True), 1):
        tested = {recipe: read_json(folder / TESTED) for recipe, folder in zip(runs, folders, strict=True)}
        usual = tested[first]
        others = [recipe for recipe, each in tested.items() if each["references"] != usual["references"]]
        if others:
            raise ValueError(f"runs must be tested on the same sentences, got others for {others[0]} than for {first}")
        differences = paired_bootstrap(
            {recipe: each["translations"] for recipe, each in tested.items()},
            usual["references"],
            tokenize=usual["tokenize"],
            lowercase=usual["lowercase"],
        )
        for each in differences:
            p_value = "" if each.p_value is None else f"{each.p_value:.3f}"
            rows.append((each.system, str(number), f"{each.value:.2f} ± {each.interval:.2f}", p_value))
    return Table(
        ("recipe", "seed", "BLEU", f"p against {first}"),
        tuple(rows),
        title="Differences in BLEU, by paired bootstrap over 1,000 samples of sentences",
    )
