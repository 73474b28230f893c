"""WikiText-2: ways in and out of a small Transformer, and four outputs of a small AWD-LSTM.

Sizes and training are those of `small` and `small_awd`, the same for all. Behind the rows of Baevski and Auli's Table 3
stand those of their Tables 5 (`adaptive_tied_64` to `_512`), 6 (with tail dropout) and 8 (`bands_...`), and character
inputs with fewer words than the text has, which spell the others or do not.
"""

from dataclasses import replace
from functools import partial
from itertools import accumulate

from anymax.attention import LearnedEntmaxConfig
from anymax.data.text.config import Words
from anymax.models import Tie
from anymax.recipes.small import (
    ADAPTIVE_IN,
    ADAPTIVE_OUT,
    CHARACTERS_IN,
    FACTOR,
    NARROW_IN,
    SUBWORD_IN,
    SUBWORD_OUT,
    SUBWORDS,
    TABLE_IN,
    TABLE_OUT,
    small,
)
from anymax.recipes.small_awd import LINEAR, PIECEWISE, SCALED, mixture, small_awd
from anymax.training.config import RunConfig
from anymax.vocabulary import AdaptiveInputConfig, AdaptiveOutputConfig

TAKES = "2M to 7M parameters; 4 to 11 minutes on two cores"

# The rate of the paper's Table 6.
WITH_TAIL_DROPOUT = replace(ADAPTIVE_OUT, tail_dropout=0.2)
# The full vocabulary leaves no word of this corpus unknown.
FEWER_WORDS = Words(max_size=10_000)

_small = partial(small, "wikitext-2", epochs=1.0)
_tied = partial(_small, tie=Tie(projections=True))
_small_awd = partial(small_awd, "wikitext-2", epochs=1.0)


def softmax() -> RunConfig:
    """WikiText-2: one table for the input, another for the softmax (SM)."""
    return _small(TABLE_IN, TABLE_OUT)


def softmax_tied() -> RunConfig:
    """WikiText-2: one table for input and softmax (SM-T)."""
    return _small(TABLE_IN, TABLE_OUT, tie=Tie())


def bpe() -> RunConfig:
    """WikiText-2: subwords in and out (BPE)."""
    return _small(SUBWORD_IN, SUBWORD_OUT, units=SUBWORDS)


def bpe_tied() -> RunConfig:
    """WikiText-2: subwords in and out, one table for both (BPE-T)."""
    return _small(SUBWORD_IN, SUBWORD_OUT, units=SUBWORDS, tie=Tie())


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
    return _tied(ADAPTIVE_IN, ADAPTIVE_OUT)


def adaptive_tied_entmax() -> RunConfig:
    """WikiText-2: ADP-T whose heads each learn an alpha between softmax and sparsemax."""
    return _tied(ADAPTIVE_IN, ADAPTIVE_OUT, mapping=LearnedEntmaxConfig())


def adaptive_tied_64() -> RunConfig:
    """WikiText-2: ADP-T trained on blocks of 64 tokens; those of `adaptive_tied` have 128."""
    return _tied(ADAPTIVE_IN, ADAPTIVE_OUT, block=64)


def adaptive_tied_256() -> RunConfig:
    """WikiText-2: ADP-T trained on blocks of 256 tokens."""
    return _tied(ADAPTIVE_IN, ADAPTIVE_OUT, block=256)


def adaptive_tied_512() -> RunConfig:
    """WikiText-2: ADP-T trained on blocks of 512 tokens."""
    return _tied(ADAPTIVE_IN, ADAPTIVE_OUT, block=512)


def adaptive_tail_dropout() -> RunConfig:
    """WikiText-2: ADP with dropout of 0.2 in the tails of the output."""
    return _small(ADAPTIVE_IN, WITH_TAIL_DROPOUT)


def adaptive_softmax_tail_dropout() -> RunConfig:
    """WikiText-2: ASM with dropout of 0.2 in the tails of the output."""
    return _small(NARROW_IN, WITH_TAIL_DROPOUT)


def character_cnn_10k() -> RunConfig:
    """WikiText-2: CNN with a vocabulary of 10,000 words; all others are read and predicted as one unknown word."""
    return _small(CHARACTERS_IN, ADAPTIVE_OUT, units=FEWER_WORDS)


def character_cnn_10k_spelled() -> RunConfig:
    """WikiText-2: the same, but words outside the vocabulary are read by their spelling."""
    return _small(replace(CHARACTERS_IN, spell_unknown=True), ADAPTIVE_OUT, units=FEWER_WORDS)


def bands_8_15_77() -> RunConfig:
    """WikiText-2: ADP-T with bands of 8, 15 and 77 percent of the words, as 20K, 40K and 200K of 260K."""
    return _tied_with_bands(20, 40, 200)


def bands_8_54_38() -> RunConfig:
    """WikiText-2: ADP-T with bands of 8, 54 and 38 percent of the words, as 20K, 140K and 100K of 260K."""
    return _tied_with_bands(20, 140, 100)


def bands_8_15_23_54() -> RunConfig:
    """WikiText-2: ADP-T with bands of 8, 15, 23 and 54 percent of the words, as 20K, 40K, 60K and 140K of 260K."""
    return _tied_with_bands(20, 40, 60, 140)


def bands_23_38_38() -> RunConfig:
    """WikiText-2: ADP-T with bands of 23, 38 and 38 percent of the words, as 60K, 100K and 100K of 260K."""
    return _tied_with_bands(60, 100, 100)


def bands_2_60_38() -> RunConfig:
    """WikiText-2: ADP-T with bands of 2, 60 and 38 percent of the words, as 5K, 155K and 100K of 260K."""
    return _tied_with_bands(5, 155, 100)


def bands_4_23_73() -> RunConfig:
    """WikiText-2: ADP-T with bands of 4, 23 and 73 percent of the words, as 10K, 60K and 190K of 260K."""
    return _tied_with_bands(10, 60, 190)


def _tied_with_bands(*sizes: int) -> RunConfig:
    shares = tuple(size / sum(sizes) for size in accumulate(sizes[:-1]))
    output = AdaptiveOutputConfig(shares=shares, factor=FACTOR)
    return _tied(AdaptiveInputConfig(shares=shares, factor=FACTOR), output)


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
