"""A variational autoencoder whose whole code is a vector of bits, and whose pixels have 256 levels.

Shapes: B images, P pairs of an image and a bit-vector, D pixels, N bits, H numbers of a pixel before its levels.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anymax.latent import BitVector, Estimate, Estimator
from anymax.latent.bit_vector import BitMapping, Independent
from anymax.losses import linear_cross_entropy
from anymax.models.images.perceptron import perceptron

NUM_LEVELS = 256


class CodeLosses(NamedTuple):
    """For every image (B,): the negative evidence bound, the entropy of its code, the calls of the generator, and
    whether the distribution of its code is certain to be the one it approximates.
    """

    losses: Tensor
    entropy: Tensor
    calls: Tensor
    is_exact: Tensor


class BitVectorVAE(nn.Module):
    """Codes an image in bits of a uniform prior, and gives each of its pixels a distribution over 256 levels.

    Args:
        image_size: number of pixels.
        num_bits: number of bits.
        estimator: how the gradient through the bits is found; it may be given another one at any time.
        mapping: what the distribution over bit-vectors is.
        width: of the hidden layer of inference network and generator.
        pixel_size: features that the generator gives each pixel, of which a linear layer that all pixels share makes
            the scores of the levels.

    As in Correia et al. 2020.

    Example:
        >>> from anymax.latent import NVIL
        >>> from anymax.models import BitVectorVAE
        >>> model = BitVectorVAE(image_size=6, num_bits=4, estimator=NVIL(6))
        >>> images = torch.randint(256, (3, 6), dtype=torch.uint8)
        >>> model(images).losses.shape
        torch.Size([3])
        >>> model.generate(torch.ones(1, 4)).shape
        torch.Size([1, 6])
    """

    def __init__(
        self,
        image_size: int,
        num_bits: int,
        estimator: Estimator,
        *,
        mapping: BitMapping | None = None,
        width: int = 128,
        pixel_size: int = 5,
    ) -> None:
        super().__init__()
        self.image_size = image_size
        self.num_bits = num_bits
        self.estimator = estimator
        self.mapping = mapping or Independent()
        self.inference = perceptron(image_size, width, num_bits)
        self.generator = perceptron(num_bits, width, image_size * pixel_size)
        self.levels = nn.Linear(pixel_size, NUM_LEVELS)

    def forward(self, images: Tensor) -> CodeLosses:
        """The losses of images of levels, uint8 (B, D)."""
        estimate, latent = self.estimate(images)
        entropy = latent.entropy()
        bound = estimate.surrogate + self.num_bits * math.log(2) - entropy
        return CodeLosses(bound, entropy.detach(), estimate.calls, latent.is_exact())

    def estimate(self, images: Tensor, estimator: Estimator | None = None) -> tuple[Estimate, BitVector]:
        """The expected distortion by this or another estimator, and the distribution of the bits."""
        seen = images.to(self.levels.weight.dtype) / (NUM_LEVELS - 1)
        latent = BitVector(self.inference(seen), self.mapping)
        return (estimator or self.estimator)(latent, self.distortion(images), seen), latent

    def distortion(self, images_BD: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """The negative log-likelihood, in nats, of each pair of a bit-vector and an image."""
        target_BD = images_BD.long()

        def loss_given(bits_PN: Tensor, example_P: Tensor) -> Tensor:
            pixels_PDH = self.generator(bits_PN).unflatten(-1, (self.image_size, -1))
            target_PD = target_BD[example_P]
            losses = linear_cross_entropy(pixels_PDH, self.levels.weight, target_PD, self.levels.bias, reduction="none")
            return losses.sum(-1)

        return loss_given

    def generate(self, bits: Tensor) -> Tensor:
        """The mean level of each pixel, from 0 to 1, of the images of bit-vectors (..., N): (..., D)."""
        scores = self.levels(self.generator(bits).unflatten(-1, (self.image_size, -1)))
        values = torch.linspace(0, 1, NUM_LEVELS, device=bits.device, dtype=scores.dtype)
        return scores.softmax(-1) @ values
