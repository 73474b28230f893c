"""Density of attention by entmax: the share of its probabilities that are not zero, and scores that have a given one.

Shapes: B batch, H heads, Q queries, K keys, E numbers per head.
"""

import math

import torch
from torch import Tensor

from anymax.mappings import entmax

# Between the smallest and the largest scale, on a logarithmic axis, to within a hundred-thousandth of the scale.
LOG_SCALES = (math.log(1e-3), math.log(1e3))
BISECTIONS = 21
SEARCHED_ENTRIES = 1 << 20


def density(query_BHQE: Tensor, key_BHKE: Tensor, alpha_H: Tensor, allowed: Tensor | None = None) -> Tensor:
    """The share of the probabilities that are not zero, for each head.

    Args:
        allowed: true where a query may attend to a key, which alone is counted; broadcasts to (B, H, Q, K).
    """
    scores_BHQK = (query_BHQE.float() / math.sqrt(query_BHQE.shape[-1])) @ key_BHKE.float().mT
    probs_BHQK = entmax(scores_BHQK, alpha_H[:, None, None], mask=allowed)
    num_chosen_H = (probs_BHQK != 0).sum((0, 2, 3))
    if allowed is None:
        return num_chosen_H / (probs_BHQK.numel() / len(alpha_H))
    return num_chosen_H / allowed.expand_as(probs_BHQK).sum((0, 2, 3))


@torch.no_grad()
def find_scales(
    query_BHQE: Tensor, key_BHKE: Tensor, alpha_H: Tensor, wanted_H: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """What each head's queries must be multiplied with for its probabilities to have the wanted density.

    The larger the scores, the sparser is entmax of an alpha above 1, so that bisection finds it. It looks at evenly
    spaced queries where there are many, and draws nothing at random.

    Args:
        allowed: as of `density`.
    """
    batch, num_heads, num_queries, _ = query_BHQE.shape
    num_kept = min(num_queries, max(1, SEARCHED_ENTRIES // (batch * num_heads * key_BHKE.shape[2])))
    kept = torch.linspace(0, num_queries - 1, num_kept, device=query_BHQE.device).round().long()
    query_BHQE = query_BHQE[:, :, kept]
    if allowed is not None and allowed.shape[-2] > 1:
        allowed = allowed[..., kept, :]
    low_H, high_H = (torch.full_like(wanted_H, end) for end in LOG_SCALES)
    for _ in range(BISECTIONS):
        middle_H = (low_H + high_H) / 2
        scaled_BHQE = query_BHQE * middle_H.exp()[:, None, None]
        is_dense_H = density(scaled_BHQE, key_BHKE, alpha_H, allowed) > wanted_H
        low_H, high_H = torch.where(is_dense_H, middle_H, low_H), torch.where(is_dense_H, high_H, middle_H)
    return high_H.exp()
