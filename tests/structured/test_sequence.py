"""Sequences: lengths, forbidden tags and steps, transition marginals, and what is refused."""

import pytest
import torch

from anymax.structured import Sequence, sparsemap, transition_marginals
from tests.structured.enumeration import TRANSITIONS, Small

pytestmark = pytest.mark.usefixtures("one_thread")


def test_transition_marginals_agree_with_the_marginals_of_tags() -> None:
    scores, transitions = torch.randn(7, 6, 3, dtype=torch.float64), TRANSITIONS
    result = sparsemap(scores, Sequence(transitions))
    steps = transition_marginals(result.structures, result.probs)
    assert steps.shape == (7, 5, 3, 3) and (steps >= 0).all()
    torch.testing.assert_close(steps.sum(-1), result.marginals[:, :-1])
    torch.testing.assert_close(steps.sum(-2), result.marginals[:, 1:])
    value = (result.marginals * scores).sum((1, 2)) + (steps * transitions).sum((1, 2, 3))
    linear = (result.structures * scores[:, None]).sum((2, 3)) + Sequence(transitions).extra(result.structures)
    torch.testing.assert_close(value, (linear * result.probs).sum(1))


def test_lengths_are_shorter_sequences_and_what_lies_beyond_is_ignored() -> None:
    lengths = torch.tensor([5, 1, 3, 4])
    scores, steps = torch.randn(4, 5, 3, dtype=torch.float64), torch.randn(4, 4, 3, 3, dtype=torch.float64)
    for row, length in enumerate(lengths.tolist()):
        scores[row, length:], steps[row, length - 1 :] = torch.nan, torch.nan
    polytope = Sequence(steps, lengths)
    result = sparsemap(scores, polytope)
    for row, length in enumerate(lengths.tolist()):
        alone = Sequence(steps[row, : length - 1])
        expected = sparsemap(scores[row, :length], alone)
        torch.testing.assert_close(result.marginals[row, :length], expected.marginals, rtol=0, atol=1e-10)
        assert (result.marginals[row, length:] == 0).all() and (result.structures[row, :, length:] == 0).all()
        for ask in ("argmax", "marginals"):
            answer = getattr(polytope, ask)(scores)[row]
            torch.testing.assert_close(answer[:length], getattr(alone, ask)(scores[row, :length]))
            assert (answer[length:] == 0).all()
        torch.testing.assert_close(polytope.log_partition(scores)[row], alone.log_partition(scores[row, :length]))


def test_forbidden_steps_and_tags_are_never_taken() -> None:
    transitions = TRANSITIONS.clone()
    transitions[0, 1] = transitions[2, 2] = -torch.inf
    transitions.requires_grad_()
    scores = torch.randn(20, 4, 3, dtype=torch.float64)
    scores[:, 2, 0] = -torch.inf
    polytope = Sequence(transitions)
    result = sparsemap(scores, polytope)
    steps = transition_marginals(result.structures, result.probs)
    assert (steps[..., 0, 1] == 0).all() and (steps[..., 2, 2] == 0).all() and (result.marginals[:, 2, 0] == 0).all()
    assert result.converged.all()
    (result.probs[:, 0].sum() + polytope.marginals(scores).square().sum()).backward()
    assert transitions.grad is not None and transitions.grad.isfinite().all()
    small = Small(polytope, (4, 3))
    with torch.no_grad():
        linear = small.linear(scores[0].clamp(min=-1e30))
        torch.testing.assert_close(polytope.log_partition(scores[0]), linear.logsumexp(0))


def test_an_example_with_no_sequence_left_gets_nan() -> None:
    scores = torch.randn(2, 3, 3)
    scores[0, 1] = -torch.inf
    result = sparsemap(scores, Sequence(TRANSITIONS))
    assert result.marginals[0].isnan().all() and not result.converged[0]
    assert result.marginals[1].isfinite().all() and result.converged[1]
    assert Sequence(TRANSITIONS).log_partition(scores).isnan().tolist() == [True, False]


def test_a_nan_among_the_transitions_is_not_silent() -> None:
    scores, steps = torch.randn(2, 4, 3), torch.randn(2, 3, 3, 3)
    steps[1, 0, 0, 0] = torch.nan
    assert sparsemap(scores, Sequence(steps)).marginals.isnan().flatten(1).any(1).tolist() == [False, True]
    assert sparsemap(scores, Sequence(steps[1, 0])).marginals.isnan().all()


def test_wrong_transitions_and_lengths_are_refused() -> None:
    scores = torch.randn(2, 4, 3)
    with pytest.raises(ValueError, match=r"transitions must have shape \(T, T\)"):
        Sequence(torch.randn(3, 2))
    with pytest.raises(TypeError, match="transitions must be floating point"):
        Sequence(torch.ones(3, 3, dtype=torch.long))
    with pytest.raises(TypeError, match="transitions must be a tensor, got list"):
        Sequence([[0.0]])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lengths must be a tensor, got list"):
        Sequence(TRANSITIONS, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lengths must be integers"):
        Sequence(TRANSITIONS, torch.ones(2))
    for wrong in (torch.randn(4, 4), torch.randn(2, 4, 3, 3), torch.randn(3, 3, 3)):
        with pytest.raises(ValueError, match=r"transitions must have shape \(3, 3\) or \(2, 3, 3, 3\)"):
            sparsemap(scores, Sequence(wrong))
    with pytest.raises(ValueError, match=r"lengths must have the batch shape of the scores \(2,\)"):
        sparsemap(scores, Sequence(TRANSITIONS, torch.tensor([1, 2, 3])))
    for length in (0, 5):
        with pytest.raises(ValueError, match=f"lengths must be between 1 and the 4 positions, got {length}"):
            sparsemap(scores, Sequence(TRANSITIONS, torch.tensor([4, length])))
