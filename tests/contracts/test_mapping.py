"""What every mapping promises. A new mapping joins by one line in MEMBERS."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import anymax
from anymax.mappings.total import Total
from tests.conftest import ENGINES
from tests.each import each


@dataclass(frozen=True)
class Member:
    """A mapping as a function of (scores, dim=, mask=), and what sets it apart from the others."""

    call: Callable[..., Tensor]
    sums_to: Total = "one"
    total: float = 1.0
    ignores_shift: bool = True
    is_random: bool = False
    has_second_derivative: bool = True
    has_kernel: bool = True
    grows: bool = False

    def check_sums(self, probs: Tensor, atol: float) -> None:
        """Each row sums to what the mapping declares; weights that do not depend on each other sum to anything."""
        if self.sums_to == "at most one":
            assert (probs.sum(-1) <= 1 + atol).all()
        elif self.sums_to == "one":
            total = torch.full(probs.shape[:-1], self.total, dtype=probs.dtype)
            torch.testing.assert_close(probs.sum(-1), total, rtol=0, atol=atol)


def gumbel(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    return anymax.gumbel_softmax(scores, 0.7, generator=torch.Generator().manual_seed(3), dim=dim, mask=mask)


def at(mapping: Callable[..., Tensor], parameter: float) -> Callable[..., Tensor]:
    return lambda scores, **options: mapping(scores, parameter, **options)


MEMBERS = {
    "softmax": Member(anymax.softmax),
    "sparsemax": Member(anymax.sparsemax),
    "entmax-0": Member(at(anymax.entmax, 0.0)),
    "entmax-0.7": Member(at(anymax.entmax, 0.7)),
    "entmax-1": Member(at(anymax.entmax, 1.0)),
    "entmax-1.00001": Member(at(anymax.entmax, 1.00001)),
    "entmax-1.3": Member(at(anymax.entmax, 1.3)),
    "entmax-1.5": Member(at(anymax.entmax, 1.5)),
    "entmax-1.8": Member(at(anymax.entmax, 1.8)),
    "entmax-2": Member(at(anymax.entmax, 2.0)),
    "entmax-3": Member(at(anymax.entmax, 3.0)),
    "argmax": Member(anymax.argmax, has_second_derivative=False, has_kernel=False),
    "topk_sparsemax": Member(at(anymax.topk_sparsemax, 2)),
    "normmax-1.5": Member(at(anymax.normmax, 1.5)),
    "normmax-2": Member(at(anymax.normmax, 2.0)),
    "subset_marginals": Member(
        at(anymax.subset_marginals, 2), total=2.0, has_second_derivative=False, has_kernel=False
    ),
    "sigsoftmax": Member(anymax.sigsoftmax, ignores_shift=False),
    "gumbel_softmax": Member(gumbel, is_random=True),
    "softpick": Member(anymax.softpick, "at most one", ignores_shift=False, has_kernel=False),
    "softmax with a sink": Member(at(anymax.mappings.with_sink, 0.5), "at most one", ignores_shift=False),
    "entmax with a sink": Member(
        lambda scores, **options: anymax.mappings.with_sink(scores, -0.5, anymax.Entmax(1.5), **options),
        "at most one",
        ignores_shift=False,
    ),
    "sigmoid": Member(anymax.sigmoid, "weights", ignores_shift=False, has_kernel=False),
    "sigmoid-1": Member(at(anymax.sigmoid, 1.0), "weights", ignores_shift=False, has_kernel=False),
    "rectified-1": Member(anymax.rectified, "weights", ignores_shift=False, has_kernel=False, grows=True),
    "rectified-2": Member(at(anymax.rectified, 2.0), "weights", ignores_shift=False, has_kernel=False, grows=True),
}
SHAPES = [(5,), (3, 5), (2, 3, 6), (1, 1, 2), (37, 4), (4, 200), (0, 4), (2, 0, 3)]


# A case for each engine where a kernel does the work, one where none is reached.
RUNS = [(name, engine) for name in MEMBERS for engine in (ENGINES if MEMBERS[name].has_kernel else ["reference"])]


def through_engines(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.usefixtures("engine")(pytest.mark.parametrize(("member", "engine"), RUNS, indirect=True)(test))


@pytest.fixture(params=list(MEMBERS))
def member(request: pytest.FixtureRequest) -> Member:
    return MEMBERS[request.param]


@pytest.fixture
def fixed(member: Member) -> Member:
    if member.is_random:
        pytest.skip("noise is drawn per entry, so moving entries changes it")
    return member


class Namespaces(TorchDispatchMode):
    """Collects the namespaces of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> object:
        self.names.add(func.namespace)
        return func(*args, **(kwargs or {}))


