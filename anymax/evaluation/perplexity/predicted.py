"""Hidden vectors of a language model along a stream, and the log-probabilities of all words, a few rows at a time.

Shapes: B rows of a call, T positions of each, P positions, D the width of hidden vectors, V words.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anymax.data.batches.batches import IGNORE_INDEX
from anymax.evaluation.perplexity.scoring import (
    BATCH_TOKENS,
    Progress,
    Windows,
    language_model,
    token_losses,
)
from anymax.models.language_model.model import LanguageModel

# Memory for rows of log-probabilities and the copies that a measurement makes of them.
BLOCK_BYTES = 64 * 2**20
COPIES = 4


class Read(NamedTuple):
    """A span of the stream and the vectors it is predicted from.

    Example:
        >>> from anymax.evaluation import Windows, hidden_states
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> span = next(hidden_states(model, torch.tensor([3, 4, 0]), Windows(8), eos=0))
        >>> span.start, span.hidden.shape
        (0, torch.Size([3, 8]))
    """

    start: int
    """The position of the first token in the stream."""
    tokens: Tensor
    """The tokens, int64, one dimension, on the CPU."""
    hidden: Tensor
    """For each the vector that the output layer reads to predict it, (tokens, model_dim), on the model's device."""


class Predicted(NamedTuple):
    """A few tokens of the stream and the predictions for them.

    Example:
        >>> from anymax.evaluation import Windows, predictions
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> part = next(predictions(model, torch.tensor([3, 4, 0]), Windows(8), eos=0))
        >>> part.start, part.tokens.tolist(), part.log_probs.shape
        (0, [3, 4, 0], torch.Size([3, 10]))
    """

    start: int
    """The position of the first token in the stream."""
    tokens: Tensor
    """The tokens, int64, one dimension, on the model's device."""
    log_probs: Tensor
    """For each the log-probability of every word, (tokens, vocabulary)."""


def hidden_states(
    model: nn.Module,
    tokens: Tensor,
    windows: Windows,
    *,
    eos: int,
    read: Tensor | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Iterator[Read]:
    """The vectors that every token of a stream is predicted from, each computed once, in the order of `token_losses`.

    Arguments are those of `token_losses`. The model is in evaluation mode until the last span was given.

    Example:
        >>> from anymax.evaluation import Windows, hidden_states
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> spans = hidden_states(model, torch.randint(10, (20,)), Windows(8), eos=0)
        >>> torch.cat([span.hidden for span in spans]).shape
        torch.Size([20, 8])
    """
    reader = _Reader(language_model(model))
    scored = token_losses(reader, tokens, windows, eos=eos, read=read, batch_tokens=batch_tokens, progress=progress)
    return (Read(span.start, span.tokens, reader.take(len(span.tokens))) for span in scored)


def predictions(
    model: nn.Module,
    tokens: Tensor,
    windows: Windows,
    *,
    eos: int,
    read: Tensor | None = None,
    progress: Progress | None = None,
) -> Iterator[Predicted]:
    """The log-probabilities of all words at every token of a stream, a few rows at a time, so that memory is bounded.

    Arguments are those of `token_losses`.

    Example:
        >>> from anymax.evaluation import Windows, predictions
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> for part in predictions(model, torch.tensor([3, 4, 0]), Windows(8), eos=0):
        ...     print(part.tokens, part.log_probs.shape)
        tensor([3, 4, 0]) torch.Size([3, 10])
    """
    states = hidden_states(model, tokens, windows, eos=eos, read=read, progress=progress)
    return _rows(language_model(model), states)


@torch.no_grad()
def _rows(model: LanguageModel, read: Iterator[Read]) -> Iterator[Predicted]:
    rows = max(1, BLOCK_BYTES // (COPIES * 4 * model.output.vocabulary_size))
    for start, tokens_P, hidden_PD in read:
        parts = zip(tokens_P.to(hidden_PD.device).split(rows), hidden_PD.split(rows), strict=True)
        for number, (of_part, hidden_BD) in enumerate(parts):
            yield Predicted(start + number * rows, of_part, model.output.log_probs(hidden_BD))


class _Reader(nn.Module):
    """Stores the hidden vectors in place of computing losses; passed to `token_losses` as the model."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model
        self._hidden_PD = torch.empty(0)

    def forward(self, ids_BT: Tensor, target_BT: Tensor, reduction: str, cache: Any = None) -> Tensor:
        hidden_BTD = self.model.hidden(ids_BT, cache)
        self._hidden_PD = hidden_BTD[target_BT != IGNORE_INDEX]
        return hidden_BTD.new_zeros(target_BT.shape)

    def take(self, number: int) -> Tensor:
        """The vectors of the next span of the last call."""
        next_PD, self._hidden_PD = self._hidden_PD[:number], self._hidden_PD[number:]
        return next_PD
