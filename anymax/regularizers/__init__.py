"""Regularizers: dropout of weights, units and words, and penalties on activations."""

from anymax.regularizers.activations import activation_penalty, temporal_penalty
from anymax.regularizers.element_dropout import element_dropout, fast_dropout
from anymax.regularizers.variational_dropout import VariationalDropout, variational_dropout
from anymax.regularizers.weight_drop import weight_drop
from anymax.regularizers.word_dropout import word_dropout

__all__ = [
    "VariationalDropout",
    "activation_penalty",
    "element_dropout",
    "fast_dropout",
    "temporal_penalty",
    "variational_dropout",
    "weight_drop",
    "word_dropout",
]
