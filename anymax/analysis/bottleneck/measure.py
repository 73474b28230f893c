"""What the output layer of a trained language model can express, and what it does: rank, choices, words that lose."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anymax.analysis.bottleneck.words import lost_to_rank
from anymax.checks import check_counts
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.evaluation import (
    ChoiceCounter,
    Choices,
    InterpolatedBigram,
    MatrixRank,
    Predicted,
    interpolated_bigram,
    matrix_rank,
    predictions,
)
from anymax.evaluation.ngrams import neighbours
from anymax.evaluation.rank.rank import ToleranceRule
from anymax.training.tasks.language_modeling.task import LanguageModelingTask
from anymax.vocabulary import AdaptiveOutput, FullOutput, MixtureOutput, OutputLayer
from anymax.vocabulary.output import TableOutput

# More previous words than nearly any table is wide.
NUM_PREVIOUS = 1000


@dataclass(frozen=True)
class LosingWord:
    """A word that a limit of the rank makes less likely.

    Args:
        count: in the training text.
        prob: its probability after the previous words that were looked at.
        nats: what it adds to the loss per word of a text.
        nats_each: the same for each time it occurs.
        lost: the share of its probability that goes to other words.
        model_nats_each: by how much the model's loss is above that of the counted pairs, each time the word occurs in
            the measured text; None where it does not, or where a loss is infinite. The model knows more of the text
            before a word, so this is below zero unless something holds it back.
    """

    word: str
    count: int
    prob: float
    nats: float
    nats_each: float
    lost: float
    model_nats_each: float | None


@dataclass(frozen=True, eq=False)
class Bottleneck:
    """What was measured.

    Args:
        output: the kind of output layer.
        limit: the largest rank of a softmax over products of vectors as wide as the layer's.
        is_bound: whether the layer is such a softmax, and cannot exceed the limit.
        rank: of the model's log-probabilities.
        choices: at the same contexts, over all words.
        num_previous: how many previous words the loss to the rank was computed for.
        divergence: by how much the loss of counted pairs of words grows if a softmax of the limit's rank stands for
            them, in nats per word.
        words: those that lose most, first.
    """

    split: Split
    output: str
    limit: int
    is_bound: bool
    rank: MatrixRank
    choices: Choices
    num_previous: int
    divergence: float
    words: tuple[LosingWord, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "split": self.split,
            "output": self.output,
            "limit": self.limit,
            "is_bound": self.is_bound,
            "rank": self.rank.as_dict(),
            "choices": self.choices.metrics(),
            "num_previous": self.num_previous,
            "divergence": self.divergence,
            "words": [asdict(word) for word in self.words],
        }


def measure_bottleneck(
    task: LanguageModelingTask,
    split: Split,
    *,
    contexts: int = 4000,
    words: int = 2000,
    most: int = 20,
    tolerance: ToleranceRule | float = "press",
    clamp: float | None = None,
    memory_limit: int | None = None,
    announce: Announce,
) -> Bottleneck:
    """Measure the model of a task at the first contexts of a split.

    Words lose as `lost_to_rank` has it: the counted probabilities of words after the most frequent previous words are
    brought to the rank that a softmax as wide as the model's could have.

    Args:
        contexts: how many tokens of the split to look at; fewer where it has fewer.
        words: how many of the most frequent words to look at; fewer where there are fewer.
        most: how many of the words that lose to name.
        tolerance, clamp, memory_limit: as in `matrix_rank`.
    """
    check_counts(contexts=contexts, words=words, most=most)
    tokens = task.prepared.split(split).tokens()[:contexts]
    read = task.prepared.as_read(split).tokens()[:contexts]
    output = task.model.output
    num_words = min(words, output.vocabulary_size)

    def progress(done: int, total: int) -> None:
        announce(f"looking at {split}: {done:,} of {total:,} contexts")

    watched = _Watched(num_words)
    windows = replace(task.windows(), rows=1)
    eos = task.prepared.lexicon.eos
    predicted = predictions(task.model, tokens, windows, eos=eos, read=read, progress=progress)
    rank = matrix_rank(
        watched.rows(predicted),
        num_contexts=len(tokens),
        num_words=num_words,
        tolerance=tolerance,
        clamp=clamp,
        memory_limit=memory_limit,
    )
    announce("counting pairs of words")
    bigram = _bigram(task)
    limit = rank_limit(output)
    model_nats = _model_nats(bigram, tokens, torch.cat(watched.target_log_probs))
    announce("looking for words that lose")
    divergence, num_previous, losing = _losing(task, bigram, limit, num_words, model_nats, most)
    return Bottleneck(
        split=split,
        output=type(output).__name__,
        limit=limit,
        is_bound=is_bound(output),
        rank=rank,
        choices=watched.counter.choices(),
        num_previous=num_previous,
        divergence=divergence,
        words=losing,
    )


def rank_limit(output: OutputLayer) -> int:
    """The largest rank of log-probabilities from products of vectors as wide as the layer's tables, or the model's.

    One for every direction of the vectors, one for what normalises each softmax, and one for a bias.
    """
    if isinstance(output, AdaptiveOutput):
        return output.model_dim + output.bands.num_bands
    if isinstance(output, TableOutput):
        # Each expert of a mixture has its own vectors, as wide as the table.
        dim = output.dim if isinstance(output, MixtureOutput) else min(output.dim, output.model_dim)
        return dim + 1 + (output.bias is not None)
    return output.model_dim + 1


def is_bound(output: OutputLayer) -> bool:
    """Whether the log-probabilities of the layer cannot exceed `rank_limit`."""
    return isinstance(output, AdaptiveOutput) or (isinstance(output, FullOutput) and output.transform is None)


class _Watched:
    """Looks at predictions on their way to the rank."""

    def __init__(self, num_words: int) -> None:
        self.num_words = num_words
        self.counter = ChoiceCounter()
        self.target_log_probs: list[Tensor] = []

    def rows(self, predicted: Iterator[Predicted]) -> Iterator[Tensor]:
        for part in predicted:
            self.counter.add(part.tokens, part.log_probs)
            self.target_log_probs.append(part.log_probs.gather(1, part.tokens[:, None])[:, 0].double().cpu())
            yield part.log_probs[:, : self.num_words]


def _bigram(task: LanguageModelingTask) -> InterpolatedBigram:
    """Counted in the units that the model predicts."""
    train, valid = (task.prepared.split(split).tokens() for split in ("train", "valid"))
    return interpolated_bigram(train, valid, len(task.prepared.lexicon), eos=task.prepared.lexicon.eos)


def _model_nats(bigram: InterpolatedBigram, tokens: Tensor, log_probs: Tensor) -> Tensor:
    """How far the model's loss lies above the counted one for every word, on average; nan where it does not occur."""
    parts = neighbours(tokens, eos=bigram.eos)
    counted = torch.cat([bigram.probs(previous, words).log() for previous, words in parts])
    sums = torch.zeros(bigram.size, dtype=torch.float64).index_add_(0, tokens.long(), counted - log_probs)
    return sums / tokens.long().bincount(minlength=bigram.size)


