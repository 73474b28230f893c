"""Cross-entropy of a linear layer: several pieces side by side, transforms, hard numbers, half precision, compile.

What it shares with the other linear losses is in contracts/test_linear_loss.py.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import anymax
from anymax import linear_cross_entropy
from anymax.kernels import use_backend
from tests.contracts.linear_losses import assert_same, peak_bytes
from tests.each import each

REDUCTIONS = ["mean", "sum", "none"]


def layer(num_targets: int, n: int, dim: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Hidden states, a weight, a bias, all with gradients, and targets."""
    tensors = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((num_targets, dim), (n, dim), (n,))]
    return *tensors, torch.randint(n, (num_targets,))


def eager(scores: Tensor, target: Tensor, **options: object) -> Tensor:
    return functional.cross_entropy(scores, target, **options)


def named(*tensors: Tensor) -> dict[str, Tensor]:
    return {str(i): tensor for i, tensor in enumerate(tensors)}


def side_by_side(hidden: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([functional.linear(*piece) for piece in zip(hidden, weights, biases, strict=True)], 1)


@each("sizes", [(5,), (5, 1), (30, 2, 11)])
@each("reduction", REDUCTIONS)
def test_pieces_are_the_concatenation_of_their_scores(sizes: tuple[int, ...], reduction: str) -> None:
    hidden, weights, biases = [], [], []
    for i, size in enumerate(sizes):
        h, w, b, _ = layer(7, size, 3 + i)
        hidden, weights, biases = [*hidden, h], [*weights, w], [*biases, b if i % 2 == 0 else None]
    target = torch.randint(sum(sizes), (7,))
    target[3] = -100
    for smoothing in (0.0, 0.3):
        scores = side_by_side(hidden, weights, biases)
        got = linear_cross_entropy(
            hidden,
            weights,
            target,
            biases,
            reduction=reduction,
            label_smoothing=smoothing,
            memory_budget=3 * 8 * sum(sizes),
        )
        wanted = eager(scores, target, reduction=reduction, label_smoothing=smoothing)
        sources = named(*hidden, *weights, *(bias for bias in biases if bias is not None))
        assert_same(got, wanted, sources)


def test_pieces_may_share_their_hidden_state_and_their_weight() -> None:
    h, w, b, _ = layer(6, 5, 4)
    target = torch.randint(10, (6,))
    for hidden, weights, biases in (
        ([h, h], [w, torch.randn(5, 4, dtype=torch.float64)], None),
        ([h, h.detach() * 2], [w, w], [b, b]),
        ([h, h], [w, w], [b, None]),
    ):
        for reduction in REDUCTIONS:
            scores = side_by_side(hidden, weights, biases or [None, None])
            got = linear_cross_entropy(hidden, weights, target, biases, reduction=reduction)
            sources = named(h, w) | ({"b": b} if biases else {})
            assert_same(got, eager(scores, target, reduction=reduction), sources)


def test_the_weight_of_a_tied_embedding_gets_its_gradient_once_from_each_use() -> None:
    table = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    words = torch.randint(9, (3, 7))

    def loss(of_hidden: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return of_hidden(torch.tanh(functional.embedding(words[:, :-1], table)), words[:, 1:])

    got = loss(lambda hidden, target: linear_cross_entropy(hidden, table, target))
    wanted = loss(lambda hidden, target: eager((hidden @ table.T).flatten(0, 1), target.flatten()))
    assert_same(got, wanted, named(table))


class Affine(nn.Module):
    """A transform of which one parameter takes part and another does not."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.tensor(0.7))
        self.unused = nn.Parameter(torch.tensor(1.0))

    def forward(self, scores: Tensor) -> Tensor:
        return self.used * scores


TRANSFORMS: dict[str, Callable[[], nn.Module]] = {
    "plif": lambda: anymax.PLIF(30, 4.0, random_start=True),
    "sig": lambda: anymax.Sig(slope=1.5),
    "monotonic": lambda: anymax.MonotonicNetwork(12, bound=4.0),
    "keeps-its-image": lambda: nn.Sequential(nn.Tanh()),
    "keeps-both": lambda: nn.Sequential(nn.Softplus(), anymax.PLIF(20, 3.0), nn.Sigmoid()),
    "identity": nn.Identity,
    "transposes-memory": lambda: nn.Sequential(Transposed(), nn.Tanh()),
}


class Transposed(nn.Module):
    """The identity, in another layout."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.T.clone(memory_format=torch.contiguous_format).T


@each("make", TRANSFORMS.values())
@each("reduction", REDUCTIONS)
def test_a_transform_and_its_parameters_get_the_gradients_of_all_scores(
    make: Callable[[], nn.Module], reduction: str
) -> None:
    transform = make().double()
    h, w, b, target = layer(11, 13, 4)
    target[5] = -100
    for budget in (1, 9, 100):
        got = linear_cross_entropy(
            h,
            w,
            target,
            b,
            transform=transform,
            reduction=reduction,
            label_smoothing=0.1,
            memory_budget=budget * 8 * 13,
        )
        wanted = eager(transform(functional.linear(h, w, b)), target, reduction=reduction, label_smoothing=0.1)
        assert_same(got, wanted, named(h, w, b, *transform.parameters()))


def test_a_frozen_parameter_of_a_transform_stays_without_a_gradient() -> None:
    transform = nn.Sequential(anymax.PLIF(10, 3.0, random_start=True), anymax.PLIF(10, 3.0)).double()
    frozen, free = transform.parameters()
    frozen.requires_grad_(False)
    h, w, b, target = layer(5, 8, 3)
    for tensors in ((h, w, b), (h.detach(), w.detach(), b.detach())):
        free.grad = None
        linear_cross_entropy(*tensors[:2], target, tensors[2], transform=transform).backward()
        wanted = eager(transform(functional.linear(h, w, b)), target)
        torch.testing.assert_close(free.grad, torch.autograd.grad(wanted, free)[0])
        assert frozen.grad is None


def test_a_parameter_that_takes_no_part_gets_zero() -> None:
    transform = Affine().double()
    h, w, _, target = layer(5, 8, 3)
    linear_cross_entropy(h, w, target, transform=transform).backward()
    assert transform.unused.grad == 0 and transform.used.grad != 0


def test_parameters_of_a_half_precision_transform_are_summed_over_blocks_in_float32() -> None:
    transform = anymax.PLIF(3, 4.0, random_start=True).bfloat16()
    h, w, b, target = layer(500, 6, 4, torch.bfloat16)
    linear_cross_entropy(h, w, target, b, transform=transform, memory_budget=6 * 6, reduction="sum").backward()
    wide = anymax.PLIF(3, 4.0).double()
    wide.weight.data.copy_(transform.weight.data)
    # The same rounded scores, so that only the sum differs.
    scores = functional.linear(h.detach(), w.detach()).double() + b.detach().double()
    wanted = torch.autograd.grad(eager(wide(scores), target, reduction="sum"), wide.weight)[0]
    assert (transform.weight.grad - wanted).norm() < 0.01 * wanted.norm()


def test_a_class_at_minus_infinity_is_left_out(engine: str) -> None:
    h, w, _, target = layer(6, 40, 4, torch.float32)
    bias = torch.zeros(40)
    bias[20:] = -torch.inf
    target = target % 20
    got = linear_cross_entropy(h, w, target, bias)
    torch.testing.assert_close(got, eager(h @ w[:20].T, target))
    (gradient,) = torch.autograd.grad(got, w)
    assert (gradient[20:] == 0).all() and gradient.isfinite().all()
    assert linear_cross_entropy(h, w, target + 20, bias) == torch.inf


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_many_classes_lose_nothing_in_float32(smoothing: float) -> None:
    h, w, b, target = layer(5, 100_003, 8, torch.float32)
    got = linear_cross_entropy(h, w, target, b, label_smoothing=smoothing)
    wide = [tensor.detach().double().requires_grad_() for tensor in (h, w, b)]
    wanted = eager(functional.linear(*wide), target, label_smoothing=smoothing)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-6)
    ours, theirs = torch.autograd.grad(got, (h, w, b)), torch.autograd.grad(wanted, wide)
    # A matrix product that sums over all classes is as exact as torch makes it.
    for gradient, exact, tolerance in zip(ours, theirs, (1e-4, 1e-6, 1e-6), strict=True):
        assert (gradient - exact).norm() < tolerance * exact.norm()


def test_many_targets_lose_nothing_in_float32() -> None:
    h, w, b, target = layer(20_000, 3, 2, torch.float32)
    got = linear_cross_entropy(h, w, target, b, memory_budget=1000 * 3 * 4)
    wide = [tensor.detach().double().requires_grad_() for tensor in (h, w, b)]
    wanted = eager(functional.linear(*wide), target)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-6)
    ours, theirs = torch.autograd.grad(got, (h, w, b)), torch.autograd.grad(wanted, wide)
    for gradient, exact in zip(ours, theirs, strict=True):
        assert (gradient - exact).norm() < 3e-5 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_of_many_equal_targets_does_not_overflow_in_half_precision(dtype: torch.dtype) -> None:
    # The sum of the gradients would be 65536 and more; half precision holds 65504.
    hidden, weight = torch.full((40_000, 4), 5.0, dtype=dtype), torch.zeros(3, 4, dtype=dtype, requires_grad=True)
    linear_cross_entropy(hidden, weight, torch.zeros(40_000, dtype=torch.long)).backward()
    wanted = torch.tensor([-2.0, 1.0, 1.0])[:, None] * 5 / 3
    torch.testing.assert_close(weight.grad.float(), wanted.expand(3, 4), rtol=0.01, atol=0)


