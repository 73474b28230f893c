"""Recurrent networks that take whole training steps: ours as the training loop does, plain torch as one would write it.

Shapes: N positions, B batch, H how wide a layer is.
"""

import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import ClassVar, NamedTuple, ParamSpec

import torch
from torch import Tensor, nn

from anymax.bench.recurrent.twin import PlainLSTM, State
from anymax.bench.training.trainee import Pair
from anymax.distributed.ranks import Ranks
from anymax.models import AWDLSTM, RecurrentState
from anymax.models.lstm.layer import LayerState, LSTMLayer, recurrence
from anymax.regularizers import activation_penalty, temporal_penalty, variational_dropout, weight_drop, word_dropout
from anymax.training.config import RunConfig
from anymax.training.optim.updater import Updater

P = ParamSpec("P")


@dataclass(frozen=True)
class Parts:
    """Milliseconds of one step: forward and backward of each part, then clipping and the update."""

    words: float = 0.0
    weight_masks: float = 0.0
    dropouts: float = 0.0
    recurrences: float = 0.0
    output: float = 0.0
    penalties: float = 0.0
    clip: float = 0.0
    optimizer: float = 0.0


class Stages:
    """Runs functions one after another and their backwards in reverse, each on the clock of a part.

    The graph is cut after every function: what it gives is a leaf, whose gradient is where its backward begins.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._ran: list[_Ran] = []

    def run(self, part: str, function: Callable[P, Tensor], *args: P.args, **kwargs: P.kwargs) -> Tensor:
        """What the function gives, for later stages.

        Args:
            part: a field of `Parts`.
        """
        with self.timed(part):
            result = function(*args, **kwargs)
        leaf = result.detach().requires_grad_()
        self._ran.append(_Ran(part, result, leaf))
        return leaf

    def backward(self, loss: Tensor) -> None:
        """Gradients of a loss that was computed from what stages gave."""
        loss.backward()
        for part, result, leaf in reversed(self._ran):
            with self.timed(part):
                result.backward(leaf.grad)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """The time of the block belongs to a part."""
        start = time.perf_counter()
        yield
        self._seconds[part] += time.perf_counter() - start

    def parts(self) -> Parts:
        return Parts(**{part: 1e3 * seconds for part, seconds in self._seconds.items()})


class _Ran(NamedTuple):
    part: str
    result: Tensor
    leaf: Tensor


class RecurrentTrainee(ABC):
    """Called, it takes one step: forward, backward, clipping of gradients and the optimizer.

    Every batch continues from the state of the one before.

    Args:
        batches: taken in turn, again and again.
    """

    # Whether the loss that is differentiated is the sum over words, else it is the mean.
    is_sum: ClassVar[bool]
    model: nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(self, name: str, batches: Sequence[Pair]) -> None:
        self.name = name
        self.setting = ""
        self._batches = cycle(batches)

    def __call__(self) -> float:
        return self.step(*next(self._batches))

    def step(self, ids: Tensor, target: Tensor) -> float:
        """Learn from a batch; its loss per word, penalties included."""
        loss = self._loss(ids, target)
        loss.backward()
        self._clip(target.numel())
        self._update()
        value = loss.item() / (target.numel() if self.is_sum else 1)
        if not math.isfinite(value):
            raise ValueError(f"the loss of {self.name} must stay finite, got {value}; lower its learning rate")
        return value

    def parts(self) -> Parts:
        """Take a step and return the time of each part."""
        ids, target = next(self._batches)
        stages = Stages()
        stages.backward(self._staged_loss(stages, ids, target))
        with stages.timed("clip"):
            self._clip(target.numel())
        with stages.timed("optimizer"):
            self._update()
        return stages.parts()

    @property
    def held_bytes(self) -> int:
        """What parameters and the optimizer's averages take, which stays between steps."""
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        held = [*self.model.parameters(), *(value for value in states if isinstance(value, Tensor))]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    @abstractmethod
    def _loss(self, ids: Tensor, target: Tensor) -> Tensor: ...

    @abstractmethod
    def _staged_loss(self, stages: Stages, ids: Tensor, target: Tensor) -> Tensor:
        """The same, by stages."""

    @abstractmethod
    def _clip(self, count: int) -> None: ...

    @abstractmethod
    def _update(self) -> None:
        """Change the parameters and drop the gradients."""


