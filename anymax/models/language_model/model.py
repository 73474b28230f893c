"""What every language model promises: words in, the loss of the words that follow out, a cache to continue from."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anymax.vocabulary import FullOutput, OutputLayer, SparseOutput


@dataclass
class Prompted:
    """Where a language model stands in decoding: what it has read, and what of the prompts it has yet to read."""

    cache: Any
    unread: Tensor | None


class LanguageModel(nn.Module, ABC):
    """A model that reads words and predicts each next one.

    What a call read can be kept in a cache of `new_cache`, which the call changes: the next call with it continues from
    there. Of which type it is, only the model needs to know.

    It is a `Generator` of `anymax.decoding`, which decodes from prompts, (batch, positions), all of one length.

    Example:
        >>> from anymax.models import LSTMLM, LanguageModel, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model: LanguageModel = LSTMLM(FixedInput(20, 8), FullOutput(20, 8), LSTMConfig(8, 8))
        >>> ids = torch.randint(20, (2, 6))
        >>> cache = model.new_cache(max_length=6)
        >>> parts = torch.cat([model.hidden(ids[:, :4], cache), model.hidden(ids[:, 4:], cache)], 1)
        >>> torch.allclose(parts, model.hidden(ids), atol=1e-6)
        True
    """

    # Whether training continues in a batch from where the batch before ended, by a cache that is passed on.
    carries_state: ClassVar[bool]
    input: nn.Module
    output: OutputLayer
    # What the last forward added to its loss that is no loss of words, as penalties in training: reduced as the loss,
    # without gradient; None where nothing was added.
    penalty: Tensor | None = None

    def forward(self, ids: Tensor, target: Tensor, reduction: str = "mean", cache: Any = None) -> Tensor:
        """The loss of predicting `target`, the words that follow `ids`, both (batch, positions).

        Args:
            reduction: "mean", "sum" or "none", as the output layer has them.
            cache: of `new_cache`, with what stands before `ids`, which are added to it.
        """
        return self.output(self.hidden(ids, cache), target, reduction)

    @abstractmethod
    def hidden(self, ids: Tensor, cache: Any = None) -> Tensor:
        """The vectors that the output layer reads, (batch, positions, its model_dim); arguments as in `forward`."""

    @abstractmethod
    def new_cache(self, max_length: int) -> Any:
        """An empty cache, with room for `max_length` positions where it needs room.

        It has a method `reorder(index)`, which keeps the rows of the batch that are named, or is a list of such.
        """

    @abstractmethod
    def layers(self) -> list[nn.Module]:
        """The modules between input and output that are worth sharding one by one."""

    def in_order(self) -> list[nn.Module]:
        """The modules that are worth sharding one by one, in the order they run."""
        return [self.input, *self.layers(), self.output]

    def first_words(self, prompts: Tensor, eos: int) -> Tensor:
        """The last word of each prompt, (batch,), which the first call of `next` reads."""
        check_ids(prompts)
        return prompts[:, -1]

    def start(self, prompts: Tensor, *, max_length: int) -> Prompted:
        """The state before the last word of each prompt, with room for `max_length` calls of `next`."""
        check_ids(prompts)
        return Prompted(self.new_cache(prompts.shape[1] - 1 + max_length), prompts[:, :-1])

    def next(self, ids: Tensor, state: Prompted) -> tuple[Tensor, Prompted]:
        """Read one more word of each text, (batch,), the first time with the prompt before it.

        Gives the vectors that the output layer reads, (batch, its model_dim), and the state, which it changes.
        """
        ids = ids[:, None]
        if state.unread is not None:
            ids, state.unread = torch.cat([state.unread, ids], 1), None
        return self.hidden(ids, state.cache)[:, -1], state

    def reorder(self, state: Prompted, index: Tensor) -> Prompted:
        """The state, changed to the rows that `index` names, (new batch,), in its order."""
        for cache in state.cache if isinstance(state.cache, list) else [state.cache]:
            cache.reorder(index)
        if state.unread is not None:
            state.unread = state.unread.index_select(0, index)
        return state

    def attention_layers(self) -> dict[str, list[nn.Module]]:
        """Layers in which heads attend, by the name that stands before their number in logs."""
        return {"layer": self.layers()}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and targets as they are; afterwards every module is as it was."""
    was_training = [(module, module.training) for module in model.modules()]
    outputs = [module for module in model.modules() if isinstance(module, FullOutput | SparseOutput)]
    was_smoothed = [(output, output.label_smoothing) for output in outputs]
    model.eval()
    for output in outputs:
        output.label_smoothing = 0.0
    try:
        yield
    finally:
        for module, training in was_training:
            module.training = training
        for output, smoothing in was_smoothed:
            output.label_smoothing = smoothing


def check_ids(ids: Tensor) -> None:
    if ids.dim() != 2 or ids.shape[1] == 0:
        raise ValueError(f"ids must be (batch, positions) with at least one position, got {tuple(ids.shape)}")


def check_output(output: OutputLayer, name: str, width: int) -> None:
    if output.model_dim != width:
        raise ValueError(
            f"output must have the {name} of the config, {width}, got {output.model_dim}; build both with one number"
        )


def check_vectors(vectors: Tensor, name: str, width: int) -> None:
    if vectors.shape[-1] != width:
        raise ValueError(
            f"input must give vectors of the config's {name}, {width}, got {vectors.shape[-1]}; "
            "build both with one number"
        )
