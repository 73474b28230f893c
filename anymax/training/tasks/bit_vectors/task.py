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
from anymax.latent import BitVector, IndependentConfig
from anymax.models.images.bit_vector_vae import BitVectorVAE, CodeLosses
from anymax.training.latent_view import BitEffects, Gallery, LatentView, count_sizes
from anymax.training.task import Step
from anymax.training.tasks.bit_vectors.config import BitVectorsConfig
from anymax.training.tasks.image_task import COLUMNS, GALLERY_SEED, ImageTask, Means, parts

MEASURED_AT_ONCE = 64
# Images whose codes are looked at, codes whose bits are turned, and the most bits of which that is shown.
LOOKED_AT, TURNED, SHOWN_BITS = 1000, 6, 16


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
        images = self.images["test"]
        seen = images.numbers(torch.arange(min(LOOKED_AT, len(images)))).to(self.ranks.device)
        latent = BitVector(self.model.inference(seen), self.model.mapping)
        codes, support = latent.mode(), dict[int, int]()
        # Independent bits leave no bit-vector without a probability.
        if not isinstance(self.config.mapping, IndependentConfig):
            support = count_sizes(latent.support().example.bincount(minlength=len(seen)).cpu())
        return LatentView("bit-vectors", self._gallery(images, codes), None, support, self._effects(codes))

    def _gallery(self, images: Images, codes: Tensor) -> Gallery:
        """Images of the test split, what their likeliest codes make of them, and what codes drawn at random make."""
        drawn = torch.randint(0, 2, (COLUMNS, self.config.num_bits), generator=generator_of(GALLERY_SEED, 0, "codes"))
        made = (self._image_of(bits) for bits in (codes[:COLUMNS], drawn.to(codes)))
        return Gallery(
            "Images, their likeliest codes, and codes drawn at random",
            torch.stack([images.numbers(torch.arange(COLUMNS)), *made]),
            ["image", "of its code", "random code"],
        )

    def _effects(self, codes: Tensor) -> BitEffects:
        """What turning each bit does to some codes; the bits that change most are shown."""
        usual = self._image_of(codes[:TURNED])
        turned = torch.stack([self._image_of(_turned(codes[:TURNED], bit)) for bit in range(self.config.num_bits)])
        change = (turned - usual).abs().mean((1, 2))
        shown = change.topk(min(SHOWN_BITS, len(change))).indices
        gallery = Gallery(
            "Codes of images, and the same codes with one bit turned",
            torch.cat([usual[None], turned[shown]]),
            ["code", *(f"bit {bit + 1} turned" for bit in shown.tolist())],
        )
        return BitEffects(codes.mean(0).cpu(), change, gallery)

    def _image_of(self, codes: Tensor) -> Tensor:
        return self.model.generate(codes).cpu()

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


def _turned(codes: Tensor, bit: int) -> Tensor:
    """The codes with one bit the other way."""
    other = codes.clone()
    other[:, bit] = 1 - other[:, bit]
    return other
