"""An exponential average of the parameters beside them, which is what is evaluated and saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from anymax.distributed.sharding import own_part
from anymax.training.checkpoint.tensors import Tensors, load_into
from anymax.training.optim.averages import ExponentialAverageConfig


class ExponentialAverage:
    """The average of what parameters were after each step, recent steps counting more.

    Nothing is held until the first step, after which the average is what the parameters are.
    """

    def __init__(self, config: ExponentialAverageConfig, parameters: Sequence[nn.Parameter]) -> None:
        self.config = config
        self.parameters = list(parameters)
        # The averages, or while they are exchanged what parameters were.
        self.held: list[Tensor] = []

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the parameters after a step.

        Args:
            step: its number, from 1.
        """
        if not self.held:
            self.held = [parameter.detach().clone() for parameter in self.parameters]
            return
        averages, parameters = [own_part(held) for held in self.held], [own_part(each) for each in self.parameters]
        torch._foreach_lerp_(averages, parameters, self.config.weight(step))

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """While the block runs, parameters hold their averages, and what they were is held in their place."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def tensors(self, model: nn.Module) -> Tensors:
        """What is held, by the names of the parameters; nothing before the first step."""
        held = {id(parameter): tensor for parameter, tensor in zip(self.parameters, self.held, strict=False)}
        return {name: held[id(parameter)] for name, parameter in model.named_parameters() if id(parameter) in held}

    def restore(self, model: nn.Module, iterates: Tensors, file: Path) -> None:
        """Continue with a model that holds averages, as it was saved.

        Args:
            iterates: what `tensors` gave while they were exchanged.
            file: where they lie.
        """
        self.held = [parameter.detach().clone() for parameter in self.parameters]
        trained = {id(parameter) for parameter in self.parameters}
        ours = {name: parameter for name, parameter in model.named_parameters() if id(parameter) in trained}
        load_into(ours, iterates, file)

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, held in zip(self.parameters, self.held, strict=False):
            ours, theirs = own_part(parameter), own_part(held)
            kept = ours.clone()
            ours.copy_(theirs)
            theirs.copy_(kept)
