"""Losses built from mappings: their gradient is the mapping's answer minus the target."""

from anymax.losses.entmax_loss import entmax_loss, sparsemax_loss
from anymax.losses.fenchel_young import fenchel_young_loss

__all__ = ["entmax_loss", "fenchel_young_loss", "sparsemax_loss"]
