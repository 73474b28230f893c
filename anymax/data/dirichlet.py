"""Distributions drawn from a symmetric Dirichlet distribution, and batches of the contexts they belong to."""

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from anymax.data.batches import draw_order, share
from anymax.mappings.arguments import check_positive

# Below it, logarithms of probabilities would leave the range of float64; above it, all words are equally likely.
LEAST, MOST = 1e-6, 1e6


def draw_log_targets(num_contexts: int, num_words: int, concentration: float, *, seed: int) -> Tensor:
    """The log-probabilities of a distribution over words for every context, float64 (contexts, words).

    Independent draws from the Dirichlet distribution whose parameters are all `concentration`. A small one makes most
    probabilities smaller than any number that is not zero, so the draw is of logarithms: a gamma variable of shape c is
    one of shape c + 1 times u ** (1 / c), u uniform.

    Args:
        seed: decides the draw, whatever else was drawn.
    """
    check_positive(num_contexts=num_contexts, num_words=num_words)
    check_concentration(concentration)
    digest = hashlib.sha256(f"{seed} targets".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    shape = torch.full((num_contexts, num_words), concentration + 1, dtype=torch.float64)
    gamma = torch._standard_gamma(shape, generator=generator)
    # One less than a uniform variable that may be 0 but not 1, so that its logarithm exists.
    uniform = 1 - torch.rand(shape.shape, dtype=torch.float64, generator=generator)
    return (gamma.log() + uniform.log() / concentration).log_softmax(-1)


def check_concentration(concentration: float) -> None:
    if not LEAST <= concentration <= MOST:
        raise ValueError(f"concentration must lie from {LEAST:g} to {MOST:g}, got {concentration}")


class ContextBatches:
    """Epochs of batches of contexts, as numbers from 0, in an order drawn anew for each epoch.

    Epoch and position are the state, as of `anymax.data.Batches`, and do not depend on the number of ranks.

    Args:
        batch_size: contexts of a batch over all ranks; None takes all, which makes an epoch one batch.
        seed: decides the order.
        rank, world_size: which share of each batch to give; it may be empty.
    """

    def __init__(
        self, num_contexts: int, batch_size: int | None, *, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.num_contexts = num_contexts
        self.batch_size = num_contexts if batch_size is None else min(batch_size, num_contexts)
        check_positive(num_contexts=num_contexts, batch_size=self.batch_size)
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.position = 0

    def __len__(self) -> int:
        return -(-self.num_contexts // self.batch_size)

    def length(self, epoch: int) -> int:
        """How many batches an epoch has: the same number in each."""
        return len(self)

    def __iter__(self) -> Iterator[Tensor]:
        epoch = self.epoch
        while self.epoch == epoch:
            order = draw_order(self.num_contexts, self.seed, epoch, "contexts")
            chosen = order[self.position * self.batch_size : (self.position + 1) * self.batch_size]
            self.position += 1
            if self.position == len(self):
                self.epoch, self.position = epoch + 1, 0
            first, end = share(len(chosen), self.rank, self.world_size)
            yield chosen[first:end]

    def state_dict(self) -> dict[str, Any]:
        """Which batch comes next, and what the batches were made of: plain values for JSON."""
        return {"epoch": self.epoch, "position": self.position, "made_of": self._made_of()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken; refused for batches made of something else."""
        if state["made_of"] != self._made_of():
            raise ValueError(
                f"state must come from the same batches, {self._made_of()}, but it was made with {state['made_of']}; "
                "use those again"
            )
        self.epoch, self.position = state["epoch"], state["position"]

    def _made_of(self) -> dict[str, int]:
        return {"num_contexts": self.num_contexts, "batch_size": self.batch_size, "seed": self.seed}
