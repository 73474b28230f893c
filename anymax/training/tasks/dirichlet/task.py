"""The Dirichlet experiment as a task: distributions drawn at random, and how near a model comes to them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from anymax.data.batches.batches import RowBatches
from anymax.data.dirichlet import draw_log_targets
from anymax.data.text.corpus import Split
from anymax.distributed.ranks import Ranks
from anymax.evaluation.distributions import nearness
from anymax.evaluation.rank.rank import matrix_rank
from anymax.models.free_contexts import FreeContexts
from anymax.models.language_model.building import output_rates
from anymax.training.checkpoint.tensors import whole_copy
from anymax.training.task import Step, Task
from anymax.training.tasks.dirichlet.config import DirichletConfig


class DirichletTask(Task):
    """Give every context the distribution that was drawn for it.

    All splits are the same contexts: there is nothing to generalise to.

    Args:
        seed: decides the distributions and the order of the batches.
    """

    item = "context"

    def __init__(self, config: DirichletConfig, ranks: Ranks, *, seed: int) -> None:
        self.config = config
        self.ranks = ranks
        self.seed = seed
        self.goal = "kl" if config.is_likelihood else "loss"
        self.model: FreeContexts = _model(config)
        self.log_targets = draw_log_targets(config.num_contexts, config.num_words, config.concentration, seed=seed)
        targets = self.log_targets.exp().float()
        # Numbers below the normal range add nothing and are slow to compute with.
        self._targets = torch.where(targets < torch.finfo(torch.float32).tiny, 0, targets).to(ranks.device)

    def batches(self, split: Split) -> RowBatches:
        ranks, config = self.ranks, self.config
        return RowBatches(
            config.num_contexts, config.batch_size, seed=self.seed, rank=ranks.rank, world_size=ranks.world_size
        )

    def step(self, model: nn.Module, batch: Tensor, carry: None) -> Step:
        contexts = batch.to(self.ranks.device)
        return Step(model(contexts, self._targets[contexts]), len(batch))

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """How near all distributions are, in float64; the numerical rank of the matrix of their log-probabilities.

        A sparse output has its own loss instead of cross-entropy, and no rank, as some logarithms are infinite.
        """
        exact = self._exact(model)
        log_probs = exact.log_probs()
        if not self.config.is_likelihood:
            contexts = torch.arange(self.config.num_contexts)
            loss = float(exact(contexts, self.log_targets.exp())) / self.config.num_contexts
            return {"loss": loss, **nearness(log_probs, self.log_targets, has_zeros=True)}
        return {**nearness(log_probs, self.log_targets, has_zeros=False), "rank": float(_rank(log_probs))}

    def save(self, folder: Path) -> None:
        """Nothing: the seed of the config draws the same distributions again."""

    def identity(self) -> dict[str, str]:
        # Of the modes: they differ where the draw does, and the last digit of a logarithm does not touch them.
        described = f"{self.config.concentration} {self.log_targets.argmax(1).tolist()}"
        return {"draw": hashlib.sha256(described.encode()).hexdigest()}

    def rates(self) -> dict[nn.Parameter, float]:
        return output_rates(self.config.output, self.model.output)

    def _exact(self, model: nn.Module) -> FreeContexts:
        """The model in float64 on the CPU, whole on every rank: in float32 rounding would fill up the rank."""
        exact = whole_copy(model, lambda: _model(self.config), dtype=torch.float64)
        assert isinstance(exact, FreeContexts)
        return exact.eval()


def _rank(log_probs: Tensor) -> int:
    num_contexts, num_words = log_probs.shape
    return matrix_rank([log_probs], num_contexts=num_contexts, num_words=num_words).rank


def _model(config: DirichletConfig) -> FreeContexts:
    return FreeContexts(config.num_contexts, config.output.build(config.num_words, config.dim))
