"""The Transformer block against torch's encoder and decoder layers, decoding with caches, padding, and its options."""

import itertools
import json

import pytest
import torch
from torch import Tensor, nn

import anymax
from anymax.attention import KeyValueCache, MultiHeadAttention
from anymax.models import TransformerBlock, TransformerConfig
from anymax.plain import as_plain, from_plain
from anymax.transforms import LengthScale, LengthScaleConfig, Softcap, SoftcapConfig

B, N, M, D, H, F, E = 3, 6, 5, 12, 3, 20, 8
SHAPE = {"model_dim": D, "num_layers": 1, "num_heads": H, "ffn_dim": F}
VARIANTS = (
    {},
    {"norm_first": False, "activation": "gelu"},
    {"positions": "rotary", "norm": "rms", "activation": "swiglu"},
)
# Rows of different lengths, one without any padding.
KEY_MASK = torch.arange(N) < torch.tensor([[6], [4], [1]])
MEMORY_MASK = torch.arange(M) < torch.tensor([[2], [5], [3]])

pytestmark = pytest.mark.usefixtures("one_thread")


def mappings(kind: str) -> tuple[nn.Module | None, nn.Module | None]:
    """Those of self- and cross-attention, which differ."""
    return (None, None) if kind == "softmax" else (anymax.LearnedEntmax(shape=(H, 1, 1)), anymax.Entmax(1.7))


def build(options: dict[str, object], *, memory_dim: int | None = None, kind: str = "softmax") -> TransformerBlock:
    """A block in float64 and evaluation mode, its norms and biases no longer as they began."""
    mapping, cross_mapping = mappings(kind)
    config = TransformerConfig(**SHAPE | options)
    block = TransformerBlock(
        config,
        mapping=mapping,
        memory_dim=memory_dim,
        cross_mapping=None if memory_dim is None else cross_mapping,
    )
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return block.double().eval()


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    inputs = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.data = torch.cat([layer.weight.detach() for layer in inputs])
    theirs.in_proj_bias.data = torch.cat([layer.bias.detach() for layer in inputs])
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def torch_twin(block: TransformerBlock, config: TransformerConfig) -> nn.Module:
    """torch's encoder layer, or its decoder layer for a block with cross-attention, with the same weights."""
    kind = nn.TransformerEncoderLayer if block.cross_attention is None else nn.TransformerDecoderLayer
    twin = kind(
        D,
        H,
        F,
        dropout=0.0,
        activation=config.activation,
        layer_norm_eps=config.norm_eps or 1e-5,
        batch_first=True,
        norm_first=config.norm_first,
        dtype=torch.double,
    )
    copy_attention(block.attention, twin.self_attn)
    norms = [block.attention_norm, block.feed_forward_norm]
    if block.cross_attention is not None:
        copy_attention(block.cross_attention, twin.multihead_attn)
        norms.insert(1, block.cross_attention_norm)
    for i, norm in enumerate(norms, start=1):
        getattr(twin, f"norm{i}").load_state_dict(norm.state_dict())
    twin.linear1.load_state_dict(block.feed_forward.inner.state_dict())
    twin.linear2.load_state_dict(block.feed_forward.outer.state_dict())
    return twin


def grads_by_torchs_names(block: TransformerBlock) -> dict[str, Tensor]:
    def attention(name: str, layer: MultiHeadAttention) -> dict[str, Tensor]:
        inputs = (layer.query, layer.key, layer.value)
        return {
            f"{name}.in_proj_weight": torch.cat([part.weight.grad for part in inputs]),
            f"{name}.in_proj_bias": torch.cat([part.bias.grad for part in inputs]),
            f"{name}.out_proj.weight": layer.output.weight.grad,
            f"{name}.out_proj.bias": layer.output.bias.grad,
        }

    grads = attention("self_attn", block.attention)
    norms = [block.attention_norm, block.feed_forward_norm]
    if block.cross_attention is not None:
        grads |= attention("multihead_attn", block.cross_attention)
        norms.insert(1, block.cross_attention_norm)
    layers = {f"norm{i}": norm for i, norm in enumerate(norms, start=1)}
    layers |= {"linear1": block.feed_forward.inner, "linear2": block.feed_forward.outer}
    for name, layer in layers.items():
        grads |= {f"{name}.weight": layer.weight.grad, f"{name}.bias": layer.bias.grad}
    return grads