def test_a_kernel_is_reached_by_those_alone_that_run_through_every_engine(member: Member) -> None:
    scores, mask = torch.randn(3, 4, requires_grad=True), torch.tensor([True, True, False, True])
    with Namespaces() as seen:
        member.call(scores, mask=mask).square().sum().backward()
    assert ("anymax" in seen.names) == member.has_kernel


@through_engines
@each("shape", SHAPES)
def test_probabilities_are_nonnegative_and_sum_to_the_total(member: Member, shape: tuple[int, ...]) -> None:
    probs = member.call(torch.randn(shape) * 2)
    assert probs.shape == shape
    assert (probs >= 0).all() and (member.grows or (probs <= 1 + 1e-6).all())
    member.check_sums(probs, 2e-6)


@each("dim", [0, 1, 2, -1, -2, -3])
def test_every_dim_is_the_last_dim_of_moved_scores(fixed: Member, dim: int) -> None:
    scores = torch.randn(4, 5, 6)
    torch.testing.assert_close(fixed.call(scores, dim=dim), fixed.call(scores.movedim(dim, -1)).movedim(-1, dim))
    for shape in ((4, 5, 6), (5, 6), (6,), (4, 1, 6)):
        mask = torch.rand(shape) > 0.4
        moved = mask.expand(4, 5, 6).movedim(dim, -1)
        wanted = fixed.call(scores.movedim(dim, -1), mask=moved).movedim(-1, dim)
        torch.testing.assert_close(fixed.call(scores, dim=dim, mask=mask), wanted)


@through_engines
def test_order_of_entries_does_not_matter(fixed: Member) -> None:
    scores, order = torch.randn(6, 9), torch.randperm(9)
    torch.testing.assert_close(fixed.call(scores[:, order]), fixed.call(scores)[:, order], rtol=0, atol=1e-6)


@through_engines
def test_higher_scores_never_get_less(fixed: Member) -> None:
    probs = fixed.call(torch.randn(20, 7).sort(-1).values)
    assert (probs.diff(dim=-1) >= -1e-7).all()


@through_engines
def test_a_constant_added_to_all_scores_changes_nothing(fixed: Member) -> None:
    if not fixed.ignores_shift:
        pytest.skip("depends on the level of the scores by design")
    # Multiples of 1/64, so that the shifted scores are exact in float32.
    scores = (torch.randn(8, 6) * 64).round() / 64
    for shift in (1e3, -1e5):
        torch.testing.assert_close(fixed.call(scores + shift), fixed.call(scores), rtol=0, atol=1e-6)


@through_engines
def test_masked_entries_get_exactly_zero_and_the_others_what_they_get_alone(fixed: Member) -> None:
    scores, mask = torch.randn(5, 8), torch.rand(5, 8) > 0.4
    mask[:, :3] = True
    probs = fixed.call(scores, mask=mask)
    assert (probs[~mask] == 0).all()
    for row in range(5):
        alone = fixed.call(scores[row, mask[row]])
        torch.testing.assert_close(probs[row, mask[row]], alone, rtol=0, atol=1e-6)


@through_engines
def test_minus_infinity_is_a_mask(member: Member) -> None:
    scores, mask = torch.randn(5, 8), torch.rand(5, 8) > 0.4
    mask[:, :3] = True
    torch.testing.assert_close(member.call(scores.masked_fill(~mask, -torch.inf)), member.call(scores, mask=mask))


