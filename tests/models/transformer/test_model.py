"""The Transformer language model: its published size, what it may see, decoding with a cache, learning."""

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anymax
from anymax.decoding import generate
from anymax.models import TransformerConfig, TransformerLM
from anymax.vocabulary import (
    AdaptiveInput,
    AdaptiveOutput,
    Bands,
    FixedInput,
    FullOutput,
    MixtureOutput,
    OutputLayer,
    SparseOutput,
    tie_,
)

V, D, H = 23, 16, 2
BANDS = Bands.from_sizes((7, 9, 7), dim=D, factor=2)


pytestmark = pytest.mark.usefixtures("one_thread")


def adaptive_tied() -> tuple[nn.Module, OutputLayer]:
    input, output = AdaptiveInput(BANDS, D), AdaptiveOutput(BANDS, D)
    tie_(input, output, projections=True)
    return input, output


LAYERS: dict[str, Callable[[], tuple[nn.Module, OutputLayer]]] = {
    "adaptive tied": adaptive_tied,
    "fixed, full": lambda: (FixedInput(V, D), FullOutput(V, D)),
    "fixed, sparse": lambda: (FixedInput(V, D, dim=5), SparseOutput(V, D, bias=True)),
    "adaptive, mixture": lambda: (AdaptiveInput(BANDS, D), MixtureOutput(V, D, num_experts=2)),
}
MAPPINGS = {
    "softmax": None,
    "entmax": lambda: anymax.Entmax(1.5),
    "learned": lambda: anymax.LearnedEntmax(shape=(H, 1, 1)),
    "sparsemax": lambda: anymax.sparsemax,
}
VARIANTS = {
    "paper": {},
    "final norm": {"final_norm": True},
    "post-norm": {"norm_first": False, "activation": "gelu"},
    "rotary": {"positions": "rotary"},
    "no positions": {"positions": "none"},
    "modern": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "final_norm": True},
}


def config(num_layers: int = 2, **options: object) -> TransformerConfig:
    return TransformerConfig(D, num_layers, H, 24, **options)


def build(layers: str = "adaptive tied", mapping: str = "softmax", num_layers: int = 2, **options: object):
    """A small model in training mode, its norms and biases no longer as they began."""
    model = TransformerLM(*LAYERS[layers](), config(num_layers, **options), mapping=MAPPINGS[mapping])
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model


def words(*shape: int) -> Tensor:
    return torch.randint(V, shape)


@pytest.mark.parametrize(("num_layers", "size"), [(16, 246_933_504), (8, 146_163_712)])
def test_the_whole_model_has_its_published_size(num_layers: int, size: int) -> None:
    with torch.device("meta"):
        bands = Bands.from_cutoffs((20_000, 60_000), 267_744, dim=1024, factor=4)
        input, output = AdaptiveInput(bands, 1024), AdaptiveOutput(bands, 1024)
        tie_(input, output, projections=True)
        model = TransformerLM(input, output, TransformerConfig(1024, num_layers, 8, 4096))
    assert sum(parameter.numel() for parameter in model.parameters()) == size


def test_options_add_the_parameters_they_name() -> None:
    def size(**options: object) -> int:
        return sum(parameter.numel() for parameter in build(**options).parameters())

    base = size()
    assert size(final_norm=True) - base == 2 * D
    assert size(positions="rotary") == size(positions="none") == base
    assert size(norm="rms") - base == -2 * 2 * D
    assert size(activation="swiglu") - base == 2 * (24 * D + 24)
    assert size(mapping="learned") - base == 2 * H


def test_feed_forward_weights_start_within_the_bounds_of_xavier_and_biases_at_zero() -> None:
    layers = LAYERS["fixed, full"]()
    forward = TransformerLM(*layers, TransformerConfig(D, 1, H, 240, activation="swiglu")).blocks[0].feed_forward
    for layer in (forward.inner, forward.gate, forward.outer):
        bound = math.sqrt(6 / (D + 240))
        assert 0.98 * bound < layer.weight.abs().max() <= bound
        assert (layer.bias == 0).all()


def written_out(model: TransformerLM, ids: Tensor) -> Tensor:
    """The decoder of the paper, with torch's own attention and layer norm."""
    half = D // 2
    rates = torch.tensor([10_000 ** (-i / (half - 1)) for i in range(half)])
    angles = torch.arange(ids.shape[1])[:, None] * rates
    x = math.sqrt(D) * model.input(ids) + torch.cat([angles.sin(), angles.cos()], -1)
    future = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
    for block in model.blocks:
        ours = block.attention
        parts = (ours.query, ours.key, ours.value)
        torchs = nn.MultiheadAttention(D, H, batch_first=True)
        torchs.in_proj_weight.data = torch.cat([part.weight for part in parts])
        torchs.in_proj_bias.data = torch.cat([part.bias for part in parts])
        torchs.out_proj.weight.data, torchs.out_proj.bias.data = ours.output.weight, ours.output.bias
        normed = F.layer_norm(x, (D,), block.attention_norm.weight, block.attention_norm.bias)
        x = x + torchs(normed, normed, normed, attn_mask=future)[0]
        normed = F.layer_norm(x, (D,), block.feed_forward_norm.weight, block.feed_forward_norm.bias)
        inner, outer = block.feed_forward.inner, block.feed_forward.outer
        x = x + (normed @ inner.weight.T + inner.bias).clamp(min=0) @ outer.weight.T + outer.bias
    return x


