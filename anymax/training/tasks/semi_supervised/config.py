"""The configuration of semi-supervised classification, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from anymax.checks import check_counts, check_not_negative, check_positive
from anymax.data.images.config import ImageSet
from anymax.latent.config import EstimatorConfig, check_relaxable
from anymax.training.task_config import TaskConfig

if TYPE_CHECKING:
    from anymax.data.prepared.prepared import Announce
    from anymax.distributed.ranks import Ranks
    from anymax.training.tasks.semi_supervised.task import SemiSupervisedTask


@dataclass(frozen=True)
class SemiSupervisedConfig(TaskConfig):
    """Classify images of which few have a label: a variational autoencoder whose class is a discrete latent.

    Kingma et al. 2014, Correia et al. 2020.

    Args:
        images: what is classified; pixels are drawn black or white anew whenever an image is seen.
        estimator: how the gradient through the class is found.
        mapping: what the classifier's probabilities are.
        num_labelled: how many of the training images keep their label.
        batch_size: images without a label in a batch, and as many with one, over all ranks.
        warm_epochs: epochs over the images with a label alone, before the others are seen.
        warm_rate: what the optimizer's rate is multiplied by in these.
        classifier_width: of the classifier's hidden layers.
        width: of the hidden layers of inference network and generator.
        vector_size: how many numbers besides the class describe an image.
        entropy: how much the classifier's entropy is rewarded; 1 is the evidence bound.
    """

    images: ImageSet
    estimator: EstimatorConfig
    mapping: Literal["softmax", "sparsemax"] = "softmax"
    _: KW_ONLY
    num_labelled: int = 5000
    batch_size: int = 64
    warm_epochs: int = 100
    warm_rate: float = 1.0
    classifier_width: int = 256
    width: int = 128
    vector_size: int = 8
    entropy: float = 1.0

    def __post_init__(self) -> None:
        check_counts(num_labelled=self.num_labelled, batch_size=self.batch_size, vector_size=self.vector_size)
        check_counts(classifier_width=self.classifier_width, width=self.width)
        check_counts(0, warm_epochs=self.warm_epochs)
        check_positive(warm_rate=self.warm_rate)
        check_not_negative(entropy=self.entropy)
        check_relaxable(self.estimator, self.mapping)

    def build(self, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> SemiSupervisedTask:
        """The task of a run; the seed decides which images keep their label."""
        from anymax.training.tasks.semi_supervised.task import SemiSupervisedTask

        return SemiSupervisedTask(self, ranks, seed=seed)

    def toy(self) -> Self:
        """The same at a size for tests."""
        return replace(
            self, images=self.images.toy(), num_labelled=64, batch_size=16, warm_epochs=1, classifier_width=16, width=16
        )
