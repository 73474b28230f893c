"""Linear layers with rectifiers between them."""

from itertools import chain, pairwise

from torch import nn


def perceptron(*widths: int) -> nn.Sequential:
    """Layers from each width to the next, a ReLU between two."""
    layers = [(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(widths)]
    return nn.Sequential(*list(chain(*layers))[:-1])
