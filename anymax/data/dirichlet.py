"""Distributions drawn from a symmetric Dirichlet distribution."""

import hashlib

import torch
from torch import Tensor

from anymax.checks import check_counts

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
    check_counts(num_contexts=num_contexts, num_words=num_words)
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
        raise ValueError(f"concentration must be between {LEAST:g} and {MOST:g}, got {concentration}")
