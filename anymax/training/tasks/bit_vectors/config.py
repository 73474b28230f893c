"""The configuration of codes of bits, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from anymax.checks import check_counts, given
from anymax.data.images.config import ImageSet
from anymax.latent.config import (
    BitMappingConfig,
    EstimatorConfig,
    GumbelConfig,
    IndependentConfig,
    SparseMapConfig,
    SumAndSampleConfig,
)
from anymax.training.task_config import TaskConfig

if TYPE_CHECKING:
    from anymax.data.prepared.prepared import Announce
    from anymax.distributed.ranks import Ranks
    from anymax.training.tasks.bit_vectors.task import BitVectorTask


@dataclass(frozen=True)
class BitVectorsConfig(TaskConfig):
    """Code images in bits: a variational autoencoder whose whole latent is a vector of them.

    Correia et al. 2020.

    Args:
        images: what is coded, with its 256 levels.
        num_bits: how many bits code an image.
        estimator: how the gradient through the bits is found.
        mapping: what the distribution over bit-vectors is.
        batch_size: images of a batch, over all ranks.
        width: of the hidden layer of inference network and generator.
        pixel_size: how many numbers the generator gives each pixel.
        samples: how many samples of each image tell its likelihood, in evaluations on the way.
        test_samples: the same for the test split.
        measured: how many images of a split are measured; None measures all.
    """

    images: ImageSet
    num_bits: int
    estimator: EstimatorConfig
    mapping: BitMappingConfig
    _: KW_ONLY
    batch_size: int = 64
    width: int = 128
    pixel_size: int = 5
    samples: int = 16
    test_samples: int = 1024
    measured: int | None = None

    def __post_init__(self) -> None:
        check_counts(num_bits=self.num_bits, batch_size=self.batch_size, width=self.width, pixel_size=self.pixel_size)
        check_counts(samples=self.samples, test_samples=self.test_samples, **given(measured=self.measured))
        if isinstance(self.estimator, GumbelConfig) and not isinstance(self.mapping, IndependentConfig):
            raise ValueError(
                "mapping must be IndependentConfig for the estimator GumbelConfig, which has no other relaxed samples, "
                f"got {self.mapping}"
            )
        if isinstance(self.estimator, SumAndSampleConfig):
            raise ValueError(
                "estimator must be another than SumAndSampleConfig, which sums over choices and not over bits"
            )
        if isinstance(self.mapping, SparseMapConfig) and (self.mapping.budget or 0) > self.num_bits:
            raise ValueError(f"mapping.budget must be at most num_bits, {self.num_bits}, got {self.mapping.budget}")

    def build(self, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> BitVectorTask:
        """The task of a run."""
        from anymax.training.tasks.bit_vectors.task import BitVectorTask

        return BitVectorTask(self, ranks, seed=seed)

    def toy(self) -> Self:
        """The same at a size for tests."""
        return replace(
            self,
            images=self.images.toy(),
            num_bits=6,
            mapping=self.mapping.toy(),
            batch_size=8,
            width=8,
            samples=2,
            test_samples=3,
            measured=16,
        )
