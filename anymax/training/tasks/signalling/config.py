"""The configuration of the signalling game, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from anymax.checks import check_counts, check_not_negative, check_positive
from anymax.data.images.config import ImageSet
from anymax.latent.config import EstimatorConfig, ScoreFunctionConfig, check_relaxable
from anymax.training.task_config import TaskConfig

if TYPE_CHECKING:
    from anymax.data.prepared.prepared import Announce
    from anymax.distributed.ranks import Ranks
    from anymax.training.tasks.signalling.task import SignallingTask


@dataclass(frozen=True)
class SignallingConfig(TaskConfig):
    """A sender sees an image and sends one message; a receiver picks the image among candidates by it.

    Lazaridou et al. 2017, Correia et al. 2020.

    Args:
        images: what the games are about.
        estimator: how the gradient through the message is found.
        mapping: what the probabilities of messages are.
        pick: how the gradient through the receiver's pick is found where it is drawn, and success alone counts; None
            has the receiver learn from the likelihood of the right candidate.
        num_messages: how many messages there are.
        num_candidates: images of a game.
        distinct: whether the images of a game differ in what they show, or at least are not the same.
        centred: take the mean of the training images off each, and scale what is left to length 1.
        batch_size: games of a batch, over all ranks.
        num_batches: how many batches are called an epoch.
        dim: how many numbers the vectors of images and messages have.
        num_units: sigmoids in the function of one number that the sender learns.
        scale: what the sender's scores are divided by.
        entropy: how much the entropy of messages is rewarded.
    """

    images: ImageSet
    estimator: EstimatorConfig
    mapping: Literal["softmax", "sparsemax"] = "softmax"
    _: KW_ONLY
    pick: ScoreFunctionConfig | None = None
    num_messages: int = 256
    num_candidates: int = 16
    distinct: Literal["labels", "images"] = "labels"
    centred: bool = False
    batch_size: int = 64
    num_batches: int = 100
    dim: int = 256
    num_units: int = 512
    scale: float = 10.0
    entropy: float = 0.1

    def __post_init__(self) -> None:
        check_counts(2, num_messages=self.num_messages, num_candidates=self.num_candidates)
        check_counts(batch_size=self.batch_size, num_batches=self.num_batches, dim=self.dim, num_units=self.num_units)
        check_positive(scale=self.scale)
        check_not_negative(entropy=self.entropy)
        check_relaxable(self.estimator, self.mapping)

    def build(self, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> SignallingTask:
        """The task of a run; the seed decides its games."""
        from anymax.training.tasks.signalling.task import SignallingTask

        return SignallingTask(self, ranks, seed=seed)

    def toy(self) -> Self:
        """The same at a size for tests."""
        return replace(
            self,
            images=self.images.toy(),
            num_messages=8,
            num_candidates=4,
            batch_size=8,
            num_batches=4,
            dim=8,
            num_units=4,
        )
