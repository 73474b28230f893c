"""Multi30k, English to German: a small Transformer with four mappings in its heads, and one with a sparse output too.

Sizes and training fit two cores and an hour. The text is the lower-cased, tokenized one; `raw` learns from the captions
as they were written, cased and with their spaces.
"""

from dataclasses import replace

from anymax.attention import AttentionMappingConfig, EntmaxConfig, LearnedEntmaxConfig, SoftmaxConfig
from anymax.data.parallel.config import ParallelText
from anymax.data.text.config import BPE
from anymax.models import Tie, TransformerConfig, TranslatorConfig
from anymax.training.config import RunConfig
from anymax.training.optim.averages import ExponentialAverageConfig
from anymax.training.optim.optimizers import AdamConfig
from anymax.training.optim.schedules import InverseSquareRoot
from anymax.training.tasks.translation.config import PairTokens, TranslationConfig
from anymax.vocabulary import FixedInputConfig, FullOutputConfig, OutputConfig, SparseOutputConfig

TAKES = "an hour on two cores"

BODY = TransformerConfig(128, 4, 4, 512, dropout=0.2, final_norm=True, positions="sinusoidal")
TEXT = ParallelText("multi30k", languages=("en", "de"), form="tokenized", units=BPE(8_000))


def translator(
    mapping: AttentionMappingConfig, *, output: OutputConfig | None = None, text: ParallelText = TEXT
) -> RunConfig:
    """A small translator, with one mapping in all three attentions, and how it is trained."""
    model = TranslatorConfig(
        FixedInputConfig(),
        FullOutputConfig(label_smoothing=0.1) if output is None else output,
        BODY,
        share_input=True,
        tie=Tie(),
        encoder_mapping=mapping,
        decoder_mapping=mapping,
        cross_mapping=mapping,
    )
    return RunConfig(
        TranslationConfig(text, model, PairTokens(4096), decoded=500, goal="bleu"),
        AdamConfig(5e-3, betas=(0.9, 0.98)),
        InverseSquareRoot(warmup=1000),
        epochs=30,
        clip=1.0,
        evaluate_every="epoch",
        average=ExponentialAverageConfig(),
        keep=5,
    )


def softmax() -> RunConfig:
    """Multi30k: softmax in all heads."""
    return translator(SoftmaxConfig())


def entmax() -> RunConfig:
    """Multi30k: 1.5-entmax in all heads."""
    return translator(EntmaxConfig(1.5))


def sparsemax() -> RunConfig:
    """Multi30k: sparsemax in all heads."""
    return translator(EntmaxConfig(2.0))


def learned_entmax() -> RunConfig:
    """Multi30k: every head learns its alpha."""
    return translator(LearnedEntmaxConfig())


def learned_entmax_sparse_output() -> RunConfig:
    """Multi30k: every head learns its alpha, and 1.5-entmax chooses the words."""
    return translator(LearnedEntmaxConfig(), output=SparseOutputConfig(1.5, label_smoothing=0.01))


def raw() -> RunConfig:
    """Multi30k: learned alphas, on the captions as they were written."""
    return translator(LearnedEntmaxConfig(), text=replace(TEXT, form="raw"))
