"""Trainee: a model that takes training steps, timed whole or part by part."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from anymax.models import LanguageModel

# What is read, and what is to be predicted.
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Parts:
    """Milliseconds of one step: forward and backward of each part of the model, then clipping and the update."""

    input: float
    body: float
    output: float
    optimizer: float


class Trainee:
    """Called, it takes one step: forward, backward, clipping of gradients and AdamW, fused and dense.

    Args:
        batches: taken in turn, again and again.
        setting: what was chosen for the model, if anything was.
    """

    def __init__(self, name: str, model: LanguageModel, batches: Sequence[Pair], setting: str = "") -> None:
        self.name = name
        self.setting = setting
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
        self._batches = cycle(batches)

    def __call__(self) -> float:
        """The loss of the batch."""
        loss = self.model(*next(self._batches))
        loss.backward()
        self._update()
        return loss.item()

    def parts(self) -> Parts:
        """Take a step and return the time of each part."""
        ids, target = next(self._batches)
        vectors: list[Tensor] = []
        marks = [time.perf_counter()]

        def cut(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            """End the graph before the first layer, so that the input's backward can be called by itself."""
            marks.append(time.perf_counter())
            vectors.extend([args[0], args[0].detach().requires_grad_()])
            return (vectors[1], *args[1:])

        handle = self.model.layers()[0].register_forward_pre_hook(cut)
        hidden = self.model.hidden(ids)
        handle.remove()
        marks.append(time.perf_counter())
        leaf = hidden.detach().requires_grad_()
        self.model.output(leaf, target).backward()
        marks.append(time.perf_counter())
        hidden.backward(leaf.grad)
        marks.append(time.perf_counter())
        vectors[0].backward(vectors[1].grad)
        marks.append(time.perf_counter())
        self._update()
        marks.append(time.perf_counter())
        took = [1e3 * (end - start) for start, end in pairwise(marks)]
        input, body, output, body_back, input_back, optimizer = took
        return Parts(input + input_back, body + body_back, output, optimizer)

    @property
    def held_bytes(self) -> int:
        """What parameters and the optimizer's moments take, which stays between steps."""
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.model.parameters(), *states))

    def _update(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
