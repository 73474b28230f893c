"""How likely an image is under a model with a discrete code: sampled, and summed where the code is sparse.

Shapes: B images, S samples of each, N bits.
"""

import math

import torch
from torch import Tensor

from anymax.latent import BitVector
from anymax.latent.bit_vector import Independent
from anymax.latent.estimator import LossGiven


def log_likelihood(
    latent: BitVector, distortion: LossGiven, num_samples: int, *, reject: bool = True, at_once: int = 4096
) -> Tensor:
    """The logarithm of the probability of each image (B,), in nats, under a uniform prior over bit-vectors.

    Independent bits are drawn from the latent, and each sample weighs prior over latent. A sparse latent gives most
    bit-vectors no probability, so its support is summed exactly and the others are sampled from the prior.

    Args:
        latent: the distribution over the bit-vectors of each image.
        distortion: the negative log-likelihood of pairs of a bit-vector and an image.
        num_samples: of each image.
        reject: samples from the prior that hit the support count nothing, as the support is summed already; False
            counts them twice, as the published code does.
        at_once: how many pairs are evaluated at the same time.

    Example:
        >>> from anymax.evaluation import log_likelihood
        >>> from anymax.latent import BitVector
        >>> latent = BitVector(torch.zeros(2, 3))  # of two images, three bits each
        >>> certain = lambda bits, example: torch.zeros(len(bits))  # every code gives the image probability 1
        >>> log_likelihood(latent, certain, num_samples=5).exp().round(decimals=3)
        tensor([1., 1.])
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    log_prior = -latent.size * math.log(2)
    if isinstance(latent.mapping, Independent):
        logs_SB = torch.stack([_weighed(latent, distortion, log_prior, at_once) for _ in range(num_samples)])
        return logs_SB.logsumexp(0) - math.log(num_samples)
    logs_SB = torch.stack([_others(latent, distortion, reject, at_once) for _ in range(num_samples)])
    outside = logs_SB.logsumexp(0) - math.log(num_samples)
    return torch.logaddexp(_within(latent, distortion, at_once) + log_prior, outside)


def _weighed(latent: BitVector, distortion: LossGiven, log_prior: float, at_once: int) -> Tensor:
    """log of p(x, z) / q(z) at a sample of the latent."""
    values = latent.sample()
    flat = values.reshape(-1, latent.size)
    return (
        log_prior
        - _losses(distortion, flat, torch.arange(len(flat), device=flat.device), at_once)
        - latent.log_prob(values).reshape(-1)
    )


def _others(latent: BitVector, distortion: LossGiven, reject: bool, at_once: int) -> Tensor:
    """log of p(x | z) at a sample of the prior; minus infinity where it is rejected."""
    values = torch.randint_like(latent.scores, 0, 2)
    flat = values.reshape(-1, latent.size)
    logs = -_losses(distortion, flat, torch.arange(len(flat), device=flat.device), at_once)
    is_summed = latent.log_prob(values).reshape(-1) > -torch.inf
    return logs.masked_fill(is_summed, -torch.inf) if reject else logs


def _within(latent: BitVector, distortion: LossGiven, at_once: int) -> Tensor:
    """log of the sum of p(x | z) over the support."""
    support = latent.support()
    logs = -_losses(distortion, support.values, support.example, at_once)
    top = logs.new_full((latent.num_rows,), -torch.inf).scatter_reduce(0, support.example, logs, "amax")
    total = torch.zeros_like(top).index_add(0, support.example, (logs - top[support.example]).exp())
    return top + total.log()


def _losses(distortion: LossGiven, values: Tensor, example: Tensor, at_once: int) -> Tensor:
    parts = zip(values.split(at_once), example.split(at_once), strict=True)
    return torch.cat([distortion(value, rows) for value, rows in parts])
