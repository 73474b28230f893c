"""What entmax costs in a training step of a Transformer with an encoder and a decoder, in place of softmax.

Shapes: B batch, H heads, N positions, D the model's dimension, E numbers per head.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.attention import MultiHeadAttention, sinusoids
from anymax.attention.multi_head import Mapping
from anymax.bench.attention.density import density, find_scales
from anymax.bench.attention.problem import ALPHA
from anymax.bench.attention.settings import Settings
from anymax.bench.harness.comparison import Comparison
from anymax.bench.harness.learner import Learner
from anymax.bench.harness.steps import compare_steps
from anymax.bench.outputs import zipf
from anymax.mappings import Entmax, LearnedEntmax, softmax
from anymax.models import TransformerBlock, TransformerConfig
from anymax.vocabulary import FixedInput, FullOutput

NUM_BATCHES = 4
PADDING = 0
# So small that the densities stay; the optimizer does the same work.
LEARNING_RATE = 1e-7
# Sources are from this share of the longest to the longest.
SHORTEST = 0.75

# Of sentences: the source, and the target that is read and predicted.
Pair = tuple[Tensor, Tensor]


class Translator(nn.Module):
    """An encoder that reads the source and a decoder that predicts the target: source and target in, the loss out.

    Args:
        mapping: makes that of each attention; None is softmax.
    """

    def __init__(self, config: TransformerConfig, num_words: int, mapping: Callable[[], Mapping | None]) -> None:
        super().__init__()
        dim, layers = config.model_dim, range(config.num_layers)
        self.dropout = config.dropout
        self.input = FixedInput(num_words, dim)
        self.encoder = nn.ModuleList(TransformerBlock(config, mapping=mapping()) for _ in layers)
        self.decoder = nn.ModuleList(
            TransformerBlock(config, mapping=mapping(), memory_dim=dim, cross_mapping=mapping()) for _ in layers
        )
        self.output = FullOutput(num_words, dim)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = source != PADDING
        memory_BND = self._embed(source)
        for block in self.encoder:
            memory_BND = block(memory_BND, key_mask=mask)
        hidden_BND = self._embed(target[:, :-1])
        for block in self.decoder:
            hidden_BND = block(hidden_BND, is_causal=True, memory=memory_BND, memory_mask=mask)
        loss: Tensor = self.output(hidden_BND, target[:, 1:])
        return loss

    def attentions(self) -> list[MultiHeadAttention]:
        return [module for module in self.modules() if isinstance(module, MultiHeadAttention)]

    def _embed(self, ids: Tensor) -> Tensor:
        vectors_BND = self.input(ids)
        dim = vectors_BND.shape[-1]
        summed_BND = math.sqrt(dim) * vectors_BND + sinusoids(ids.shape[1], dim, device=ids.device)
        return F.dropout(summed_BND, self.dropout, self.training)


def compare_mappings(job: str, settings: Settings) -> Comparison:
    """Steps with softmax and with entmax, as the model is initialised and at the middle density."""
    learners = tuple(_learners(settings))
    return compare_steps(job, learners, settings.step_budget, part_steps=settings.part_steps, device=settings.device)


def describe(settings: Settings) -> str:
    """The model and its batch."""
    body, (rows, length, words) = settings.body, settings.batch
    return (
        f"a step is forward, backward, clipping and fused AdamW for {rows} pairs of {length} tokens, sources padded; "
        f"blocks on each side: {body.num_layers}, of dimension {body.model_dim}, {body.num_heads} heads, "
        f"{body.ffn_dim} inside, {words} words, dropout {body.dropout:g}, of attention too"
    )


def _learners(settings: Settings) -> Iterator[Learner]:
    num_heads = settings.body.num_heads
    learned = partial(LearnedEntmax, shape=(num_heads, 1, 1))
    make_optimizer = partial(torch.optim.AdamW, lr=LEARNING_RATE, fused=True)
    batches = draw_batches(settings)
    first = build(settings, lambda: None)

    def learner(name: str, model: Translator, setting: str = "") -> Learner:
        return Learner(name, model, batches, make_optimizer, setting=setting, precision=settings.dtype)

    def sparse(name: str, mapping: Callable[[], Mapping], wanted: float | None) -> Learner:
        model = build(settings, mapping)
        # All have the same weights, and learned alphas beside them.
        model.load_state_dict(first.state_dict(), strict=False)
        return learner(name, model, f"density {100 * measure_density(model, batches[0], wanted):#.3g} %")

    yield learner("softmax, F.scaled_dot_product_attention", first)
    eager = build(settings, lambda: _eager_softmax)
    eager.load_state_dict(first.state_dict())
    yield learner("softmax, eager", eager)
    for wanted, when in ((None, "as initialised"), (settings.densities[1], "sparse")):
        yield sparse(f"entmax {ALPHA:g}, {when}", partial(Entmax, ALPHA), wanted)
        yield sparse(f"entmax, alpha learned per head, {when}", learned, wanted)


def _eager_softmax(scores: Tensor, *, mask: Tensor | None) -> Tensor:
    """Softmax as a mapping like others, for attention not to call torch's."""
    return softmax(scores, mask=mask)