def test_the_decoder_is_the_one_of_the_paper() -> None:
    model, ids = build(), words(3, 7)
    torch.testing.assert_close(model.hidden(ids), written_out(model, ids), rtol=1e-4, atol=1e-4)


def test_the_modern_feed_forward_and_norm_are_their_formulas() -> None:
    block = build(**VARIANTS["modern"]).blocks[0]
    x = torch.randn(2, 3, D)
    forward = block.feed_forward
    expected = forward.outer(forward.inner(x) * forward.gate(x) * forward.gate(x).sigmoid())
    torch.testing.assert_close(forward(x), expected)
    normed = x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt() * block.attention_norm.weight
    torch.testing.assert_close(block.attention_norm(x), normed)


@pytest.mark.parametrize("layers", LAYERS)
def test_the_loss_is_that_of_the_output_for_what_follows(layers: str) -> None:
    model, ids, target = build(layers), words(2, 6), words(2, 6)
    for reduction in ("mean", "sum", "none"):
        expected = model.output(model.hidden(ids), target, reduction)
        torch.testing.assert_close(model(ids, target, reduction), expected)
    torch.testing.assert_close(model(ids, target), model(ids, target, "none").mean())


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_later_words_change_nothing_earlier(mapping: str, variant: str) -> None:
    model, ids = build(mapping=mapping, **VARIANTS[variant]), words(2, 8)
    changed = ids.clone()
    changed[:, 5:] = (ids[:, 5:] + 1) % V
    before, after = model.hidden(ids), model.hidden(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=1e-5)
    assert (before[:, 5:] != after[:, 5:]).any(-1).all()


@pytest.mark.parametrize("variant", ["paper", "rotary"])
def test_positions_tell_the_same_words_in_another_order_apart(variant: str) -> None:
    ids = torch.tensor([[1, 2, 3], [2, 1, 3]])
    last = build(num_layers=1, **VARIANTS[variant]).hidden(ids)[:, -1]
    assert (last[0] - last[1]).abs().max() > 1e-3
    blind = build(num_layers=1, positions="none").hidden(ids)[:, -1]
    torch.testing.assert_close(blind[0], blind[1])


