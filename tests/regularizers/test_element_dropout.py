"""Element dropout: one mask from one seed, the same forward and backward, through all that torch does to a function."""

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anymax.kernels import use_backend
from anymax.regularizers.element_dropout import element_dropout, fast_dropout
from tests.each import each

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def dropped_with(seed: int, tensor: Tensor, rate: float = 0.5) -> Tensor:
    torch.manual_seed(seed)
    return element_dropout(tensor, rate)


@pytest.mark.usefixtures("engine")
@each("dtype", DTYPES)
@each("rate", [0.1, 0.5, 0.8])
def test_the_share_that_stays_is_scaled_and_the_rest_is_zero(rate: float, dtype: torch.dtype) -> None:
    tensor = (torch.randn(300, 200).abs() + 0.1).to(dtype)
    result = element_dropout(tensor, rate)
    assert result.dtype == dtype and result.shape == tensor.shape
    kept = result != 0
    assert kept.double().mean().item() == pytest.approx(1 - rate, abs=0.01)
    torch.testing.assert_close(result[kept], (tensor[kept].double() / (1 - rate)).to(dtype))


@pytest.mark.usefixtures("engine")
def test_the_gradient_passes_the_same_mask_with_the_same_scale() -> None:
    tensor = torch.randn(70, 50, requires_grad=True)
    incoming = torch.randn(70, 50)
    result = element_dropout(tensor, 0.75)
    result.backward(incoming)
    mask = (result != 0) * 4.0
    assert torch.equal(result, tensor.detach() * mask)
    assert torch.equal(tensor.grad, incoming * mask)


@pytest.mark.usefixtures("engine")
def test_gradients_match_finite_differences_twice() -> None:
    tensor = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: dropped_with(3, x), tensor)
    assert torch.autograd.gradgradcheck(lambda x: dropped_with(3, x) ** 3, tensor)


