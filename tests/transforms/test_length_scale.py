"""LengthScale: its formula by the entries that are left, what it learns, and in attention."""

import math

import pytest
import torch

import anymax
from anymax.attention import MultiHeadAttention, attention
from anymax.transforms import LengthScale, length_scale
from tests.each import each


def test_rows_are_multiplied_by_the_entries_that_are_left() -> None:
    scores, mask = torch.randn(4, 8, dtype=torch.float64), torch.rand(4, 8) < 0.6
    mask[1] = False
    mask[2] = torch.arange(8) == 3
    for delta, beta, gamma in ((0.0, 0.4, 1.0), (1.0, 0.3, 2.0), (0.5, -0.2, -1.0)):
        for row in range(4):
            n = int(mask[row].sum())
            factor = delta + (beta * math.log(n) ** gamma if n > 1 else 0)
            got = length_scale(scores, beta, delta=delta, gamma=gamma, mask=mask)[row]
            torch.testing.assert_close(got, scores[row] * factor)
            hidden = scores.masked_fill(~mask, -torch.inf)
            got = length_scale(hidden, beta, delta=delta, gamma=gamma)[row]
            torch.testing.assert_close(got, torch.where(mask[row], scores[row] * factor, -torch.inf))
    torch.testing.assert_close(length_scale(scores, 0.4), scores * 0.4 * math.log(8))


def test_softmax_of_it_is_a_power_of_the_number_of_entries() -> None:
    scores, s = torch.randn(6, dtype=torch.float64), 0.7
    weights = 6.0 ** (s * scores)
    torch.testing.assert_close(anymax.softmax(length_scale(scores, s)), weights / weights.sum())


def test_gradients_by_scores_and_what_is_learned_agree_with_finite_differences() -> None:
    scores = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 3, 4) < 0.7
    mask[0, 0] = torch.tensor([True, False, False, False])
    beta, delta, gamma = (torch.rand(3, 1, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def call(scores, beta, delta, gamma):
        return length_scale(scores, beta, delta=delta, gamma=gamma, mask=mask)

    assert torch.autograd.gradcheck(call, (scores, beta, delta, gamma))
    hidden = scores.detach().masked_fill(~mask, -torch.inf).requires_grad_()
    length_scale(hidden, beta, delta=delta, gamma=gamma).masked_fill(~mask, 0).sum().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in (hidden, beta, delta, gamma))


def test_what_is_learned_is_a_parameter_and_the_rest_a_number() -> None:
    module = LengthScale((3, 1, 1))
    assert [(name, tuple(value.shape)) for name, value in module.named_parameters()] == [("beta", (3, 1, 1))]
    torch.testing.assert_close(module.beta.detach(), torch.full((3, 1, 1), 0.168))
    everything = LengthScale(delta=1.0, beta=0.0, gamma=0.5, learned=("delta", "beta", "gamma"))
    assert {name: value.item() for name, value in everything.named_parameters()} == {
        "delta": 1.0,
        "beta": 0.0,
        "gamma": 0.5,
    }
    scores = torch.randn(2, 5)
    torch.testing.assert_close(everything(scores), scores)
    assert not list(LengthScale(learned=()).parameters())


@each("mapping", [None, anymax.Entmax(1.5), anymax.LearnedEntmax(shape=(4, 1, 1)), anymax.normmax])
def test_in_attention_it_scales_scores_by_what_each_query_may_attend_to(mapping: object) -> None:
    q, k, v = (torch.randn(2, 4, 5, 6, requires_grad=True) for _ in range(3))
    module = LengthScale((4, 1, 1), delta=0.3, beta=0.5)
    mask = torch.rand(2, 1, 5, 5) < 0.7
    mask[0, :, 2] = False
    by_mask = mapping or anymax.softmax
    scores = q @ k.mT / math.sqrt(6)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    additive = torch.zeros(2, 1, 5, 5).masked_fill(~mask, -math.inf)
    for options, allowed in (
        ({}, torch.ones(5, 5, dtype=torch.bool)),
        ({"attn_mask": mask}, mask),
        ({"attn_mask": additive}, mask),
        ({"attn_mask": mask[..., :1]}, mask[..., :1].expand(2, 1, 5, 5)),
        ({"is_causal": True}, causal),
    ):
        wanted = by_mask(module(scores, mask=allowed.expand_as(scores)), mask=allowed) @ v
        got = attention(q, k, v, mapping, transform=module, **options)
        torch.testing.assert_close(got, wanted)
        weight = torch.randn_like(got)
        of = (q, k, module.beta)
        torch.testing.assert_close(
            *(torch.autograd.grad((one * weight).sum(), of, retain_graph=True) for one in (got, wanted)),
            rtol=1e-4,
            atol=1e-5,
        )


def test_a_layer_of_attention_learns_it_and_decodes_by_it() -> None:
    for transform in (LengthScale((3, 1, 1)), anymax.transforms.Softcap(2.0)):
        layer = MultiHeadAttention(12, 3, mapping=anymax.Entmax(1.5), transform=transform)
        x, cache = torch.randn(2, 5, 12), anymax.attention.KeyValueCache(5)
        whole = layer(x, is_causal=True)
        with torch.no_grad():
            steps = [layer(part, is_causal=True, cache=cache) for part in x.split((2, 1, 2), 1)]
        torch.testing.assert_close(torch.cat(steps, 1), whole)
        values = layer.value(x).unflatten(-1, (3, -1)).transpose(1, 2)
        gathered = (layer.probs(x, is_causal=True) @ values).transpose(1, 2).flatten(2)
        torch.testing.assert_close(layer.output(gathered), whole)
        whole.sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"learned must be a tuple of 'delta', 'beta' and 'gamma', got 'beta'"):
        LengthScale(learned="beta")
    with pytest.raises(ValueError, match="beta must be a finite number, got nan"):
        LengthScale(beta=math.nan)
    with pytest.raises(TypeError, match=r"scores must be floating point, got torch.int64"):
        length_scale(torch.arange(3), 1.0)
    q = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match="transform must be along the keys"):
        attention(q, q, q, transform=LengthScale(dim=0))
    with pytest.raises(TypeError, match="transform must be a Module or a function of scores, got float"):
        attention(q, q, q, transform=50.0)
