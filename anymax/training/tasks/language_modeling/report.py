"""A trained language model measured on a split: perplexity, loss by frequency, and what trivial models reach."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.display import Figure, Table
from anymax.evaluation import (
    Choices,
    FrequencyTable,
    LossByFrequency,
    Perplexity,
    interpolated_bigram,
    measure_choices,
    unigram,
)
from anymax.evaluation import frequency as frequency_report
from anymax.evaluation.adaptation.config import Adaptation
from anymax.evaluation.ngrams import NGram
from anymax.files import read_json
from anymax.training.run_folder.folder import TESTED, write_json
from anymax.training.task_config import Report
from anymax.training.tasks.language_modeling.adapted import adapted
from anymax.training.tasks.language_modeling.config import Evaluation
from anymax.training.tasks.language_modeling.task import LanguageModelingTask, open_task


@dataclass(frozen=True)
class Counted:
    """What a model reaches that only counts; per word."""

    perplexity: Perplexity
    by_frequency: FrequencyTable

    def as_dict(self) -> dict[str, Any]:
        return {**self.perplexity.as_dict(), "by_frequency": self.by_frequency.as_dict()}


@dataclass(frozen=True)
class Baselines:
    """Models that only count.

    Args:
        unigram: knows how often each word occurs.
        bigram: knows how often each pair of words occurs too; the two mixed by Jelinek and Mercer's interpolation.
    """

    unigram: Counted
    bigram: Counted


@dataclass(frozen=True)
class LanguageModelReport(Report):
    """What a model reaches on a split.

    Args:
        baselines: None where they were not asked for.
        choices: what the model chooses; None where it was not asked for.
        adapt: how the model followed the text, None where it did not.
        train_words, train_tokens: how many words the training text has, and into how many tokens the model's units cut
            them.
    """

    split: Split
    perplexity: Perplexity
    by_frequency: FrequencyTable
    baselines: Baselines | None
    train_words: int
    train_tokens: int
    choices: Choices | None = None
    adapt: Adaptation | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        counted = self.baselines
        return {
            "split": self.split,
            "perplexity": self.perplexity.as_dict(),
            "by_frequency": self.by_frequency.as_dict(),
            "unigram": None if counted is None else counted.unigram.as_dict(),
            "bigram": None if counted is None else counted.bigram.as_dict(),
            "train_words": self.train_words,
            "train_tokens": self.train_tokens,
            "choices": None if self.choices is None else self.choices.metrics(),
            "adapt": None if self.adapt is None else {"kind": type(self.adapt).__name__, **asdict(self.adapt)},
        }

    def lines(self) -> list[str]:
        adapted = "" if self.adapt is None else f", {self.adapt.sentence()}"
        lines = [f"{self.split}{adapted}: {self.perplexity}"]
        if self.choices is not None:
            lines.append(f"Choices: {self.choices}")
        if self.baselines is not None:
            unigram, bigram = (each.perplexity for each in (self.baselines.unigram, self.baselines.bigram))
            lines.append(
                f"For comparison, models that only count: unigram {unigram.perplexity:,.2f}, "
                f"interpolated bigram {bigram.perplexity:,.2f}"
            )
            if self.perplexity.perplexity is not None and bigram is not None:
                lines.append(_beside_bigram(self.perplexity.perplexity, bigram))
        return lines

    def tables(self) -> list[Table]:
        return [*frequency_report.tables({"loss": self.by_frequency})]

    def figures(self, run: str) -> dict[str, Figure]:
        return {"frequency": frequency_report.figure({run: self.by_frequency})}


def _beside_bigram(perplexity: float, bigram: float) -> str:
    """How a model does beside the one that it must beat to have learned more than pairs of words."""
    if perplexity < bigram:
        return f"The model beats the bigram: its perplexity is {1 - perplexity / bigram:.0%} lower."
    return (
        f"The bigram does better: its perplexity is {1 - bigram / perplexity:.0%} lower. More text helps most; more "
        "epochs do while the loss on the validation split still falls."
    )


def evaluate_task(
    task: LanguageModelingTask,
    split: Split,
    *,
    evaluation: Evaluation | None = None,
    baselines: bool = True,
    choices: bool = False,
    adapt: Adaptation | None = None,
    announce: Announce,
) -> LanguageModelReport:
    """Score every word of a split with the model of a task.

    Args:
        evaluation: windows other than those of the task's config.
        baselines: whether to count words and pairs of words too, which reads the training text.
        choices: whether to look at what the model chooses, whose probabilities of all words are computed for it; where
            the loss is no likelihood and the model stays as it is, that is done anyway.
        adapt: how the model follows the text while it is scored; by default it stays as it is.
    """
    if choices and adapt is not None:
        raise ValueError("choices must be measured of a model that stays as it is, got an adaptation too")
    by_frequency = task.by_frequency(split, announce=announce)

    def progress(done: int, total: int) -> None:
        announce(f"scoring {split}: {done:,} of {total:,} tokens")

    if adapt is None:
        measured = task.perplexity(task.model, split, evaluation=evaluation, each=by_frequency.add, progress=progress)
    else:
        with adapted(task, split, adapt, evaluation or task.config.evaluation, announce=announce) as (model, how):
            measured = task.perplexity(model, split, evaluation=how, each=by_frequency.add, progress=progress)
    needs_choices = choices or (not measured.is_likelihood and adapt is None)
    return LanguageModelReport(
        split,
        measured,
        by_frequency.table(),
        baselines=count_baselines(task, split, announce=announce) if baselines else None,
        train_words=sum(task.prepared.words.counts),
        train_tokens=len(task.prepared.split("train")),
        choices=choices_of(task, split, evaluation, announce=announce) if needs_choices else None,
        adapt=adapt,
    )


def choices_of(
    task: LanguageModelingTask, split: Split, evaluation: Evaluation | None = None, *, announce: Announce
) -> Choices:
    """What the model of a task chooses along a split, read as its loss is."""

    def progress(done: int, total: int) -> None:
        announce(f"looking at all words of {split}: {done:,} of {total:,} tokens")

    tokens, read = task.prepared.split(split).tokens(), task.prepared.as_read(split).tokens()
    eos = task.prepared.lexicon.eos
    return measure_choices(task.model, tokens, task.windows(evaluation), eos=eos, read=read, progress=progress)


def add_choices(run: Path, *, announce: Announce) -> None:
    """Measure the choices of the best checkpoint of a run on the test split, and add them to its results there."""
    tested = read_json(run / TESTED)
    chosen = choices_of(open_task(run, announce=announce), "test", announce=announce)
    write_json(run / TESTED, {**tested, "choices": chosen.metrics()})


def count_baselines(task: LanguageModelingTask, split: Split, *, announce: Announce) -> Baselines:
    """What models that count words reach on a split; per word, also where the model reads subwords."""
    announce("counting words and pairs of words")
    prepared = task.prepared
    train, valid, scored = (prepared.as_words(part, progress=announce).tokens() for part in ("train", "valid", split))
    size, eos = len(prepared.words), prepared.words.eos

    def counted(model: NGram) -> Counted:
        by_frequency = LossByFrequency(scored, prepared.words.counts, eos=eos)
        return Counted(model.perplexity(scored, each=by_frequency.add), by_frequency.table())

    return Baselines(counted(unigram(train, size, eos=eos)), counted(interpolated_bigram(train, valid, size, eos=eos)))