def check_grads(block: TransformerBlock, twin: nn.Module) -> None:
    wanted = {name: parameter.grad for name, parameter in twin.named_parameters()}
    torch.testing.assert_close(grads_by_torchs_names(block), wanted)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_block_is_the_layers_of_torch_with_their_gradients(norm_first: bool, activation: str) -> None:
    future = torch.ones(N, N, dtype=torch.bool).triu(1)
    options = {"norm_first": norm_first, "activation": activation, "norm_eps": 0.01}
    for is_causal, is_padded, has_memory in itertools.product((False, True), repeat=3):
        block = build(options, memory_dim=D if has_memory else None)
        # In training mode torch's encoder layer has no other path, and without dropout nothing is random.
        twin = torch_twin(block, TransformerConfig(**SHAPE | options)).train()
        hidden, memory = vectors(B, N, D), vectors(B, M, D)
        ours = block(
            hidden,
            is_causal=is_causal,
            key_mask=KEY_MASK if is_padded else None,
            memory=memory if has_memory else None,
            memory_mask=MEMORY_MASK if has_memory and is_padded else None,
        )
        blocked, padded = future if is_causal else None, ~KEY_MASK if is_padded else None
        if has_memory:
            theirs = twin(
                hidden,
                memory,
                tgt_mask=blocked,
                tgt_key_padding_mask=padded,
                memory_key_padding_mask=~MEMORY_MASK if is_padded else None,
            )
        else:
            theirs = twin(hidden, blocked, padded)
        torch.testing.assert_close(ours, theirs)
        weight, inputs = torch.randn_like(ours), [hidden, memory] if has_memory else [hidden]
        (ours * weight).sum().backward(retain_graph=True)
        got = [tensor.grad for tensor in inputs]
        for tensor in inputs:
            tensor.grad = None
        (theirs * weight).sum().backward()
        torch.testing.assert_close(got, [tensor.grad for tensor in inputs])
        check_grads(block, twin)


def test_the_base_encoder_and_decoder_have_the_size_of_torchs() -> None:
    with torch.device("meta"):
        config = TransformerConfig(512, 6, 8, 2048)
        encoder = [TransformerBlock(config) for _ in range(6)]
        decoder = [TransformerBlock(config, memory_dim=512) for _ in range(6)]
        whole = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
    blocks = sum(parameter.numel() for block in encoder + decoder for parameter in block.parameters())
    # torch puts a norm after the last layer of each.
    final_norms = 2 * 2 * 512
    assert blocks + final_norms == sum(parameter.numel() for parameter in whole.parameters()) == 44_140_544