def test_a_mask_broadcasts(member: Member) -> None:
    scores, mask = torch.randn(2, 3, 5), torch.tensor([True, True, False, True, True])
    torch.testing.assert_close(member.call(scores, mask=mask), member.call(scores, mask=mask.expand(2, 3, 5)))


@through_engines
def test_a_row_with_nothing_left_gives_zeros_and_a_zero_gradient(member: Member) -> None:
    scores = torch.randn(3, 4, requires_grad=True)
    mask = torch.tensor([[True] * 4, [False] * 4, [True] * 4])
    probs = member.call(scores, mask=mask)
    (gradient,) = torch.autograd.grad((probs * torch.randn(3, 4)).sum(), scores)
    assert (probs[1] == 0).all() and (gradient[1] == 0).all()
    assert probs.isfinite().all() and gradient.isfinite().all()


@through_engines
@each("poison", [torch.nan, torch.inf])
@each("num_rows", [3, 40])
def test_a_nan_or_plus_infinity_spoils_its_row_and_no_other(member: Member, poison: float, num_rows: int) -> None:
    scores = torch.randn(num_rows, 5)
    clean = member.call(scores)
    scores[1, 2] = poison
    scores.requires_grad_()
    probs = member.call(scores)
    probs[:, 0].sum().backward()
    others = torch.arange(num_rows) != 1
    # Weights that do not depend on each other need not all be spoilt by one that is infinite.
    assert probs[1].isnan().any() or (member.sums_to == "weights" and poison == torch.inf)
    torch.testing.assert_close(probs[others], clean[others])
    assert scores.grad is not None and scores.grad[others].isfinite().all()


@through_engines
def test_gradient_agrees_with_finite_differences(member: Member) -> None:
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(member.call, (scores,), eps=1e-7, atol=1e-5)


@through_engines
def test_second_derivative_agrees_with_finite_differences(member: Member) -> None:
    scores = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    if not member.has_second_derivative:
        (gradient,) = torch.autograd.grad(member.call(scores)[:, 0].sum(), scores, create_graph=True)
        assert gradient.isfinite().all()
        return
    assert torch.autograd.gradgradcheck(member.call, (scores,), eps=1e-6, atol=1e-4, rtol=1e-3)


@through_engines
@each("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(fixed: Member, dtype: torch.dtype) -> None:
    scores = torch.randn(4, 300, dtype=dtype, requires_grad=True)
    probs = fixed.call(scores)
    wide = fixed.call(scores.detach().float())
    assert probs.dtype == dtype
    torch.testing.assert_close(probs, wide.to(dtype), rtol=0, atol=0)
    probs.sum().backward()
    assert scores.grad is not None and scores.grad.dtype == dtype


@through_engines
def test_double_precision_is_kept(fixed: Member) -> None:
    scores = torch.randn(4, 9, dtype=torch.float64)
    probs = fixed.call(scores)
    assert probs.dtype == torch.float64
    fixed.check_sums(probs, 1e-12)
    torch.testing.assert_close(probs.float(), fixed.call(scores.float()), rtol=0, atol=2e-6)


@through_engines
def test_scores_need_not_be_contiguous(fixed: Member) -> None:
    scores = torch.randn(6, 10, 2)[::2, 1::3, 0]
    assert not scores.is_contiguous()
    torch.testing.assert_close(fixed.call(scores), fixed.call(scores.contiguous()))


@through_engines
def test_vmap_is_a_loop(fixed: Member) -> None:
    scores = torch.randn(3, 4, 5)
    looped = torch.stack([fixed.call(part) for part in scores])
    torch.testing.assert_close(torch.vmap(fixed.call)(scores), looped, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.vmap(fixed.call, in_dims=2)(scores.movedim(0, 2)), looped, rtol=0, atol=1e-6)


@through_engines
def test_gradients_pass_through_vmap_both_ways(fixed: Member) -> None:
    scores, weights = torch.randn(3, 4, 5, requires_grad=True), torch.randn(5)

    def loss(part: Tensor) -> Tensor:
        return (fixed.call(part) * weights).sum()

    (plain,) = torch.autograd.grad(loss(scores), scores)
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(scores.detach()), plain, rtol=1e-5, atol=1e-6)
    (around,) = torch.autograd.grad(torch.vmap(loss)(scores).sum(), scores)
    torch.testing.assert_close(around, plain, rtol=1e-5, atol=1e-6)


