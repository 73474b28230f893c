"""Multi-head attention against torch's own, against formulas written out, and on masks, caches and positions."""

import functools
import math

import pytest
import torch
from torch import Tensor, nn

import anymax
from anymax.attention import KeyValueCache, MultiHeadAttention, expand_key_mask, rotate, sinusoids
from tests.each import each

D, H = 12, 3
MAPPINGS = {
    "softmax": lambda: None,
    "entmax": lambda: anymax.Entmax(1.5),
    "heavy": lambda: anymax.Entmax(0.5),
    "wide": lambda: anymax.LearnedEntmax(shape=(H, 1, 1), low=0.0, high=3.0),
    "learned": lambda: anymax.LearnedEntmax(shape=(H, 1, 1)),
    "sparsemax": lambda: anymax.sparsemax,
    "top 2": lambda: functools.partial(anymax.topk_sparsemax, k=2),
}


@pytest.fixture(params=list(MAPPINGS))
def attention(request: pytest.FixtureRequest) -> MultiHeadAttention:
    return trained(MultiHeadAttention(D, H, mapping=MAPPINGS[request.param]()))


def trained(layer: MultiHeadAttention) -> MultiHeadAttention:
    """With biases that are not zero any more, and scores far enough apart that sparse mappings give zeros."""
    with torch.no_grad():
        for part in (layer.query, layer.key, layer.value, layer.output):
            part.bias.normal_()
            part.weight.mul_(2)
    return layer


