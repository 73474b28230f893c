"""A small AWD-LSTM on the Penn Treebank: what its output layer may be, and what each part of it is worth.

Sizes and training are those of `small_awd`, the same for all but what a recipe names. The outputs are trained for a
few epochs, with a learning rate that falls. `regularized` and what is taken away from it have a constant learning rate,
averages and half the published dropout: they are for a text small enough to overfit, as the validation split shows.
"""

from dataclasses import replace
from functools import partial

from anymax.recipes.small_awd import (
    AVERAGED,
    BODY,
    LINEAR,
    PIECEWISE,
    PLAIN,
    PLIF,
    SCALED,
    SIGSOFTMAX,
    SPARSE,
    mixture,
    small_awd,
)
from anymax.training.config import RunConfig
from anymax.training.optim.schedules import Constant

TAKES = "about 1M parameters; 3 to 21 minutes on two cores, `averaged` and what follows longer"

REGULARIZED = replace(
    BODY, word_dropout=0.05, input_dropout=0.2, layer_dropout=0.12, output_dropout=0.2, weight_dropout=0.25
)

_small = partial(small_awd, "ptb", epochs=2.0)
_regularized = partial(small_awd, "ptb", LINEAR, epochs=20.0, body=REGULARIZED, optimizer=AVERAGED, schedule=Constant())


def linear() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: a plain softmax."""
    return _small(LINEAR)


def scaled() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: a softmax of scores times one learned number."""
    return _small(SCALED)


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


def averaged() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: constant learning rate, averages from when the validation loss no longer falls."""
    config = _small(LINEAR, epochs=8.0, optimizer=AVERAGED, schedule=Constant())
    return replace(config, evaluate_every=800)


def regularized() -> RunConfig:
    """Penn Treebank, small AWD-LSTM: half the published dropout, for a text small enough to overfit."""
    return _regularized()


def without_averaging() -> RunConfig:
    """`ptb.regularized` by plain SGD."""
    return _regularized(optimizer=PLAIN)


def without_random_lengths() -> RunConfig:
    """`ptb.regularized` with rows of one length in every batch."""
    return _regularized(lengths=None)


def without_word_dropout() -> RunConfig:
    """`ptb.regularized` where every word keeps its vector."""
    return _regularized(body=replace(REGULARIZED, word_dropout=0.0))


def without_weight_decay() -> RunConfig:
    """`ptb.regularized` with weights that do not decay."""
    return _regularized(optimizer=replace(AVERAGED, weight_decay=0.0))


def without_penalties() -> RunConfig:
    """`ptb.regularized` without activation regularization, temporal or other."""
    return _regularized(body=replace(REGULARIZED, activation=0.0, temporal_activation=0.0))


def without_weight_drop() -> RunConfig:
    """`ptb.regularized` where recurrent weights are never dropped."""
    return _regularized(body=replace(REGULARIZED, weight_dropout=0.0))
