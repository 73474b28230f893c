"""A small AWD-LSTM on the Penn Treebank: what its output layer may be, and what each part of it is worth.

Sizes and training are those of `small_awd`, the same for all but what a recipe names.
"""

from dataclasses import replace
from functools import partial

from anymax.recipes.small_awd import (
    AVERAGED,
    BODY,
    LINEAR,
    PIECEWISE,
    PLIF,
    SIGSOFTMAX,
    SPARSE,
    mixture,
    small_awd,
)
from anymax.training.config import RunConfig
from anymax.training.optimizers import SGD

_small = partial(small_awd, "ptb", epochs=4.0)


def linear() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: a plain softmax."""
    return _small(LINEAR)


def sigsoftmax() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: sig-softmax."""
    return _small(SIGSOFTMAX)


def plif() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: a learned piecewise linear function of the scores."""
    return _small(PIECEWISE)


def mixture_5() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: a mixture of 5 softmaxes."""
    return _small(mixture(5))


def mixture_15() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: a mixture of 15 softmaxes."""
    return _small(mixture(15))


def mixture_plif() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: a mixture of 5 softmaxes of a learned piecewise linear function."""
    return _small(mixture(5, PLIF))


def sparse() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: entmax, which gives most words no probability."""
    return _small(SPARSE)


def without_averaging() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: plain SGD."""
    return _small(LINEAR, optimizer=SGD(AVERAGED.lr, weight_decay=AVERAGED.weight_decay))


def without_random_lengths() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: rows of one length in every batch."""
    return _small(LINEAR, lengths=None)


def without_word_dropout() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: every word keeps its vector."""
    return _small(LINEAR, body=replace(BODY, word_dropout=0.0))


def without_weight_decay() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: weights that do not decay."""
    return _small(LINEAR, optimizer=replace(AVERAGED, weight_decay=0.0))


def without_penalties() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: no activation regularization, temporal or other."""
    return _small(LINEAR, body=replace(BODY, activation=0.0, temporal_activation=0.0))


def without_weight_drop() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: recurrent weights are never dropped."""
    return _small(LINEAR, body=replace(BODY, weight_dropout=0.0))
