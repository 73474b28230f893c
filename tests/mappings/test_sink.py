"""A sink beside any mapping: against softmax off by one, and as a Module that learns its score."""

import functools
import math

import pytest
import torch

import anymax
from anymax.mappings import WithSink, with_sink


def test_softmax_with_a_sink_is_softmax_off_by_one() -> None:
    scores = torch.randn(4, 6, dtype=torch.float64)
    weights = scores.exp()
    for sink in (0.0, 1.5, -3.0):
        wanted = weights / (weights.sum(-1, keepdim=True) + math.exp(sink))
        torch.testing.assert_close(with_sink(scores, sink), wanted)
    # Far scores too, where exp(-max) of the definition is zero.
    torch.testing.assert_close(with_sink(scores + 1e4, 0.0), torch.softmax(scores, -1))
    assert (with_sink(scores - 1e4, 0.0) == 0).all()
    torch.testing.assert_close(with_sink(scores, -math.inf), torch.softmax(scores, -1))


def test_a_sink_of_every_row_gets_a_gradient_along_any_dimension() -> None:
    scores = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)
    sink = torch.randn(3, 1, 1, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, 5, 2) < 0.7
    for mapping in (anymax.softmax, anymax.Entmax(1.5), functools.partial(anymax.topk_sparsemax, k=3)):

        def call(scores, sink, mapping=mapping):
            return with_sink(scores, sink, mapping, dim=1, mask=mask)

        assert torch.autograd.gradcheck(call, (scores, sink))
        whole = torch.cat([scores, sink.expand(3, 1, 2)], 1).movedim(1, -1)
        allowed = torch.cat([mask, torch.ones(3, 1, 2, dtype=torch.bool)], 1).movedim(1, -1)
        torch.testing.assert_close(call(scores, sink), mapping(whole, mask=allowed).movedim(-1, 1)[:, :-1])


def test_a_module_learns_its_sink_or_keeps_it() -> None:
    scores = torch.randn(2, 3, 4, 5)
    learned = WithSink(anymax.Entmax(1.5), (3, 1, 1), initial=0.5)
    fixed = WithSink(anymax.Entmax(1.5), initial=0.5, learned=False)
    assert [tuple(parameter.shape) for parameter in learned.parameters()] == [(3, 1, 1)]
    assert not list(fixed.parameters())
    torch.testing.assert_close(learned(scores), fixed(scores))
    learned(scores).sum().backward()
    assert (learned.sink.grad < 0).all()


def test_a_sink_that_does_not_fit_is_refused() -> None:
    scores = torch.randn(2, 3)
    for sink in (math.inf, math.nan, torch.tensor(math.nan)):
        with pytest.raises(ValueError, match="sink must be below infinity, got"):
            with_sink(scores, sink)
    with pytest.raises(ValueError, match="sink must broadcast against scores with size 1 along dim -1"):
        with_sink(scores, torch.zeros(3))
    with pytest.raises(ValueError, match=r"weights that do not depend on each other, got one with sigmoid"):
        with_sink(scores, 0.0, anymax.sigmoid)
    with pytest.raises(ValueError, match="sink must be None for a mapping to weights"):
        WithSink(anymax.mappings.Rectified())
    with pytest.raises(ValueError, match=r"mapping must be of the last dimension, .* got one with dim=0"):
        with_sink(scores, 0.0, anymax.Entmax(1.5, dim=0))
