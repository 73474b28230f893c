"""The AWD-LSTM of Merity et al. 2018, with the settings that were published with its code.

Perplexities in the descriptions are theirs, before fine-tuning, which is a second stage: `anymax finetune`. The paper
prints other settings for the Penn Treebank, batches of 40, 750 epochs and a dropout of 0.3 between layers, and 60.7
valid perplexity.
"""

from dataclasses import replace

from anymax.data.text.config import Text
from anymax.models import AWDLSTMConfig, LanguageModelConfig, Tie
from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AdamConfig, AveragedSGDConfig, SGDConfig
from anymax.training.optim.schedules import Constant
from anymax.training.tasks.language_modeling.config import Contiguous, Evaluation, LanguageModelingConfig, RandomLengths
from anymax.vocabulary import FixedInputConfig, FullOutputConfig, OutputConfig

TAKES = "24M to 34M parameters; for a GPU: an epoch of the smallest, of 500, takes 40 minutes on one core"

WEIGHT_DECAY = 1.2e-6
PTB_BODY = AWDLSTMConfig(input_dropout=0.4, layer_dropout=0.25)
WIKITEXT2_BODY = AWDLSTMConfig(input_dropout=0.65, layer_dropout=0.2)


def awd_lstm(
    corpus: str,
    body: AWDLSTMConfig,
    output: OutputConfig,
    *,
    batch_size: int,
    epochs: float,
    lr: float = 30.0,
    longest: int | None = None,
) -> RunConfig:
    """Rows of about 70 words, one table for input and output, and averaging once the perplexity stops falling.

    Args:
        longest: the most words of a row in a batch; by default whatever is drawn.
    """
    return RunConfig(
        LanguageModelingConfig(
            Text(corpus),
            LanguageModelConfig(FixedInputConfig(), output, body, Tie()),
            Contiguous(batch_size, 70, RandomLengths(most=longest)),
            # Ten rows while training; `anymax evaluate --rows 1` is exact.
            evaluation=Evaluation(rows=10),
        ),
        AveragedSGDConfig(lr, weight_decay=WEIGHT_DECAY),
        Constant(),
        epochs=epochs,
        clip=0.25,
        evaluate_every="epoch",
    )


def ptb() -> RunConfig:
    """An AWD-LSTM on the Penn Treebank: 24.2M parameters, 61.2 valid and 58.8 test perplexity published."""
    return awd_lstm("ptb", PTB_BODY, FullOutputConfig(bias=True), batch_size=20, epochs=500)


def ptb_sgd() -> RunConfig:
    """The same without averaging: 66.3 valid and 63.7 test perplexity published."""
    return replace(ptb(), optimizer=SGDConfig(30.0, weight_decay=WEIGHT_DECAY))


def ptb_adam() -> RunConfig:
    """The same with Adam, which the paper finds worse than SGD for words."""
    return replace(ptb(), optimizer=AdamConfig(1e-3, weight_decay=WEIGHT_DECAY))


def wikitext2() -> RunConfig:
    """An AWD-LSTM on WikiText-2: 33.6M parameters, 68.7 valid and 65.6 test perplexity published."""
    return awd_lstm("wikitext-2", WIKITEXT2_BODY, FullOutputConfig(bias=True), batch_size=80, epochs=750)