def test_nothing_but_the_seed_is_saved() -> None:
    saved: list[Tensor] = []
    tensor = torch.randn(64, 33, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        element_dropout(tensor, 0.5)
    assert [(t.shape, t.dtype) for t in saved] == [((1,), torch.int64)]


def test_two_calls_differ_and_a_seed_decides_both() -> None:
    tensor = torch.ones(1000)
    first = dropped_with(1, tensor)
    second = element_dropout(tensor, 0.5)
    assert not torch.equal(first, second)
    assert torch.equal(first, dropped_with(1, tensor))
    assert torch.equal(second, element_dropout(tensor, 0.5))


def test_a_generator_of_ones_own_decides_alone() -> None:
    tensor = torch.ones(1000)
    state = torch.get_rng_state()
    first, second = (element_dropout(tensor, 0.5, generator=torch.Generator().manual_seed(8)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_call_takes_one_draw_however_large_the_tensor() -> None:
    element_dropout(torch.ones(3), 0.5)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    element_dropout(torch.ones(100, 100), 0.9)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("engine")
def test_the_mask_depends_on_the_place_not_on_the_layout() -> None:
    tensor = torch.randn(6, 5, 4)
    views = [tensor.permute(2, 0, 1), tensor[::2, 1:], tensor[:, :, :1].expand(6, 5, 3), tensor[0, 0, 0], tensor[:0]]
    for view in views:
        result = dropped_with(5, view)
        assert result.shape == view.shape and result.is_contiguous()
        assert torch.equal(result, dropped_with(5, view.clone(memory_format=torch.contiguous_format)))


def test_every_backend_draws_the_same_mask() -> None:
    tensor = torch.randn(300, 77)
    with use_backend("reference"):
        expected = dropped_with(4, tensor, 0.3)
    assert torch.equal(dropped_with(4, tensor, 0.3), expected)


def test_the_tensor_itself_comes_back_where_nothing_is_dropped() -> None:
    tensor = torch.nn.Parameter(torch.randn(3, 4))
    state = torch.get_rng_state()
    assert element_dropout(tensor, 0.5, training=False) is tensor
    assert element_dropout(tensor, 0.0) is tensor
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("engine")
def test_a_rate_of_one_gives_zeros_and_a_gradient_of_zeros() -> None:
    tensor = torch.tensor([1.0, torch.nan, torch.inf], requires_grad=True)
    result = element_dropout(tensor, 1.0)
    result.sum().backward()
    assert result.tolist() == [0, 0, 0] and tensor.grad is not None and tensor.grad.tolist() == [0, 0, 0]


def test_the_input_is_not_written_to() -> None:
    tensor = torch.randn(50)
    before = tensor.clone()
    element_dropout(tensor, 0.5)
    assert torch.equal(tensor, before)


def test_checkpointing_draws_the_same_mask_again() -> None:
    tensor = torch.randn(40, 30, requires_grad=True)

    def loss(given: Tensor) -> Tensor:
        return (element_dropout(given, 0.5) ** 2).sum()

    torch.manual_seed(2)
    (expected,) = torch.autograd.grad(loss(tensor), tensor)
    torch.manual_seed(2)
    again = checkpoint(loss, tensor, use_reentrant=False)
    torch.rand(3)
    assert torch.equal(torch.autograd.grad(again, tensor)[0], expected)


def test_compiled_equals_eager() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(element_dropout, fullgraph=True, backend="aot_eager")
    tensor = torch.randn(9, 8, requires_grad=True)
    for rate in (0.5, 0.25):
        results = []
        for call in (element_dropout, compiled):
            torch.manual_seed(6)
            result = call(tensor, rate)
            results.append((result.detach(), torch.autograd.grad((result**2).sum(), tensor)[0]))
        (eager, eager_grad), (ours, ours_grad) = results
        assert torch.equal(ours, eager) and torch.equal(ours_grad, eager_grad)
        # The seed is drawn when the graph runs, not when it is made.
        assert not torch.equal(compiled(tensor, rate), ours)


def test_shapes_are_known_without_data() -> None:
    tensor = torch.empty(3, 4, device="meta", dtype=torch.bfloat16)
    result = element_dropout(tensor, 0.5)
    assert result.is_meta and result.shape == (3, 4) and result.dtype == torch.bfloat16


def test_vmap_asks_whether_samples_share_their_mask() -> None:
    tensor = torch.ones(5, 200)

    def drop(row: Tensor) -> Tensor:
        return element_dropout(row, 0.5)

    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(drop)(tensor)
    same = torch.vmap(drop, randomness="same")(tensor)
    assert all(torch.equal(row, same[0]) for row in same)
    different = torch.vmap(drop, randomness="different")(tensor)
    assert len({tuple(row.tolist()) for row in different}) == 5


def test_gradients_of_samples_follow_their_own_masks() -> None:
    tensor = torch.randn(5, 20)
    per_sample = torch.func.grad_and_value(lambda row: (element_dropout(row, 0.5) ** 2).sum())
    gradients, values = torch.vmap(per_sample, randomness="different")(tensor)
    torch.testing.assert_close((gradients * tensor).sum(1), 2 * values)
    assert set(torch.unique((gradients / (8 * tensor)).round(decimals=4)).tolist()) == {0.0, 1.0}
    assert len({tuple((row != 0).tolist()) for row in gradients}) == 5


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_a_rate_is_a_chance(rate: float) -> None:
    with pytest.raises(ValueError, match="rate must be between 0 and 1, got"):
        element_dropout(torch.ones(2), rate, training=False)


def test_whole_numbers_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"tensor must be floating point, got torch.int64; convert it"):
        element_dropout(torch.arange(3), 0.5)


def test_fast_dropout_is_the_hash_on_a_cpu_and_torchs_elsewhere():
    tensor = torch.ones(50, 40)
    torch.manual_seed(3)
    wanted = element_dropout(tensor, 0.3)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    assert torch.equal(fast_dropout(tensor, 0.3, True), wanted)
    # So a run that is resumed with the state of torch's generator drops the same.
    assert torch.equal(torch.get_rng_state(), after)
    assert fast_dropout(tensor, 0.3, False) is tensor
    elsewhere = fast_dropout(tensor.to("meta"), 0.3, True)
    assert elsewhere.is_meta and elsewhere.shape == tensor.shape
