"""The LSTM of Grave et al. 2017, with a full and with an adaptive softmax.

Their text8 is not among the named corpora. WikiText-2 has about as many words and takes its cutoffs; the Penn Treebank
takes those that were published with the code. For other text give a path and cutoffs that suit it.
"""

from anymax.data.text.config import Text
from anymax.models import LanguageModelConfig, LSTMConfig
from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AdagradConfig
from anymax.training.optim.schedules import Constant
from anymax.training.tasks.language_modeling.config import Contiguous, LanguageModelingConfig
from anymax.vocabulary import AdaptiveOutputConfig, FixedInputConfig, FullOutputConfig, OutputConfig

TAKES = "14 to 83 minutes on a GPU, as published"


def lstm(corpus: str, output: OutputConfig) -> RunConfig:
    """One layer of 512, read in steps of 20 words and trained for five epochs."""
    return RunConfig(
        LanguageModelingConfig(
            Text(corpus),
            LanguageModelConfig(FixedInputConfig(), output, LSTMConfig(input_dim=256, hidden_dim=512)),
            Contiguous(batch_size=128, block=20),
        ),
        AdagradConfig(0.1, weight_decay=1e-6),
        Constant(),
        epochs=5,
        clip=1.0,
    )


def full() -> RunConfig:
    """An LSTM with a full softmax on WikiText-2; on text8, 144 test perplexity in 83 minutes published."""
    return lstm("wikitext-2", FullOutputConfig())


def adaptive() -> RunConfig:
    """An LSTM with an adaptive softmax on WikiText-2; on text8, 147 test perplexity in 14 minutes published."""
    return lstm("wikitext-2", AdaptiveOutputConfig((2_000, 10_000)))


def ptb_full() -> RunConfig:
    """An LSTM with a full softmax on the Penn Treebank."""
    return lstm("ptb", FullOutputConfig())


def ptb_adaptive() -> RunConfig:
    """An LSTM with an adaptive softmax on the Penn Treebank."""
    return lstm("ptb", AdaptiveOutputConfig((2_000,)))
