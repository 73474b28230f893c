"""Attention by entmax around its kernel: layouts, second derivatives, transforms of torch, and what is refused."""

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode

import anymax
from anymax import entmax_attention
from anymax.kernels import library
from tests.each import each

Q, K, E, V = 4, 5, 6, 3


def vectors(*lead: int, groups: int | None = None, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Queries, keys and values that want gradients."""
    of_keys = lead if groups is None else (*lead[:-1], groups)
    shapes = ((*lead, Q, E), (*of_keys, K, E), (*of_keys, K, V))
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)


def written_out(query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, **options: object) -> Tensor:
    """By the mapping, whose own tests hold it to the definition."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return anymax.entmax(scores, alpha, **options) @ value


@each("lead", [(), (3,), (2, 3), (2, 2, 3), (1, 2, 1, 3)])
def test_any_number_of_leading_dimensions_is_the_formula_written_out(lead: tuple[int, ...]) -> None:
    q, k, v = vectors(*lead)
    mask = torch.rand(Q, K) < 0.7
    for options in ({}, {"mask": mask}):
        got = entmax_attention(q, k, v, attn_mask=options.get("mask"))
        wanted = written_out(q, k, v, 1.5, **options)
        assert got.shape == (*lead, Q, V)
        torch.testing.assert_close(got, wanted)
        weight = torch.randn_like(got)
        gradients = (torch.autograd.grad((one * weight).sum(), (q, k, v)) for one in (got, wanted))
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_alpha_and_sink_broadcast_to_batch_and_heads_and_get_gradients_in_their_shape() -> None:
    q, k, v = vectors(2, 3, dtype=torch.float64)
    for shape in ((), (1,), (3,), (2, 1), (2, 3)):
        alpha = (1.2 + torch.rand(shape, dtype=torch.float64)).requires_grad_()
        sink = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        whole = torch.broadcast_to(sink, (2, 3))[..., None, None].expand(2, 3, Q, 1)
        scores = torch.cat([q @ k.mT / math.sqrt(E), whole], -1)
        wanted = anymax.entmax(scores, alpha.expand(2, 3)[..., None, None])[..., :-1] @ v
        got = entmax_attention(q, k, v, alpha, sink=sink)
        torch.testing.assert_close(got, wanted)
        weight = torch.randn_like(got)
        gradients = [torch.autograd.grad((one * weight).sum(), (q, k, v, alpha, sink)) for one in (got, wanted)]
        assert gradients[0][3].shape == gradients[0][4].shape == shape
        torch.testing.assert_close(*gradients)


def test_batches_broadcast_as_those_of_torch() -> None:
    q, k, v = vectors(2, 4)
    for keys, values in ((k[:1], v), (k, v[:, :1]), (k[0], v[0]), (k[:, :1], v[:, :1])):
        wanted = F.scaled_dot_product_attention(q, keys, values)
        torch.testing.assert_close(entmax_attention(q, keys, values, torch.ones(4)), wanted)
        torch.testing.assert_close(entmax_attention(q, keys, values, 1), wanted)
    grouped = [part[:1] for part in (q, k[:, :2], v[:, :2])]
    torch.testing.assert_close(
        entmax_attention(q, *grouped[1:], torch.ones(4), enable_gqa=True),
        F.scaled_dot_product_attention(q, *grouped[1:], enable_gqa=True),
    )


def test_masks_of_a_larger_batch_may_have_any_of_its_dimensions() -> None:
    q, k, v = vectors(2, 3, 4)
    for shape in ((2, 3, 4, Q, K), (2, 1, 1, Q, K), (3, 1, 1, K), (1, 1, 4, Q, 1), (1, 3, 1, 1, 1), (K,)):
        for mask in (torch.rand(shape) < 0.6, torch.randn(shape)):
            wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            torch.testing.assert_close(entmax_attention(q, k, v, torch.tensor(1.0), attn_mask=mask), wanted)


def test_a_score_bias_gets_a_gradient() -> None:
    q, k, v = vectors(2, 3, dtype=torch.float64)
    alpha, sink = torch.tensor([1.0, 1.4, 2.0], dtype=torch.float64, requires_grad=True), torch.zeros(3)
    bias = torch.randn(1, 3, Q, K, dtype=torch.float64, requires_grad=True)

    def seeded(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)
        return entmax_attention(*tensors[:4], tensors[4], 0.2, sink=sink)

    assert torch.autograd.gradcheck(seeded, (q, k, v, alpha, bias), fast_mode=True)
    # The same entries are dropped on either way.
    torch.testing.assert_close(seeded(q, k, v, alpha, bias), seeded(q, k, v, alpha, bias.detach()))


def test_second_derivatives_agree_with_finite_differences() -> None:
    q, k, v = vectors(1, 2, groups=1, dtype=torch.float64)
    alpha = torch.tensor([1.3, 1.7], dtype=torch.float64, requires_grad=True)
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(Q, K) < 0.7
    mask[1] = False

    def seeded(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)
        return entmax_attention(*tensors[:4], mask, 0.1, enable_gqa=True, sink=tensors[4])

    assert torch.autograd.gradgradcheck(seeded, (q, k, v, alpha, sink), fast_mode=True)


def test_compiled_it_is_what_it_is_in_eager_mode() -> None:
    q, k, v = vectors(2, 4, groups=2)
    alpha, sink = torch.rand(4).add(1).requires_grad_(), torch.randn(4, requires_grad=True)
    bias = torch.randn(Q, K)

    def call(*tensors: Tensor) -> Tensor:
        fused = entmax_attention(*tensors[:4], bias, enable_gqa=True, sink=tensors[4])
        return fused + entmax_attention(*tensors[:3], 1.5, is_causal=True, enable_gqa=True)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    tensors = (q, k, v, alpha, sink)
    torch.testing.assert_close(compiled(*tensors), call(*tensors))
    gradients = (torch.autograd.grad(one(*tensors).square().sum(), tensors) for one in (compiled, call))
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*tensors), call(*tensors))


