"""The monotone network: an increasing function, computed in blocks that leave no trace."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from anymax.transforms import MonotonicNetwork, Units, monotonic_network


def some_units(hidden: int = 5) -> Units:
    generator = torch.Generator().manual_seed(0)
    steepness, shift, height = torch.rand(3, hidden, generator=generator, dtype=torch.float64).unbind()
    line = torch.tensor([0.3, -0.7], dtype=torch.float64)
    return Units(*(t.clone().requires_grad_() for t in (steepness, shift * 4 - 2, height, line[0], line[1])))


def some_scores(*shape: int) -> Tensor:
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (scores * 2).requires_grad_()


def plain(scores: Tensor, units: Units) -> Tensor:
    waves = units.height * torch.sigmoid(scores[..., None] * units.steepness + units.shift)
    return waves.sum(-1) + units.slope * scores + units.offset


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a handful of scores, so that small inputs have several."""
    monkeypatch.setitem(monotonic_network.__globals__, "ALIVE", 6)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("chunk", [1, 2, 5, 9])
def test_blocks_give_the_sum_over_all_units(chunk: int) -> None:
    units, scores = some_units(), some_scores(3, 7)
    result, expected = monotonic_network(scores, units, chunk=chunk), plain(scores, units)
    torch.testing.assert_close(result, expected)
    weights = some_scores(3, 7).detach()
    ours = torch.autograd.grad((result * weights).sum(), (scores, *units))
    theirs = torch.autograd.grad((expected * weights).sum(), (scores, *units))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("small_blocks")
def test_gradients_match_finite_differences_twice() -> None:
    inputs = (some_scores(2, 3), *some_units(3))
    assert torch.autograd.gradcheck(lambda x, *units: monotonic_network(x, Units(*units), chunk=2), inputs)
    assert torch.autograd.gradgradcheck(lambda x, *units: monotonic_network(x, Units(*units), chunk=2), inputs)


@pytest.mark.parametrize("hidden", [1, 4, 1000])
def test_the_start_is_near_the_identity_and_odd(hidden: int) -> None:
    network = MonotonicNetwork(hidden).double()
    scores = torch.linspace(-10, 10, 101, dtype=torch.float64)
    results = network(scores)
    torch.testing.assert_close(results, -results.flip(0), rtol=1e-5, atol=1e-5)
    error = (results - scores).abs().max()
    assert error < (1e-4 if hidden == 1000 else 2)


def test_larger_scores_give_larger_results_without_bound() -> None:
    torch.manual_seed(0)
    network = MonotonicNetwork(50)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_()
    scores = torch.linspace(-100, 100, 1001)
    assert bool((network(scores).diff() > 0).all())
    assert network(torch.tensor(1e6)) > 1e4 and network(torch.tensor(-1e6)) < -1e4


def test_no_tensor_of_scores_times_units_is_saved_or_made(monkeypatch: pytest.MonkeyPatch) -> None:
    network = MonotonicNetwork(64, chunk=16)
    monkeypatch.setitem(monotonic_network.__globals__, "ALIVE", 160)
    scores = torch.randn(1000, requires_grad=True)
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        result = network(scores)
    assert max(saved) == 1000 and saved.count(1000) == 1
    made: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            results = func(*args, **(kwargs or {}))
            made.extend(t.numel() for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, Tensor))
            return results

    with Watch():
        result.sum().backward()
        network(scores)
    assert max(made) == 1000


def test_masked_scores_leave_the_gradients_finite() -> None:
    network = MonotonicNetwork(9)
    scores = torch.tensor([-torch.inf, 0.5, -0.5], requires_grad=True)
    results = network(scores)
    assert results[0] == -torch.inf
    torch.softmax(results, -1)[1].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in (scores, *network.parameters()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_rounding_of_single(dtype: torch.dtype) -> None:
    network, scores = MonotonicNetwork(20), torch.linspace(-9, 9, 101).to(dtype)
    assert torch.equal(network(scores), network(scores.float()).to(dtype))


def test_shape_and_layout_do_not_matter() -> None:
    network, scores = MonotonicNetwork(7), torch.randn(6, 5, 4)
    for view in (scores.permute(2, 0, 1), scores[::2, 1:], scores[0, 0, 0], scores[:0]):
        torch.testing.assert_close(network(view), network(view.clone(memory_format=torch.contiguous_format)))
        assert network(view).shape == view.shape


def test_vmap_and_grad_compose_in_any_order() -> None:
    network = MonotonicNetwork(6, chunk=4).double()
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    rows = some_scores(3, 4).detach()

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        result: Tensor = functional_call(network, parameters, (row,))
        return (result**2).sum()

    per_row = vmap(grad(loss), (None, 0))(parameters, rows)
    whole = grad(lambda p: vmap(loss, (None, 0))(p, rows).sum())(parameters)
    for name in parameters:
        torch.testing.assert_close(per_row[name], torch.stack([grad(loss)(parameters, row)[name] for row in rows]))
        torch.testing.assert_close(whole[name], per_row[name].sum(0))


def test_compiled_equals_eager() -> None:
    network = MonotonicNetwork(10, chunk=4)
    scores = torch.randn(5, 3, requires_grad=True)
    expected = torch.autograd.grad(network(scores).square().sum(), (scores, network.shift))
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    results = torch.autograd.grad(compiled(scores).square().sum(), (scores, network.shift))
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
        MonotonicNetwork(0)
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        MonotonicNetwork(5, chunk=0)
    with pytest.raises(ValueError, match=r"bound must be a positive finite number, got -1\.0"):
        MonotonicNetwork(5, bound=-1.0)
    with pytest.raises(TypeError, match=r"scores must be floating point, got torch\.int64"):
        MonotonicNetwork(5)(torch.arange(3))
