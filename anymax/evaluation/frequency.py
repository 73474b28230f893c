"""The loss by how often a word, or the word before it, occurs in training text: measured, as tables, as a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from anymax.display import COLOURS, Figure, Row, Table, clean, legend_below
from anymax.display.printable import printable
from anymax.distributed.ranks import Ranks
from anymax.evaluation.perplexity.scoring import Scored

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# The largest count of each bin but the last, which takes all above.
EDGES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Bin:
    """The words of about one frequency.

    Args:
        above, most: the counts of the bin lie above the one and are at most the other; None where there is no bound.
        num_words: how many words of the scored text fall into it.
        share: of all its words.
        loss: the mean over them, None where there are none.

    Example:
        >>> from anymax.evaluation import Bin
        >>> Bin(above=100, most=1000, num_words=50, share=0.25, loss=5.3).label
        '1K'
    """

    above: int | None
    most: int | None
    num_words: int
    share: float
    loss: float | None

    @property
    def label(self) -> str:
        """The largest count, as "10K"; that of the last bin as "1M+"."""
        if self.most is not None:
            return _short(self.most)
        return "all" if self.above is None else f"{_short(self.above)}+"


@dataclass(frozen=True)
class FrequencyTable:
    """Losses in bins that do not overlap, and that hold every scored word once.

    Args:
        by_word: by the training count of the word that was predicted.
        by_previous: by that of the word before it; before the first word stands "<eos>".

    Example:
        >>> from anymax.evaluation import LossByFrequency, Scored
        >>> words, counts = torch.tensor([2, 3, 0]), [9, 0, 500, 20]
        >>> by_frequency = LossByFrequency(words, counts, eos=0, edges=(10, 100))
        >>> by_frequency.add(Scored(0, words, losses=torch.tensor([1.0, 4.0, 2.0])))
        >>> table = by_frequency.table()
        >>> [(bin.label, bin.loss) for bin in table.by_word]
        [('10', 2.0), ('100', 4.0), ('100+', 1.0)]
    """

    by_word: tuple[Bin, ...]
    by_previous: tuple[Bin, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            name: [{"label": bin.label, **asdict(bin)} for bin in bins]
            for name, bins in (("by_word", self.by_word), ("by_previous", self.by_previous))
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `as_dict` gave."""
        by_word, by_previous = (
            tuple(Bin(**{name: bin[name] for name in Bin.__dataclass_fields__}) for bin in values[kind])
            for kind in ("by_word", "by_previous")
        )
        return cls(by_word, by_previous)


class LossByFrequency:
    """Adds up losses by training frequency while a text is scored.

    Where tokens are subwords, the loss of a word is the sum over them, and its frequency that of the word: give the
    text a second time as words.

    Args:
        words: the scored text as words, "<eos>" included; the stream itself where its tokens are words.
        counts: how often each word of the lexicon occurs in training text.
        eos: the word that ends a line.
        subwords, ends_word: the scored stream and, for every id of it, whether it completes a word, where tokens are
            subwords.
        edges: the largest count of every bin but the last.

    Baevski and Auli 2019, figures 2 to 5.

    Example:
        >>> from anymax.evaluation import LossByFrequency, Windows, perplexity
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(4, 8), FullOutput(4, 8), LSTMConfig(8, 8))
        >>> tokens, counts = torch.tensor([2, 3, 0, 2, 2, 0]), [30, 0, 500, 20]
        >>> by_frequency = LossByFrequency(tokens, counts, eos=0, edges=(100,))
        >>> _ = perplexity(model, tokens, Windows(4), eos=0, each=by_frequency.add)
        >>> [bin.num_words for bin in by_frequency.table().by_word]
        [3, 3]
    """

    def __init__(
        self,
        words: Tensor,
        counts: Sequence[int] | Tensor,
        *,
        eos: int,
        subwords: Tensor | None = None,
        ends_word: Tensor | None = None,
        edges: Sequence[int] = EDGES,
    ) -> None:
        if (subwords is None) != (ends_word is None):
            raise ValueError("subwords and ends_word must be given together or not at all; one alone says nothing")
        if list(edges) != sorted(set(edges)):
            raise ValueError(f"edges must rise, got {tuple(edges)}")
        self.words = words
        self.eos = eos
        self.edges = tuple(edges)
        self._bin_of = torch.bucketize(torch.as_tensor(counts), torch.tensor(self.edges, dtype=torch.int64))
        self._numbers = None if subwords is None or ends_word is None else WordNumbers(subwords, ends_word)
        if self._numbers is not None and len(self._numbers) != len(words):
            raise ValueError(
                f"words must be those that the subwords make, {len(self._numbers)}, got {len(words)}; "
                "encode the same text with both lexicons"
            )
        # By word and by previous word: the losses and the words of each bin.
        self._sums = torch.zeros(2, 2, len(self.edges) + 1, dtype=torch.float64)

    def add(self, scored: Scored) -> None:
        """Take in a stretch of the text; stretches may come in any order."""
        found = self._words_of(scored)
        losses = scored.losses.double()
        for sums, bins in zip(self._sums, (self._bin_of[found.words], self._bin_of[found.previous]), strict=True):
            sums[0] += bins.bincount(losses, sums.shape[1])
            sums[1] += bins.bincount(found.ends.double(), sums.shape[1])

    def table(self, ranks: Ranks = Ranks()) -> FrequencyTable:
        """The means of all losses added so far, over all ranks."""
        sums = torch.tensor(ranks.sum(self._sums.flatten().tolist()), dtype=torch.float64).view_as(self._sums)
        return FrequencyTable(*(self._bins(*of_kind.tolist()) for of_kind in sums))

    def _words_of(self, scored: Scored) -> _Found:
        start, end = scored.start, scored.start + len(scored.tokens)
        if self._numbers is None:
            numbers, ends = torch.arange(start, end), torch.ones(end - start, dtype=torch.bool)
        else:
            numbers, ends = self._numbers.of(start, end), self._numbers.ends_word[scored.tokens]
        first, last = int(numbers[0]), int(numbers[-1])
        before = torch.tensor([self.eos]) if first == 0 else self.words[first - 1 : first].long()
        around = torch.cat([before, self.words[first : last + 1].long()])
        return _Found(around[numbers - first + 1], around[numbers - first], ends)

    def _bins(self, losses: list[float], counts: list[float]) -> tuple[Bin, ...]:
        total = max(1.0, sum(counts))
        bounds = zip([None, *self.edges], [*self.edges, None], strict=True)
        return tuple(
            Bin(above, most, int(count), count / total, loss / count if count else None)
            for (above, most), loss, count in zip(bounds, losses, counts, strict=True)
        )


