"""Where heads look, captured beside a model's results."""

import functools

import pytest
import torch
from torch import Tensor, nn

import anymax
from anymax.attention import KeyValueCache, MultiHeadAttention, capture
from anymax.models import TransformerBlock, TransformerConfig, TransformerLM
from anymax.vocabulary import FixedInput, FullOutput
from tests.each import each

CONFIG = TransformerConfig(16, 3, 2, 32, attention_dropout=0.3)


class EncoderDecoder(nn.Module):
    """Blocks as a translator has them."""

    def __init__(self, mapping: object) -> None:
        super().__init__()
        # Listed in another order than they are called in.
        self.decoder = nn.ModuleList(
            TransformerBlock(CONFIG, mapping=mapping, memory_dim=16, cross_mapping=mapping) for _ in range(2)
        )
        self.encoder = nn.ModuleList(TransformerBlock(CONFIG, mapping=mapping) for _ in range(3))

    def forward(self, source: Tensor, target: Tensor, padding: Tensor) -> Tensor:
        for block in self.encoder:
            source = block(source, key_mask=padding)
        for block in self.decoder:
            target = block(target, is_causal=True, memory=source, memory_mask=padding)
        return target


def gumbel(scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
    return anymax.gumbel_softmax(scores, mask=mask)


@each("mapping", [None, anymax.Entmax(1.5), anymax.LearnedEntmax(shape=(2, 1, 1)), anymax.normmax, gumbel])
def test_every_layer_of_every_kind_is_captured_and_results_stay_the_same(mapping: object) -> None:
    model = EncoderDecoder(mapping)
    source, target = torch.randn(2, 5, 16, requires_grad=True), torch.randn(2, 4, 16)
    padding = torch.arange(5) < torch.tensor([[5], [3]])
    torch.manual_seed(1)
    plain = model(source, target, padding)
    torch.manual_seed(1)
    with capture(model) as weights:
        watched = model(source, target, padding)
    assert torch.equal(plain, watched)
    assert torch.equal(*(torch.autograd.grad(one.sum(), source)[0] for one in (plain, watched)))
    shapes = {kind: [tuple(layer.shape) for layer in layers] for kind, layers in weights.items()}
    assert shapes == {"encoder": [(2, 2, 5, 5)] * 3, "decoder": [(2, 2, 4, 4)] * 2, "cross": [(2, 2, 4, 5)] * 2}
    for kind, layers in weights.items():
        for probs in layers:
            assert not probs.requires_grad
            torch.testing.assert_close(probs.sum(-1), torch.ones(probs.shape[:-1]))
            if kind != "decoder":
                assert (probs[1, ..., 3:] == 0).all()
    # After the block nothing watches.
    before = [layer.clone() for layer in weights["cross"]]
    model(source, target + 1, padding)
    assert all(torch.equal(*pair) for pair in zip(before, weights["cross"], strict=True))


def test_what_is_captured_is_what_values_are_multiplied_with() -> None:
    for mapping in (None, anymax.Entmax(1.5), functools.partial(anymax.topk_sparsemax, k=2)):
        layer = MultiHeadAttention(16, 4, mapping=mapping, num_kv_heads=2, sink="learned", rotary=True).eval()
        x = torch.randn(2, 5, 16)
        with capture(layer) as weights:
            gathered = layer(x, is_causal=True)
        (probs,) = weights["decoder"]
        values = layer.value(x).unflatten(-1, (2, -1)).transpose(1, 2).repeat_interleave(2, 1)
        torch.testing.assert_close(layer.output((probs @ values).transpose(1, 2).flatten(2)), gathered)
        torch.testing.assert_close(probs, layer.probs(x, is_causal=True))


@torch.no_grad()
def test_a_language_model_is_captured_and_so_is_decoding_with_its_caches() -> None:
    model = TransformerLM(
        FixedInput(20, 16), FullOutput(20, 16), CONFIG, mapping=lambda: anymax.LearnedEntmax(shape=(2, 1, 1))
    ).eval()
    ids = torch.randint(20, (2, 6))
    with capture(model) as whole:
        model.hidden(ids)
    caches = model.new_cache(6)
    with capture(model) as weights, capture(model.blocks[1]) as second:
        model.hidden(ids[:, :5], caches)
        model.hidden(ids[:, 5:], caches)
    assert list(weights) == ["decoder"] and len(weights["decoder"]) == 3
    for probs, of_all in zip(weights["decoder"], whole["decoder"], strict=True):
        torch.testing.assert_close(probs, of_all[:, :, 5:])
    assert second["decoder"][0] is weights["decoder"][1]
    block = TransformerBlock(CONFIG, memory_dim=16)
    memory = block.precompute(torch.randn(2, 3, 16))
    with capture(block) as weights:
        block(torch.randn(2, 1, 16), is_causal=True, cache=KeyValueCache(4), memory_cache=memory)
    assert [(kind, tuple(layer.shape)) for kind, (layer,) in weights.items()] == [
        ("decoder", (2, 2, 1, 1)),
        ("cross", (2, 2, 1, 3)),
    ]


def test_a_model_that_fails_is_no_longer_watched() -> None:
    layer = MultiHeadAttention(16, 4)
    with pytest.raises(ValueError, match="query must be"), capture(layer):
        layer(torch.randn(3, 16))
    assert layer.watches == ()


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="got a Linear without any"), capture(nn.Linear(2, 2)):
        pass
