"""Losses built from mappings, and losses of whole linear layers that never hold tokens x vocabulary."""

from anymax.losses.entmax_loss import entmax_loss, sparsemax_loss
from anymax.losses.fenchel_young import fenchel_young_loss
from anymax.losses.linear_cross_entropy import linear_cross_entropy
from anymax.losses.linear_entmax_loss import linear_entmax_loss
from anymax.losses.linear_mixture_loss import linear_mixture_loss

__all__ = [
    "entmax_loss",
    "fenchel_young_loss",
    "linear_cross_entropy",
    "linear_entmax_loss",
    "linear_mixture_loss",
    "sparsemax_loss",
]
