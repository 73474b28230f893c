"""PairTask: what tasks share that write one text for another, as translation and post-editing."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from anymax.data.batches.batches import IGNORE_INDEX
from anymax.data.batches.pairs import PairBatch, PairBatches
from anymax.data.parallel.prepared import PreparedPairs
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.display import Texts
from anymax.distributed.ranks import Ranks
from anymax.evaluation.translation import Tokenize, score_translations
from anymax.models.encoder_decoder import EncoderDecoder
from anymax.models.language_model.model import evaluating
from anymax.models.layers import fsdp_groups, learned_alphas
from anymax.training.task import Step, Task
from anymax.training.tasks.post_editing.config import PostEditingConfig
from anymax.training.tasks.translation.config import Search, TranslationConfig
from anymax.training.tasks.translation.translating import Progress

# Sentences that are shown after an evaluation, and the most characters of each.
SHOWN, SHOWN_LENGTH = 3, 64


class Decoded(Protocol):
    """What was written for sentences of a split, in its order."""

    @property
    def written(self) -> list[str]: ...

    @property
    def references(self) -> list[str]: ...

    def side_by_side(self) -> list[str]:
        """A few of them to look at, on lines of their own that fit a terminal."""
        ...

    def texts(self, how: str, source: str) -> Texts:
        """All of them beside what they were written for, each with its score.

        Args:
            how: how they were searched for.
            source: what they were made from.
        """
        ...


def side_by_side(**sides: list[str]) -> list[str]:
    """The first sentences of several texts, those of one sentence below each other with the names of the texts."""
    return [
        f"  {name:<11}  {shorten(sentences[i])}"
        for i in range(min(SHOWN, *map(len, sides.values())))
        for name, sentences in sides.items()
    ]


def shorten(text: str) -> str:
    """The start of a text, if it is a long one."""
    return text if len(text) <= SHOWN_LENGTH else f"{text[: SHOWN_LENGTH - 4]} ..."


class PairTask(Task):
    """Predict every word of a text from what it is written for and the words before it.

    Args:
        seed: decides the order of the batches.
    """

    item = "token"
    # The scores of what is written for sentences of valid, by the names that `score_translations` has for them.
    scored: tuple[str, ...]

    def __init__(
        self,
        config: TranslationConfig | PostEditingConfig,
        prepared: PreparedPairs,
        model: EncoderDecoder,
        ranks: Ranks,
        *,
        seed: int,
    ) -> None:
        self._config = config
        self._pairs = prepared
        self._model = model
        self.ranks = ranks
        self.seed = seed
        self.goal = config.goal
        self.larger_is_better = config.goal == "bleu"
        self._examples: list[str] = []

    @property
    @abstractmethod
    def eos(self) -> tuple[int, int]:
        """The ids that end a source and a target."""

    @abstractmethod
    def arguments(self, batch: PairBatch) -> tuple[Tensor, ...]:
        """What the model's forward takes for a batch, on the device."""

    @abstractmethod
    def decode_split(self, split: Split, number: int | None = None) -> Decoded:
        """What the model writes for the first sentences of a split, greedily."""

    @abstractmethod
    def decode_pairs(
        self, split: Split, chosen: Sequence[int], search: Search, progress: Progress | None = None
    ) -> Decoded:
        """What the model writes for some pairs of a split."""

    @abstractmethod
    def tokenize(self) -> Tokenize:
        """How BLEU finds words."""

    def batches(self, split: Split) -> PairBatches:
        return self._batches(split, self.seed)

    def step(self, model: nn.Module, batch: PairBatch, carry: None) -> Step:
        loss_sum = model(*self.arguments(batch), "sum")
        return Step(loss_sum, int((batch.target != IGNORE_INDEX).sum()))

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        metrics = self.losses(model, split)
        if self._config.decoded == 0:
            return metrics
        done = self.decode_split(split, self._config.decoded)
        self._examples = done.side_by_side()
        scores = score_translations(done.written, done.references, tokenize=self.tokenize())
        return metrics | {name: scores[name].value for name in self.scored}

    def losses(self, model: nn.Module, split: Split) -> dict[str, float]:
        """The loss of every target token of a split, those before it given, without label smoothing."""
        loss_sum = count = 0.0
        with torch.no_grad(), evaluating(self._model):
            for batch in self._batches(split, None):
                loss_sum += float(model(*self.arguments(batch), "sum"))
                count += int((batch.target != IGNORE_INDEX).sum())
        loss_sum, count = self.ranks.sum([loss_sum, count])
        return {"loss": loss_sum / count}

    def examples(self) -> list[str]:
        return self._examples

    def sample(self) -> str | None:
        return "\n".join(self.decode_split("valid", SHOWN).side_by_side())

    def texts(self, split: Split, *, limit: int, seed: int, announce: Announce) -> list[Texts]:
        def progress(now: int, total: int) -> None:
            announce(f"writing for {split}: {now:,} of {total:,} sentences")

        search = self._config.search
        done = self.decode_pairs(split, self.drawn(split, limit, seed), search, progress)
        return [done.texts(search.sentence(), f"{split} split, seed {seed}")]

    def drawn(self, split: Split, limit: int, seed: int) -> list[int]:
        """The numbers of some pairs of a split, in its order."""
        number = len(self._pairs.split(split))
        return sorted(random.Random(seed).sample(range(number), min(limit, number)))

    def watch(self) -> dict[str, float]:
        return learned_alphas(self._model)

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        return self._model.forward_methods()

    def groups(self) -> list[list[nn.Module]]:
        return fsdp_groups(self._model)

    def why_unobserved(self) -> str | None:
        return None

    def _batches(self, split: Split, seed: int | None) -> PairBatches:
        batching, (source_eos, eos) = self._config.batching, self.eos
        return PairBatches(
            self._pairs.split(split),
            batching.max_tokens,
            seed=seed,
            eos=eos,
            source_eos=source_eos,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            count=batching.count,
        )
