"""What the recipes for two cores share: the sizes, and how they are trained.

The choices of Baevski and Auli 2019 for input and output, each an eighth as wide. The body has the parts of newer
models, rotary positions and RMS norms, which learn faster. docs/results says how the numbers were found.
"""

from anymax.attention import AttentionMappingConfig, SoftmaxConfig
from anymax.data.text.config import BPE, Text, Words
from anymax.models import LanguageModelConfig, Tie, TransformerConfig
from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AdamWConfig
from anymax.training.optim.schedules import Cosine
from anymax.training.tasks.language_modeling.config import Blocks, Evaluation, LanguageModelingConfig
from anymax.vocabulary import (
    AdaptiveInputConfig,
    AdaptiveOutputConfig,
    CharacterInputConfig,
    FixedInputConfig,
    FullOutputConfig,
    InputConfig,
    OutputConfig,
)

MODEL_DIM = 128
BODY = TransformerConfig(MODEL_DIM, 3, 4, 4 * MODEL_DIM, final_norm=True, positions="rotary", norm="rms")
BLOCK = 128
STEP_TOKENS = 512

# Half as wide as the model, as there.
TABLE_IN, TABLE_OUT = FixedInputConfig(MODEL_DIM // 2), FullOutputConfig(MODEL_DIM // 2)
# The input of an adaptive output was best narrow.
NARROW_IN = FixedInputConfig(MODEL_DIM // 4)
CHARACTERS_IN = CharacterInputConfig(16, ((1, 16), (2, 32), (3, 48), (4, 64), (5, 64), (6, 64), (7, 64)))
# Tails of a quarter and a sixteenth would be too narrow here.
SHARES, FACTOR = (0.12, 0.36), 2
ADAPTIVE_IN = AdaptiveInputConfig(shares=SHARES, factor=FACTOR)
ADAPTIVE_OUT = AdaptiveOutputConfig(shares=SHARES, factor=FACTOR)
SUBWORD_IN, SUBWORD_OUT = FixedInputConfig(), FullOutputConfig()

WORDS = Words()
SUBWORDS = BPE(size=24_000)


def small(
    corpus: str,
    input: InputConfig,
    output: OutputConfig,
    *,
    epochs: float,
    tie: Tie | None = None,
    units: Words | BPE = WORDS,
    mapping: AttentionMappingConfig | None = None,
    block: int = BLOCK,
) -> RunConfig:
    """A decoder of three blocks and how it is trained on a named corpus.

    Args:
        mapping: what decides where heads look; by default softmax.
        block: tokens that are read together, in training and in a window of evaluation; a step has 512.
    """
    model = LanguageModelConfig(input, output, BODY, tie, SoftmaxConfig() if mapping is None else mapping)
    return RunConfig(
        LanguageModelingConfig(
            Text(corpus, units=units), model, Blocks(block, STEP_TOKENS // block), evaluation=Evaluation(block)
        ),
        AdamWConfig(6e-3, betas=(0.9, 0.98), weight_decay=0.01),
        Cosine(warmup=0.06, minimum=0.02),
        epochs=epochs,
        clip=1.0,
        evaluate_every=500,
    )
