"""Sentences of made-up words to copy or to reverse: whether a translator learns at all, in seconds."""

from anymax.attention import LearnedEntmaxConfig
from anymax.data.parallel.config import ParallelText
from anymax.data.text.config import Words
from anymax.models import Tie, TransformerConfig, TranslatorConfig
from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AdamConfig
from anymax.training.optim.schedules import Cosine
from anymax.training.tasks.translation.config import PairTokens, TranslationConfig
from anymax.vocabulary import FixedInputConfig, FullOutputConfig

TAKES = "half a minute to two minutes"

BODY = TransformerConfig(64, 2, 4, 128, final_norm=True, positions="sinusoidal")


def _translator(corpus: str, *, epochs: int) -> RunConfig:
    mapping = LearnedEntmaxConfig()
    model = TranslatorConfig(
        FixedInputConfig(),
        FullOutputConfig(),
        BODY,
        share_input=True,
        tie=Tie(),
        encoder_mapping=mapping,
        decoder_mapping=mapping,
        cross_mapping=mapping,
    )
    return RunConfig(
        TranslationConfig(ParallelText(corpus, units=Words()), model, PairTokens(500)),
        AdamConfig(5e-3, betas=(0.9, 0.98)),
        Cosine(warmup=0.15),
        epochs=epochs,
        clip=1.0,
        evaluate_every="epoch",
    )


def copy() -> RunConfig:
    """Sentences of made-up words to copy, which takes half a minute."""
    return _translator("copy", epochs=6)


def reverse() -> RunConfig:
    """Sentences of made-up words to read backwards, which takes a minute or two."""
    return _translator("reverse", epochs=16)
