"""Scores in, scores out: increasing functions of one number, to put between a linear layer and its mapping."""

from anymax.transforms.monotonic_network import MonotonicNetwork, Units, monotonic_network
from anymax.transforms.plif import PLIF, plif
from anymax.transforms.sig import Sig, sig

__all__ = ["PLIF", "MonotonicNetwork", "Sig", "Units", "monotonic_network", "plif", "sig"]
