"""WikiText-2: eight ways in and out of a small Transformer, and four outputs of a small AWD-LSTM.

Sizes and training are those of `small` and `small_awd`, the same for all.
"""

from functools import partial

from anymax.attention import LearnedEntmaxConfig
from anymax.models import Tie
from anymax.recipes.small import (
    ADAPTIVE_IN,
    ADAPTIVE_OUT,
    CHARACTERS_IN,
    NARROW_IN,
    PIECE_IN,
    PIECE_OUT,
    PIECES,
    TABLE_IN,
    TABLE_OUT,
    small,
)
from anymax.recipes.small_awd import LINEAR, PIECEWISE, SCALED, mixture, small_awd
from anymax.training.config import RunConfig

_small = partial(small, "wikitext-2", epochs=1.0)
_small_awd = partial(small_awd, "wikitext-2", epochs=1.0)


def softmax() -> RunConfig:
    """WikiText-2: one table for the input, another for the softmax (SM)."""
    return _small(TABLE_IN, TABLE_OUT)


def softmax_tied() -> RunConfig:
    """WikiText-2: one table for input and softmax (SM-T)."""
    return _small(TABLE_IN, TABLE_OUT, tie=Tie())


def bpe() -> RunConfig:
    """WikiText-2: subwords in and out (BPE)."""
    return _small(PIECE_IN, PIECE_OUT, units=PIECES)


def bpe_tied() -> RunConfig:
    """WikiText-2: subwords in and out, one table for both (BPE-T)."""
    return _small(PIECE_IN, PIECE_OUT, units=PIECES, tie=Tie())


def adaptive_softmax() -> RunConfig:
    """WikiText-2: a narrow table for the input, an adaptive softmax (ASM)."""
    return _small(NARROW_IN, ADAPTIVE_OUT)


def character_cnn() -> RunConfig:
    """WikiText-2: characters in, an adaptive softmax out (CNN)."""
    return _small(CHARACTERS_IN, ADAPTIVE_OUT)


def adaptive() -> RunConfig:
    """WikiText-2: adaptive input and output (ADP)."""
    return _small(ADAPTIVE_IN, ADAPTIVE_OUT)


def adaptive_tied() -> RunConfig:
    """WikiText-2: adaptive input and output, tables and tail projections shared (ADP-T)."""
    return _small(ADAPTIVE_IN, ADAPTIVE_OUT, tie=Tie(projections=True))


def adaptive_tied_entmax() -> RunConfig:
    """WikiText-2: ADP-T whose heads each learn an alpha between softmax and sparsemax."""
    return _small(ADAPTIVE_IN, ADAPTIVE_OUT, tie=Tie(projections=True), mapping=LearnedEntmaxConfig())


def awd_linear() -> RunConfig:
    """WikiText-2, small AWD-LSTM: a plain softmax."""
    return _small_awd(LINEAR)


def awd_scaled() -> RunConfig:
    """WikiText-2, small AWD-LSTM: a softmax of scores times one learned number."""
    return _small_awd(SCALED)


def awd_plif() -> RunConfig:
    """WikiText-2, small AWD-LSTM: a learned piecewise linear function of the scores."""
    return _small_awd(PIECEWISE)


def awd_mixture() -> RunConfig:
    """WikiText-2, small AWD-LSTM: a mixture of 5 softmaxes."""
    return _small_awd(mixture(5))