@pytest.mark.parametrize("budget", [None, 100 * 2 * 6])
def test_the_mean_of_a_half_precision_transform_does_not_overflow(budget: int | None) -> None:
    transform = Affine()
    transform.used.data.fill_(1e-3)
    hidden, target = torch.full((40_000, 1), 4.0, dtype=torch.float16), torch.ones(40_000, dtype=torch.long)
    weight = torch.tensor([[1.0], [-1.0]], dtype=torch.float16)
    linear_cross_entropy(hidden, weight, target, transform=transform.half(), memory_budget=budget).backward()
    # Each target pulls with almost 1/2 at scores 4 and -4, 160 000 in all.
    torch.testing.assert_close(transform.used.grad.float(), torch.tensor(4.0), rtol=0.01, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_steep_transform_does_not_overflow_in_half_precision(dtype: torch.dtype) -> None:
    transform = Affine()
    transform.used.data.fill_(100.0)
    hidden, weight = torch.full((1000, 4), 5.0, dtype=dtype), torch.zeros(3, 4, dtype=dtype, requires_grad=True)
    linear_cross_entropy(hidden, weight, torch.zeros(1000, dtype=torch.long), transform=transform).backward()
    wanted = torch.tensor([-2.0, 1.0, 1.0])[:, None] * 500 / 3
    torch.testing.assert_close(weight.grad.float(), wanted.expand(3, 4), rtol=0.01, atol=0)


def test_the_mean_over_many_targets_does_not_underflow_in_half_precision() -> None:
    # A gradient of 1e-8, the share of one target, would be zero in half precision.
    h, w, _, target = layer(20_000, 50, 4, torch.float16)
    linear_cross_entropy(h, w, target).backward()
    wide = [tensor.detach().double().requires_grad_() for tensor in (h, w)]
    (wanted,) = torch.autograd.grad(eager(wide[0] @ wide[1].T, target), wide[1])
    assert (w.grad - wanted).norm() < 0.01 * wanted.norm()


def test_a_block_of_few_classes_keeps_to_its_budget() -> None:
    h, w, _, target = layer(30_000, 2, 2, torch.float32)
    with torch.no_grad():
        # Besides the scores, the losses and what tells the ignored targets from the others.
        assert peak_bytes(lambda: linear_cross_entropy(h.detach(), w.detach(), target)) < 30_000 * (2 * 4 + 3 * 8)


@pytest.mark.parametrize("transformed", [False, True])
# Torch's own, when it goes on tracing after the break that a transform makes.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiles_between_other_steps(transformed: bool) -> None:
    torch._dynamo.reset()
    transform = anymax.PLIF(20, 4.0, random_start=True).double() if transformed else None
    h, w, b, target = layer(6, 9, 4)
    target[2] = -100
    parameters = list(transform.parameters()) if transform is not None else []

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor, reduction: str) -> Tensor:
        losses = linear_cross_entropy(2 * hidden, weight, target, bias, transform=transform, reduction=reduction)
        return 3 * losses.sum()

    compiled = torch.compile(loss, fullgraph=not transformed, backend="aot_eager")
    for reduction in ("mean", "none"):
        assert_same(compiled(h, w, b, reduction), loss(h, w, b, reduction), named(h, w, b, *parameters))