class AWDTrainee(RecurrentTrainee):
    """Steps as the training loop takes them; an optimizer that averages does so from the first one on."""

    is_sum = True
    model: AWDLSTM

    def __init__(self, name: str, model: AWDLSTM, config: RunConfig, batches: Sequence[Pair]) -> None:
        super().__init__(name, batches)
        self.model = model
        self._updater = Updater(model, config, Ranks())
        self.optimizer = self._updater.optimizer
        if self._updater.averaging is not None:
            self._updater.averaging.begin()
        self._state = RecurrentState()

    def _loss(self, ids: Tensor, target: Tensor) -> Tensor:
        return self.model(ids, target, "sum", self._state)

    def _staged_loss(self, stages: Stages, ids: Tensor, target: Tensor) -> Tensor:
        model, config = self.model, self.model.config
        size, drop = model.output.vocabulary_size, partial(variational_dropout, dim=0, training=True)
        vectors = stages.run("words", model.input, ids)
        vectors = stages.run("dropouts", word_dropout, vectors, ids, size, config.word_dropout, training=True)
        hidden_NBH = stages.run("dropouts", drop, vectors.transpose(0, 1), config.input_dropout)
        starts = self._state.read(len(ids))
        ends: list[LayerState] = []
        for i, layer in enumerate(model.lstms):
            assert isinstance(layer, LSTMLayer)
            if i > 0:
                hidden_NBH = stages.run("dropouts", drop, hidden_NBH, config.layer_dropout)
            weight_hh = stages.run("weight_masks", weight_drop, layer.weight_hh, layer.weight_dropout, training=True)
            start = None if starts is None else starts[i]
            hidden_NBH = stages.run("recurrences", _read, layer, weight_hh, hidden_NBH, start, ends)
        self._state.write(ends)
        dropped_NBH = stages.run("dropouts", drop, hidden_NBH, config.output_dropout)
        loss = stages.run("output", model.output, dropped_NBH.transpose(0, 1), target, "sum")
        large = stages.run("penalties", activation_penalty, dropped_NBH.transpose(0, 1), kind=config.penalty)
        moved = stages.run("penalties", temporal_penalty, hidden_NBH.transpose(0, 1), kind=config.penalty)
        return loss + target.numel() * (config.activation * large + config.temporal_activation * moved)

    def _clip(self, count: int) -> None:
        self._updater.finish(count)

    def _update(self) -> None:
        self._updater.step(self._updater.config.optimizer.lr, 1)
        self._updater.forget()


class PlainTrainee(RecurrentTrainee):
    """Steps of plain torch, by its SGD.

    Args:
        clip: the largest norm of the gradients.
    """

    is_sum = False
    model: PlainLSTM

    def __init__(self, name: str, model: PlainLSTM, lr: float, clip: float, batches: Sequence[Pair]) -> None:
        super().__init__(name, batches)
        self.model = model
        self.lr = lr
        self.clip = clip
        self.optimizer = torch.optim.SGD(model.parameters(), lr)
        self._states: list[State] | None = None

    def _loss(self, ids: Tensor, target: Tensor) -> Tensor:
        loss, ends = self.model(ids, target, self._states)
        self._states = _detached(ends)
        return loss

    def _staged_loss(self, stages: Stages, ids: Tensor, target: Tensor) -> Tensor:
        ends: list[State] = []
        hidden_NBH = stages.run("words", self.model.words, ids.T)
        for i, lstm in enumerate(self.model.lstms):
            start = None if self._states is None else self._states[i]
            hidden_NBH = stages.run("recurrences", _read_plainly, lstm, hidden_NBH, start, ends)
        self._states = _detached(ends)
        return stages.run("output", self.model.loss, hidden_NBH, target)

    def _clip(self, count: int) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)

    def _update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def _read(
    layer: LSTMLayer, weight_hh: Tensor, vectors_NBH: Tensor, start: LayerState | None, ends: list[LayerState]
) -> Tensor:
    """The layer with its weights already dropped; where it ends is added to `ends`."""
    before = None if start is None else (start[0][None], start[1][None])
    weights = [layer.weight_ih, weight_hh, layer.bias_ih, layer.bias_hh]
    hidden_NBH, last_1BH, cell_1BH = recurrence(vectors_NBH, before, weights)
    ends.append((last_1BH[0], cell_1BH[0]))
    return hidden_NBH


def _read_plainly(lstm: nn.Module, vectors_NBH: Tensor, start: State | None, ends: list[State]) -> Tensor:
    hidden_NBH, end = lstm(vectors_NBH, start)
    ends.append(end)
    return hidden_NBH


def _detached(states: list[State]) -> list[State]:
    return [(hidden.detach(), cell.detach()) for hidden, cell in states]
