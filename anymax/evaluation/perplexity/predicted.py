"""What a language model holds and predicts along a stream, whatever its length: hidden vectors, and whole rows of
log-probabilities a few at a time.

Shapes: B rows of a call, T positions of each, P positions, D the width of hidden vectors, V words.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anymax.data.batches.batches import IGNORE_INDEX
from anymax.evaluation.perplexity.scoring import (
    BATCH_TOKENS,
    FirstWindow,
    Progress,
    WindowKind,
    language_model,
    token_losses,
)
from anymax.models.language_model.model import LanguageModel

# What rows of log-probabilities may take, with what a measurement makes of them.
BLOCK_BYTES = 64 * 2**20
COPIES = 4


class Read(NamedTuple):
    """A stretch of the stream and the vectors it is predicted from."""

    start: int
    """Where in the stream the first of the tokens stands."""
    tokens: Tensor
    """The tokens, int64, one dimension, on the CPU."""
    hidden: Tensor
    """For each the vector that the output layer reads to predict it, (tokens, model_dim), where the model computes."""


class Predicted(NamedTuple):
    """A few tokens of the stream and all that could have stood in their place."""

    start: int
    """Where in the stream the first of the tokens stands."""
    tokens: Tensor
    """The tokens, int64, one dimension, where the model computes."""
    log_probs: Tensor
    """For each the log-probability of every word, (tokens, vocabulary)."""


def hidden_states(
    model: nn.Module,
    tokens: Tensor,
    *,
    eos: int,
    block: int,
    context: int = 0,
    windows: WindowKind = "contiguous",
    first_window: FirstWindow = "block",
    rows: int = 1,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Iterator[Read]:
    """The vectors that every token of a stream is predicted from, each computed once, in the order of `token_losses`.

    Arguments are those of `token_losses`. The model is in evaluation mode until the last stretch was given.
    """
    reader = _Reader(language_model(model))
    scored = token_losses(
        reader,
        tokens,
        eos=eos,
        block=block,
        context=context,
        windows=windows,
        first_window=first_window,
        rows=rows,
        batch_tokens=batch_tokens,
        progress=progress,
    )
    return (Read(stretch.start, stretch.tokens, reader.take(len(stretch.tokens))) for stretch in scored)


def predictions(
    model: nn.Module,
    tokens: Tensor,
    *,
    eos: int,
    block: int,
    context: int = 0,
    windows: WindowKind = "contiguous",
    first_window: FirstWindow = "block",
    rows: int = 1,
    progress: Progress | None = None,
) -> Iterator[Predicted]:
    """The log-probabilities of all words at every token of a stream, so few rows at a time that memory is bounded.

    Arguments are those of `token_losses`.
    """
    read = hidden_states(
        model,
        tokens,
        eos=eos,
        block=block,
        context=context,
        windows=windows,
        first_window=first_window,
        rows=rows,
        progress=progress,
    )
    return _rows(language_model(model), read)


@torch.no_grad()
def _rows(model: LanguageModel, read: Iterator[Read]) -> Iterator[Predicted]:
    rows = max(1, BLOCK_BYTES // (COPIES * 4 * model.output.vocabulary_size))
    for start, tokens_P, hidden_PD in read:
        parts = zip(tokens_P.to(hidden_PD.device).split(rows), hidden_PD.split(rows), strict=True)
        for number, (of_part, hidden_BD) in enumerate(parts):
            yield Predicted(start + number * rows, of_part, model.output.log_probs(hidden_BD))


class _Reader(nn.Module):
    """Stands where a model is scored, and keeps the vectors instead of turning them into losses."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model
        self._kept_PD = torch.empty(0)

    def forward(self, ids_BT: Tensor, target_BT: Tensor, reduction: str, cache: Any = None) -> Tensor:
        hidden_BTD = self.model.hidden(ids_BT, cache)
        self._kept_PD = hidden_BTD[target_BT != IGNORE_INDEX]
        return hidden_BTD.new_zeros(target_BT.shape)

    def take(self, number: int) -> Tensor:
        """The vectors of the next stretch of the last call."""
        taken_PD, self._kept_PD = self._kept_PD[:number], self._kept_PD[number:]
        return taken_PD
