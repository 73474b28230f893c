"""Observed: where the heads of a model look in a batch of examples, and what stands there, to be read and measured.

Shapes: B examples of the batch, H heads of a layer, Q queries, K keys; G heads of all layers, one layer after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anymax.attention.capture import Kind

if TYPE_CHECKING:
    from anymax.data.units.units import Units


@dataclass(frozen=True)
class Sentence:
    """What the queries or the keys of an example stand for.

    Args:
        units: words or subwords as they are read by people, without a tokenizer's marks.
        words: of each unit the number of the word that it is a part of, which rises along the sentence.

    Example:
        >>> from anymax.training import Sentence
        >>> sentence = Sentence(units=("low", "er", "prices"), words=(0, 0, 1))
        >>> sentence.spans, sentence.whole
        ([(0, 2), (2, 3)], ['lower', 'lower', 'prices'])
    """

    units: tuple[str, ...]
    words: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.units) != len(self.words) or list(self.words) != sorted(self.words):
            raise ValueError(
                f"words must have a number for each of the {len(self.units)} units, and they must not fall, "
                f"got {self.words}"
            )

    @classmethod
    def of(cls, units: Units, ids: Sequence[int]) -> Sentence:
        """The sentence of ids; a word ends where its last subword stands."""
        names, numbers, number = units.lexicon.decode(ids), list[int](), 0
        for id in ids:
            numbers.append(number)
            number += units.ends_word[id]
        if units.subwords is not None:
            names = [units.subwords.join([name])[0] for name in names]
        return cls(tuple(names), tuple(numbers))

    @classmethod
    def of_words(cls, words: Sequence[str]) -> Sentence:
        """A sentence whose units are whole words."""
        return cls(tuple(words), tuple(range(len(words))))

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Where each word begins, and where it has ended."""
        edges = [i for i in range(len(self)) if not i or self.words[i] != self.words[i - 1]]
        return list(zip(edges, [*edges[1:], len(self)], strict=True))

    @cached_property
    def whole(self) -> list[str]:
        """Of each unit the word that it is a part of."""
        return ["".join(self.units[begin:end]) for begin, end in self.spans for _ in range(begin, end)]

    def __len__(self) -> int:
        return len(self.units)


@dataclass(frozen=True, eq=False)
class Example:
    """Where all heads of one kind of attention look in one example, without padding.

    Args:
        weights: (heads of all layers, queries, keys), one layer after another.
    """

    kind: Kind
    weights: Tensor
    queries: Sentence
    keys: Sentence

    @cached_property
    def allowed(self) -> Tensor:
        """(queries, keys): where a query may attend to a key, which in a decoder is to itself and those before."""
        allowed_QK = torch.ones(self.weights.shape[1:], dtype=torch.bool)
        return allowed_QK.tril() if self.kind == "decoder" else allowed_QK


@dataclass(frozen=True, eq=False)
class Observed:
    """Where the heads of a model look in a batch of examples.

    Args:
        weights: of every kind of attention, for each layer (batch, heads, queries, keys), as `capture` records them.
        queries: of every kind, for each example what its queries stand for. Their number is its length; what the
            weights have beyond is padding.
        keys: the same of keys.

    Example:
        >>> from anymax.training import Observed, Sentence
        >>> weights = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).expand(1, 4, 2, 2)  # an example, 4 heads
        >>> sentence = [Sentence.of_words(("the", "cat"))]
        >>> observed = Observed({"decoder": [weights]}, {"decoder": sentence}, {"decoder": sentence})
        >>> observed.num_heads(), next(observed.examples()).weights.shape
        ({'decoder': [4]}, torch.Size([4, 2, 2]))
    """

    weights: Mapping[Kind, Sequence[Tensor]]
    queries: Mapping[Kind, Sequence[Sentence]]
    keys: Mapping[Kind, Sequence[Sentence]]

    def __post_init__(self) -> None:
        for kind, layers in self.weights.items():
            for number, layer_BHQK in enumerate(layers):
                self._check(kind, number, layer_BHQK)

    def examples(self) -> Iterator[Example]:
        """The examples of the batch one by one, of each its kinds of attention."""
        for number in range(len(next(iter(self.queries.values()), ()))):
            for kind, layers in self.weights.items():
                queries, keys = self.queries[kind][number], self.keys[kind][number]
                heads_GQK = torch.cat([layer[number, :, : len(queries), : len(keys)] for layer in layers])
                yield Example(kind, heads_GQK, queries, keys)

    def num_heads(self) -> dict[Kind, list[int]]:
        """Of every kind, how many heads each layer has."""
        return {kind: [layer.shape[1] for layer in layers] for kind, layers in self.weights.items()}

    def _check(self, kind: Kind, number: int, layer_BHQK: Tensor) -> None:
        queries, keys = self.queries.get(kind, ()), self.keys.get(kind, ())
        longest = (max(map(len, queries), default=0), max(map(len, keys), default=0))
        batch, _, num_queries, num_keys = layer_BHQK.shape
        if (len(queries), len(keys)) != (batch, batch) or longest[0] > num_queries or longest[1] > num_keys:
            raise ValueError(
                f"queries and keys must be a sentence for each of the {batch} examples, of at most {num_queries} and "
                f"{num_keys} units, got {len(queries)} and {len(keys)} of at most {longest[0]} and {longest[1]} for "
                f"layer {number} of {kind!r}"
            )
