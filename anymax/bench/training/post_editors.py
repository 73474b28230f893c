"""Training steps of post-editors against `EncoderDecoderModel` of transformers with the same weights.

Shapes: B rows, S pieces of the longest sentence and translation, T of the longest correction.
"""

import math
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.bench.harness.comparison import Comparison, fastest
from anymax.bench.harness.learner import Learner
from anymax.bench.harness.peers import Sweep
from anymax.bench.harness.steps import compare_steps
from anymax.bench.harness.timing import Budget, Run
from anymax.bench.outputs import zipf
from anymax.bench.training.post_editor_twin import Attention, TwinPostEditor, name, twin_of_post_editor
from anymax.data.batches.batches import IGNORE_INDEX
from anymax.models.bert.config import BertConfig
from anymax.models.post_editing.config import PostEditorConfig
from anymax.models.post_editing.model import PostEditor
from anymax.recipes import ape_small

OURS, THEIRS = "PostEditor", "EncoderDecoderModel"
ATTENTIONS: tuple[Attention, ...] = ("sdpa", "eager")
NUM_BATCHES = 8
# How far a translation and its correction are from the length of the sentence, in logarithms, as in the WMT's triplets.
APART = 0.15
# The ids of padding and of what begins a correction; others are words.
PAD, FIRST = 0, 1


@dataclass(frozen=True)
class EditSize:
    """A post-editor and its batches.

    Args:
        sizes: of the encoder, and of the decoder.
        words: of the one vocabulary, drawn by Zipf's law.
        length: pieces of half of the sentences are fewer; translations and corrections are about as long.
        spread: the standard deviation of the logarithm of lengths.
        max_tokens: of a batch, padding included: its rows times the longest sentence with its translation.
    """

    name: str
    sizes: BertConfig
    words: int
    length: int
    spread: float
    max_tokens: int


class EditBatch(NamedTuple):
    """The arguments of a post-editor."""

    source: Tensor
    source_mask: Tensor
    segments: Tensor
    positions: Tensor
    ids: Tensor
    target: Tensor


class Vocabulary(NamedTuple):
    """What a post-editor must know of word pieces."""

    size: int
    pad: int = PAD
    first: int = FIRST

    def __len__(self) -> int:
        return self.size


# The recipe's model and batches, and the lengths of its triplets.
SMALL = EditSize("of ape_small's size", ape_small.SIZES, words=12_000, length=20, spread=0.5, max_tokens=2048)
# The sizes of BERT-base, of which two of twelve layers on each side and a quarter of the words are enough for a ratio.
BASE = EditSize("of BERT-base's size", BertConfig(768, 2), words=30_000, length=20, spread=0.5, max_tokens=512)
TINY = EditSize("of a small size", BertConfig(64, 1, 2, 256), words=2_000, length=12, spread=0.3, max_tokens=384)


def compare_with_transformers(job: str, size: EditSize, budget: Budget, *, part_steps: int) -> Comparison:
    """Steps of both, transformers' as the baseline: the same batches, weights, ties and rates of dropout."""
    batches = draw_batches(size)
    tokens = sum(int((batch.target != IGNORE_INDEX).sum()) for batch in batches) / len(batches)
    make_optimizer = partial(torch.optim.AdamW, lr=1e-4, weight_decay=0.01, fused=True)
    ours = build(size)
    twin = twin_of_post_editor(ours)
    theirs = Learner(THEIRS, twin, batches, make_optimizer)
    sweep = _choose_attention(theirs, twin, budget)
    learners = [theirs, Learner(OURS, ours, batches, make_optimizer)]
    return compare_steps(job, learners, budget, (sweep,), part_steps=part_steps, tokens=round(tokens))


def describe(size: EditSize) -> str:
    """The model and its batches."""
    sizes = size.sizes
    return (
        f"a post-editor {size.name} has {sizes.num_layers} blocks on each side, of dimension {sizes.model_dim} with "
        f"{sizes.num_heads} heads and {sizes.ffn_dim} inside, dropout {sizes.dropout:g}, of attention "
        f"{sizes.attention_dropout:g}, self-attention tied, one table of {size.words} word pieces; a batch is at most "
        f"{size.max_tokens} tokens of sentences of about {size.length} with their translations, padding included; its "
        "speed is in tokens of corrections"
    )


def describe_peer() -> str:
    """What is compared with what."""
    return (
        f"{THEIRS} is of {name()}, without its head's hidden layer, its scores all at once, label smoothing by "
        f"F.cross_entropy over all word pieces; {OURS} leaves padding and the target out of it. Both have fused AdamW, "
        "the same weights, ties and batches"
    )


def build(size: EditSize) -> PostEditor:
    """The recipe's post-editor with other sizes, its parameters drawn at random."""
    torch.manual_seed(0)
    return PostEditorConfig(size.sizes).build(Vocabulary(size.words))


def draw_batches(size: EditSize) -> list[EditBatch]:
    """Triplets of about one length in each batch; lengths differ between batches as in a corpus."""
    generator = torch.Generator().manual_seed(0)
    quantiles = ((i + 0.5) / NUM_BATCHES for i in range(NUM_BATCHES))
    lengths = (size.length * math.exp(size.spread * NormalDist().inv_cdf(quantile)) for quantile in quantiles)
    return [_draw_batch(max(2, round(length)), size, generator) for length in lengths]


def _draw_batch(length: int, size: EditSize, generator: torch.Generator) -> EditBatch:
    rows = max(1, size.max_tokens // (2 * length))
    sentences_B1, translations_B1, corrections_B1 = (
        (length * (APART * torch.randn(rows, 1, generator=generator)).exp()).round().clamp(2).long() for _ in range(3)
    )
    # Rows are cut where they are longer than the budget allows for.
    translations_B1 = translations_B1.clamp(max=(2 * length - sentences_B1).clamp(min=1))
    sentences_B1 = sentences_B1.clamp(max=2 * length - 1)
    wholes_B1 = sentences_B1 + translations_B1
    source_BS, place_S = _words(rows, int(wholes_B1.max()), size, generator)
    mask_BS = place_S < wholes_B1
    is_translation_BS = (place_S >= sentences_B1) & mask_BS
    target_BT, place_T = _words(rows, int(corrections_B1.max()), size, generator)
    ids_BT = torch.cat([torch.full((rows, 1), FIRST), target_BT[:, :-1]], 1)
    return EditBatch(
        source_BS.masked_fill(~mask_BS, PAD),
        mask_BS,
        is_translation_BS.long(),
        torch.where(is_translation_BS, place_S - sentences_B1, place_S).clamp(max=size.sizes.max_positions - 1),
        ids_BT,
        target_BT.masked_fill(place_T >= corrections_B1, IGNORE_INDEX),
    )


def _words(rows: int, width: int, size: EditSize, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words behind the special ones, and the places in a row."""
    drawn = zipf(rows * width, size.words - FIRST - 1, generator)
    return (FIRST + 1 + drawn).view(rows, -1), torch.arange(width)


def _choose_attention(learner: Learner, twin: TwinPostEditor, budget: Budget) -> Sweep:
    """Give the twin the attention at which whole steps are fastest."""

    def stepping(attention: Attention) -> Run:
        def step() -> float:
            twin.attend_by(attention)
            return learner()

        return step

    tried = {f"attn_implementation={attention!r}": attention for attention in ATTENTIONS}
    runs = {setting: stepping(attention) for setting, attention in tried.items()}
    sweep = fastest(learner.name, runs, Budget(seconds=budget.seconds / 2, rounds=5, least=2))
    twin.attend_by(tried[sweep.chosen])
    learner.setting = sweep.chosen
    return sweep