def torch_twin(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """torch's module, with the same weights."""
    kv_dim = ours.key.in_features
    theirs = nn.MultiheadAttention(D, H, batch_first=True, kdim=kv_dim, vdim=kv_dim)
    inputs = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        if theirs.in_proj_weight is None:
            theirs.q_proj_weight.copy_(ours.query.weight)
            theirs.k_proj_weight.copy_(ours.key.weight)
            theirs.v_proj_weight.copy_(ours.value.weight)
        else:
            theirs.in_proj_weight.copy_(torch.cat([part.weight for part in inputs]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in inputs]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    return theirs


def written_out(layer: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Entmax attention, head by head and query by query; `mask` is (queries, keys)."""
    q, k, v = layer.query(query), layer.key(key), layer.value(value)
    width = D // H
    heads = []
    for h in range(H):
        part = slice(h * width, (h + 1) * width)
        rows = []
        for i in range(query.shape[1]):
            seen = mask[i].nonzero()[:, 0]
            scores = torch.einsum("be,bke->bk", q[:, i, part], k[:, seen][..., part]) / math.sqrt(width)
            rows.append(torch.einsum("bk,bke->be", anymax.entmax(scores, 1.5), v[:, seen][..., part]))
        heads.append(torch.stack(rows, 1))
    return layer.output(torch.cat(heads, -1))


def gradients(loss: Tensor, *tensors: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, tensors))


def test_without_keys_every_query_gathers_zeros(attention: MultiHeadAttention) -> None:
    for num_queries, mask in ((3, None), (3, torch.ones(2, 1, 3, 0, dtype=torch.bool)), (0, None)):
        query = torch.randn(2, num_queries, D, requires_grad=True)
        key = torch.randn(2, 0, D, requires_grad=True)
        gathered = attention(query, key, mask=mask)
        # What is left of zeros is the bias of the last layer.
        torch.testing.assert_close(gathered, attention.output.bias.expand(2, num_queries, D))
        assert attention.probs(query, key, mask=mask).shape == (2, H, num_queries, 0)
        for gradient, tensor in zip(gradients(gathered.sum(), query, key), (query, key), strict=True):
            assert gradient.shape == tensor.shape and (gradient == 0).all()
    assert attention(query, query, is_causal=True).shape == (2, 0, D)


@pytest.mark.parametrize("is_causal", [False, True])
def test_softmax_self_attention_is_that_of_torch_with_its_gradients(is_causal: bool) -> None:
    ours = trained(MultiHeadAttention(D, H))
    theirs = torch_twin(ours)
    x = torch.randn(2, 5, D, requires_grad=True)
    weight = torch.randn(2, 5, D)
    blocked = torch.ones(5, 5, dtype=torch.bool).triu(1) if is_causal else None
    mine, other = ours(x, is_causal=is_causal), theirs(x, x, x, attn_mask=blocked)[0]
    torch.testing.assert_close(mine, other)
    got = gradients((mine * weight).sum(), x, ours.query.weight, ours.key.weight, ours.value.bias, ours.output.weight)
    wanted = gradients((other * weight).sum(), x, theirs.in_proj_weight, theirs.in_proj_bias, theirs.out_proj.weight)
    torch.testing.assert_close(got[0], wanted[0])
    torch.testing.assert_close(torch.cat([got[1], got[2]]), wanted[1][: 2 * D])
    torch.testing.assert_close(got[3], wanted[2][2 * D :])
    torch.testing.assert_close(got[4], wanted[3])


@pytest.mark.parametrize("kv_dim", [D, 7])
def test_softmax_cross_attention_is_that_of_torch(kv_dim: int) -> None:
    ours = trained(MultiHeadAttention(D, H, kv_dim=kv_dim))
    query, key, value = torch.randn(2, 4, D), torch.randn(2, 6, kv_dim), torch.randn(2, 6, kv_dim)
    padded = torch.zeros(2, 6, dtype=torch.bool)
    padded[1, 4:] = True
    mine = ours(query, key, value, mask=~padded[:, None, None])
    torch.testing.assert_close(mine, torch_twin(ours)(query, key, value, key_padding_mask=padded)[0])


def test_values_are_the_keys_where_none_are_given() -> None:
    layer = trained(MultiHeadAttention(D, H))
    query, key = torch.randn(2, 4, D), torch.randn(2, 6, D)
    assert torch.equal(layer(query, key), layer(query, key, key))
    assert torch.equal(layer(query), layer(query, query, query))


def test_entmax_attention_is_the_formula_written_out_with_its_gradients() -> None:
    layer = trained(MultiHeadAttention(D, H, mapping=anymax.Entmax(1.5))).double()
    query = torch.randn(2, 4, D, dtype=torch.double, requires_grad=True)
    key, value = torch.randn(2, 2, 6, D, dtype=torch.double)
    mask = torch.rand(4, 6) < 0.7
    mask[:, 0] = True
    mine, expected = layer(query, key, value, mask=mask), written_out(layer, query, key, value, mask)
    torch.testing.assert_close(mine, expected)
    weight = torch.randn(2, 4, D, dtype=torch.double)
    of = (query, layer.query.weight, layer.key.weight, layer.value.weight, layer.output.bias)
    torch.testing.assert_close(gradients((mine * weight).sum(), *of), gradients((expected * weight).sum(), *of))


def test_softmax_as_a_mapping_is_the_fused_softmax() -> None:
    fused, explicit = MultiHeadAttention(D, H), MultiHeadAttention(D, H, mapping=anymax.softmax)
    explicit.load_state_dict(trained(fused).state_dict())
    x, mask = torch.randn(2, 5, D), torch.rand(2, H, 5, 5) < 0.4
    torch.testing.assert_close(fused(x, mask=mask), explicit(x, mask=mask))
    torch.testing.assert_close(fused(x, mask=mask, is_causal=True), explicit(x, mask=mask, is_causal=True))


def test_every_head_learns_an_alpha_of_its_own() -> None:
    layer = trained(MultiHeadAttention(D, H, mapping=anymax.LearnedEntmax(shape=(H, 1, 1))))
    layer(torch.randn(2, 5, D)).square().sum().backward()
    grad = layer.mapping.pre_alpha.grad
    assert grad.shape == (H, 1, 1) and (grad != 0).all()
    with torch.no_grad():
        layer.mapping.pre_alpha.copy_(torch.tensor([-20.0, 0.0, 20.0])[:, None, None])
    num_zeros = (layer.probs(torch.randn(2, 9, D)) == 0).sum((0, 2, 3))
    assert num_zeros[0] == 0 and num_zeros[1] > 0 and num_zeros[2] > 0


def test_probs_are_what_forward_gathers_by(attention: MultiHeadAttention) -> None:
    x, mask = torch.randn(2, 5, D), torch.rand(2, 1, 5, 5) < 0.6
    probs = attention.probs(x, mask=mask, is_causal=True)
    assert probs.shape == (2, H, 5, 5)
    values = attention.value(x).unflatten(-1, (H, -1))
    gathered = torch.einsum("bhqk,bkhe->bqhe", probs, values).flatten(2)
    torch.testing.assert_close(attention.output(gathered), attention(x, mask=mask, is_causal=True))
    allowed = (mask & torch.ones(5, 5, dtype=torch.bool).tril()).expand_as(probs)
    assert (probs[~allowed] == 0).all()
    torch.testing.assert_close(probs.sum(-1), allowed.any(-1).float())


def test_a_query_with_nothing_to_attend_to_gathers_zeros_and_sends_no_gradient(attention: MultiHeadAttention) -> None:
    x = torch.randn(2, 5, D, requires_grad=True)
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[0, :, 2] = False
    mask[1] = False
    result = attention(x, mask=mask)
    bias = attention.output.bias
    torch.testing.assert_close(result[0, 2], bias)
    torch.testing.assert_close(result[1], bias.expand(5, D))
    (grad,) = gradients(result.square().sum(), x)
    assert grad.isfinite().all() and (grad[1] == 0).all()
    assert (grad[0] != 0).any()
    assert (attention.probs(x, mask=mask)[1] == 0).all()


def test_later_positions_change_nothing_earlier(attention: MultiHeadAttention) -> None:
    attention.double()
    x = torch.randn(2, 6, D, dtype=torch.float64)
    changed = x.clone()
    changed[:, 4:] += 3
    before, after = attention(x, is_causal=True), attention(changed, is_causal=True)
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=1e-13)
    assert (before[:, 4:] != after[:, 4:]).any(-1).all()


@each("rotary", [False, True])
@each("mapping", [None, anymax.Entmax(1.5)])
@each("parts", [(1,) * 6, (3, 1, 1, 1), (2, 4), (6,)])
def test_a_cache_gives_what_all_positions_at_once_give(
    rotary: bool, mapping: nn.Module | None, parts: tuple[int, ...]
) -> None:
    layer = trained(MultiHeadAttention(D, H, mapping=mapping, rotary=rotary))
    x, cache = torch.randn(2, 6, D), KeyValueCache(8)
    with torch.no_grad():
        steps = [layer(part, is_causal=True, cache=cache) for part in x.split(parts, 1)]
        torch.testing.assert_close(torch.cat(steps, 1), layer(x, is_causal=True))
    assert cache.length == 6


def test_a_mask_covers_the_keys_of_the_cache() -> None:
    layer, x, cache = trained(MultiHeadAttention(D, H)), torch.randn(2, 4, D), KeyValueCache(4)
    mask = torch.tensor([[True, False, True, True], [False, True, True, True]])[:, None, None]
    with torch.no_grad():
        layer(x[:, :3], is_causal=True, cache=cache)
        last = layer(x[:, 3:], mask=mask, is_causal=True, cache=cache)
        torch.testing.assert_close(last, layer(x, mask=mask, is_causal=True)[:, 3:])


def test_precomputed_keys_and_values_are_those_of_the_encoder_with_their_gradients(
    attention: MultiHeadAttention,
) -> None:
    query, key, value = torch.randn(2, 4, D), torch.randn(2, 6, D, requires_grad=True), torch.randn(2, 6, D)
    key_mask = torch.arange(6) < torch.tensor([[6], [2]])
    for values, mask in ((None, None), (value, None), (None, key_mask), (value, key_mask), (value, key_mask[1:])):
        whole = attention(query, key, values, mask=None if mask is None else expand_key_mask(mask))
        cache = attention.precompute(key, values, key_mask=mask)
        torch.testing.assert_close(attention(query, cache=cache), whole)
        torch.testing.assert_close(gradients(attention(query, cache=cache).sum(), key), gradients(whole.sum(), key))
        cache.reorder(torch.tensor([1, 0, 1]))
        torch.testing.assert_close(attention(query[[1, 0, 1]], cache=cache), whole[[1, 0, 1]])


@torch.no_grad()
def test_a_reordered_cache_holds_the_rows_that_were_named() -> None:
    layer, x = trained(MultiHeadAttention(D, H, rotary=True, mapping=anymax.Entmax(1.5))), torch.randn(3, 5, D)
    for index in ([2, 0, 1], [0, 2], [1, 1, 1, 0], []):
        cache = KeyValueCache(6)
        cache.reorder(torch.tensor([7]))
        layer(x[:, :3], is_causal=True, cache=cache)
        cache.reorder(torch.tensor(index, dtype=torch.int32))
        last = layer(x[index, 3:], is_causal=True, cache=cache)
        torch.testing.assert_close(last, layer(x[index], is_causal=True)[:, 3:])
        assert cache.length == 5


def test_dropout_is_of_probabilities_and_off_in_evaluation() -> None:
    x = torch.randn(2, 5, D)
    for mapping in (None, anymax.Entmax(1.5)):
        layer = trained(MultiHeadAttention(D, H, mapping=mapping, dropout=0.5))
        assert not torch.equal(layer(x), layer(x))
        everything = trained(MultiHeadAttention(D, H, mapping=mapping, dropout=1.0))
        torch.testing.assert_close(everything(x), everything.output.bias.expand_as(x))
        layer.eval()
        assert torch.equal(layer(x), layer(x))
        many = layer.train()(x[:1].expand(20_000, 5, D))
        torch.testing.assert_close(many.mean(0), layer.eval()(x)[0], rtol=0, atol=0.15)


def test_weights_start_within_the_bounds_of_xavier_and_biases_at_zero() -> None:
    layer = MultiHeadAttention(96, 4, kv_dim=32)
    for part, fan_in, gain in (
        (layer.query, 96, 0.5**0.5),
        (layer.key, 32, 0.5**0.5),
        (layer.value, 32, 0.5**0.5),
        (layer.output, 96, 1.0),
    ):
        bound = gain * math.sqrt(6 / (96 + fan_in))
        assert 0.98 * bound < part.weight.abs().max() <= bound
        assert (part.bias == 0).all()
    assert MultiHeadAttention(D, H, bias=False).output.bias is None


def test_each_head_of_keys_serves_consecutive_heads_of_queries() -> None:
    for mapping in (None, anymax.Entmax(1.5), anymax.normmax):
        few, many = MultiHeadAttention(D, 6, mapping=mapping, num_kv_heads=2), MultiHeadAttention(D, 6, mapping=mapping)
        state = trained(few).state_dict()
        assert state["key.weight"].shape == (4, D)
        for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
            # Heads are blocks of two rows.
            state[name] = state[name].unflatten(0, (2, 2)).repeat_interleave(3, 0).flatten(0, 1)
        many.load_state_dict(state)
        x, memory = torch.randn(2, 5, D), torch.randn(2, 4, D)
        torch.testing.assert_close(few(x, is_causal=True), many(x, is_causal=True))
        torch.testing.assert_close(few(x, memory), many(x, memory))
        torch.testing.assert_close(few.probs(x), many.probs(x))
        cache = KeyValueCache(5)
        with torch.no_grad():
            steps = [few(part, is_causal=True, cache=cache) for part in x.split(2, 1)]
            torch.testing.assert_close(torch.cat(steps, 1), few(x, is_causal=True))
            torch.testing.assert_close(few(x, cache=few.precompute(memory)), few(x, memory))


@each("gate", ["element", "head"])
def test_a_gate_multiplies_what_was_gathered(gate: str) -> None:
    layer, x = trained(MultiHeadAttention(D, H, mapping=anymax.Entmax(1.5), gate=gate)), torch.randn(2, 5, D)
    open_gate = layer.gate(x).sigmoid()
    assert open_gate.shape == (2, 5, D if gate == "element" else H)
    if gate == "head":
        open_gate = open_gate.repeat_interleave(D // H, -1)
    values = layer.value(x).unflatten(-1, (H, -1)).transpose(1, 2)
    gathered = (layer.probs(x) @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x), layer.output(open_gate * gathered))
    layer(x).sum().backward()
    assert layer.gate.weight.grad.abs().sum() > 0


def test_a_sink_is_a_number_or_learned_per_head() -> None:
    x = torch.randn(2, 5, D)
    for mapping in (None, anymax.Entmax(1.5), functools.partial(anymax.topk_sparsemax, k=2)):
        learned = trained(MultiHeadAttention(D, H, mapping=mapping, sink="learned"))
        assert torch.equal(learned.sink, torch.zeros(H))
        fixed = MultiHeadAttention(D, H, mapping=mapping, sink=0.0)
        fixed.load_state_dict({name: value for name, value in learned.state_dict().items() if name != "sink"})
        torch.testing.assert_close(learned(x), fixed(x))
        assert (learned.probs(x).sum(-1) < 1).any()
        learned(x).square().sum().backward()
        assert learned.sink.grad.shape == (H,) and (learned.sink.grad != 0).all()
        with torch.no_grad():
            learned.sink.fill_(1e4)
        torch.testing.assert_close(learned(x), learned.output.bias.expand(2, 5, D))


def test_what_is_left_out_adds_no_parameter() -> None:
    names = {f"{layer}.{part}" for layer in ("query", "key", "value", "output") for part in ("weight", "bias")}
    assert set(MultiHeadAttention(D, H).state_dict()) == names
    assert set(MultiHeadAttention(D, H, sink=1.0, num_kv_heads=1).state_dict()) == names
    gated = MultiHeadAttention(D, H, sink="learned", gate="head")
    assert set(gated.state_dict()) == names | {"sink", "gate.weight", "gate.bias"}


def test_a_layer_compiles_whole() -> None:
    for mapping in (None, anymax.LearnedEntmax(shape=(4, 1, 1))):
        layer = MultiHeadAttention(16, 4, mapping=mapping, num_kv_heads=2, gate="head", sink="learned", rotary=True)
        x = torch.randn(2, 5, 16)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        got, wanted = compiled(x, is_causal=True), layer(x, is_causal=True)
        torch.testing.assert_close(got, wanted)
        parameters = list(layer.parameters())
        torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), parameters) for out in (got, wanted)))


def test_sinusoids_are_sines_then_cosines_of_falling_frequencies() -> None:
    table = sinusoids(7, 8, start=3)
    for n in range(7):
        for i in range(4):
            angle = (3 + n) * 10_000 ** (-i / 3)
            assert table[n, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[n, 4 + i].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_a_rotation_is_a_product_of_complex_numbers_and_depends_on_distance_alone() -> None:
    q, k = torch.randn(2, 5, 8, dtype=torch.double)
    turned = torch.complex(*rotate(q, start=2).chunk(2, -1))
    angles = torch.arange(2, 7)[:, None] * 10_000 ** (-torch.arange(4) / 4)
    expected = torch.complex(*q.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(turned, expected.to(turned.dtype), rtol=1e-5, atol=1e-5)
    products = [rotate(q, start=s) @ rotate(k, start=s).mT for s in (0, 11)]
    torch.testing.assert_close(*products, rtol=1e-4, atol=1e-4)


@each("dtype", [torch.bfloat16, torch.float64])
def test_attention_keeps_the_type_of_its_parameters(attention: MultiHeadAttention, dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, D)
    result = attention.to(dtype)(x.to(dtype), is_causal=True)
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), attention.float()(x, is_causal=True), rtol=0.1, atol=0.2)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"model_dim must be a multiple of num_heads.* 12 and 5"):
        MultiHeadAttention(12, 5)
    with pytest.raises(ValueError, match=r"must be even for rotary positions.* 12 / 4"):
        MultiHeadAttention(12, 4, rotary=True)
    with pytest.raises(ValueError, match="dropout must be between 0 and 1, got 2"):
        MultiHeadAttention(12, 4, dropout=2)
    with pytest.raises(ValueError, match=r"num_kv_heads must be at least 1 and divide num_heads, got 5 for 6"):
        MultiHeadAttention(12, 6, num_kv_heads=5)
    with pytest.raises(ValueError, match="gate must be 'element', 'head' or None, got True"):
        MultiHeadAttention(12, 4, gate=True)
    with pytest.raises(ValueError, match="sink must be a number, 'learned' or None, got 'fixed'"):
        MultiHeadAttention(12, 4, sink="fixed")
    with pytest.raises(ValueError, match="sink must be below infinity, got nan"):
        MultiHeadAttention(12, 4, sink=math.nan)
    with pytest.raises(TypeError, match=r"mapping must be a Module or a function.* got float"):
        MultiHeadAttention(12, 4, mapping=1.5)
    with pytest.raises(ValueError, match=r"mapping must be along the keys.* dim=1"):
        MultiHeadAttention(12, 4, mapping=anymax.Entmax(1.5, dim=1))
    with pytest.raises(ValueError, match="dim must be even and at least 4"):
        sinusoids(3, 5)
    with pytest.raises(ValueError, match="even last dimension"):
        rotate(torch.zeros(2, 3))
    layer, x = MultiHeadAttention(D, H), torch.randn(2, 5, D)
    with pytest.raises(ValueError, match=r"query must be \(batch, positions, 12\), got shape \(5, 12\)"):
        layer(x[0])
    with pytest.raises(ValueError, match=r"key must be \(batch, positions, 12\)"):
        layer(x, x[..., :7])
    with pytest.raises(ValueError, match="key must have the batch of query, 2, got 1"):
        layer(x, x[:1])
    with pytest.raises(ValueError, match="value must have the batch and positions of key"):
        layer(x, x, x[:, 1:])
    with pytest.raises(TypeError, match=r"mask must be a boolean tensor.* got torch.float32; pass mask == 0 if"):
        layer(x, mask=torch.ones(5, 5))
    allowed = torch.rand(5, 5) < 0.6
    additive = torch.zeros(5, 5).masked_fill(~allowed, -math.inf)
    with pytest.raises(TypeError, match=r"mask must be .* pass mask == 0 if it is additive"):
        layer(x, mask=additive)
    assert torch.equal(layer(x, mask=additive == 0), layer(x, mask=allowed))
    with pytest.raises(ValueError, match=r"mask must broadcast to .*\(2, 3, 5, 5\), got \(2, 5\)"):
        layer(x, mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"is_causal must be False.* 5 queries and 4 keys"):
        layer(x, x[:, 1:], is_causal=True)
    for mapping in (None, anymax.Entmax(1.5)):
        with pytest.raises(ValueError, match=r"is_causal must be False.* 1 queries and 5 keys"):
            MultiHeadAttention(D, H, mapping=mapping)(x[:, :1], x, is_causal=True)
    with pytest.raises(ValueError, match="key must be left out with a cache"):
        layer(x, x[:, 1:], cache=KeyValueCache(9))
    with pytest.raises(ValueError, match="key must be left out with rotary positions"):
        MultiHeadAttention(12, 3, rotary=True)(x, x[:, 1:])


def test_a_cache_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        KeyValueCache(0)
    layer, x, cache = MultiHeadAttention(D, H), torch.randn(2, 5, D), KeyValueCache(7)
    with pytest.raises(RuntimeError, match=r"holds no gradients.* torch.no_grad"):
        layer(x, cache=cache)
    with torch.no_grad():
        layer(x, is_causal=True, cache=cache)
        with pytest.raises(ValueError, match="room for every position, got 5 more after 5 in one of max_length 7"):
            layer(x, is_causal=True, cache=cache)
        with pytest.raises(ValueError, match="begin a new cache"):
            layer(x[:1, :1], is_causal=True, cache=cache)
    assert cache.length == 5


def test_caches_refuse_to_be_reordered_by_what_names_no_rows() -> None:
    layer, x, growing = MultiHeadAttention(D, H), torch.randn(2, 5, D), KeyValueCache(5)
    with torch.no_grad():
        layer(x, cache=growing)
    for cache in (growing, layer.precompute(x)):
        with pytest.raises(
            TypeError, match=r"index must be a tensor of int32 or int64, got torch.bool; .* mask.nonzero"
        ):
            cache.reorder(torch.tensor([True, False]))
        with pytest.raises(TypeError, match="index must be a tensor of int32 or int64, got list"):
            cache.reorder([0, 1])
        with pytest.raises(ValueError, match=r"index must have one dimension.* got shape \(1, 2\)"):
            cache.reorder(torch.tensor([[0, 1]]))
        for wrong in (-1, 2):
            with pytest.raises(ValueError, match=rf"rows of the batch, from 0 to 1, got \[0, {wrong}\]"):
                cache.reorder(torch.tensor([0, wrong]))


def test_precomputed_keys_refuse_what_does_not_fit() -> None:
    layer, x = MultiHeadAttention(D, H), torch.randn(2, 5, D)
    cache = layer.precompute(x)
    for name, given in {"key": {"key": x}, "value": {"value": x}, "mask": {"mask": torch.ones(5, 5) == 1}}.items():
        with pytest.raises(ValueError, match=f"{name} must be left out with a CrossAttentionCache.* precompute"):
            layer(x, cache=cache, **given)
    with pytest.raises(ValueError, match="is_causal must be False with a CrossAttentionCache"):
        layer(x, cache=cache, is_causal=True)
    for other, query in ((layer, x[:1]), (MultiHeadAttention(D, 4), x)):
        with pytest.raises(ValueError, match=r"cache must have the batch, heads and width .* got \(2, 3, 4\)"):
            other(query, cache=cache)
    with pytest.raises(ValueError, match="rotary must be False to precompute keys"):
        MultiHeadAttention(D, H, rotary=True).precompute(x)
    with pytest.raises(ValueError, match="value must have the batch and positions of key"):
        layer.precompute(x, x[:, 1:])
    with pytest.raises(ValueError, match=r"mask must broadcast to .*\(2, 3, 1, 5\), got \(2, 1, 1, 4\)"):
        layer.precompute(x, key_mask=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match="mask must be a boolean tensor, true where a key may be attended to"):
        expand_key_mask(torch.ones(2, 5))
    with pytest.raises(ValueError, match=r"key_mask must be \(batch, keys\), got shape \(5,\)"):
        expand_key_mask(torch.ones(5, dtype=torch.bool))
