"""The best structure, the sum over all of them and their marginals, against enumeration."""

import pytest
import torch
from torch import Tensor

from anymax.structured import Bits, Budget, Matching, Polytope, Sequence
from tests.each import each
from tests.structured.enumeration import SMALL, TRANSITIONS, Small

pytestmark = pytest.mark.usefixtures("one_thread")
SUMMABLE = [name for name in SMALL if name != "matching"]


def draw(small: Small, scale: float = 1.0) -> Tensor:
    return torch.randn(small.event, dtype=torch.float64) * scale


@each("name", SMALL)
def test_argmax_is_the_structure_of_largest_score(name: str) -> None:
    small = SMALL[name]
    for _ in range(10):
        scores = draw(small)
        expected = small.structures[small.linear(scores).argmax()]
        torch.testing.assert_close(small.polytope.argmax(scores), expected)


@each("name", SMALL)
def test_argmax_is_one_of_those_that_tie(name: str) -> None:
    small = SMALL[name]
    for _ in range(10):
        scores = torch.randint(-1, 2, small.event).double()
        best = small.polytope.argmax(scores)
        is_best = (small.structures == best).flatten(1).all(1)
        assert small.linear(scores)[is_best] == small.linear(scores).max()
        assert torch.equal(best, small.polytope.argmax(scores))


def test_of_bits_that_tie_in_a_budget_the_first_are_taken() -> None:
    assert Budget(2).argmax(torch.tensor([0.5, 1.0, 0.5, 0.5, -1.0])).tolist() == [1, 1, 0, 0, 0]
    assert Bits().argmax(torch.tensor([0.0, 1.0, -1.0])).tolist() == [0, 1, 0]


@each("scale", [0.0, 1.0, 1e4])
@each("name", SUMMABLE)
def test_log_partition_sums_over_all_structures(name: str, scale: float) -> None:
    small = SMALL[name]
    scores = draw(small, scale)
    torch.testing.assert_close(small.polytope.log_partition(scores), small.linear(scores).logsumexp(0))


@each("scale", [0.0, 1.0, 1e4])
@each("name", SUMMABLE)
def test_marginals_are_means_under_the_softmax_of_all_structures(name: str, scale: float) -> None:
    small = SMALL[name]
    scores = draw(small, scale)
    expected = torch.einsum("s,s...->...", small.linear(scores).softmax(0), small.structures)
    torch.testing.assert_close(small.polytope.marginals(scores), expected, rtol=0, atol=1e-9)


def test_a_bit_that_is_surely_on_uses_one_of_the_budget_and_no_digits_of_the_others() -> None:
    scores = torch.tensor([0.3, 0.1, -5.0])
    for k in (1, 2, 3):
        alone = Budget(k - 1).marginals(scores)
        for large in (1e6, 1e8, 1e20, 1e37):
            marginals = Budget(k).marginals(torch.tensor([large, *scores.tolist(), -large]))
            torch.testing.assert_close(marginals, torch.tensor([1.0, *alone.tolist(), 0.0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["bits", "budget", "sequence", "short sequence"])
def test_marginals_are_differentiable(name: str) -> None:
    small = SMALL[name]
    assert torch.autograd.gradcheck(small.polytope.marginals, (draw(small).requires_grad_(),))
    assert torch.autograd.gradcheck(small.polytope.log_partition, (draw(small).requires_grad_(),))


def test_marginals_build_a_graph_only_where_one_is_wanted() -> None:
    scores, transitions = torch.randn(4, 3), TRANSITIONS.clone().requires_grad_()
    with torch.no_grad():
        assert not Sequence(transitions).marginals(scores).requires_grad
    assert not Sequence(TRANSITIONS).marginals(scores).requires_grad
    Sequence(transitions).marginals(scores)[0, 0].backward()
    assert transitions.grad is not None and transitions.grad.abs().sum() > 0


@each("name", SUMMABLE)
def test_batches_are_their_examples(name: str) -> None:
    small = SMALL[name]
    scores = torch.stack([draw(small) for _ in range(6)])
    polytope: Polytope = small.polytope
    if isinstance(polytope, Sequence):
        transitions, lengths = polytope.transitions, polytope.lengths
        transitions = transitions if transitions.dim() == 2 else transitions.expand(2, 3, *transitions.shape)
        polytope = Sequence(transitions, None if lengths is None else lengths.expand(2, 3))
    batched = scores.view(2, 3, *small.event)
    for ask in ("argmax", "log_partition", "marginals"):
        alone = torch.stack([getattr(small.polytope, ask)(example) for example in scores])
        torch.testing.assert_close(getattr(polytope, ask)(batched).flatten(0, 1), alone)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("polytope", [Bits(), Budget(2), Sequence(TRANSITIONS)], ids=lambda p: type(p).__name__)
def test_a_nan_or_plus_infinity_spoils_its_example_and_no_other(polytope: Polytope, poison: float) -> None:
    scores = torch.randn(2, 4, 3, requires_grad=True)
    poisoned = scores.clone()
    poisoned[0, 1, 1] = poison
    for ask in ("argmax", "log_partition", "marginals"):
        answer, clean = getattr(polytope, ask)(poisoned), getattr(polytope, ask)(scores)
        at = (0, 1) if polytope.event_dim == 1 else (0,)
        assert answer[at].isnan().all()
        torch.testing.assert_close(answer[1], clean[1])
    polytope.marginals(poisoned)[1].square().sum().backward()
    assert scores.grad is not None and scores.grad.isfinite().all()


@pytest.mark.parametrize("polytope", [Bits(), Budget(2)])
def test_minus_infinity_keeps_a_bit_off(polytope: Polytope) -> None:
    scores = torch.tensor([1.0, -torch.inf, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    rest = scores.detach()[[0, 2, 3]]
    marginals = polytope.marginals(scores)
    assert marginals[1] == 0 and polytope.argmax(scores)[1] == 0
    torch.testing.assert_close(marginals[[0, 2, 3]], polytope.marginals(rest))
    torch.testing.assert_close(polytope.log_partition(scores), polytope.log_partition(rest))
    marginals[0].backward()
    assert scores.grad is not None and scores.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    scores = torch.randn(3, 5, 4).to(dtype)
    for polytope in (Bits(), Budget(3), Sequence(torch.randn(4, 4))):
        for ask in ("argmax", "log_partition", "marginals"):
            answer = getattr(polytope, ask)(scores)
            assert torch.equal(answer, getattr(polytope, ask)(scores.float()).to(dtype))


def test_wrong_polytopes_and_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="k must be at least 0, got -1"):
        Budget(-1)
    for wrong in (2.0, True):
        with pytest.raises(TypeError, match="k must be an integer"):
            Budget(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be at most the 3 bits"):
        Budget(4).argmax(torch.randn(2, 3))
    with pytest.raises(TypeError, match="scores must be floating point"):
        Bits().argmax(torch.ones(3, dtype=torch.long))
    with pytest.raises(TypeError, match="scores must be a tensor"):
        Bits().argmax([1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one entry"):
        Bits().argmax(torch.randn(3, 0))
    with pytest.raises(ValueError, match="must end in 2 dimension"):
        Sequence(TRANSITIONS).argmax(torch.randn(3))


def test_matchings_have_no_sum() -> None:
    for ask in (Matching().log_partition, Matching().marginals):
        with pytest.raises(NotImplementedError, match="no efficient sum-product"):
            ask(torch.randn(3, 3))
