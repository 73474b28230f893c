"""Attention by any mapping: against the mapping written out, and fused where it is entmax or softmax."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anymax
from anymax.attention import MultiHeadAttention, attention
from tests.each import each

Q, K, E, H = 4, 6, 8, 3
MAPPINGS = {
    "normmax": anymax.normmax,
    "top 3": functools.partial(anymax.topk_sparsemax, k=3),
    "sigsoftmax": anymax.sigsoftmax,
    "entmax": anymax.Entmax(1.3),
    "learned": anymax.LearnedEntmax(shape=(H, 1, 1)),
    "one alpha": anymax.LearnedEntmax(),
    "sparsemax": anymax.sparsemax,
    "softmax": anymax.softmax,
}


def vectors() -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, H, length, E, requires_grad=True) for length in (Q, K, K))


@each("name", MAPPINGS)
def test_it_gathers_what_the_mapping_chooses(name: str) -> None:
    mapping, (q, k, v) = MAPPINGS[name], vectors()
    scores = q @ k.mT / math.sqrt(E)
    allowed, sink = torch.rand(2, 1, Q, K) < 0.7, torch.randn(H, 1, 1)
    allowed[..., :3] = True
    bias = torch.randn(Q, K)
    ones, causal = torch.ones(2, H, Q, 1, dtype=torch.bool), torch.ones(Q, K, dtype=torch.bool).tril()
    cases = [
        (attention(q, k, v, mapping), mapping(scores)),
        (attention(q, k, v, mapping, allowed), mapping(scores, mask=allowed)),
        (attention(q, k, v, mapping, bias), mapping(scores + bias)),
        (attention(q, k, v, mapping, torch.where(allowed, bias, -math.inf)), mapping(scores + bias, mask=allowed)),
        (attention(q, k, v, mapping, is_causal=True, scale=0.2), mapping(q @ k.mT * 0.2, mask=causal)),
        (
            attention(q, k, v, mapping, allowed, sink=sink[:, 0, 0]),
            mapping(
                torch.cat([scores, sink.expand(2, H, Q, 1)], -1),
                mask=torch.cat([allowed.expand(2, H, Q, K), ones], -1),
            )[..., :-1],
        ),
    ]
    for got, probs in cases:
        torch.testing.assert_close(got, probs @ v)
        weight = torch.randn_like(got)
        losses = [(out * weight).sum() for out in (got, probs @ v)]
        gradients = (torch.autograd.grad(loss, (q, k, v), retain_graph=True) for loss in losses)
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_entmax_and_softmax_are_fused() -> None:
    q, k, v = vectors()
    alpha = anymax.LearnedEntmax(shape=(H, 1, 1))
    for mapping, of in (
        (anymax.Entmax(1.3), 1.3),
        (alpha, alpha.alpha[:, 0, 0]),
        (anymax.sparsemax, 2.0),
        (anymax.entmax, 1.5),
    ):
        assert torch.equal(attention(q, k, v, mapping), anymax.entmax_attention(q, k, v, of))
    for mapping in (None, anymax.softmax, anymax.Entmax(1.0)):
        assert torch.equal(attention(q, k, v, mapping), F.scaled_dot_product_attention(q, k, v))


def test_a_mapping_that_is_watched_or_changed_is_called() -> None:
    q, k, v = vectors()
    seen: list[Tensor] = []
    watched = anymax.Entmax(1.5)
    watched.register_forward_hook(lambda module, inputs, output: seen.append(output))
    torch.testing.assert_close(attention(q, k, v, watched), attention(q, k, v, anymax.Entmax(1.5)))
    assert seen[0].shape == (2, H, Q, K)

    class Halved(anymax.Entmax):
        def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(scores, mask) / 2

    torch.testing.assert_close(attention(q, k, v, Halved()), attention(q, k, v, anymax.Entmax()) / 2)


def test_an_alpha_of_every_query_is_possible() -> None:
    q, k, v = vectors()
    mapping = anymax.LearnedEntmax(shape=(H, Q, 1))
    torch.testing.assert_close(attention(q, k, v, mapping), mapping(q @ k.mT / math.sqrt(E)) @ v)


def test_half_precision_and_dropout_of_a_mapping() -> None:
    q, k, v = (part.detach().to(torch.bfloat16).requires_grad_() for part in vectors())
    got = attention(q, k, v, anymax.normmax)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(
        got.float(), attention(q.float(), k.float(), v.float(), anymax.normmax), rtol=1e-2, atol=1e-2
    )
    assert (attention(q, k, v, anymax.normmax, None, 1.0) == 0).all()
    many = attention(*(part[:1].float().expand(4000, H, -1, -1) for part in (q, k, v)), anymax.normmax, None, 0.4)
    torch.testing.assert_close(
        many.mean(0), attention(q.float(), k.float(), v.float(), anymax.normmax)[0], rtol=0, atol=0.1
    )


def test_a_mapping_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"mapping must be a Module or a function .* got float; as in anymax.Entmax"):
        attention(*vectors(), 1.5)
    with pytest.raises(ValueError, match=r"mapping must be along the keys, the last dimension, got one with dim=1"):
        attention(*vectors(), anymax.Entmax(1.5, dim=1))


def test_a_mapping_compiles_with_the_rest() -> None:
    q, k, v = vectors()
    mapping: nn.Module = anymax.LearnedEntmax(shape=(H, 1, 1))
    compiled = torch.compile(
        lambda *parts: attention(*parts, mapping, is_causal=True) + attention(*parts, anymax.normmax, sink=0.5),
        fullgraph=True,
        backend="aot_eager",
    )
    wanted = attention(q, k, v, mapping, is_causal=True) + attention(q, k, v, anymax.normmax, sink=0.5)
    torch.testing.assert_close(compiled(q, k, v), wanted)


def test_weights_that_do_not_depend_on_each_other_gather_but_take_no_sink() -> None:
    q, k, v = vectors()
    allowed = torch.rand(2, 1, Q, K) < 0.6
    for mapping in (anymax.sigmoid, anymax.rectified, anymax.softpick):
        wanted = mapping(q @ k.mT / math.sqrt(E), mask=allowed) @ v
        torch.testing.assert_close(attention(q, k, v, mapping, allowed), wanted)
    for mapping in (anymax.sigmoid, functools.partial(anymax.rectified, power=2)):
        with pytest.raises(ValueError, match=r"sink must be None for a mapping to weights .* change nothing"):
            attention(q, k, v, mapping, sink=0.0)
        with pytest.raises(ValueError, match="sink must be None for a mapping to weights"):
            MultiHeadAttention(12, 3, mapping=mapping, sink="learned")
    assert attention(q, k, v, anymax.softpick, sink=0.0).shape == q.shape
