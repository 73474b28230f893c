"""The active set on problems too large to enumerate: it ends, and nothing better can be found."""

import pytest
import torch
from torch import Tensor

from anymax.structured import Bits, Budget, Matching, Polytope, Sequence, SparseStructures, sparsemap

pytestmark = pytest.mark.usefixtures("one_thread")


def gap(scores: Tensor, polytope: Polytope, result: SparseStructures) -> Tensor:
    """How much more than the present mean the best structure gains, at most, of scores (N, *)."""
    left = polytope.plain(scores) - result.marginals
    best = polytope.argmax(left)[:, None]
    gains = [(left[:, None] * s).flatten(2).sum(2) + polytope.extra(s) for s in (best, result.structures)]
    return gains[0][:, 0] - (gains[1] * result.probs).sum(1)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_nothing_improves_on_long_chains(scale: float) -> None:
    scores = torch.randn(4, 30, 8, dtype=torch.float64) * scale
    polytope = Sequence(torch.randn(8, 8, dtype=torch.float64))
    result = sparsemap(scores, polytope)
    assert result.converged.all() and (result.probs >= 0).all()
    assert (gap(scores, polytope, result).abs() < 1e-9).all()


def test_nothing_improves_on_two_hundred_chains_of_all_sizes() -> None:
    scores = (
        torch.randn(200, 7, 3, dtype=torch.float64) * torch.logspace(-1, 3, 200, dtype=torch.float64)[:, None, None]
    )
    polytope = Sequence(torch.randn(200, 6, 3, 3, dtype=torch.float64), torch.randint(1, 8, (200,)))
    fitted = polytope.rows(scores)
    result = sparsemap(scores, polytope)
    assert result.converged.all() and (result.probs >= 0).all()
    assert (gap(fitted.scores, fitted.polytope, result).abs() < 1e-9 * scores.abs().amax((1, 2)).clamp(min=1)).all()


def test_ties_end_and_are_solved() -> None:
    scores = torch.randint(-1, 2, (200, 6, 3)).double()
    polytope = Sequence(torch.randint(-1, 2, (3, 3)).double())
    result = sparsemap(scores, polytope)
    assert result.converged.all() and (result.probs >= 0).all()
    assert (gap(scores, polytope, result).abs() < 1e-9).all()


@pytest.mark.parametrize("polytope", [Bits(), Bits(symmetric=False), Budget(5), Budget(20, symmetric=False)], ids=str)
def test_the_mean_is_that_of_the_closed_form(polytope: Polytope) -> None:
    scores = torch.cat([torch.randn(10, 40), torch.randint(-1, 2, (10, 40)), torch.randn(5, 40) * 1e4]).double()
    result = sparsemap(scores, polytope, decomposition="active set")
    mean = (result.structures * result.probs[:, :, None]).sum(1)
    assert result.converged.all()
    torch.testing.assert_close(mean, sparsemap(scores, polytope).marginals, rtol=0, atol=1e-8)


def test_marginals_of_bits_have_the_gradient_of_the_closed_form() -> None:
    scores = torch.randn(3, 60, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 60, dtype=torch.float64)
    gradients = [
        torch.autograd.grad((sparsemap(scores, Budget(20), decomposition=way).marginals * weight).sum(), scores)[0]
        for way in Budget.decompositions
    ]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_structures_that_others_span_are_exchanged() -> None:
    # Tags are worth the same everywhere, so (a, a) and (b, b) have the mean of (a, b) and (b, a); steps decide.
    for sign in (1.0, -1.0):
        transitions = sign * 0.1 * torch.eye(2, dtype=torch.float64)
        scores = torch.tensor([[0.2, 0.0], [0.0, 0.1]], dtype=torch.float64)
        result = sparsemap(scores[None], Sequence(transitions))
        assert (gap(scores[None], Sequence(transitions), result).abs() < 1e-12).all()
        pairs = {tuple(s.argmax(1).tolist()) for s in result.structures[0]}
        wanted = {(0, 0), (1, 1)} if sign > 0 else {(0, 1), (1, 0)}
        assert wanted <= pairs and not {(0, 0), (1, 1), (0, 1), (1, 0)} <= pairs


def test_an_example_does_not_depend_on_its_neighbours() -> None:
    scores, polytope = torch.randn(12, 10, 4, dtype=torch.float64), Sequence(torch.randn(4, 4, dtype=torch.float64))
    together = sparsemap(scores, polytope)
    for row in range(12):
        alone = sparsemap(scores[row], polytope)
        torch.testing.assert_close(together.probs[row, : len(alone.probs)], alone.probs, rtol=0, atol=1e-9)
        assert (together.probs[row, len(alone.probs) :] == 0).all() and together.iterations[row] == alone.iterations


def test_a_gradient_step_of_a_long_chain_agrees_with_a_difference() -> None:
    scores = torch.randn(3, 20, 5, dtype=torch.float64, requires_grad=True)
    polytope, step = Sequence(torch.randn(5, 5, dtype=torch.float64)), 1e-6 * torch.randn(3, 20, 5, dtype=torch.float64)
    weight = torch.randn(3, 20, 5, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((sparsemap(scores, polytope).marginals * weight).sum(), scores)
    ends = [sparsemap(scores.detach() + side, polytope).marginals for side in (step, -step)]
    torch.testing.assert_close((gradient * step).sum() * 2, ((ends[0] - ends[1]) * weight).sum(), rtol=1e-4, atol=0)


def test_matchings_are_solved() -> None:
    scores = torch.randn(5, 6, 6, dtype=torch.float64)
    scores[:, 0, 1] = -torch.inf
    result = sparsemap(scores, Matching())
    assert result.converged.all() and (result.marginals[:, 0, 1] == 0).all()
    torch.testing.assert_close(result.marginals.sum(1), torch.ones(5, 6, dtype=torch.float64))
    torch.testing.assert_close(result.marginals.sum(2), torch.ones(5, 6, dtype=torch.float64))
    assert (gap(scores.clamp(min=-1e30), Matching(), result).abs() < 1e-9).all()
    scores[0, :, 0] = -torch.inf
    assert sparsemap(scores, Matching()).marginals.isnan().flatten(1).any(1).tolist() == [True] + [False] * 4
    with pytest.raises(ValueError, match="must be square"):
        Matching().argmax(torch.randn(2, 3))
