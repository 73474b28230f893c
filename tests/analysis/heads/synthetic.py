"""Attention with known answers, and slow definitions to compare with, in plain loops."""

import math

import torch
from torch import Tensor

from anymax.attention.capture import Kind
from anymax.training import Observed, Sentence

WORDS = ("what", "do", "the", "heads", "see", "?")


def sentence(length: int) -> Sentence:
    """Whole words."""
    return Sentence.of_words([WORDS[i % len(WORDS)] for i in range(length)])


def observed(kind: Kind, layers: list[Tensor], queries: list[Sentence], keys: list[Sentence] | None = None) -> Observed:
    """A batch of one kind of attention; by default keys are what queries are."""
    return Observed({kind: layers}, {kind: queries}, {kind: queries if keys is None else keys})


def shifted(length: int, offset: int) -> Tensor:
    """All weight on the position at an offset; where there is none, on the position itself."""
    weights = torch.zeros(length, length)
    for query in range(length):
        key = query + offset
        weights[query, key if 0 <= key < length else query] = 1.0
    return weights


def uniform(length: int) -> Tensor:
    return torch.full((length, length), 1 / length)


def random_sparse(*shape: int, kind: Kind = "encoder") -> Tensor:
    """Distributions over keys of which about half are exactly zero, in a decoder over no later ones."""
    scores = torch.rand(*shape) - 0.5
    scores[..., 0] = 0.5
    if kind == "decoder":
        scores = scores.tril()
    kept = scores.clamp(min=0)
    return kept / kept.sum(-1, keepdim=True)


def entropy(probs: list[float]) -> float:
    return -sum(p * math.log(p) for p in probs if p > 0)


def js_by_hand(heads: list[list[float]]) -> float:
    """The Jensen-Shannon divergence of distributions."""
    mean = [sum(column) / len(heads) for column in zip(*heads, strict=True)]
    return entropy(mean) - sum(map(entropy, heads)) / len(heads)


def possible(kind: Kind, num_queries: int, num_keys: int) -> list[tuple[int, int]]:
    """The cells that there are."""
    return [(q, k) for q in range(num_queries) for k in range(num_keys) if kind != "decoder" or k <= q]
