"""The configuration of the Dirichlet experiment, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from anymax.checks import check_counts, check_positive, given
from anymax.training.task_config import TaskConfig
from anymax.vocabulary.config import FullOutputConfig, MixtureOutputConfig, SparseOutputConfig

if TYPE_CHECKING:
    from anymax.data.prepared.prepared import Announce
    from anymax.distributed.ranks import Ranks
    from anymax.training.tasks.dirichlet.task import DirichletTask


@dataclass(frozen=True)
class DirichletConfig(TaskConfig):
    """Distributions drawn at random, one for every context, and a model with a free vector for every context.

    What the model cannot learn, its output layer cannot express, or training does not find: nothing is computed from
    what stands in a context, and nothing is sampled. Ganea et al. 2019.

    Args:
        num_contexts: how many distributions there are.
        num_words: over how many words.
        dim: how many numbers the vectors of contexts and words have.
        concentration: the parameter of the symmetric Dirichlet distribution they are drawn from; a small one gives most
            of the probability to few words.
        output: what turns the vector of a context into a distribution.
        batch_size: contexts of a batch, over all ranks; None takes all.

    Example:
        >>> from anymax.training import AdamConfig, Constant, DirichletConfig, RunConfig, train
        >>> from anymax.vocabulary import FullOutputConfig
        >>> task = DirichletConfig(num_contexts=24, num_words=12, dim=4, concentration=0.1, output=FullOutputConfig())
        >>> outcome = train(RunConfig(task, AdamConfig(0.1), Constant(), steps=5), "run")
        >>> outcome.metrics["rank"] <= 5
        True
    """

    num_contexts: int
    num_words: int
    dim: int
    concentration: float
    output: FullOutputConfig | MixtureOutputConfig | SparseOutputConfig
    _: KW_ONLY
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_counts(num_contexts=self.num_contexts, dim=self.dim, **given(batch_size=self.batch_size))
        check_counts(2, num_words=self.num_words)
        check_positive(concentration=self.concentration)
        if self.output.dim is not None:
            raise ValueError(f"output.dim must be None, as dim is the width of all vectors, got {self.output.dim}")
        name = "latent_dropout" if isinstance(self.output, MixtureOutputConfig) else "label_smoothing"
        if getattr(self.output, name) != 0:
            raise ValueError(
                f"output.{name} must be 0, as there is nothing to generalise to, got {getattr(self.output, name)}; "
                "leave it out"
            )

    @property
    def is_likelihood(self) -> bool:
        """Whether the loss is a negative log-probability, so that its exponential is a perplexity."""
        return not isinstance(self.output, SparseOutputConfig)

    def build(self, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> DirichletTask:
        """The task of a run; the seed decides its distributions, whatever the output."""
        from anymax.training.tasks.dirichlet.task import DirichletTask

        return DirichletTask(self, ranks, seed=seed)

    def toy(self) -> Self:
        """The same at a size for tests."""
        return replace(
            self,
            num_contexts=24,
            num_words=12,
            dim=min(self.dim, 4),
            output=self.output.toy(self.dim),
            batch_size=None if self.batch_size is None else 8,
        )
