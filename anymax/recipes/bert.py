"""BERT, from plain text of one language or several: the published size, and one for two cores.

    anymax train bert.small --data.paths en.txt de.txt --data.languages en de --data.shares 0.5 0.5

Without paths it learns from presidents' addresses, so that it runs anywhere.
"""

from anymax.attention import LearnedEntmaxConfig, SoftmaxConfig
from anymax.attention.config import AttentionMappingConfig
from anymax.data.multilingual.config import MultilingualText, Pieces
from anymax.models.bert.config import BertConfig
from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AdamWConfig
from anymax.training.optim.schedules import Linear
from anymax.training.tasks.masked_language_modeling.config import MaskedLanguageModelingConfig, PackedLines

TAKES = "the published size for GPUs, the small ones for two cores"

# Word pieces of bert-base-multilingual-cased.
MULTILINGUAL = 119_547


def base_multilingual() -> RunConfig:
    """BERT of base size for many languages, trained as published: 178.0M parameters with its 119,547 word pieces.

    Texts are to be given as paths; a step has 256 rows of 512 tokens.
    """
    return RunConfig(
        MaskedLanguageModelingConfig(
            MultilingualText(pieces=Pieces(MULTILINGUAL, most_characters=10_000)),
            BertConfig(),
            PackedLines(512, 32),
        ),
        AdamWConfig(1e-4, eps=1e-6, weight_decay=0.01),
        Linear(warmup=10_000),
        steps=1_000_000,
        accumulate=8,
        clip=1.0,
        log_every=100,
        evaluate_every=10_000,
        checkpoint_every=10_000,
    )


def small() -> RunConfig:
    """A BERT of four layers for two cores."""
    return _small(SoftmaxConfig())


def small_entmax() -> RunConfig:
    """The same, whose heads each learn an alpha between softmax and sparsemax."""
    return _small(LearnedEntmaxConfig())


def _small(mapping: AttentionMappingConfig) -> RunConfig:
    model = BertConfig(256, 4, 4, 1024, max_positions=256, mapping=mapping)
    return RunConfig(
        MaskedLanguageModelingConfig(
            MultilingualText(pieces=Pieces(12_000, most_characters=1_000)), model, PackedLines(128, 32)
        ),
        AdamWConfig(5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01),
        Linear(warmup=500),
        steps=8_000,
        clip=1.0,
        evaluate_every=1_000,
        checkpoint_every=1_000,
    )
