"""Models whose sentences can all be listed: the next word's probabilities are a function of the words before it."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.decoding import LengthPenalty, NoPenalty
from anymax.vocabulary import FullOutput, TopK

EOS = 0


class Rows(FullOutput):
    """An output whose hidden vectors are log-probabilities; it counts how many words it was asked for."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__(vocabulary_size, vocabulary_size)
        self.asked: list[int] = []

    def log_probs(self, hidden: Tensor) -> Tensor:
        return hidden

    def log_prob(self, hidden: Tensor, target: Tensor) -> Tensor:
        return hidden.gather(1, target[:, None])[:, 0]

    def topk(self, hidden: Tensor, k: int) -> TopK:
        self.asked.append(k)
        return super().topk(hidden, k)


class Chain:
    """A generator of random sentences, different for every input, an integer.

    Args:
        used: how many words beside <eos> have a probability; by default all.
        sharpness: scores are multiplied by it.
        sparse: how far below the best score a word keeps a probability; by default all do.
    """

    def __init__(
        self, size: int, *, used: int | None = None, sharpness: float = 1.0, sparse: float = math.inf, seed: int = 0
    ) -> None:
        self.output = Rows(size)
        self.used, self.sharpness, self.sparse, self.seed = used or size - 1, sharpness, sparse, seed
        self.rows: list[int] = []

    def log_probs(self, prefix: tuple[int, ...]) -> Tensor:
        """Of every word after an input and the words so far."""
        generator = torch.Generator().manual_seed(hash((self.seed, prefix)) % 2**60)
        scores = self.sharpness * torch.randn(self.used + 1, generator=generator)
        scores = scores.masked_fill(scores < scores.max() - self.sparse, -math.inf)
        rest = torch.full((self.output.vocabulary_size - self.used - 1,), -math.inf)
        return torch.cat([scores, rest]).log_softmax(0)

    def first_words(self, inputs: Tensor, eos: int) -> Tensor:
        return torch.full_like(inputs, eos)

    def start(self, inputs: Tensor, *, max_length: int) -> list[tuple[int, ...]]:
        self.left = max_length
        return [(int(each),) for each in inputs]

    def next(self, ids: Tensor, state: list[tuple[int, ...]]) -> tuple[Tensor, list[tuple[int, ...]]]:
        assert len(ids) == len(state) and self.left > 0
        self.left -= 1
        self.rows.append(len(ids))
        state = [(*before, int(word)) for before, word in zip(state, ids, strict=True)]
        # The first word read is <eos>, which is no word of the sentence.
        return torch.stack([self.log_probs((each[0], *each[2:])) for each in state]), state

    def reorder(self, state: list[tuple[int, ...]], index: Tensor) -> list[tuple[int, ...]]:
        return [state[i] for i in index.tolist()]


class Listed(NamedTuple):
    score: float
    log_prob: float
    words: tuple[int, ...]


def all_sentences(
    chains: Sequence[Chain],
    given: int,
    max_length: int,
    *,
    penalty: LengthPenalty = NoPenalty(),  # noqa: B008
    min_length: int = 0,
    words: Sequence[int] | None = None,
) -> list[Listed]:
    """Every sentence that has a probability, best first, by the mean of the chains' probabilities."""
    found = []
    words = range(1, chains[0].used + 1) if words is None else words

    @functools.cache
    def mean(prefix: tuple[int, ...]) -> list[float]:
        rows = [chain.log_probs((given, *prefix)).double().exp() for chain in chains]
        return torch.stack(rows).mean(0).log().tolist()

    for length in range(min_length, max_length + 1):
        for sentence in itertools.product(words, repeat=length):
            log_prob = sum(mean(sentence[:i])[word] for i, word in enumerate((*sentence, EOS)))
            if log_prob > -math.inf:
                found.append(Listed(log_prob / penalty.divisor(length + 1), log_prob, sentence))
    return sorted(found, reverse=True)