def _losing(
    task: LanguageModelingTask, bigram: InterpolatedBigram, limit: int, num_words: int, model_nats: Tensor, most: int
) -> tuple[float, int, tuple[LosingWord, ...]]:
    lexicon = task.prepared.lexicon
    counts = torch.tensor(lexicon.counts)
    of_previous, previous = counts.topk(min(NUM_PREVIOUS, int((counts > 0).sum())))
    pairs = torch.broadcast_tensors(previous[:, None], torch.arange(num_words))
    probs = bigram.probs(*pairs)
    # Of all words there are, these are looked at as if there were no others.
    lost = lost_to_rank(probs / probs.sum(1, keepdim=True), of_previous.double() / of_previous.sum(), limit)
    first = lost.nats_W.topk(min(most, num_words)).indices.tolist()
    named = lexicon.decode(first)
    return (
        lost.divergence,
        len(previous),
        tuple(
            LosingWord(
                word=word,
                count=lexicon.counts[i],
                prob=float(lost.probs_W[i]),
                nats=float(lost.nats_W[i]),
                nats_each=float(lost.nats_W[i] / lost.probs_W[i]),
                lost=float(lost.lost_W[i] / lost.probs_W[i]),
                model_nats_each=_finite(float(model_nats[i])),
            )
            for i, word in zip(first, named, strict=True)
        ),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
