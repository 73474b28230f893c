"""Codes of bits as a task: images, and how few bits they take under the model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from anymax.data.batches.batches import RowBatches, generator_of
from anymax.data.images.images import Images
from anymax.data.text.corpus import Split
from anymax.distributed.ranks import Ranks
from anymax.evaluation.importance import log_likelihood
from anymax.models.images.bit_vector_vae import BitVectorVAE, CodeLosses
from anymax.training.task import Gallery, LatentView, Step
from anymax.training.tasks.bit_vectors.config import BitVectorsConfig
from anymax.training.tasks.image_task import COLUMNS, GALLERY_SEED, ImageTask, Means, parts

MEASURED_AT_ONCE = 64


class BitVectorTask(ImageTask):
    """Learn a code of bits."""

    def __init__(self, config: BitVectorsConfig, ranks: Ranks, *, seed: int) -> None:
        super().__init__(config.images, ranks, seed=seed)
        if any(images.values.dtype != torch.uint8 for images in self.images.values()):
            raise ValueError("images must be pixels with 256 levels, got features; leave images.path out")
        self.config = config
        self.model: BitVectorVAE = self.make_model()

    def make_model(self) -> BitVectorVAE:
        config, size = self.config, self.images["train"].size
        return BitVectorVAE(
            size,
            config.num_bits,
            config.estimator.build(size),
            mapping=config.mapping.build(),
            width=config.width,
            pixel_size=config.pixel_size,
        )

    def batches(self, split: Split) -> RowBatches:
        ranks = self.ranks
        return RowBatches(
            len(self.images[split]),
            self.config.batch_size,
            seed=self.seed,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )

    def step(self, model: nn.Module, batch: Tensor, carry: None) -> Step:
        found: CodeLosses = model(self.images["train"].values[batch].to(self.ranks.device))
        log = {
            name: float(values.double().sum()) / max(1, len(batch))
            for name, values in (("entropy", found.entropy), ("calls", found.calls), ("exact", found.is_exact))
        }
        return Step(found.losses.sum(), len(batch), log=log)

    @torch.no_grad()
    def latent_view(self) -> LatentView:
        return LatentView(self._gallery(self.images["test"]))

    def _gallery(self, images: Images) -> Gallery:
        """Images of the test split, what their likeliest codes make of them, and what codes drawn at random make."""
        levels = images.values[:COLUMNS]
        _, latent = self.model.estimate(levels)
        drawn = torch.randint(0, 2, (COLUMNS, self.config.num_bits), generator=generator_of(GALLERY_SEED, 0, "codes"))
        made = [images.numbers(torch.arange(COLUMNS)), self.model.generate(latent.mode())]
        return Gallery(
            "Images, their likeliest codes, and codes drawn at random",
            torch.stack([*made, self.model.generate(drawn.to(made[0].dtype))]),
            ["image", "of its code", "random code"],
        )

    def measure(self, model: nn.Module, split: Split) -> dict[str, float]:
        """The negative evidence bound with its two parts, in nats, and the likelihood in bits for each pixel.

        `rate` is the divergence of the code from the prior, `distortion` the expected loss of the pixels, `calls` those
        of the run's estimator for an image, `exact` the share of images whose code has for certain the distribution
        that its mapping approximates: for top-k sparsemax, where fewer than k bit-vectors have a probability.
        """
        assert isinstance(model, BitVectorVAE)
        means, images, config = Means(), self.images[split], self.config
        num_samples = config.test_samples if split == "test" else config.samples
        for rows in parts(min(len(images), config.measured or len(images)), MEASURED_AT_ONCE):
            levels = images.values[rows]
            estimate, latent = model.estimate(levels)
            rate = config.num_bits * math.log(2) - latent.entropy()
            likelihood = log_likelihood(latent, model.distortion(levels), num_samples)
            means.add(
                {
                    "loss": estimate.loss + rate,
                    "rate": rate,
                    "distortion": estimate.loss,
                    "bits_per_dim": -likelihood / (images.size * math.log(2)),
                    "calls": estimate.calls,
                    "exact": latent.is_exact(),
                }
            )
        return means.means()