@pytest.mark.parametrize("mapping", ["softmax", "learned"])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_decoding_step_by_step_gives_what_all_words_at_once_give(mapping: str, variant: str) -> None:
    model, ids = build(mapping=mapping, **VARIANTS[variant]), words(2, 7)
    whole = model.hidden(ids)
    for parts in ((1,) * 7, (3, 1, 2, 1)):
        cache = model.new_cache(7)
        steps = [model.hidden(part, cache) for part in ids.split(parts, 1)]
        torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_loss_goes_on_from_the_words_in_a_cache() -> None:
    model, ids, target = build(), words(2, 7), words(2, 7)
    assert not model.carries_state
    cache = model.new_cache(7)
    parts = zip(ids.split((4, 3), 1), target.split((4, 3), 1), strict=True)
    losses = [model(part, wanted, "none", cache) for part, wanted in parts]
    torch.testing.assert_close(torch.cat(losses, 1), model(ids, target, "none"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_acts_in_training_alone(rate: str) -> None:
    model, ids = build(**{rate: 0.5}), words(2, 6)
    assert not torch.equal(model.hidden(ids), model.hidden(ids))
    without = TransformerLM(model.input, model.output, config())
    without.load_state_dict(model.state_dict())
    assert torch.equal(model.eval().hidden(ids), without.hidden(ids))


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("variant", ["paper", "modern"])
def test_a_gradient_reaches_every_parameter(layers: str, variant: str) -> None:
    model = build(layers, "learned", **VARIANTS[variant])
    model(words(4, 30), words(4, 30)).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # A bias of keys adds the same to all scores of a query, unless they are turned afterwards.
    assert [name for name in without if not name.endswith("attention.key.bias")] == []


def test_every_block_learns_alphas_of_its_own() -> None:
    mappings = [block.attention.mapping for block in build(mapping="learned").blocks]
    assert mappings[0] is not mappings[1]
    assert not torch.equal(mappings[0].alpha, mappings[1].alpha)


@pytest.mark.parametrize(
    ("layers", "mapping", "variant"),
    [
        ("adaptive tied", "softmax", "paper"),
        ("fixed, full", "learned", "modern"),
    ],
)
def test_a_repeated_sequence_is_learned_by_heart(layers: str, mapping: str, variant: str) -> None:
    model = TransformerLM(*LAYERS[layers](), config(**VARIANTS[variant]), mapping=MAPPINGS[mapping])
    text = words(20).repeat(3)[None]
    ids, target = text[:, :-1], text[:, 1:]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    first = model(ids, target).item()
    for _ in range(120):
        optimizer.zero_grad()
        loss = model(ids, target)
        loss.backward()
        optimizer.step()
    assert first > 1 and loss.item() < 0.02
    assert torch.equal(generate(model, ids[:, :20], num_tokens=20, top_k=1), text[:, :40])


def test_a_compiled_model_gives_the_same_loss_and_gradients() -> None:
    model, ids, target = build(mapping="entmax"), words(2, 6), words(2, 6)
    loss = model(ids, target)
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(ids, target)
    torch.testing.assert_close(compiled, loss)
    torch.testing.assert_close(torch.autograd.grad(compiled, list(model.parameters())), wanted)


@pytest.mark.parametrize("layers", ["adaptive tied", "fixed, full"])
@pytest.mark.parametrize("mapping", ["softmax", "entmax"])
def test_autocast_is_near_and_keeps_the_vectors_between_blocks_in_float32(layers: str, mapping: str) -> None:
    model, ids, target = build(layers, mapping), words(2, 6), words(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        loss, hidden = model(ids, target), model.hidden(ids)
    assert hidden.dtype == torch.float32 and loss.dtype == torch.float32
    torch.testing.assert_close(loss, model(ids, target), rtol=0.05, atol=0.05)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_a_model_in_bfloat16_computes_in_it() -> None:
    model = build(**VARIANTS["modern"]).bfloat16()
    assert model.hidden(words(2, 6)).dtype == torch.bfloat16


def test_a_saved_model_is_the_same_when_loaded() -> None:
    model, other, ids = build(mapping="learned"), build(mapping="learned"), words(2, 6)
    other.load_state_dict(model.state_dict())
    assert torch.equal(model.hidden(ids), other.hidden(ids))


def test_a_config_is_made_without_torch() -> None:
    script = """
import sys
from anymax.models import TransformerConfig
TransformerConfig(8, 1, 2, 16, positions="rotary")
assert "torch" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "model_dim must be a multiple of num_heads, got 16 and 3"),
        ({"num_heads": 16, "positions": "rotary"}, "must be even for rotary positions, got 16 / 16"),
        ({"model_dim": 2}, "model_dim must be even and at least 4 for sinusoidal positions, got 2"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"dropout": 1.5}, "dropout must be between 0 and 1, got 1.5"),
        ({"positions": "learned"}, r"positions must be one of \('sinusoidal', 'rotary', 'none'\), got 'learned'"),
        ({"norm": "batch"}, "norm must be one of"),
        ({"activation": "tanh"}, "activation must be one of"),
        ({"norm_eps": 0.0}, "norm_eps must lie strictly between 0 and 1, got 0.0"),
        ({"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads must divide num_heads, got 3 for 4"),
        ({"num_kv_heads": 0}, "num_kv_heads must be at least 1, got 0"),
        ({"attention_gate": "row"}, r"attention_gate must be one of \('element', 'head'\) or None, got 'row'"),
        ({"attention_sink": "fixed"}, "attention_sink must be a number, 'learned' or None, got 'fixed'"),
        ({"attention_sink": float("inf")}, "attention_sink must be finite, got inf"),
    ],
    ids=str,
)
def test_a_config_refuses_what_cannot_be_built(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**{"model_dim": 16, "num_layers": 2, "num_heads": 2, "ffn_dim": 24} | options)


def test_a_model_refuses_layers_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="output must have the model_dim of the config, 16, got 8"):
        TransformerLM(FixedInput(V, D), FullOutput(V, 8), config())
    with pytest.raises(TypeError, match=r"mapping must be a function that makes one .* got the Module Entmax"):
        TransformerLM(*adaptive_tied(), config(), mapping=anymax.Entmax(1.5))
    narrow = TransformerLM(FixedInput(V, 8), FullOutput(V, D), config())
    with pytest.raises(ValueError, match="input must give vectors of the config's model_dim, 16, got 8"):
        narrow.hidden(words(1, 2))


def test_a_model_refuses_ids_and_caches_that_do_not_fit() -> None:
    model = build()
    with pytest.raises(ValueError, match=r"ids must be \(batch, positions\).* got \(5,\)"):
        model.hidden(words(5))
    with pytest.raises(ValueError, match=r"at least one position, got \(2, 0\)"):
        model.hidden(words(2, 0))
    with torch.no_grad():
        with pytest.raises(ValueError, match=r"got 6 more after 0 in one of max_length 5"):
            model.hidden(words(1, 6), model.new_cache(5))
        with pytest.raises(ValueError, match="one for each of the 2 blocks, got 1; make it with new_cache"):
            model.hidden(words(1, 6), model.new_cache(9)[:1])
