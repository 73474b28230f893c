"""Training steps of translators: each mapping in all heads, against layers of torch's own that attend by softmax.

Shapes: B rows, S tokens of the longest source, T of the longest target.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist

import torch

from anymax.attention import AttentionMappingConfig, EntmaxConfig, LearnedEntmaxConfig, SoftmaxConfig
from anymax.bench.harness.comparison import Comparison
from anymax.bench.harness.learner import Learner
from anymax.bench.harness.steps import compare_steps
from anymax.bench.harness.timing import Budget
from anymax.bench.outputs import zipf
from anymax.bench.training.translator_twin import twin_of_translator
from anymax.data import Lexicon
from anymax.data.batches.batches import IGNORE_INDEX
from anymax.data.batches.pairs import PairBatch
from anymax.models import TransformerConfig
from anymax.models.translation.model import Translator
from anymax.recipes import multi30k
from anymax.training.tasks.translation.config import TranslationConfig

TORCHS = "softmax, torch's layers"
MAPPINGS: dict[str, AttentionMappingConfig] = {
    "softmax": SoftmaxConfig(),
    "entmax 1.5": EntmaxConfig(1.5),
    "entmax, alpha learned per head": LearnedEntmaxConfig(),
}
NUM_BATCHES = 8
# How far a translation is from the length of its source, in logarithms, as in Multi30k.
APART = 0.15


@dataclass(frozen=True)
class Size:
    """A translator and its batches.

    Args:
        body: of the encoder, and of the decoder.
        words: of the one vocabulary, drawn by Zipf's law.
        length: tokens of half of the sentences are fewer.
        spread: the standard deviation of the logarithm of lengths.
        max_tokens: of a batch, padding included: its rows times its longest sentence.
    """

    name: str
    body: TransformerConfig
    words: int
    length: int
    spread: float
    max_tokens: int


# The recipe's model and batches, and the lengths of the corpus.
SMALL = Size("of Multi30k's size", multi30k.BODY, words=8_000, length=14, spread=0.3, max_tokens=4096)
# The sizes of Vaswani et al.'s base model, of which two of six layers on each side are enough for a ratio.
BASE = Size(
    "of base size",
    TransformerConfig(512, 2, 8, 2048, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, final_norm=True),
    words=8_000,
    length=25,
    spread=0.6,
    max_tokens=2048,
)
TINY = Size(
    "of a small size",
    TransformerConfig(64, 1, 2, 256, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, final_norm=True),
    words=2_000,
    length=14,
    spread=0.3,
    max_tokens=512,
)


def compare_mappings(job: str, size: Size, budget: Budget, *, part_steps: int) -> Comparison:
    """Steps of all mappings and of torch's layers, which are the baseline: the same batches, weights and dropout."""
    batches = draw_batches(size)
    tokens = sum(int((batch.target != IGNORE_INDEX).sum()) for batch in batches) / len(batches)
    learners = list(_learners(size, batches))
    return compare_steps(job, learners, budget, part_steps=part_steps, tokens=round(tokens))


def describe(size: Size) -> str:
    """The model and its batches."""
    body = size.body
    return (
        f"a translator {size.name} has {body.num_layers} blocks on each side, of dimension {body.model_dim} with "
        f"{body.num_heads} heads and {body.ffn_dim} inside, dropout {body.dropout:g}, of attention "
        f"{body.attention_dropout:g}, one table of {size.words} words; a batch is at most {size.max_tokens} tokens, "
        f"padding included, of sentences of about {size.length}"
    )


def build(size: Size, mapping: AttentionMappingConfig) -> Translator:
    """The recipe's translator with another body, its parameters drawn at random, the same for every mapping."""
    torch.manual_seed(0)
    task = multi30k.translator(mapping).task
    assert isinstance(task, TranslationConfig)
    lexicon = Lexicon.from_counts({f"word{i}": 1 for i in range(size.words - 2)})
    return replace(task.model, body=size.body).build(lexicon, lexicon)


def draw_batches(size: Size) -> list[PairBatch]:
    """Pairs of about one length in each batch; lengths differ between batches as in a corpus."""
    generator = torch.Generator().manual_seed(0)
    # A batch for each of as many equal shares of the sentences.
    quantiles = ((i + 0.5) / NUM_BATCHES for i in range(NUM_BATCHES))
    lengths = (size.length * math.exp(size.spread * NormalDist().inv_cdf(quantile)) for quantile in quantiles)
    return [_draw_batch(max(2, round(length)), size, generator) for length in lengths]


def _draw_batch(longest: int, size: Size, generator: torch.Generator) -> PairBatch:
    """Sorted by the length of targets, which is one but for the last row's; sources have others."""
    rows = max(1, size.max_tokens // longest)
    lengths_B = (longest * (APART * torch.randn(rows, generator=generator)).exp()).round().clamp(2, longest).long()
    targets_B = torch.full((rows,), longest)
    targets_B[-1] = max(2, longest - 1)
    source_BS, target_BT = (1 + zipf(rows * longest, size.words - 1, generator).view(rows, -1) for _ in range(2))
    places = torch.arange(longest)
    source_mask_BS = places < lengths_B[:, None]
    ends_BS, ends_BT = (places >= lengths[:, None] - 1 for lengths in (lengths_B, targets_B))
    source_BS[ends_BS], target_BT[ends_BT] = 0, 0
    ids_BT = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), target_BT[:, :-1]], 1)
    target_BT[places >= targets_B[:, None]] = IGNORE_INDEX
    return PairBatch(source_BS, source_mask_BS, ids_BT, target_BT)


def _learners(size: Size, batches: list[PairBatch]) -> Iterator[Learner]:
    make_optimizer = partial(torch.optim.Adam, lr=1e-3, betas=(0.9, 0.98), fused=True)
    softmax = build(size, SoftmaxConfig())
    yield Learner(TORCHS, twin_of_translator(softmax), batches, make_optimizer)
    for name, mapping in MAPPINGS.items():
        model = build(size, mapping)
        model.load_state_dict(softmax.state_dict(), strict=False)
        yield Learner(name, model, batches, make_optimizer)