def test_compiles_under_autocast() -> None:
    torch._dynamo.reset()
    h, w, b, target = layer(6, 9, 4, torch.float32)

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear_cross_entropy(hidden, weight, target, bias)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert compiled(h, w, b).dtype == torch.float32
    assert_same(compiled(h, w, b), loss(h, w, b), named(h, w, b), tolerance=1e-6)


def test_a_compiled_loss_can_be_differentiated_again() -> None:
    torch._dynamo.reset()
    h, w, b, target = layer(6, 9, 4)
    loss = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")(h, w, target, b)
    first = [gradient.clone() for gradient in torch.autograd.grad(3 * loss, (h, w, b), retain_graph=True)]
    torch.testing.assert_close(list(torch.autograd.grad(3 * loss, (h, w, b))), first)


def test_fake_tensors_give_shapes() -> None:
    with torch._subclasses.FakeTensorMode():
        h, w, b, target = layer(3, 5, 4)
        losses = linear_cross_entropy(h, w, target, b, reduction="none")
        assert losses.shape == (3,)
        assert [g.shape for g in torch.autograd.grad(losses.sum(), (h, w, b))] == [h.shape, w.shape, b.shape]


def test_autocast_leaves_float64_alone() -> None:
    h, w, b, target = layer(5, 8, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_cross_entropy(h, w, target, b)
    assert loss.dtype == torch.float64 and loss.equal(linear_cross_entropy(h, w, target, b))


def test_both_backends_agree_to_rounding() -> None:
    h, w, b, target = layer(9, 300, 5, torch.float32)
    losses = []
    for name in ("native", "reference"):
        with use_backend(name):
            losses.append(linear_cross_entropy(h, w, target, b, reduction="none", label_smoothing=0.1))
    torch.testing.assert_close(*losses, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("hidden", "weight", "bias", "came"),
    [(2, 1, None, "2, 1, 1"), (2, 2, 1, "2, 2, 1"), (0, 0, None, "0, 0, 0"), (1, 2, 2, "1, 2, 2")],
)
def test_sequences_of_unequal_length_are_refused(hidden: int, weight: int, bias: int | None, came: str) -> None:
    h, w, b, target = layer(3, 5, 4)
    biases: Sequence[Tensor] | None = None if bias is None else [b] * bias
    with pytest.raises(ValueError, match=f"must have as many tensors each, at least one, got {came}"):
        linear_cross_entropy([h] * hidden, [w] * weight, target, biases)


def test_tensors_and_sequences_do_not_mix() -> None:
    h, w, b, target = layer(3, 5, 4)
    for hidden, weight, bias in ((h, [w], None), ([h], w, None), ([h], [w], b)):
        with pytest.raises(TypeError, match="hidden, linear_weight and linear_bias must be tensors, or all of them"):
            linear_cross_entropy(hidden, weight, target, bias)
    with pytest.raises(TypeError, match="linear_bias must be"):
        linear_cross_entropy(h, w, target, [b])


def test_pieces_of_several_types_are_refused() -> None:
    h, w, _, target = layer(3, 5, 4)
    for hidden, weight in (([h, h.float()], [w, w.float()]), ([h.float(), h], [w.float(), w])):
        with pytest.raises(TypeError, match=r"one dtype.* torch\.float(32|64), .*torch\.float(64|32)"):
            linear_cross_entropy(hidden, weight, target)


def test_a_piece_that_does_not_fit_is_refused() -> None:
    h, w, _, target = layer(3, 5, 4)
    with pytest.raises(ValueError, match=r"hidden must end in the dimension of linear_weight, 4, got shape \(3, 3\)"):
        linear_cross_entropy([h, h[:, :3]], [w, w], target)
    with pytest.raises(ValueError, match=r"hidden must have the shape of target .* \(3, 4\), got \(2, 4\)"):
        linear_cross_entropy([h, h[:2]], [w, w], target)


def test_a_class_of_the_last_piece_is_the_last_one_allowed() -> None:
    h, w, _, _ = layer(1, 5, 4)
    assert linear_cross_entropy([h, h], [w, w], torch.tensor([9])).isfinite()
    with pytest.raises(ValueError, match=r"target must be a class from 0 to 9, .* got 10"):
        linear_cross_entropy([h, h], [w, w], torch.tensor([10]))


def test_a_transform_that_is_no_module_is_refused() -> None:
    h, w, _, target = layer(3, 5, 4)
    with pytest.raises(TypeError, match=r"transform must be an nn\.Module, got builtin_function_or_method"):
        linear_cross_entropy(h, w, target, transform=torch.tanh)


class Constant(nn.Module):
    """One number in place of every score."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores) + self.number


def test_a_transform_that_looks_at_no_score_leaves_no_gradient() -> None:
    h, w, _, target = layer(3, 5, 4)
    linear_cross_entropy(h, w, target, transform=Constant()).backward()
    assert (w.grad == 0).all() and (h.grad == 0).all()
