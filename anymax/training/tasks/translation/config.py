"""The configuration of translation, as plain data that imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from anymax.checks import check_counts, check_positive, given
from anymax.data.batches.config import Count
from anymax.data.parallel.config import ParallelText
from anymax.data.text.corpus import name_of_file
from anymax.decoding.penalties import NO_PENALTY, AveragePenalty, LengthPenalty, PenaltyName, named_penalty
from anymax.evaluation.translation import Tokenize, check_tokenize
from anymax.models.translation.config import TranslatorConfig
from anymax.training.task_config import EvaluationOptions, Sampling, TaskConfig
from anymax.vocabulary.config import SparseOutputConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from anymax.data.prepared.prepared import Announce
    from anymax.display import Table
    from anymax.distributed.ranks import Ranks
    from anymax.training.tasks.translation.task import TranslationTask

# Words or subwords that a translation may have beyond `length_ratio`, for short sources.
FURTHER_WORDS = 10
Goal = Literal["loss", "bleu"]


@dataclass(frozen=True)
class PairTokens:
    """Pairs of about one length in a batch.

    Args:
        max_tokens: the most tokens of a batch over all ranks, padding included.
        count: which they are: of the "target", of the "source", of "both", or "padded", where a row counts as long as
            the longest sentence of either side, as fairseq and OpenNMT count.

    Example:
        >>> from anymax import recipes
        >>> recipes.find("multi30k.softmax")().task.batching
        PairTokens(max_tokens=4096, count='padded')
    """

    max_tokens: int
    count: Count = "padded"

    def __post_init__(self) -> None:
        check_counts(max_tokens=self.max_tokens)


@dataclass(frozen=True)
class Search:
    """How sentences are translated.

    Args:
        beam: beginnings that are kept at every step; 1 takes the likeliest word each time.
        length_penalty: what makes the score of a log-probability, for a beam above 1.
        min_length: the fewest words or subwords of a translation.
        max_length: the most.
        length_ratio: the most for each word or subword of the source, and ten more; None for no such limit.
        unknown: whether a translation may have "<unk>" in it.
        stop_when_full: stop as soon as `beam` hypotheses are finished. Otherwise a search lasts until nothing that is
            left can be better, which with a length penalty is mostly the longest translation there may be.
        batch_size: sentences that are translated at a time.

    Example:
        >>> from anymax.decoding import GNMTPenalty
        >>> from anymax.training import Search
        >>> search = Search(beam=4, length_penalty=GNMTPenalty(0.6), length_ratio=1.5)
        >>> search.longest(20)  # words of a translation, for 20 of the source
        40
    """

    beam: int = 5
    length_penalty: LengthPenalty = field(default_factory=AveragePenalty)
    min_length: int = 0
    max_length: int = 200
    length_ratio: float | None = 2.0
    unknown: bool = False
    stop_when_full: bool = True
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_counts(beam=self.beam, max_length=self.max_length, batch_size=self.batch_size)
        check_counts(0, min_length=self.min_length)
        check_positive(**given(length_ratio=self.length_ratio))
        if self.min_length > self.max_length:
            raise ValueError(f"min_length must be at most max_length, {self.max_length}, got {self.min_length}")

    @property
    def penalty(self) -> LengthPenalty:
        """What scores are made by: a beam of 1 has nothing to compare, and ends at its first "<eos>"."""
        return NO_PENALTY if self.beam == 1 else self.length_penalty

    def longest(self, source: int) -> int:
        """The most words or subwords of a translation of so long a source."""
        if self.length_ratio is None:
            return self.max_length
        return max(self.min_length, min(self.max_length, math.ceil(self.length_ratio * source) + FURTHER_WORDS))

    def sentence(self) -> str:
        """How it is done in a few words, to be printed beside a score."""
        return "greedy" if self.beam == 1 else f"beam {self.beam}, length penalty {self.penalty.name}"


@dataclass(frozen=True)
class TranslationOptions(EvaluationOptions):
    """Options of `anymax evaluate` for translation.

    Args:
        beam: beginnings that are kept at every step; 1 takes the likeliest word each time.
        length_penalty: what the scores of a search are divided by: nothing, the length, or GNMT's power of it.
        alpha: of length_penalty gnmt.
        tokenize: how BLEU finds words: "13a" for text as it is written, "none" for words separated by spaces.
        lowercase: whether scores ignore case.
    """

    beam: int | None = None
    length_penalty: PenaltyName | None = None
    alpha: float | None = None
    tokenize: Tokenize | None = None
    lowercase: bool = False

    def __post_init__(self) -> None:
        check_counts(**given(beam=self.beam))
        named_penalty(self.length_penalty, self.alpha)
        if self.tokenize is not None:
            check_tokenize(self.tokenize)

    def search(self, usual: Search) -> Search:
        """The search as usual, but for what the options change."""
        penalty = named_penalty(self.length_penalty, self.alpha)
        changed: dict[str, Any] = given(beam=self.beam, length_penalty=penalty)
        return replace(usual, **changed)


@dataclass(frozen=True)
class TranslationConfig(TaskConfig):
    """A translator, the pairs it learns from, and how it translates and is measured.

    Args:
        data: the pairs.
        model: the translator.
        batching: how many tokens a batch has.
        search: how sentences are translated for scores, and by `anymax translate`.
        decoded: of how many sentences of valid, from its start, a greedy translation is scored at each evaluation; 0
            for none, None for all.
        goal: what the best checkpoint is chosen by: the "loss", or "bleu" of those sentences.

    Example:
        >>> from dataclasses import replace
        >>> from pathlib import Path
        >>> from anymax import recipes
        >>> from anymax.data import ParallelText
        >>> config = recipes.find("multi30k.learned_entmax")()
        >>> own = replace(config.task, data=ParallelText(source=Path("train.de"), target=Path("train.en")), goal="bleu")
        >>> replace(config, task=own).task.goal
        'bleu'
    """

    data: ParallelText
    model: TranslatorConfig
    batching: PairTokens
    _: KW_ONLY
    search: Search = field(default_factory=Search)
    decoded: int | None = 200
    goal: Goal = "loss"

    def __post_init__(self) -> None:
        check_counts(0, **given(decoded=self.decoded))
        if self.goal == "bleu" and self.decoded == 0:
            raise ValueError("decoded must not be 0 with goal 'bleu', which is that of decoded sentences, got 0")
        if self.model.share_input and not self.data.joint:
            raise ValueError(
                "data.joint must be True with model.share_input, as one layer reads one lexicon, got False; leave "
                "share_input out"
            )
        most = self.model.max_positions
        for name, length in (("most_source", self.data.most_source), ("most_target", self.data.most_target)):
            if most is not None and (length is None or length > most):
                raise ValueError(
                    f"data.{name} must be at most model.max_positions, {most}, got {length}; longer ones do not fit"
                )
        if most is not None and self.search.max_length >= most:
            raise ValueError(
                f"search.max_length must be below model.max_positions, {most}, got {self.search.max_length}"
            )

    def about_to_change(self, names: Collection[str]) -> Self:
        """A named set gives way to another text with its languages and form, and the size of what was drawn."""
        is_other = any(f"data.{name}" in names for name in ("corpus", "source", "target", "path", "hub"))
        return replace(self, data=self.data.without_set()) if is_other and not self.data.is_own else self

    def why_incomparable(self, first: Self) -> str | None:
        is_same = self.data.tested_on() == first.data.tested_on()
        return None if is_same else "they are tested on other sentences, or other forms of them"

    def continue_text(
        self,
        run: Path,
        text: str,
        sampling: Sampling,
        *,
        step: int | None = None,
        remark: Callable[[str], None] | None = None,
    ) -> list[str]:
        raise ValueError(f"run must be of a language model, got {run}, which translates; use anymax translate {run}")

    def num_train_words(self, announce: Announce) -> int:
        from anymax.data.parallel.prepared import num_target_words

        return num_target_words(self.data, progress=announce)

    @property
    def evaluation_options(self) -> TranslationOptions:
        return TranslationOptions()

    @property
    def is_likelihood(self) -> bool:
        return not isinstance(self.model.output, SparseOutputConfig)

    def run_name(self, recipe: str) -> str:
        own = self.data.path or self.data.source
        return recipe if own is None else Path(name_of_file(own)).stem

    def build(self, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> TranslationTask:
        """The task of a run in `folder`; texts are read, or found as an earlier run left them."""
        from anymax.training.tasks.translation.task import build

        return build(self, folder, ranks, seed=seed, announce=announce)

    def comparison(self, runs: Mapping[str, Sequence[Path]]) -> list[Table]:
        from anymax.training.tasks.translation.report import significance

        return [significance(runs)] if len(runs) > 1 else []

    def toy(self) -> Self:
        """The same at a size for tests, on sentences to copy."""
        return replace(
            self,
            data=self.data.toy(),
            model=replace(self.model.toy(), max_positions=None),
            batching=replace(self.batching, max_tokens=200),
            search=replace(self.search, max_length=12),
            decoded=None if self.decoded is None else min(self.decoded, 8),
        )
