"""Scores to probabilities: one file per mapping, the function first, the Module after."""

from anymax.mappings.argmax import argmax
from anymax.mappings.entmax import Entmax, LearnedEntmax, entmax
from anymax.mappings.gumbel_softmax import LearnedTau, annealed_tau, gumbel_softmax
from anymax.mappings.normmax import normmax
from anymax.mappings.rectified import Rectified, rectified
from anymax.mappings.regularized_argmax import regularized_argmax
from anymax.mappings.sigmoid import Sigmoid, sigmoid
from anymax.mappings.sigsoftmax import sigsoftmax
from anymax.mappings.sink import WithSink, with_sink
from anymax.mappings.softmax import softmax
from anymax.mappings.softpick import Softpick, softpick
from anymax.mappings.sparsemax import sparsemax
from anymax.mappings.subset_marginals import subset_marginals
from anymax.mappings.topk_sparsemax import topk_sparsemax, topk_sparsemax_is_exact
from anymax.mappings.total import sums_to, total_of

__all__ = [
    "Entmax",
    "LearnedEntmax",
    "LearnedTau",
    "Rectified",
    "Sigmoid",
    "Softpick",
    "WithSink",
    "annealed_tau",
    "argmax",
    "entmax",
    "gumbel_softmax",
    "normmax",
    "rectified",
    "regularized_argmax",
    "sigmoid",
    "sigsoftmax",
    "softmax",
    "softpick",
    "sparsemax",
    "subset_marginals",
    "sums_to",
    "topk_sparsemax",
    "topk_sparsemax_is_exact",
    "total_of",
    "with_sink",
]
