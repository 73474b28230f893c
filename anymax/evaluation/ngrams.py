"""Unigrams and interpolated bigrams: what a model must beat, counted in seconds.

Shapes: V words, P pairs of words that differ, G groups of words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.data.batches.batches import check_stream
from anymax.evaluation.perplexity.perplexity import Perplexity, Unit, add_up, check_words
from anymax.evaluation.perplexity.scoring import Scored

# Groups of previous words by their counts: 1, 2 and 3, 4 to 7, and so on.
EDGES = tuple(2**power for power in range(1, 31))
# Below 1, so that every word keeps some probability after a previous word that was never surprised in the fit.
LARGEST_SHARE = 0.999
# The fit ends when a step gains less than this many nats per token.
LEAST_GAIN = 1e-9
MOST_STEPS = 100


class NGram(ABC):
    """A model of words that are counted, not learned.

    Args:
        size: how many words the lexicon has.
        block: how many words before a word it reads.
    """

    def __init__(self, size: int, eos: int, block: int) -> None:
        self.size = size
        self.eos = eos
        self.block = block

    @abstractmethod
    def probs(self, previous: Tensor, words: Tensor) -> Tensor:
        """The probability of words after previous words, two int64 tensors of one shape; float64."""

    def token_losses(self, tokens: Tensor) -> Iterator[Scored]:
        """The loss of every token in nats, as `anymax.evaluation.token_losses` gives it for other models."""
        check_stream(tokens)
        start = 0
        for previous, words in neighbours(tokens, eos=self.eos):
            yield Scored(start, words, -self.probs(previous, words).log())
            start += len(words)

    def perplexity(
        self,
        tokens: Tensor,
        *,
        unit: Unit = "word",
        ends_word: Tensor | None = None,
        each: Callable[[Scored], None] | None = None,
    ) -> Perplexity:
        """The perplexity of a stream; arguments as in `anymax.evaluation.perplexity`."""
        check_words(tokens, self.eos, unit, ends_word)
        sums = add_up(self.token_losses(tokens), ends_word=ends_word, each=each)
        return Perplexity(sums.loss / sums.num_units, unit, sums.num_units, sums.num_tokens, self.block)


class Unigram(NGram):
    """A model that gives every word its share of a text, whatever stands before it. Made by `unigram`.

    Args:
        counts_V: how often each word occurs; one is added to every count.
        eos: the id that ends a sentence.

    Example:
        >>> from anymax.evaluation import unigram
        >>> counted = unigram(torch.tensor([2, 2, 2, 0]), size=4)
        >>> counted.probs_V.tolist()
        [0.25, 0.125, 0.5, 0.125]
    """

    def __init__(self, counts_V: Tensor, eos: int) -> None:
        super().__init__(len(counts_V), eos, block=0)
        self.probs_V = (counts_V + 1).double() / (counts_V.sum() + self.size)

    def probs(self, previous: Tensor, words: Tensor) -> Tensor:
        return self.probs_V[words]


class InterpolatedBigram(NGram):
    """A word's share of what followed the previous word, mixed with its unigram probability. Made by
    `interpolated_bigram`.

        p(word | previous) = share(previous) * count(previous, word) / count(previous) + (1 - share(previous)) * p(word)

    Args:
        unigram: the probabilities that the pairs are mixed with.
        pairs: how often each pair of words occurs.
        shares_G: the share of every group of previous words.
        edges: where groups begin, as counts of the previous word; the first begins at 1.
        history: the loss of the text it was fitted on, in nats per token, before the fit and after each step of it.

    Example:
        >>> from anymax.evaluation import interpolated_bigram
        >>> train, valid = torch.tensor([2, 3, 0, 2, 3, 0, 2, 2, 0]), torch.tensor([2, 3, 0])
        >>> bigram = interpolated_bigram(train, valid, size=4, edges=())
        >>> after_2 = bigram.probs(torch.full((4,), 2), torch.arange(4))
        >>> round(after_2.sum().item(), 6), after_2.argmax().item()
        (1.0, 3)
    """

    def __init__(
        self, unigram: Unigram, pairs: PairCounts, shares_G: Tensor, edges: Sequence[int], history: Sequence[float]
    ) -> None:
        super().__init__(unigram.size, unigram.eos, block=1)
        self.unigram = unigram
        self.pairs = pairs
        self.shares_G = shares_G
        self.edges = tuple(edges)
        self.history = tuple(history)
        self._counts_V = _counts_of_previous(pairs, self.size)
        self._shares_V = shares_G[_groups(self._counts_V, edges)].masked_fill(self._counts_V == 0, 0)

    def probs(self, previous: Tensor, words: Tensor) -> Tensor:
        shares = self._shares_V[previous]
        counted = _relative(self.pairs, self._counts_V, previous, words)
        return shares * counted + (1 - shares) * self.unigram.probs_V[words]


def unigram(train_tokens: Tensor, size: int, *, eos: int = 0) -> Unigram:
    """Count words; every word of the lexicon counts once more than it occurs, so that none is impossible.

    Args:
        train_tokens: the stream to count, one dimension of integers; may be mapped from a file.
        size: how many words the lexicon has.
        eos: the id that ends a sentence; a lexicon has it at 0 unless it was made otherwise.

    Example:
        >>> from anymax.evaluation import unigram
        >>> counted = unigram(torch.tensor([2, 2, 2, 0]), size=4)
        >>> round(counted.perplexity(torch.tensor([2, 0])).perplexity, 3)
        2.828
    """
    check_stream(train_tokens)
    check_counts(size=size)
    counts_V = torch.zeros(size, dtype=torch.int64)
    for _, words in neighbours(train_tokens, eos=eos):
        if int(words.max()) >= size:
            raise ValueError(f"size must be above every token, got {size} and the token {int(words.max())}")
        counts_V += words.bincount(minlength=size)
    return Unigram(counts_V, eos)


def interpolated_bigram(
    train_tokens: Tensor, valid_tokens: Tensor, size: int, *, eos: int = 0, edges: Sequence[int] = EDGES
) -> InterpolatedBigram:
    """Count pairs of words, and fit on another text how far to trust the counts.

    Previous words of about one count share one number, the weight of the pair counts against the unigram. It is fitted
    by expectation maximisation; a group that the other text does not hold keeps one half. 100 million tokens take some
    gigabytes at most.

    Args:
        train_tokens: the stream to count.
        valid_tokens: the stream to fit the shares on.
        size: how many words the lexicon has.
        eos: the id that ends a sentence, and the word before the first; a lexicon has it at 0 unless made otherwise.
        edges: the counts of previous words at which a new group begins; () is a single group.

    Jelinek and Mercer 1980.

    Example:
        >>> from anymax.evaluation import interpolated_bigram, unigram
        >>> train, valid = torch.tensor([2, 3, 0] * 10), torch.tensor([2, 3, 0])
        >>> bigram = interpolated_bigram(train, valid, size=4)
        >>> bigram.perplexity(valid).loss < unigram(train, size=4).perplexity(valid).loss
        True
    """
    check_stream(valid_tokens)
    if list(edges) != sorted(set(edges)):
        raise ValueError(f"edges must rise, got {tuple(edges)}")
    words = unigram(train_tokens, size, eos=eos)
    pairs = PairCounts.of(train_tokens, size, eos=eos)
    fitted_on = PairCounts.of(valid_tokens, size, eos=eos)
    return InterpolatedBigram(words, pairs, *_fit(words, pairs, fitted_on, edges))


def _fit(
    words: Unigram, pairs: PairCounts, fitted_on: PairCounts, edges: Sequence[int]
) -> tuple[Tensor, Sequence[int], list[float]]:
    """The shares of the groups by expectation maximisation, and the loss before each step and at the end."""
    previous_P, words_P = fitted_on.keys // words.size, fitted_on.keys % words.size
    counts_V = _counts_of_previous(pairs, words.size)
    bigram_P = _relative(pairs, counts_V, previous_P, words_P)
    unigram_P = words.probs_V[words_P]
    times_P = fitted_on.counts.double()
    groups_P, num_groups = _groups(counts_V[previous_P], edges), len(edges) + 1
    # After a word that was never seen before another, only the unigram speaks.
    is_seen_P = counts_V[previous_P] > 0
    totals_G = groups_P.bincount(times_P * is_seen_P, num_groups)

    shares_G = torch.full((num_groups,), 0.5, dtype=torch.float64)
    history: list[float] = []
    while True:
        shares_P = shares_G[groups_P] * is_seen_P
        from_bigram_P = shares_P * bigram_P
        probs_P = from_bigram_P + (1 - shares_P) * unigram_P
        history.append(-(times_P * probs_P.log()).sum().item() / times_P.sum().item())
        if len(history) > MOST_STEPS or (len(history) > 1 and history[-2] - history[-1] < LEAST_GAIN):
            return shares_G, edges, history
        drawn_G = groups_P.bincount(times_P * from_bigram_P / probs_P, num_groups)
        shares_G = torch.where(totals_G > 0, (drawn_G / totals_G).clamp(max=LARGEST_SHARE), shares_G)


def _counts_of_previous(pairs: PairCounts, size: int) -> Tensor:
    """How often each word stands before another."""
    return torch.zeros(size, dtype=torch.int64).index_add_(0, pairs.keys // size, pairs.counts)


def _relative(pairs: PairCounts, counts_V: Tensor, previous: Tensor, words: Tensor) -> Tensor:
    """The share of a word in all that followed the previous one; 0 where nothing did."""
    counts = pairs.look_up(previous * len(counts_V) + words)
    return counts.double() / counts_V[previous].clamp(min=1)


def _groups(counts: Tensor, edges: Sequence[int]) -> Tensor:
    return torch.bucketize(counts, torch.tensor(edges, dtype=torch.int64), right=True)


# Tokens that are looked at together: some hundred megabytes while they are sorted.
CHUNK = 1 << 22


class PairCounts(NamedTuple):
    """The pairs that occur, each as the number `previous * size + word`, in rising order, and their counts."""

    keys: Tensor
    counts: Tensor

    @classmethod
    def of(cls, tokens: Tensor, size: int, *, eos: int) -> PairCounts:
        """Count the pairs of a stream, a chunk at a time; memory grows with the pairs that differ."""
        total = cls(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        for previous, words in neighbours(tokens, eos=eos):
            keys = (previous * size + words).sort().values
            total = total.merged(cls(*keys.unique_consecutive(return_counts=True)))
        return total

    def look_up(self, keys: Tensor) -> Tensor:
        """The count of each key, 0 for pairs that do not occur."""
        found, places = self._find(keys)
        return torch.where(found, self.counts[places], 0)

    def merged(self, other: PairCounts) -> PairCounts:
        """The counts of both added up."""
        if not len(self.keys):
            return other
        found, places = self._find(other.keys)
        counts = self.counts.index_add(0, places[found], other.counts[found])
        is_new = ~found
        # Where each new key goes: after the old keys that are smaller and the new ones before it.
        goes = torch.searchsorted(self.keys, other.keys[is_new])
        goes += torch.arange(len(goes))
        is_old = torch.ones(len(self.keys) + len(goes), dtype=torch.bool)
        is_old[goes] = False
        merged = PairCounts(*(old.new_empty(len(is_old)) for old in self))
        for into, old, new in zip(merged, (self.keys, counts), other, strict=True):
            into[is_old] = old
            into[goes] = new[is_new]
        return merged

    def _find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each key is there, and where."""
        places = torch.searchsorted(self.keys, keys).clamp_(max=len(self.keys) - 1)
        return self.keys[places] == keys, places


def neighbours(tokens: Tensor, *, eos: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The stream as (previous words, words), int64, a chunk at a time; "<eos>" stands before the first."""
    last = torch.tensor([eos])
    for chunk in tokens.split(CHUNK):
        words = chunk.long()
        yield torch.cat([last, words[:-1]]), words
        last = words[-1:]
