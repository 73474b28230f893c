"""Ignored targets: dropped on a CPU, copies of weight zero on other devices, where no value may be read."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

import anymax
from anymax.losses import fused, rules
from anymax.losses.fused import compute
from anymax.losses.linear_cross_entropy import CrossEntropy, Transformed
from anymax.losses.linear_mixture_loss import Mixture
from anymax.vocabulary import AdaptiveOutput, Bands
from tests.contracts.linear_losses import MEMBERS, REDUCTIONS, Member, targets
from tests.each import each

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=list(MEMBERS))
def member(request: pytest.FixtureRequest) -> Member:
    return MEMBERS[request.param]


def loss_and_gradients(loss: Tensor, sources: list[Tensor]) -> list[Tensor]:
    upstream = torch.linspace(0.5, 2, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    return [loss.detach(), *torch.autograd.grad(loss, sources, upstream)]


@each("reduction", REDUCTIONS)
@each("ignored", [(), (0,), (2, 3, 8), tuple(range(9))])
def test_copies_give_the_losses_and_gradients_of_dropped_rows(
    engine: str, monkeypatch: pytest.MonkeyPatch, member: Member, reduction: str, ignored: tuple[int, ...]
) -> None:
    tensors, target = member.make(9), targets(9, ignored=ignored)
    # A hidden state that is not a number, at an ignored target.
    hidden = next(iter(tensors.values()))
    hidden.data[list(ignored)] = torch.nan
    for per_block in (2, 100):
        results = []
        for reads in (True, False):
            monkeypatch.setattr(rules, "can_read", lambda _, reads=reads: reads)
            loss = member.fused(
                tensors, target, reduction=reduction, memory_budget=member.budget(per_block, torch.float64)
            )
            results.append(loss_and_gradients(loss, list(tensors.values())))
        torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)
        assert (results[1][1][list(ignored)] == 0).all()


def test_copies_of_half_precision_are_near_dropped_rows(monkeypatch: pytest.MonkeyPatch, member: Member) -> None:
    tensors, target = member.make(9, dtype=torch.bfloat16), targets(9, ignored=(0, 4, 5))
    results = []
    for reads in (True, False):
        monkeypatch.setattr(rules, "can_read", lambda _, reads=reads: reads)
        results.append(loss_and_gradients(member.fused(tensors, target), list(tensors.values())))
    torch.testing.assert_close(results[1], results[0], rtol=0.02, atol=0.002)


def test_a_band_without_a_token_adds_nothing_whatever_its_weights_are(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = AdaptiveOutput(Bands(60, (20, 40), (8, 4, 4)), 8).double()
    layer.tables[2].data.fill_(torch.inf)
    hidden, target = torch.randn(7, 8, dtype=torch.float64, requires_grad=True), torch.arange(17, 24)
    target[1] = -100
    results = []
    for reads in (True, False):
        monkeypatch.setattr(rules, "can_read", lambda _, reads=reads: reads)
        results.append(loss_and_gradients(layer(hidden, target), [hidden, *layer.parameters()]))
    assert all(result.isfinite().all() for result in results[1])
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


@each("reduction", REDUCTIONS)
def test_no_value_is_read_on_other_devices(monkeypatch: pytest.MonkeyPatch, reduction: str) -> None:
    # A tensor of the device "meta" has no values: reading one, or a shape that depends on one, raises.
    # It has no autocast either.
    monkeypatch.setattr(fused, "_without_autocast", nullcontext)
    hidden, weight, prior = (torch.empty(shape, device="meta") for shape in ((9, 3, 20), (30, 20), (9, 3)))
    target, sig = torch.empty(9, dtype=torch.long, device="meta"), anymax.Sig().to("meta")
    one = torch.ones(() if reduction != "none" else 9, device="meta")
    numbers = (reduction, -100, 0.0, 4 * 3 * 30 * 4)
    for make_rule, inputs, num_pieces in (
        (CrossEntropy, [hidden[:, 0], weight, None], 1),
        (CrossEntropy, [hidden[:, 0], weight, weight[:, 0], hidden[:, 1], weight, None], 2),
        (lambda inputs: Transformed(sig, {}, CrossEntropy(inputs)), [hidden[:, 0], weight, None], 1),
        (Mixture, [hidden, weight, None, prior], 1),
    ):
        for needed in ([tensor is not None for tensor in inputs], [False] * len(inputs)):
            losses, gradients = compute(
                make_rule, inputs, target, one if any(needed) else None, num_pieces, *numbers, needed
            )
            assert losses.shape == (9,)
            wanted = [tensor.shape for tensor, is_needed in zip(inputs, needed, strict=True) if is_needed]
            assert [gradient.shape for gradient in gradients] == wanted
