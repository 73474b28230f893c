"""How much the heads of a layer differ: the Jensen-Shannon divergence of where they look.

Shapes: H heads of a layer, Q queries, K keys, N queries that count.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.special import entr


class Diversity(NamedTuple):
    """The divergence at each query where two heads at least look anywhere, from 0, where all look alike; float64."""

    by_heads_N: Tensor
    """As a share of the logarithm of the number of heads, its bound: 1 where each looks where no other does."""
    by_keys_N: Tensor
    """As a share of the logarithm of the number of keys that the query may attend to; 0 where that is one."""


def diversity(weights_HQK: Tensor, allowed_QK: Tensor) -> Diversity:
    """The Jensen-Shannon divergence of the heads of a layer.

        (H(mean over heads j of p_j) - mean over heads j of H(p_j)) / log(number of heads)

    with H the entropy. Weights that do not sum to one, as with a sink, are scaled. A head that looks nowhere at a query
    is left out there, of the means and of the number of heads.

    Args:
        allowed_QK: where a query may attend to a key.
    """
    weights_HQK = (weights_HQK * allowed_QK).double()
    total_HQ = weights_HQK.sum(-1)
    num_looking_Q = (total_HQ > 0).sum(0)
    is_counted_Q = num_looking_Q > 1
    num_looking_N, num_keys_N = num_looking_Q[is_counted_Q], allowed_QK.sum(-1)[is_counted_Q]
    total_HN = total_HQ[:, is_counted_Q]
    # Those that look nowhere stay zeros, which have no entropy.
    probs_HNK = weights_HQK[:, is_counted_Q] / total_HN.where(total_HN > 0, 1)[..., None]
    of_mean_N = entr(probs_HNK.sum(0) / num_looking_N[:, None]).sum(-1)
    mean_N = entr(probs_HNK).sum((0, 2)) / num_looking_N
    # Rounding may leave less than nothing.
    divergence_N = (of_mean_N - mean_N).clamp(min=0)
    by_keys_N = divergence_N / num_keys_N.clamp(min=2).log()
    return Diversity(divergence_N / num_looking_N.log(), by_keys_N.where(num_keys_N > 1, 0))
