"""Losses added up over a text and over ranks, and the units they are divided by."""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from anymax.data.batches.batches import check_stream
from anymax.evaluation.perplexity.scoring import Scored

Unit = Literal["word", "piece", "byte"]
Reduce = Callable[[Tensor], Tensor]


class Sums(NamedTuple):
    """What a perplexity is made of."""

    loss: float
    num_units: int
    num_tokens: int
    num_unknown: int


def add_up(
    scored: Iterable[Scored],
    *,
    ends_word: Tensor | None = None,
    unk: int | None = None,
    reduce: Reduce | None = None,
    each: Callable[[Scored], None] | None = None,
) -> Sums:
    """The losses and counts of all stretches, in float64; arguments as in `perplexity`."""
    total = torch.zeros(4, dtype=torch.float64)
    ends_word = None if ends_word is None else ends_word.cpu()
    for stretch in scored:
        num_tokens = len(stretch.tokens)
        num_units = num_tokens if ends_word is None else int(ends_word[stretch.tokens].sum())
        num_unknown = 0 if unk is None else int((stretch.tokens == unk).sum())
        loss = stretch.losses.sum(dtype=torch.float64).item()
        total += torch.tensor([loss, num_units, num_tokens, num_unknown], dtype=torch.float64)
        if each is not None:
            each(stretch)
    loss, *counts = (total if reduce is None else reduce(total)).tolist()
    return Sums(loss, *map(int, counts))


def check_words(tokens: Tensor, eos: int, unit: Unit, ends_word: Tensor | None) -> None:
    """The unit is known, and pieces make whole words."""
    check_stream(tokens)
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be one of {get_args(Unit)}, got {unit!r}")
    if ends_word is None:
        return
    if ends_word.dtype != torch.bool or ends_word.dim() != 1:
        raise ValueError(
            f"ends_word must be one true or false per id, got {ends_word.dtype} {tuple(ends_word.shape)}; "
            "convert with .bool()"
        )
    if unit != "word":
        raise ValueError(f"unit must be 'word' where ends_word adds up pieces, got {unit!r}; leave one of them out")
    if not ends_word[eos]:
        raise ValueError(f"ends_word must be true for eos, which counts as a word, got false for {eos}")
    if not ends_word[int(tokens[-1])]:
        raise ValueError(
            f"tokens must end with the last piece of a word, got {int(tokens[-1])}, which ends none; cut them elsewhere"
        )
