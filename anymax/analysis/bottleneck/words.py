"""Which words lose probability where log-probabilities may have a small rank only.

Shapes: C previous words, W words.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Lost(NamedTuple):
    """What every word loses to a limit of the rank, all float64."""

    probs_W: Tensor
    """The probability of each word, over all previous words."""
    nats_W: Tensor
    """How much less likely it becomes: its share of the divergence, which may be negative where it gains."""
    lost_W: Tensor
    """How much of its probability it loses, over the previous words after which it loses any."""

    @property
    def divergence(self) -> float:
        """By how much the loss of the whole text grows, in nats per word."""
        return float(self.nats_W.sum())


def lost_to_rank(probs_CW: Tensor, weights_C: Tensor, limit: int) -> Lost:
    """What words lose if the probabilities of words after previous words come from a softmax of rank `limit`.

    With p the given probabilities and q the nearest ones of such a softmax, a word w loses the sum over previous words
    c of weight(c) p(w|c) log(p(w|c) / q(w|c)), which over all words sums up to the Kullback-Leibler divergence. Nearest
    is by the squared distance of log-probabilities, weighted by the probabilities of c and of w, because that has an
    exact answer, a truncated singular value decomposition, and is close to the divergence where the two are close.

    Args:
        probs_CW: positive, each row a distribution.
        weights_C: how likely each previous word is; they sum to one.
        limit: one more than the numbers of the vectors whose products are the scores.
    """
    log_probs_CW = probs_CW.double().log()
    nearest_CW = nearest_of_rank(log_probs_CW, weights_C.double(), limit)
    joint_CW = weights_C.double()[:, None] * probs_CW.double()
    nats_W = (joint_CW * (log_probs_CW - nearest_CW)).sum(0)
    lost_W = (joint_CW - weights_C.double()[:, None] * nearest_CW.exp()).clamp(min=0).sum(0)
    return Lost(joint_CW.sum(0), nats_W, lost_W)


def nearest_of_rank(log_probs_CW: Tensor, weights_C: Tensor, limit: int) -> Tensor:
    """The nearest log-probabilities that a softmax of scores of rank `limit` - 1 gives; their rank is `limit` at most.

    What distances leave open, and normalising takes, is a number for every row.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, which leaves each row the same distribution, got {limit}")
    probs_W = (weights_C[:, None] * log_probs_CW.exp()).sum(0)
    centred_CW = log_probs_CW - (log_probs_CW @ (probs_W / probs_W.sum()))[:, None]
    scale_CW = weights_C.sqrt()[:, None] * probs_W.sqrt()
    scaled_CW = centred_CW * scale_CW
    # The directions of the rows, largest last.
    directions_CC = torch.linalg.eigh(scaled_CW @ scaled_CW.T).eigenvectors
    kept_CK = directions_CC[:, max(0, len(directions_CC) - (limit - 1)) :]
    return (kept_CK @ (kept_CK.T @ scaled_CW) / scale_CW).log_softmax(-1)
