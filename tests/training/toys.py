"""A task small enough to train in an instant: words of a random stream, tied tables, dropout, a state if wanted."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anymax.data import Batch, Batches, BlockBatches, ContiguousBatches, RandomLengths
from anymax.data.prepared.prepared import Announce
from anymax.training import AdamWConfig, Constant, Ranks, RunConfig, Step, Task, TaskConfig
from anymax.training.reporting import Silent
from anymax.vocabulary import FixedInput, FullOutput, tie_

WORDS, DIM = 13, 8


@dataclass(frozen=True)
class Toy(TaskConfig):
    """A config as tasks have them.

    Args:
        carries: read parallel rows with a state, else shuffled blocks.
        num_tokens: of the training stream.
        nan_from: the loss is undefined from this number of calls of `step` on.
        pace: seconds that a batch takes longer.
        random_lengths: draw how long the batches are; for rows with a state.
        penalty: how much the squares of the state after a batch are added to its loss.
        bias_rate: how fast the biases of the output learn, as a share of the others' rate.
        name: what the identity is the hash of.
    """

    carries: bool = False
    dropout: float = 0.3
    num_tokens: int = 150
    batch_size: int = 4
    dim: int = DIM
    nan_from: int | None = None
    pace: float = 0.0
    name: str = "a"
    random_lengths: bool = False
    penalty: float = 0.0
    bias_rate: float = 1.0

    def build(self, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> ToyTask:
        announce("building")
        return ToyTask(self, ranks, seed)

    def toy(self) -> Toy:
        return replace(self, num_tokens=60)


class ToyModel(nn.Module):
    """A table for words in and out, and a recurrent or plain layer between."""

    def __init__(self, config: Toy) -> None:
        super().__init__()
        self.input = FixedInput(WORDS, config.dim)
        self.body = nn.Sequential(nn.Linear(2 * config.dim, config.dim), nn.Tanh(), nn.LayerNorm(config.dim))
        self.output = FullOutput(WORDS, config.dim, bias=True)
        self.dropout = nn.Dropout(config.dropout)
        self.weight, self.penalty = config.penalty, 0.0
        self.register_buffer("scale", torch.tensor(1.5))
        tie_(self.input, self.output)

    def forward(self, ids: Tensor, target: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The summed loss and the state after the last position; `penalty` is what the state added."""
        vectors = self.dropout(self.input(ids)) * self.scale
        hidden = []
        for position in range(ids.shape[1]):
            state = self.body(torch.cat([vectors[:, position], state], dim=1))
            hidden.append(state)
        loss_sum = self.output(torch.stack(hidden, dim=1), target, "sum")
        if self.weight and self.training:
            penalty = self.weight * state.square().sum()
            loss_sum, self.penalty = loss_sum + penalty, float(penalty.detach())
        return loss_sum, state.detach()


class ToyTask(Task):
    """Predict the next word of a stream that can be learned."""

    goal = "loss"
    item = "word"

    def __init__(self, config: Toy, ranks: Ranks, seed: int) -> None:
        self.config = config
        self.ranks = ranks
        self.seed = seed
        self.model = ToyModel(config)
        self.calls = 0

    def batches(self, split: str) -> Batches:
        tokens = stream(self.config.num_tokens if split == "train" else 40, seed=0 if split == "train" else 1)
        rest = {"eos": 0, "rank": self.ranks.rank, "world_size": self.ranks.world_size}
        if self.config.carries:
            lengths = RandomLengths(0.3, 2.0, 2) if self.config.random_lengths else None
            return ContiguousBatches(tokens, self.config.batch_size, 6, random_lengths=lengths, seed=self.seed, **rest)
        return BlockBatches(tokens, 5, self.config.batch_size, seed=self.seed, **rest)

    def step(self, model: nn.Module, batch: Batch, carry: Tensor | None) -> Step:
        time.sleep(self.config.pace)
        self.calls += 1
        state = torch.zeros(len(batch.ids), self.config.dim) if carry is None else carry
        loss_sum, state = model(batch.ids, batch.target, state)
        if self.config.nan_from is not None and self.calls >= self.config.nan_from:
            loss_sum = loss_sum * torch.nan
        count = int(batch.lengths.sum())
        carry = state if self.config.carries else None
        return Step(loss_sum, count, carry, {"rows": float(len(batch.ids))}, self.model.penalty, batch.lr_factor)

    def carry_state(self, carry: Tensor | None) -> dict[str, Tensor]:
        return {} if carry is None else {"state": carry}

    def load_carry(self, tensors: dict[str, Tensor]) -> Tensor:
        return tensors["state"]

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        assert not model.training and not torch.is_grad_enabled()
        # Randomness that must not leak into training.
        torch.rand(3)
        loss, count = 0.0, 0
        for batch in self.batches(split):
            state = torch.zeros(len(batch.ids), self.config.dim)
            loss += float(model(batch.ids, batch.target, state)[0])
            count += int(batch.lengths.sum())
        loss, total = self.ranks.sum([loss, count])
        return {"loss": loss / total, "words": total}

    def save(self, folder: Path) -> None:
        (folder / "toy.txt").write_text(self.config.name)

    def identity(self) -> dict[str, str]:
        return {"stream": f"hash of {self.config.name}"}

    def watch(self) -> dict[str, float]:
        return {"scale": float(self.model.scale)}

    def lr_factors(self) -> dict[nn.Parameter, float]:
        return {} if self.config.bias_rate == 1 else {self.model.output.bias: self.config.bias_rate}

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        return [(self.model.output, method) for method in self.model.output.forward_methods]

    def groups(self) -> list[list[nn.Module]]:
        # The body is what is left, and is sharded with the model itself.
        return [[self.model.input, self.model.output]]


class StoppingAt(Silent):
    """Asks the run to stop after a step, as Ctrl-C or a scheduler would, and keeps its messages."""

    def __init__(self, step: int | None = None, number: signal.Signals = signal.SIGTERM) -> None:
        self.step = step
        self.number = number
        self.messages: list[Any] = []

    def advanced(self, step: int, loss: float) -> None:
        if step == self.step:
            signal.raise_signal(self.number)

    def message(self, text: str) -> None:
        self.messages.append(text)


def stream(length: int, *, seed: int) -> Tensor:
    """Words that mostly follow from the one before."""
    generator = torch.Generator().manual_seed(seed)
    words = [1]
    for jump in torch.randint(0, 5, (length - 1,), generator=generator).tolist():
        words.append((words[-1] * 3 + (1 if jump else 5)) % WORDS)
    return torch.tensor(words)


def toy_config(task: Toy | None = None, **changes: Any) -> RunConfig:
    """A run of seven steps; two epochs of blocks are a little less."""
    plain: dict[str, Any] = {
        "steps": 7,
        "device": "cpu",
        "threads": 1,
        "log_every": 2,
        "evaluate_every": 3,
        "checkpoint_every": 2,
        "clip": 1.0,
    }
    optimizer = changes.pop("optimizer", AdamWConfig(0.05))
    schedule = changes.pop("schedule", Constant(2))
    return RunConfig(task or Toy(), optimizer, schedule, **{**plain, **changes})


def patient(done: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.002)
