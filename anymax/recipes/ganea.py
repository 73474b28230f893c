"""Learned increasing functions of the scores on the AWD-LSTM, Ganea et al. 2019, and sig-softmax, Kanai et al. 2018.

How a piecewise linear function starts is not published: here it is the identity, so that the model starts as a softmax.
The public code that has its authors' implementation draws random slopes: `--model.output.transform.random-start`. Its
learning rate is 0.02.

A piecewise linear function has one parameter per piece here, and two per knot in the paper's counts: 24.32M, 33.66M and
27.63M parameters here are 24.4M, 33.2M and 28.6M there. The paper's row of a mixture on WikiText-2 repeats the figures
of `yang.wikitext2`.
"""

from dataclasses import replace

from anymax.recipes.merity import PTB_BODY, WIKITEXT2_BODY, awd_lstm
from anymax.recipes.yang import mixture
from anymax.training.config import RunConfig
from anymax.transforms import PLIFConfig, SigConfig
from anymax.vocabulary import FullOutputConfig

TAKES = "24M to 34M parameters; for a GPU"

PLIF = PLIFConfig(100_000, rate=0.02 / 30.0)
PIECEWISE = FullOutputConfig(bias=True, transform=PLIF)


def ptb_plif() -> RunConfig:
    """A piecewise linear function of 100,000 pieces on the Penn Treebank: 59.45 valid and 57.25 test published.

    24.32M parameters; 24.4M in the paper, which counts two per knot.
    """
    return awd_lstm("ptb", PTB_BODY, PIECEWISE, batch_size=20, epochs=500)


def ptb_sigsoftmax() -> RunConfig:
    """Sig-softmax on the Penn Treebank: 57.75 test published; 57.05 averaged from epoch 200, learning rate 20."""
    return awd_lstm("ptb", PTB_BODY, FullOutputConfig(bias=True, transform=SigConfig()), batch_size=20, epochs=500)


def ptb_mixture() -> RunConfig:
    """A mixture of 15 softmaxes as wide as the AWD-LSTM, Penn Treebank: 26.6M parameters, 58.58 and 56.43 published."""
    return awd_lstm("ptb", PTB_BODY, mixture(15, 400), batch_size=20, epochs=500)


def ptb_mixture_plif() -> RunConfig:
    """The same with a function of a million pieces: 58.20 valid and 56.02 test perplexity published.

    27.63M parameters; 28.6M in the paper, which counts two per knot.
    """
    output = mixture(15, 400, transform=replace(PLIF, pieces=1_000_000))
    return awd_lstm("ptb", PTB_BODY, output, batch_size=20, epochs=500)


def wikitext2_plif() -> RunConfig:
    """A piecewise linear function of 100,000 pieces on WikiText-2: 67.87 valid and 64.86 test published.

    33.66M parameters; 33.2M in the paper, which counts two per knot on top of a rounded 33M.
    """
    return awd_lstm("wikitext-2", WIKITEXT2_BODY, PIECEWISE, batch_size=80, epochs=750)