class _Found(NamedTuple):
    """For every token of a stretch: its word, the word before that, and whether the token ends its word."""

    words: Tensor
    previous: Tensor
    ends: Tensor


def _short(count: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "K")):
        if count >= size and count % size == 0:
            return f"{count // size}{letter}"
    return str(count)


BY_WORD = "Loss by the training frequency of the word"
BY_PREVIOUS = "Loss by the training frequency of the previous word"

# By the names of the models.
Models = Mapping[str, FrequencyTable]


def tables(models: Models) -> tuple[Table, ...]:
    """A table by word and one by previous word, with a column for each model."""
    head = ("count up to", "words", "share", *models)
    return tuple(Table(head, tuple(_rows(of_models)), title) for title, of_models in _kinds(models))


def figure(models: Models) -> Figure:
    """Both tables as groups of bars, one bar for each model; bins without words are left out."""
    kinds = _kinds(models)

    def draw_both(canvas: Canvas) -> None:
        for axes, (title, of_models) in zip(canvas.subplots(1, 2), kinds, strict=True):
            draw(axes, of_models)
            below = "count in training text up to; below it the share of words"
            axes.set(title=title, xlabel=below, ylabel="loss per word")
        legend_below(canvas, axes, columns=5)

    return Figure("Loss by the training frequency of the word and of the previous word", draw_both)


def draw(axes: Axes, of_models: Mapping[str, Sequence[Bin]]) -> None:
    """Groups of bars, one bar for each model; bins without words are left out."""
    some = next(iter(of_models.values()))
    filled = [place for place in range(len(some)) if any(bins[place].num_words for bins in of_models.values())]
    width = 0.8 / len(of_models)
    for number, (name, bins) in enumerate(of_models.items()):
        shift = (number - (len(of_models) - 1) / 2) * width
        losses = [bins[place].loss or 0.0 for place in filled]
        places = [at + shift for at in range(len(filled))]
        # A name is no formula.
        label = printable(name).replace("$", r"\$")
        axes.bar(places, losses, width * 0.92, label=label, color=COLOURS[number % len(COLOURS)])
    axes.set_xticks(range(len(filled)), [f"{some[place].label}\n{some[place].share:.1%}" for place in filled])
    clean(axes)


def _rows(of_models: Mapping[str, tuple[Bin, ...]]) -> Iterator[Row]:
    for of_bin in zip(*of_models.values(), strict=True):
        first = of_bin[0]
        losses = ["" if bin.loss is None else f"{bin.loss:.3f}" for bin in of_bin]
        yield (first.label, f"{first.num_words:,}", f"{first.share:.1%}", *losses)


def _kinds(models: Models) -> list[tuple[str, dict[str, tuple[Bin, ...]]]]:
    if not models:
        raise ValueError("models must hold at least one, got none")
    (first, some), *others = models.items()
    for name, table in others:
        if _words(table) != _words(some):
            raise ValueError(
                f"models must be measured on the same words in the same bins, but {name!r} differs from {first!r}; "
                "measure both on one text, with the counts of one lexicon"
            )
    return [
        (BY_WORD, {name: table.by_word for name, table in models.items()}),
        (BY_PREVIOUS, {name: table.by_previous for name, table in models.items()}),
    ]


def _words(table: FrequencyTable) -> list[tuple[int | None, int]]:
    return [(bin.most, bin.num_words) for bin in (*table.by_word, *table.by_previous)]


# Words are counted once up to the start of every chunk, and within a chunk when it is looked into.
CHUNK = 1 << 16


class WordNumbers:
    """Subwords to words: a word is all the subwords up to one that ends it.

    Args:
        tokens: the stream of subwords; may be mapped from a file.
        ends_word: true for every id that completes a word.
    """

    def __init__(self, tokens: Tensor, ends_word: Tensor) -> None:
        self.tokens = tokens
        self.ends_word = ends_word.cpu()
        in_chunks = [0, *(int(self.ends_word[chunk.long()].sum()) for chunk in tokens.split(CHUNK))]
        self._before = torch.tensor(in_chunks).cumsum(0)

    def __len__(self) -> int:
        """How many words end in the stream."""
        return int(self._before[-1])

    def of(self, start: int, end: int) -> Tensor:
        """The number, from 0, of the word that each subword from `start` to `end` belongs to, int64."""
        chunk = start // CHUNK
        subwords = self.tokens[chunk * CHUNK : end].long()
        ended = self.ends_word[subwords].cumsum(0)
        # A subword that ends a word still belongs to it.
        before = torch.cat([ended.new_zeros(1), ended[:-1]])
        return (before + self._before[chunk])[start - chunk * CHUNK :]