def test_vmap_is_a_loop() -> None:
    q, k, v = (part.detach() for part in vectors(3, 2, 2))
    alpha = torch.rand(3, 2) + 1
    looped = torch.stack([entmax_attention(*parts, is_causal=True) for parts in zip(q, k, v, alpha, strict=True)])
    call = torch.vmap(lambda *parts: entmax_attention(*parts, is_causal=True))
    torch.testing.assert_close(call(q, k, v, alpha), looped)
    by_query = torch.func.grad(lambda q: call(q, k, v, alpha).square().sum())(q)
    q.requires_grad_()
    torch.testing.assert_close(by_query, torch.autograd.grad(call(q, k, v, alpha).square().sum(), q)[0])


@each("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    tensors = [part.detach().to(dtype).requires_grad_() for part in vectors(2, 3)]
    alpha = torch.full((3,), 1.4, requires_grad=True)
    wide = [part.detach().float().requires_grad_() for part in (*tensors, alpha)]
    got, wanted = entmax_attention(*tensors, alpha), entmax_attention(*wide)
    assert got.dtype == dtype
    torch.testing.assert_close(got, wanted.to(dtype), rtol=1e-2, atol=1e-2)
    weight = torch.randn(2, 3, Q, V).to(dtype)
    got.mul(weight).sum().backward()
    wanted.mul(weight.float()).sum().backward()
    for mine, other in zip((*tensors, alpha), wide, strict=True):
        assert mine.grad is not None and other.grad is not None and mine.grad.dtype == mine.dtype
        torch.testing.assert_close(mine.grad, other.grad.to(mine.dtype), rtol=3e-2, atol=3e-2)


def test_autocast_casts_as_it_does_for_torch() -> None:
    q, k, v = vectors(2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        got = entmax_attention(q, k.to(torch.bfloat16), v)
        mapped = anymax.attention.attention(q, k, v, anymax.normmax)
    assert got.dtype == mapped.dtype == torch.bfloat16
    torch.testing.assert_close(got, entmax_attention(*(part.to(torch.bfloat16) for part in (q, k, v))))
    got.sum().backward()


def test_shapes_are_found_without_data() -> None:
    alpha = torch.full((3,), 1.5, requires_grad=True)
    for dropout in (0.0, 0.1):
        tensors = [part.detach().to("meta").requires_grad_() for part in (*vectors(2, 3), alpha)]
        out = entmax_attention(*tensors, None, dropout)
        assert out.shape == (2, 3, Q, V) and out.device.type == "meta"
        gradients = torch.autograd.grad(out.sum(), tensors)
        assert [gradient.shape for gradient in gradients] == [tensor.shape for tensor in tensors]
        with FakeTensorMode() as mode:
            fake = [mode.from_tensor(part) for part in (*vectors(2, 3), alpha)]
            out = entmax_attention(*fake, None, dropout)
            assert out.shape == (2, 3, Q, V) and len(torch.autograd.grad(out.sum(), fake)) == 4


def test_dropout_is_drawn_from_the_generator_of_torch_and_has_the_right_mean() -> None:
    q, k, v = vectors(2, 3)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(entmax_attention(q, k, v, dropout_p=0.5))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    many = entmax_attention(*(part[:1].expand(5_000, 3, -1, -1) for part in (q, k, v)), dropout_p=0.3).mean(0)
    torch.testing.assert_close(many, entmax_attention(q, k, v)[0], rtol=0, atol=0.1)


def test_a_sink_takes_probability_and_gives_nothing() -> None:
    q, k, v = vectors(2, 3)
    for alpha in (1, 1.5, torch.tensor(1.0)):
        torch.testing.assert_close(
            entmax_attention(q, k, v, alpha, sink=-math.inf), entmax_attention(q, k, v, alpha), rtol=1e-5, atol=1e-6
        )
        assert (entmax_attention(q, k, v, alpha, sink=1e4) == 0).all()
    # With softmax a sink is one more exponential below the line.
    weights = (q @ k.mT / math.sqrt(E)).exp()
    wanted = weights @ v / (weights.sum(-1, keepdim=True) + math.exp(0.3))
    torch.testing.assert_close(entmax_attention(q, k, v, 1, sink=0.3), wanted)


def test_a_nan_stays_in_its_row() -> None:
    q, k, v = vectors(2, 3)
    for alpha in (1.5, torch.full((3,), 1.5)):
        clean = entmax_attention(q, k, v, alpha)
        spoilt = q.detach().clone()
        spoilt[0, 1, 2, 3] = math.nan
        got = entmax_attention(spoilt, k, v, alpha)
        rows = torch.ones(2, 3, Q, dtype=torch.bool)
        rows[0, 1, 2] = False
        assert got[0, 1, 2].isnan().all()
        torch.testing.assert_close(got[rows], clean[rows])


def refused(error: type[Exception], match: str, *inputs: object, **options: object) -> None:
    with pytest.raises(error, match=match):
        entmax_attention(*inputs, **options)
    rest = {name: value for name, value in options.items() if name != "alpha"}
    if "alpha" not in options and "alpha" not in match:
        with pytest.raises(error, match=match):
            anymax.attention.attention(*inputs, anymax.normmax, **rest)


def test_vectors_that_do_not_fit_are_refused() -> None:
    q, k, v = vectors(2, 4)
    refused(TypeError, "key must be a tensor, got list", q, [1.0], v)
    refused(TypeError, r"query must be floating point, got torch.int64; convert it with .float\(\)", q.long(), k, v)
    refused(TypeError, r"must have one dtype, got torch.float32, torch.float64, torch.float32", q, k.double(), v)
    refused(ValueError, r"value must be \(..., positions, width\), got shape \(3,\)", q, k, v[0, 0, 0])
    refused(ValueError, r"key must have the width of query, 6, got shape \(2, 4, 5, 5\)", q, k[..., 1:], v)
    refused(ValueError, r"value must have as many positions as key, 5, got shape", q, k, v[..., 1:, :])
    refused(ValueError, r"batch and heads .* must be equal, .* make them equal", q, k[:, :3], v[:, :3])
    refused(ValueError, r"must be equal, .* pass enable_gqa=True if", q, k[:, :2], v[:, :2])
    refused(ValueError, r"batch and heads .* make them equal", q, k[:1].repeat(3, 1, 1, 1), v)
    grouped = {"enable_gqa": True}
    refused(ValueError, r"must be equal and divide those of query .* got 4, 3 and 3", q, k[:, :3], v[:, :3], **grouped)
    refused(ValueError, r"must be equal and divide .* got 4, 2 and 4", q, k[:, :2], v, **grouped)
    refused(ValueError, "must have heads for enable_gqa", q[0, 0], k[0, 0], v[0, 0], **grouped)


def test_masks_that_do_not_fit_are_refused_and_never_turned_into_their_opposite() -> None:
    q, k, v = vectors(2, 3)
    allowed = torch.rand(Q, K) < 0.5
    refused(
        TypeError,
        r"attn_mask must be a tensor, got list; make one with torch.tensor\(mask\)$",
        q,
        k,
        v,
        attn_mask=[0.0],
    )
    # Arguments of torch's function by their place there.
    refused(TypeError, "attn_mask must be a tensor, got float; give the others by name", q, k, v, attn_mask=0.1)
    refused(TypeError, "alpha must be .* got torch.bool; a mask is given as attn_mask", q, k, v, allowed)
    for wrong in (allowed.long(), allowed.byte()):
        advice = r"got torch.(int64|uint8); pass attn_mask == 1 if it is 1 where"
        refused(TypeError, advice, q, k, v, attn_mask=wrong)
        torch.testing.assert_close(
            entmax_attention(q, k, v, attn_mask=wrong == 1), entmax_attention(q, k, v, attn_mask=allowed)
        )
    additive = torch.zeros(Q, K).masked_fill(~allowed, -math.inf)
    refused(TypeError, r"got torch.float64; convert it with .to\(query.dtype\)", q, k, v, attn_mask=additive.double())
    torch.testing.assert_close(
        entmax_attention(q, k, v, attn_mask=additive), entmax_attention(q, k, v, attn_mask=allowed)
    )
    refused(
        ValueError,
        r"attn_mask must broadcast to .*\(2, 3, 4, 5\), got \(3, 4\); .*",
        q,
        k,
        v,
        attn_mask=allowed[:3, :4],
    )
    refused(ValueError, r"attn_mask must broadcast", q, k, v, attn_mask=allowed.expand(1, 1, 1, Q, K))
    refused(ValueError, "is_causal must be False with attn_mask", q, k, v, attn_mask=allowed, is_causal=True)


def test_numbers_out_of_their_range_are_refused() -> None:
    q, k, v = vectors(2, 3)
    for rate in (-0.1, 1.5, math.nan):
        refused(ValueError, "dropout_p must be between 0 and 1", q, k, v, dropout_p=rate)
    refused(TypeError, "scale must be a number", q, k, v, scale="1")
    for alpha in (-0.5, math.nan, math.inf, torch.tensor([1.5, 1.5, -0.5]), torch.tensor(math.nan)):
        refused(ValueError, "alpha must be finite and at least 0", q, k, v, alpha=alpha)
    refused(TypeError, "alpha must be a number or a tensor, got str", q, k, v, alpha="1.5")
    refused(
        ValueError, r"alpha must broadcast to \(batch, heads\), here \(2, 3\), got shape \(2,\)", q, k, v, torch.ones(2)
    )
    refused(TypeError, "alpha must be a tensor of real numbers", q, k, v, torch.ones(3, dtype=torch.bool))
    refused(ValueError, r"sink must broadcast to .* got shape \(3, 1\)", q, k, v, sink=torch.zeros(3, 1))
    for sink in (math.inf, math.nan, torch.full((3,), math.inf), torch.full((3,), math.nan)):
        refused(ValueError, "sink must be below infinity", q, k, v, sink=sink)
    refused(TypeError, "sink must be a number or a tensor, got str", q, k, v, sink="learned")


def test_softmax_equals_torchs_function_in_half_precision_and_with_dropout() -> None:
    q, k, v = vectors(2, 3, dtype=torch.bfloat16)
    mask = torch.rand(2, 1, Q, K) < 0.7
    mask[..., 0] = True
    exact = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    weight = torch.randn(2, 3, Q, V).bfloat16()
    got = torch.autograd.grad((entmax_attention(q, k, v, 1.0, mask) * weight).sum(), (q, k, v))
    wanted = torch.autograd.grad((F.scaled_dot_product_attention(*exact, mask) * weight).sum(), exact)
    torch.testing.assert_close([each.double() for each in got], list(wanted), rtol=2e-2, atol=2e-2)
    # Which weights are dropped differs; the mean over draws does not, and each draw scales those that are left.
    one, many = vectors(1, dtype=torch.float64), 4000
    mean = sum(entmax_attention(*one, 1.0, dropout_p=0.3).detach() for _ in range(many)) / many
    torch.testing.assert_close(mean, F.scaled_dot_product_attention(*one).detach(), rtol=0, atol=0.1)


def test_torch_is_not_asked_for_softmax_where_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    # The function has the name of its module.
    module = sys.modules["anymax.attention.entmax_attention"]
    monkeypatch.setattr(module, "softmax_attention", lambda inputs: asked.append(inputs) or q)
    q = k = v = torch.randn(1, 2, Q, E)
    entmax_attention(q, k, v, 1.0)
    assert len(asked) == 1
    with anymax.use_backend("reference"):
        entmax_attention(q, k, v, 1.0, dropout_p=0.1)
    assert len(asked) == 2
    if library.why_missing() is None:
        entmax_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), 1.0)
        entmax_attention(q, k, v, 1.0, dropout_p=0.1)
        assert len(asked) == 2