@pytest.mark.parametrize("kind", ["softmax", "entmax"])
@torch.no_grad()
def test_decoding_with_both_caches_gives_what_all_positions_at_once_give(kind: str) -> None:
    hidden, memory = vectors(B, N, D), vectors(B, M, E)
    for options in VARIANTS:
        block = build(options, memory_dim=E, kind=kind)
        whole = block(hidden, is_causal=True, memory=memory, memory_mask=MEMORY_MASK)
        for parts in ((1,) * N, (3, 1, 2)):
            cache, memory_cache = KeyValueCache(N), block.precompute(memory, MEMORY_MASK)
            steps = [
                block(part, is_causal=True, cache=cache, memory_cache=memory_cache) for part in hidden.split(parts, 1)
            ]
            torch.testing.assert_close(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("kind", ["softmax", "entmax"])
@torch.no_grad()
def test_reordered_caches_give_what_the_reordered_rows_give_anew(kind: str) -> None:
    hidden, memory = vectors(B, N, D), vectors(B, M, E)
    # As beams do: swapped, grown, shrunk, and none left; several times after each other.
    orders = ([2, 0, 1], [1, 1, 0, 2, 2, 2], [4], [0, 0], [])
    for options in VARIANTS:
        block = build(options, memory_dim=E, kind=kind)
        cache, memory_cache = KeyValueCache(N), block.precompute(memory, MEMORY_MASK)
        rows = torch.arange(B)
        for i in range(N):
            whole = block(hidden[rows, : i + 1], is_causal=True, memory=memory[rows], memory_mask=MEMORY_MASK[rows])
            step = block(hidden[rows, i : i + 1], is_causal=True, cache=cache, memory_cache=memory_cache)
            torch.testing.assert_close(step, whole[:, -1:])
            if i < len(orders):
                index = torch.tensor(orders[i], dtype=torch.long)
                cache.reorder(index)
                memory_cache.reorder(index)
                rows = rows[index]


@pytest.mark.parametrize("kind", ["softmax", "entmax"])
def test_a_row_depends_neither_on_its_padding_nor_on_other_rows(kind: str) -> None:
    for options in VARIANTS:
        block = build(options, memory_dim=E, kind=kind)
        hidden, memory = vectors(B, N, D), vectors(B, M, E)
        for is_causal in (False, True):
            together = block(hidden, is_causal=is_causal, key_mask=KEY_MASK, memory=memory, memory_mask=MEMORY_MASK)
            (grad,) = torch.autograd.grad(together[KEY_MASK].square().sum(), memory)
            assert (grad[~MEMORY_MASK] == 0).all() and (grad[MEMORY_MASK] != 0).any(-1).all()
            for i in range(B):
                length, memory_length = int(KEY_MASK[i].sum()), int(MEMORY_MASK[i].sum())
                alone = block(hidden[i : i + 1, :length], is_causal=is_causal, memory=memory[i : i + 1, :memory_length])
                torch.testing.assert_close(together[i : i + 1, :length], alone)
            noise, more_noise = 1e3 * torch.randn(B, N, D).double(), 1e3 * torch.randn(B, M, E).double()
            changed = block(
                torch.where(KEY_MASK[..., None], hidden, noise),
                is_causal=is_causal,
                key_mask=KEY_MASK,
                memory=torch.where(MEMORY_MASK[..., None], memory, more_noise),
                memory_mask=MEMORY_MASK,
            )
            torch.testing.assert_close(changed[KEY_MASK], together[KEY_MASK])


def test_a_row_of_nothing_but_padding_is_finite_with_its_gradients() -> None:
    block, hidden, memory = build({}, memory_dim=E), vectors(2, N, D), vectors(2, M, E)
    nothing, no_memory = torch.ones(2, N, dtype=torch.bool), torch.ones(2, M, dtype=torch.bool)
    nothing[1], no_memory[1] = False, False
    result = block(hidden, key_mask=nothing, memory=memory, memory_mask=no_memory)
    grads = torch.autograd.grad(result.square().sum(), [hidden, memory])
    assert result.isfinite().all() and all(grad.isfinite().all() for grad in grads)
    assert (grads[1][1] == 0).all()


def test_every_option_reaches_what_it_configures() -> None:
    block = build({"attention_dropout": 0.2, "dropout": 0.3, "activation_dropout": 0.4}, memory_dim=E, kind="entmax")
    assert block.attention.dropout == block.cross_attention.dropout == 0.2
    assert (block.dropout, block.feed_forward.dropout) == (0.3, 0.4)
    assert isinstance(block.attention.mapping, anymax.LearnedEntmax) and block.cross_attention.mapping.alpha == 1.7
    assert (block.attention.num_heads, block.cross_attention.num_heads) == (H, H)
    assert block.cross_attention.key.in_features == E
    rms = build({"norm": "rms", "norm_eps": 1e-3, "positions": "rotary"}, memory_dim=E)
    norms = (rms.attention_norm, rms.cross_attention_norm, rms.feed_forward_norm)
    assert all(isinstance(norm, nn.RMSNorm) and norm.eps == 1e-3 for norm in norms)
    assert rms.attention.rotary and not rms.cross_attention.rotary
    assert all(norm.eps == 1e-5 for norm in (block.attention_norm, block.cross_attention_norm))


def test_each_dropout_acts_on_every_layer_it_names_and_in_training_alone() -> None:
    """At a rate of 1 nothing is random, and what is dropped leaves the rest."""
    hidden, memory = vectors(B, N, D), vectors(B, M, E)
    for norm_first in (True, False):
        block = build({"dropout": 1.0, "norm_first": norm_first}, memory_dim=E).train()
        wanted = hidden
        for norm in (block.attention_norm, block.cross_attention_norm, block.feed_forward_norm):
            wanted = wanted if norm_first else norm(wanted)
        torch.testing.assert_close(block(hidden, memory=memory), wanted)
        block = build({"attention_dropout": 1.0, "activation_dropout": 1.0, "norm_first": norm_first}, memory_dim=E)
        wanted = hidden
        for norm, layer in (
            (block.attention_norm, block.attention.output),
            (block.cross_attention_norm, block.cross_attention.output),
            (block.feed_forward_norm, block.feed_forward.outer),
        ):
            wanted = wanted + layer.bias if norm_first else norm(wanted + layer.bias)
        torch.testing.assert_close(block.train()(hidden, memory=memory), wanted)
        assert not torch.allclose(block.eval()(hidden, memory=memory), wanted)


def test_a_compiled_block_with_cross_attention_is_the_same() -> None:
    block, hidden, memory = (
        build({"norm_first": False}, memory_dim=E, kind="entmax"),
        vectors(B, N, D),
        vectors(B, M, E),
    )
    arguments = {"is_causal": True, "key_mask": KEY_MASK, "memory": memory, "memory_mask": MEMORY_MASK}
    torch._dynamo.reset()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)(hidden, **arguments)
    torch.testing.assert_close(compiled, block(hidden, **arguments))


