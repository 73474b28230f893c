"""Several models that choose each word together, and one as the simplest case of it.

Shapes: R rows, V words, D the width of a model's hidden vectors, K words asked for.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anymax.decoding.protocol import Generator
from anymax.losses.blocks import MOST_BUDGET
from anymax.models.language_model.model import evaluating
from anymax.vocabulary import TopK

# What the output of each model reads.
Hidden = tuple[Tensor, ...]
# Full rows of float32 that are alive for a model, and beside those of all models.
ROWS_OF_MODEL, OTHER_ROWS = 2, 2


class Ensemble:
    """Models of one vocabulary with the mean of their probabilities, and where each stands.

    The mean is over probabilities, not over their logarithms, so that a word is left out only where all models do. A
    single model is asked for its best words alone; several need full rows.
    """

    def __init__(self, models: Generator | Sequence[Generator]) -> None:
        self.models: tuple[Generator, ...] = tuple(models) if isinstance(models, Sequence) else (models,)
        if not self.models:
            raise ValueError("models must be a model or several, got an empty list")
        sizes = [model.output.vocabulary_size for model in self.models]
        if len(set(sizes)) > 1:
            raise ValueError(f"models must have one vocabulary, got sizes {sizes}; use runs with the same lexicon")
        self.vocabulary_size = sizes[0]
        self._states: list[Any] = []

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode for all of them; afterwards every module is as it was."""
        with ExitStack() as stack:
            for model in self.models:
                if isinstance(model, nn.Module):
                    stack.enter_context(evaluating(model))
            yield

    def first_words(self, inputs: Any, eos: int) -> Tensor:
        return self.models[0].first_words(inputs, eos)

    def start(self, inputs: Any, *, max_length: int) -> None:
        self._states = [model.start(inputs, max_length=max_length) for model in self.models]

    def next(self, ids_R: Tensor) -> Hidden:
        read = [model.next(ids_R, state) for model, state in zip(self.models, self._states, strict=True)]
        self._states = [state for _, state in read]
        return tuple(hidden_RD for hidden_RD, _ in read)

    def reorder(self, index: Tensor) -> None:
        self._states = [model.reorder(state, index) for model, state in zip(self.models, self._states, strict=True)]

    def topk(self, hidden: Hidden, k: int) -> TopK:
        """The k likeliest words of every row, best first."""
        if len(self.models) == 1:
            return self.models[0].output.topk(hidden[0], k)
        size = max(1, MOST_BUDGET // (4 * self.vocabulary_size * (ROWS_OF_MODEL * len(hidden) + OTHER_ROWS)))
        blocks = zip(*(hidden_RD.split(size) for hidden_RD in hidden), strict=True)
        best = [self.log_probs(block).topk(k) for block in blocks]
        return TopK(torch.cat([part.values for part in best]), torch.cat([part.indices for part in best]))

    def log_probs(self, hidden: Hidden) -> Tensor:
        """The log-probability of every word, (rows, words)."""
        return _mean([model.output.log_probs(hidden_RD) for model, hidden_RD in zip(self.models, hidden, strict=True)])

    def log_prob(self, hidden: Hidden, words_R: Tensor) -> Tensor:
        """The log-probability of one word for each row."""
        return _mean(
            [model.output.log_prob(hidden_RD, words_R) for model, hidden_RD in zip(self.models, hidden, strict=True)]
        )


def rows_of(hidden: Hidden, index: Tensor) -> Hidden:
    return tuple(hidden_RD[index] for hidden_RD in hidden)


def _mean(log_probs: list[Tensor]) -> Tensor:
    """The logarithm of the mean of probabilities."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))
