"""Eight ways in and out of a small Transformer, on two million words of presidents' addresses that need no download.

Sizes and training are those of `small`, the same for all.
"""

from functools import partial

from anymax.attention import LearnedEntmaxConfig
from anymax.data.text.config import Words
from anymax.models import Tie
from anymax.recipes.small import (
    ADAPTIVE_IN,
    ADAPTIVE_OUT,
    CHARACTERS_IN,
    NARROW_IN,
    SUBWORD_IN,
    SUBWORD_OUT,
    SUBWORDS,
    TABLE_IN,
    TABLE_OUT,
    small,
)
from anymax.training.config import RunConfig

TAKES = "2M to 7M parameters; two to five minutes on two cores"

# Words seen once are unknown, so that the model learns what an unknown word is like.
_small = partial(small, "sotu", epochs=0.5, units=Words(min_count=2))


def softmax() -> RunConfig:
    """Addresses: one table for the input, another for the softmax (SM)."""
    return _small(TABLE_IN, TABLE_OUT)


def softmax_tied() -> RunConfig:
    """Addresses: one table for input and softmax (SM-T)."""
    return _small(TABLE_IN, TABLE_OUT, tie=Tie())


def bpe() -> RunConfig:
    """Addresses: subwords in and out (BPE)."""
    return _small(SUBWORD_IN, SUBWORD_OUT, units=SUBWORDS)


def bpe_tied() -> RunConfig:
    """Addresses: subwords in and out, one table for both (BPE-T)."""
    return _small(SUBWORD_IN, SUBWORD_OUT, units=SUBWORDS, tie=Tie())


def adaptive_softmax() -> RunConfig:
    """Addresses: a narrow table for the input, an adaptive softmax (ASM)."""
    return _small(NARROW_IN, ADAPTIVE_OUT)


def character_cnn() -> RunConfig:
    """Addresses: characters in, an adaptive softmax out (CNN)."""
    return _small(CHARACTERS_IN, ADAPTIVE_OUT)


def adaptive() -> RunConfig:
    """Addresses: adaptive input and output (ADP)."""
    return _small(ADAPTIVE_IN, ADAPTIVE_OUT)


def adaptive_tied() -> RunConfig:
    """Addresses: adaptive input and output, tables and tail projections shared (ADP-T)."""
    return _small(ADAPTIVE_IN, ADAPTIVE_OUT, tie=Tie(projections=True))


def adaptive_tied_entmax() -> RunConfig:
    """Addresses: ADP-T whose heads each learn an alpha between softmax and sparsemax."""
    return _small(ADAPTIVE_IN, ADAPTIVE_OUT, tie=Tie(projections=True), mapping=LearnedEntmaxConfig())