def test_errors_say_what_to_do() -> None:
    hidden, memory = vectors(B, N, D), vectors(B, M, E)
    encoder, decoder = build({}), build({}, memory_dim=E)
    with pytest.raises(ValueError, match=r"cross_mapping must be None .* got one; give memory_dim too"):
        TransformerBlock(TransformerConfig(**SHAPE), cross_mapping=anymax.Entmax(1.5))
    for given in ({"memory": memory}, {"memory_mask": MEMORY_MASK}, {"memory_cache": decoder.precompute(memory)}):
        (name,) = given
        with pytest.raises(ValueError, match=f"{name} must be left out of a block without cross-attention"):
            encoder(hidden, **given)
    with pytest.raises(ValueError, match="memory must be left out of a block without cross-attention"):
        encoder.precompute(memory)
    with pytest.raises(ValueError, match=r"must get memory, .* got none of them"):
        decoder(hidden)
    with pytest.raises(ValueError, match=r"must get memory, .* got memory_mask and memory_cache"):
        decoder(hidden, memory_mask=MEMORY_MASK, memory_cache=decoder.precompute(memory))
    with pytest.raises(ValueError, match=r"key_mask must be \(batch, keys\), got shape \(3, 1, 6\)"):
        encoder(hidden, key_mask=KEY_MASK[:, None])
    with pytest.raises(ValueError, match=r"key must be \(batch, positions, 8\), got shape \(3, 6, 12\)"):
        decoder(hidden, memory=hidden)


def test_options_of_attention_reach_both_of_a_block() -> None:
    options = {"num_kv_heads": 1, "attention_gate": "head", "attention_sink": "learned"}
    for transform, kind in ((LengthScaleConfig(delta=1.0), LengthScale), (SoftcapConfig(9.0), Softcap)):
        block = build(options | {"attention_transform": transform}, memory_dim=5)
        for attention in (block.attention, block.cross_attention):
            assert attention is not None and attention.num_kv_heads == 1 and attention.gate.out_features == H
            assert attention.sink.shape == (H,) and isinstance(attention.transform, kind)
        hidden, memory = vectors(3, N, D), vectors(3, M, 5)
        result = block(hidden, is_causal=True, memory=memory, memory_mask=MEMORY_MASK)
        used = [hidden, memory, *block.parameters()]
        assert all((gradient != 0).any() for gradient in torch.autograd.grad(result.square().sum(), used))
    config = TransformerConfig(**SHAPE | options | {"attention_transform": LengthScaleConfig(0.3)})
    assert from_plain(TransformerConfig, json.loads(json.dumps(as_plain(config)))) == config
    assert TransformerBlock(TransformerConfig(**SHAPE, attention_sink=0.5)).attention.sink == 0.5
    toy = TransformerConfig(64, 4, 8, 64, num_kv_heads=2).toy()
    assert (toy.num_heads, toy.num_kv_heads) == (2, 1)
    # Absent in configs that were written before there were any.
    plain = {name: value for name, value in as_plain(TransformerConfig(**SHAPE)).items() if "attention_" not in name}
    assert from_plain(TransformerConfig, plain) == TransformerConfig(**SHAPE)