def build(settings: Settings, mapping: Callable[[], Mapping | None]) -> Translator:
    """The model, its parameters drawn at random."""
    torch.manual_seed(0)
    return Translator(settings.body, settings.batch.words, mapping).to(settings.device)


def draw_batches(settings: Settings) -> list[Pair]:
    """Words by Zipf's law, sources of various lengths."""
    generator = torch.Generator().manual_seed(0)
    rows, length, words = settings.batch

    def draw(width: int) -> Tensor:
        # The first word is the padding.
        return 1 + zipf(rows * width, words - 1, generator).view(rows, width)

    batches = []
    for _ in range(NUM_BATCHES):
        source, target = draw(length), draw(length + 1)
        lengths = torch.linspace(SHORTEST * length, length, rows).round()
        source[torch.arange(length) >= lengths[:, None]] = PADDING
        batches.append((source.to(settings.device), target.to(settings.device)))
    return batches


@torch.no_grad()
def measure_density(model: Translator, pair: Pair, wanted: float | None = None) -> float:
    """The mean density of all attentions of a model on a batch.

    Args:
        wanted: scale the queries of every head for it to have this density.
    """
    found: list[Tensor] = []

    def look(attention: nn.Module, args: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        # Attention to itself has one argument, to the source two.
        query, key = args[0], args[-1]
        assert isinstance(attention, MultiHeadAttention)
        allowed = options["mask"]
        if options.get("is_causal", False):
            allowed = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool, device=query.device).tril()
        found.append(_density_of(attention, query, key, allowed, wanted))

    handles = [one.register_forward_pre_hook(look, with_kwargs=True) for one in model.attentions()]
    model.eval()
    model(*pair)
    model.train()
    for handle in handles:
        handle.remove()
    return torch.stack(found).mean().item()


def _density_of(
    attention: MultiHeadAttention, query: Tensor, key: Tensor, allowed: Tensor | None, wanted: float | None
) -> Tensor:
    """Of each head, its queries scaled first if a density is wanted."""
    mapping, num_heads = attention.mapping, attention.num_heads
    assert isinstance(mapping, Entmax | LearnedEntmax)
    alpha_H = torch.as_tensor(mapping.alpha, dtype=torch.float32, device=query.device).flatten().expand(num_heads)
    query_BHNE, key_BHNE = (
        layer(vectors).unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for layer, vectors in ((attention.query, query), (attention.key, key))
    )
    if wanted is None:
        return density(query_BHNE, key_BHNE, alpha_H, allowed)
    scale_H = find_scales(query_BHNE, key_BHNE, alpha_H, torch.full_like(alpha_H, wanted), allowed)
    for parameter in attention.query.parameters():
        parameter.unflatten(0, (num_heads, -1)).mul_(scale_H.view(-1, *[1] * parameter.dim()))
    return density(query_BHNE * scale_H[:, None, None], key_BHNE, alpha_H, allowed)