def test_integer_scores_are_refused(member: Member) -> None:
    with pytest.raises(TypeError, match="scores must be floating point"):
        member.call(torch.ones(3, 4, dtype=torch.long))


def test_a_dim_that_is_not_there_is_refused(member: Member) -> None:
    for dim in (2, -3):
        with pytest.raises(ValueError, match="dim must be one of the 2 dimensions"):
            member.call(torch.randn(3, 4), dim=dim)


@through_engines
def test_a_dimension_of_size_0_gives_an_empty_result_and_gradient(member: Member) -> None:
    for shape, dim in (((0,), 0), ((3, 0), -1), ((2, 0, 3), 1), ((2, 3, 0), 2), ((0, 0), 0)):
        for mask in (None, torch.ones(shape, dtype=torch.bool)):
            scores = torch.randn(shape, requires_grad=True)
            probs = member.call(scores, dim=dim, mask=mask)
            (gradient,) = torch.autograd.grad(probs.sum(), scores)
            assert probs.shape == gradient.shape == shape and probs.dtype == torch.float32


@through_engines
def test_every_finite_score_gives_probabilities_and_a_finite_gradient(member: Member) -> None:
    if member.grows:
        pytest.skip("weights that grow with the scores may grow beyond a float")
    for dtype in (torch.float32, torch.float64):
        largest = torch.finfo(dtype).max
        scores = torch.tensor([1.0, 0.999, 0.5, 0.0, -0.5, -0.999, -1.0], dtype=dtype) * largest
        rows = torch.stack([scores, scores.abs(), -scores.abs(), -scores.abs() / 2, scores.where(scores < 0, 0.3)])
        # Powers of two between the smallest float and the largest one.
        powers = torch.linspace(-1, 1, 35, dtype=dtype).mul(math.frexp(largest)[1] - 2).exp2().view(5, 7)
        scores = torch.cat([rows, powers, -powers, rows.flip(1) / 4]).requires_grad_()
        probs = member.call(scores)
        (gradient,) = torch.autograd.grad((probs * torch.randn(7, dtype=dtype)).sum(), scores)
        assert (probs >= 0).all() and gradient.isfinite().all()
        member.check_sums(probs, 2e-6 if dtype == torch.float32 else 1e-12)


def test_a_mask_that_is_not_boolean_is_refused_with_what_to_pass_instead(member: Member) -> None:
    scores, allowed = torch.randn(3, 4), torch.tensor([True, True, False, True])
    additive = torch.zeros(4).masked_fill(~allowed, -torch.inf)
    with pytest.raises(TypeError, match=r"got torch.float32; pass mask == 0 if it is additive, of 0 and -inf, or mask"):
        member.call(scores, mask=additive)
    torch.testing.assert_close(member.call(scores, mask=additive == 0), member.call(scores + additive))
    for mask in (allowed.float(), allowed.long()):
        with pytest.raises(TypeError, match=rf"got {mask.dtype}; pass .*mask == 1 if it is of 1 and 0"):
            member.call(scores, mask=mask)
        torch.testing.assert_close(member.call(scores, mask=mask == 1), member.call(scores, mask=allowed))
    # Of an additive list, too, which torch.tensor(mask, dtype=torch.bool) would turn into its opposite.
    for mask in (allowed.tolist(), additive.tolist()):
        with pytest.raises(TypeError, match=r"got list; make one with torch.tensor\(mask\)$"):
            member.call(scores, mask=mask)


def test_a_mask_that_does_not_broadcast_is_refused(member: Member) -> None:
    with pytest.raises(ValueError, match="mask must broadcast"):
        member.call(torch.randn(3, 4), mask=torch.ones(4, 3, dtype=torch.bool))
