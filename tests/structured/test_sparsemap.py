"""SparseMAP on every polytope, by every decomposition, against a quadratic programme over all structures."""

import itertools
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import anymax
from anymax.structured import Bits, Budget, Sequence, SparseStructures, sparsemap
from tests.each import each
from tests.oracles import subset_marginals_exactly
from tests.structured.enumeration import SMALL, TRANSITIONS, WAYS, Small

pytestmark = pytest.mark.usefixtures("one_thread")


def mean(result: SparseStructures) -> Tensor:
    weighted = result.probs.view(*result.probs.shape, *[1] * (result.structures.dim() - result.probs.dim()))
    return (result.structures * weighted).sum(result.probs.dim() - 1)


def draw(small: Small, scale: float = 1.0) -> Tensor:
    return torch.randn(small.event, dtype=torch.float64) * scale


@each("name", SMALL)
def test_marginals_match_a_quadratic_programme(name: str) -> None:
    small, scores = SMALL[name], draw(SMALL[name])
    for way in small.polytope.decompositions:
        result = sparsemap(scores, small.polytope, decomposition=way)
        torch.testing.assert_close(result.marginals, small.sparsemap(scores), rtol=0, atol=5e-5)


@each("scale", [0.0, 0.3, 1.0, 3.0, 1e4])
@each(("name", "way"), WAYS)
def test_no_structure_could_improve_the_answer(name: str, way: str, scale: float) -> None:
    small = SMALL[name]
    for _ in range(3):
        scores = draw(small, scale)
        result = sparsemap(scores, small.polytope, decomposition=way)
        gap = small.duality_gap(scores, result.probs, result.structures[: len(result.probs)])
        assert result.converged and abs(gap) < 1e-9 * max(1.0, scale)


@each(("name", "way"), WAYS)
def test_structures_belong_to_the_polytope_and_their_mean_is_the_marginals(name: str, way: str) -> None:
    small = SMALL[name]
    scores = torch.stack([draw(small, scale) for scale in (0.0, 0.3, 1.0, 2.0, 4.0, 1e4)])
    result = sparsemap(scores, _for_batch(small, 6), decomposition=way)
    torch.testing.assert_close(mean(result), result.marginals, rtol=0, atol=1e-9)
    torch.testing.assert_close(result.probs.sum(-1), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-12)
    assert (result.probs >= 0).all() and (result.probs.diff(dim=1) < 1e-12).all()
    known = {tuple(structure.flatten().tolist()) for structure in small.structures}
    used = [tuple(s.flatten().tolist()) for s in result.structures[result.probs > 0]]
    assert set(used) <= known and (result.structures[result.probs == 0] == 0).all()
    assert (result.probs > 0).any(0).all(), "S is no larger than the largest support"


@each(("name", "way"), [way for way in WAYS if way[0] != "matching"])
def test_there_is_at_most_one_structure_more_than_fractional_marginals(name: str, way: str) -> None:
    small = SMALL[name]
    for scale in (0.0, 0.5, 1.0, 2.0, 100.0):
        result = sparsemap(draw(small, scale), small.polytope, decomposition=way)
        fractional = (result.marginals > 0) & (result.marginals < 1)
        assert (result.probs > 0).sum() <= fractional.sum() + 1


@each(("name", "way"), WAYS)
def test_gradients_of_marginals_and_probabilities_agree_with_finite_differences(name: str, way: str) -> None:
    small = SMALL[name]

    def both(scores: Tensor) -> tuple[Tensor, Tensor]:
        result = sparsemap(scores, small.polytope, decomposition=way)
        return result.marginals, result.probs

    for scale in (0.5, 1.0):
        assert torch.autograd.gradcheck(both, (draw(small, scale).requires_grad_(),), eps=1e-7, atol=1e-6)


