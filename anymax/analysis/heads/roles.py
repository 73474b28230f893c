"""Roles that a head may have, each a score from 0 to 1 at the queries where it can be seen.

The confidence of a head in a role is the mean of its scores. Shapes: G heads, Q queries, K keys, N queries that count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.training.observed import Example

# Words that ask, where none are named.
INTERROGATIVES = ("who", "whom", "whose", "what", "which", "when", "where", "why", "how")
QUESTION_MARK = "?"


class Scores(NamedTuple):
    """How much each head plays a role in an example."""

    queries_N: Tensor
    """The queries where the role can be seen."""
    scores_GN: Tensor
    """The score of each head there."""


class Role(ABC):
    """What a head may do, and how much it does."""

    @property
    @abstractmethod
    def name(self) -> str:
        """As a table has it."""

    @property
    @abstractmethod
    def meaning(self) -> str:
        """What its score is a mean of."""

    @abstractmethod
    def scores(self, example: Example) -> Scores | None:
        """The scores in an example; None for attention of a kind in which there is no such role."""


@dataclass(frozen=True)
class Position(Role):
    """Looks at the position itself, or at one beside it: the weight there, at every query that has it.

    For self-attention; in a decoder no position after a query can be looked at.

    Args:
        offset: -1 is the position before.
    """

    offset: int

    @property
    def name(self) -> str:
        return f"position {self.offset:+d}" if self.offset else "position 0"

    @property
    def meaning(self) -> str:
        where = {-1: "the position before", 0: "the position itself", 1: "the position after"}
        return f"the weight on {where.get(self.offset, f'the position at {self.offset:+d}')}"

    def scores(self, example: Example) -> Scores | None:
        if example.kind == "cross" or (example.kind == "decoder" and self.offset > 0):
            return None
        queries_N = torch.arange(len(example.queries))
        keys_N = queries_N + self.offset
        exists_N = (keys_N >= 0) & (keys_N < len(example.keys))
        queries_N, keys_N = queries_N[exists_N], keys_N[exists_N]
        return Scores(queries_N, example.weights[:, queries_N, keys_N])


@dataclass(frozen=True)
class Merging(Role):
    """Puts the subwords of a word together: the most weight that one of them has on the others, for each word that is
    cut.

    For self-attention. The score stands at the last subword.

    Args:
        with_whole: count whole words too, each with its weight on itself, as Correia et al.'s code does.
    """

    with_whole: bool = False

    @property
    def name(self) -> str:
        return "merging, whole words too" if self.with_whole else "merging"

    @property
    def meaning(self) -> str:
        words = "every word, a whole one with its weight on itself" if self.with_whole else "every word that is cut"
        return f"the most weight that one subword of a word has on its others, for {words}"

    def scores(self, example: Example) -> Scores | None:
        if example.kind == "cross":
            return None
        queries, scores = list[int](), list[Tensor]()
        for begin, end in example.queries.spans:
            if end - begin > 1 or self.with_whole:
                queries.append(end - 1)
                scores.append(_merged(example.weights[:, begin:end, begin:end]))
        num_heads = len(example.weights)
        scores_GN = torch.stack(scores, 1) if scores else example.weights.new_zeros(num_heads, 0)
        return Scores(torch.tensor(queries, dtype=torch.long), scores_GN)


@dataclass(frozen=True)
class WordToToken(Role):
    """Looks from some words at some token, as from interrogatives at the question mark.

    A query counts where it is one of the words and may attend to the token; its score is the weight on all places of
    the token together. Letters may be small or capital.

    Args:
        words: what queries may be.
        token: the word that keys are.
    """

    words: tuple[str, ...] = INTERROGATIVES
    token: str = QUESTION_MARK

    def __post_init__(self) -> None:
        if not self.words or not all(self.words) or not self.token:
            raise ValueError(f"words and token must be words, got {self.words} and {self.token!r}; name one at least")

    @property
    def name(self) -> str:
        return f'words to "{self.token}"'

    @property
    def meaning(self) -> str:
        shown = ", ".join(self.words[:4]) + (", ..." if len(self.words) > 4 else "")
        return f"the weight on {self.token!r} from {shown}, where it may be attended to"

    def scores(self, example: Example) -> Scores | None:
        wanted = {word.casefold() for word in self.words}
        is_word_Q = torch.tensor([word.casefold() in wanted for word in example.queries.whole], dtype=torch.bool)
        is_token_K = torch.tensor([word.casefold() == self.token.casefold() for word in example.keys.whole])
        reached_QK = example.allowed & is_token_K.bool()
        queries_N = (is_word_Q & reached_QK.any(-1)).nonzero()[:, 0]
        weights_GNK = example.weights[:, queries_N] * reached_QK[queries_N]
        return Scores(queries_N, weights_GNK.sum(-1))


def usual_roles(
    words: Sequence[str] = INTERROGATIVES, token: str = QUESTION_MARK, *, whole_words: bool = False
) -> tuple[Role, ...]:
    """The roles that are measured: positions, subwords, and words that look at a token.

    Args:
        words, token: as in `WordToToken`.
        whole_words: `with_whole` of `Merging`.
    """
    positions = (Position(-1), Position(0), Position(1))
    return (*positions, Merging(whole_words), WordToToken(tuple(words), token))


def roles_seen(roles: Sequence[Role], example: Example) -> Iterator[tuple[Role, Scores]]:
    """The roles that can be seen in an example, with their scores."""
    for role in roles:
        scores = role.scores(example)
        if scores is not None and len(scores.queries_N):
            yield role, scores


def _merged(inside_GSS: Tensor) -> Tensor:
    """Of each head the most weight that one subword of a word has on the others; of a single one, on itself."""
    if inside_GSS.shape[-1] == 1:
        return inside_GSS[:, 0, 0]
    others_SS = ~torch.eye(inside_GSS.shape[-1], dtype=torch.bool)
    return (inside_GSS * others_SS).sum(-1).amax(-1)