@each("shape", [(), (1,), (3,), (2, 3), (0,), (2, 0)])
@each(("name", "way"), [("bits", "chain"), ("budget", "systematic"), ("bits", "active set")])
def test_any_batch_shape_gives_what_its_examples_give_alone(name: str, way: str, shape: tuple[int, ...]) -> None:
    small = SMALL[name]
    scores = torch.randn(*shape, *small.event, dtype=torch.float64)
    result = sparsemap(scores, small.polytope, decomposition=way)
    assert result.structures.shape == (*shape, result.probs.shape[-1], *small.event)
    assert result.marginals.shape == scores.shape
    assert result.probs.shape[:-1] == result.iterations.shape == result.converged.shape == shape
    for index in torch.cartesian_prod(*map(torch.arange, shape)).view(-1, len(shape)) if shape else []:
        at = tuple(index.tolist())
        alone = sparsemap(scores[at], small.polytope, decomposition=way)
        size = len(alone.probs)
        torch.testing.assert_close(result.marginals[at], alone.marginals, rtol=0, atol=1e-12)
        torch.testing.assert_close(result.probs[at][:size], alone.probs, rtol=0, atol=1e-9)
        torch.testing.assert_close(result.structures[at][:size], alone.structures)


def test_a_budget_of_one_that_binds_is_a_sparsemax() -> None:
    scores = torch.randn(20, 6, dtype=torch.float64) + 1
    marginals = sparsemap(scores, Budget(1, symmetric=False)).marginals
    torch.testing.assert_close(marginals, anymax.sparsemax(scores), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("symmetric", [True, False])
def test_budgets_are_exact_for_scores_of_every_scale(dtype: torch.dtype, symmetric: bool) -> None:
    eps = torch.finfo(dtype).eps
    for scale in (1e-30, 1e-3, 1.0, 1e6, 1e12, 1e20, 1e30):
        scores = torch.randn(4, 5, dtype=dtype) * scale
        scores[2:, 1], scores[2:, 3], scores[3, 0] = 0.3, 0.1, -torch.inf
        # One step below a power of two, where adding one to the score rounds.
        scores[1, :3] = 2.0**20 - 2.0**-4 * torch.arange(1, 4)
        scores.requires_grad_()
        for k, way in itertools.product((0, 1, 2, 5), Budget.decompositions):
            result = sparsemap(scores, Budget(k, symmetric), decomposition=way)
            expected = torch.stack([_nearest_in_budget(row, k, symmetric) for row in scores.detach()])
            torch.testing.assert_close(result.marginals.detach().double(), expected, rtol=0, atol=2 * eps)
            torch.testing.assert_close(mean(result).detach().double(), expected, rtol=0, atol=2e-11 + 20 * eps)
            assert result.converged.all()
            for part in (result.marginals, result.probs):
                (gradient,) = torch.autograd.grad((part * torch.randn_like(part)).sum(), scores, retain_graph=True)
                assert gradient.isfinite().all()


def _nearest_in_budget(row: Tensor, k: int, symmetric: bool) -> Tensor:
    """In exact arithmetic; a bit that must be off is one whose score is far below all others."""
    exact = [Fraction(score) if score > -torch.inf else Fraction(-(10**40)) for score in row.tolist()]
    plain = [(score + 1) / 2 for score in exact] if symmetric else exact
    free = [min(max(score, Fraction(0)), Fraction(1)) for score in plain]
    return torch.tensor(
        [float(p) for p in (free if sum(free) <= k else subset_marginals_exactly(plain, Fraction(k))[0])],
        dtype=torch.float64,
    )


def test_a_sequence_without_transitions_is_a_sparsemax_at_every_position() -> None:
    scores = torch.randn(6, 5, 4, dtype=torch.float64)
    result = sparsemap(scores, Sequence(torch.zeros(4, 4)))
    torch.testing.assert_close(result.marginals, anymax.sparsemax(scores), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_wide_and_returned_as_it_came(dtype: torch.dtype) -> None:
    for polytope in (Bits(), Budget(3)):
        for way in polytope.decompositions:
            scores = torch.randn(4, 9, dtype=dtype, requires_grad=True)
            result = sparsemap(scores, polytope, decomposition=way)
            wide = sparsemap(scores.detach().float(), polytope, decomposition=way)
            assert result.marginals.dtype == result.structures.dtype == result.probs.dtype == dtype
            torch.testing.assert_close(result.probs, wide.probs.to(dtype), rtol=0, atol=0)
            result.probs[:, 0].sum().backward()
            assert scores.grad is not None and scores.grad.dtype == dtype and scores.grad.isfinite().all()


@each("poison", [torch.nan, torch.inf])
@each(("name", "way"), WAYS)
def test_a_nan_or_plus_infinity_spoils_its_example_and_no_other(name: str, way: str, poison: float) -> None:
    small = SMALL[name]
    scores = torch.stack([draw(small) for _ in range(3)])
    clean = sparsemap(scores, _for_batch(small, 3), decomposition=way)
    poisoned = scores.clone()
    poisoned[1].view(-1)[0] = poison
    poisoned.requires_grad_()
    result = sparsemap(poisoned, _for_batch(small, 3), decomposition=way)
    assert result.marginals[1].isnan().all() and result.probs[1].isnan().all() and not result.converged[1]
    others = torch.tensor([0, 2])
    torch.testing.assert_close(result.marginals[others], clean.marginals[others])
    result.marginals[others].square().sum().backward()
    assert poisoned.grad is not None and poisoned.grad.isfinite().all()


@each(("name", "way"), [way for way in WAYS if "bit" in way[0] or "budget" in way[0]])
def test_minus_infinity_keeps_a_bit_off(name: str, way: str) -> None:
    small = SMALL[name]
    scores = (draw(small) + 1).requires_grad_()
    masked = scores.clone()
    masked[-1] = -torch.inf
    result = sparsemap(masked, small.polytope, decomposition=way)
    assert result.marginals[-1] == 0 and (result.structures[:, -1] == 0).all() and result.converged
    (gradient,) = torch.autograd.grad(result.probs[0] + result.marginals.square().sum(), scores)
    assert gradient.isfinite().all() and gradient[-1] == 0
    nothing = sparsemap(torch.full_like(scores, -torch.inf), small.polytope, decomposition=way)
    assert (nothing.marginals == 0).all() and nothing.probs.tolist() == [1.0]


def test_no_graph_is_built_where_none_is_wanted() -> None:
    scores = torch.randn(2, 4, requires_grad=True)
    with torch.no_grad():
        for way in Bits.decompositions:
            assert not sparsemap(scores, Bits(), decomposition=way).probs.requires_grad
    assert not sparsemap(scores.detach(), Bits()).marginals.requires_grad


def test_transitions_get_a_gradient() -> None:
    scores = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def both(scores: Tensor, transitions: Tensor) -> tuple[Tensor, Tensor]:
        result = sparsemap(scores, Sequence(transitions))
        return result.marginals, result.probs

    transitions = TRANSITIONS.clone().requires_grad_()
    assert torch.autograd.gradcheck(both, (scores, transitions), eps=1e-7, atol=1e-6)
    by_step = torch.randn(3, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(both, (scores, by_step), eps=1e-7, atol=1e-6)


def test_a_bound_that_is_too_small_is_reported() -> None:
    scores = torch.randn(5, 10, dtype=torch.float64)
    result = sparsemap(scores, Bits(), decomposition="active set", max_iterations=2)
    assert not result.converged.all() and (result.iterations <= 2).all()
    torch.testing.assert_close(result.probs.sum(1), torch.ones(5, dtype=torch.float64))
    assert (result.probs >= 0).all()


def test_wrong_arguments_are_refused() -> None:
    scores = torch.randn(2, 4)
    with pytest.raises(
        ValueError, match="decomposition of Budget must be one of 'systematic', 'active set', got 'chain'"
    ):
        sparsemap(scores, Budget(2), decomposition="chain")
    with pytest.raises(ValueError, match="decomposition of Bits"):
        sparsemap(scores, Bits(), decomposition="active_set")
    with pytest.raises(ValueError, match="max_iterations bounds the active set only"):
        sparsemap(scores, Bits(), max_iterations=3)
    with pytest.raises(ValueError, match="max_iterations must be at least 1"):
        sparsemap(scores, Bits(), decomposition="active set", max_iterations=0)
    with pytest.raises(TypeError, match="max_iterations must be an integer"):
        sparsemap(scores, Bits(), decomposition="active set", max_iterations=2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="polytope must be a Polytope"):
        sparsemap(scores, Bits)  # type: ignore[arg-type]


def _for_batch(small: Small, size: int) -> anymax.structured.Polytope:
    """The same polytope for a batch of examples."""
    if not isinstance(small.polytope, Sequence):
        return small.polytope
    transitions, lengths = small.polytope.transitions, small.polytope.lengths
    transitions = transitions if transitions.dim() == 2 else transitions.expand(size, *transitions.shape)
    return Sequence(transitions, None if lengths is None else lengths.expand(size))
