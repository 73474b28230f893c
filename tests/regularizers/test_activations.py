"""Penalties on activations: known vectors, enumeration, padding, and parts that add up to the whole."""

import math

import pytest
import torch
from torch import Tensor

from anymax.regularizers import activation_penalty, temporal_penalty

KINDS = ["mean_square", "norm"]


def size(vector: list[float], kind: str) -> float:
    squares = sum(number**2 for number in vector)
    return squares / len(vector) if kind == "mean_square" else math.sqrt(squares)


def enumerated(hidden: Tensor, mask: Tensor, kind: str) -> tuple[float, float]:
    """Both penalties, position by position: means over positions, and over the pairs of rows of equal weight."""
    sizes, moves, weight = [], 0.0, 0
    for row, counts in zip(hidden.tolist(), mask.tolist(), strict=True):
        sizes += [size(vector, kind) for vector, counted in zip(row, counts, strict=True) if counted]
        pairs = [
            size([b - a for a, b in zip(row[i], row[i + 1], strict=True)], kind)
            for i in range(len(row) - 1)
            if counts[i] and counts[i + 1]
        ]
        moves += sum(counts) * sum(pairs) / max(len(pairs), 1)
        weight += sum(counts)
    return sum(sizes) / len(sizes), moves / weight


@pytest.mark.parametrize(("kind", "expected"), [("norm", 7.0711), ("mean_square", 16.6667)])
def test_the_size_of_a_known_vector(kind: str, expected: float) -> None:
    assert activation_penalty(torch.tensor([[3.0, 4.0, 5.0]]), kind=kind).item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("kind", "expected"), [("norm", 5.3852), ("mean_square", 9.6667)])
def test_the_change_between_known_vectors(kind: str, expected: float) -> None:
    hidden = torch.tensor([[1.0, 1.0, 1.0], [3.0, 4.0, 5.0]])
    assert temporal_penalty(hidden, kind=kind).item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_both_are_what_enumeration_gives_also_with_padding(kind: str) -> None:
    hidden = torch.randn(4, 6, 3, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([[6], [4], [1], [0]])
    size_of_all, change = enumerated(hidden, mask, kind)
    assert activation_penalty(hidden, mask, kind=kind).item() == pytest.approx(size_of_all)
    assert temporal_penalty(hidden, mask, kind=kind).item() == pytest.approx(change)


def test_without_padding_they_are_means_over_all_numbers() -> None:
    hidden = torch.randn(4, 6, 3)
    torch.testing.assert_close(activation_penalty(hidden), hidden.square().mean())
    torch.testing.assert_close(temporal_penalty(hidden), (hidden[:, 1:] - hidden[:, :-1]).square().mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", [activation_penalty, temporal_penalty])
def test_parts_of_a_batch_add_up_to_the_whole(penalty, kind: str) -> None:
    hidden, lengths = torch.randn(5, 7, 3, dtype=torch.float64), torch.tensor([7, 7, 2, 1, 5])
    mask = torch.arange(7) < lengths[:, None]
    whole = penalty(hidden, mask, kind=kind) * lengths.sum()
    parts = [
        penalty(hidden[rows], mask[rows], kind=kind) * lengths[rows].sum()
        for rows in (slice(0, 2), slice(2, 3), slice(3, 5))
    ]
    torch.testing.assert_close(whole, sum(parts))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", [activation_penalty, temporal_penalty])
def test_what_does_not_count_has_neither_part_nor_gradient(penalty, kind: str) -> None:
    hidden = torch.randn(2, 5, 3, requires_grad=True)
    mask = torch.arange(5) < torch.tensor([[3], [0]])
    value = penalty(hidden, mask, kind=kind)
    value.backward()
    assert (hidden.grad[~mask] == 0).all() and (hidden.grad[mask] != 0).any()
    torch.testing.assert_close(value, penalty(hidden[:1, :3], kind=kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", [activation_penalty, temporal_penalty])
def test_gradients_are_those_of_the_formula(penalty, kind: str) -> None:
    hidden = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(4) < torch.tensor([[4], [2], [3]])
    assert torch.autograd.gradcheck(lambda hidden: penalty(hidden, mask, kind=kind), hidden)


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_stay_cost_nothing_to_move(kind: str) -> None:
    hidden = torch.randn(3, 1, 4).expand(3, 6, 4).clone().requires_grad_()
    value = temporal_penalty(hidden, kind=kind)
    value.backward()
    assert value == 0 and (hidden.grad == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_count_is_zero_with_a_gradient_of_zero(kind: str) -> None:
    hidden = torch.randn(2, 3, 4, requires_grad=True)
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    value = activation_penalty(hidden, nothing, kind=kind) + temporal_penalty(hidden, nothing, kind=kind)
    value = value + temporal_penalty(hidden[:, :1], kind=kind)
    value.backward()
    assert value == 0 and (hidden.grad == 0).all()


def test_half_precision_is_added_up_in_float32() -> None:
    hidden = torch.randn(20, 50, 30).bfloat16()
    for penalty in (activation_penalty, temporal_penalty):
        assert penalty(hidden).dtype == torch.float32
        assert torch.equal(penalty(hidden), penalty(hidden.float()))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kind must be one of \('mean_square', 'norm'\), got 'l1'"):
        activation_penalty(torch.ones(2, 3), kind="l1")
    with pytest.raises(ValueError, match=r"hidden must be \(..., positions, dim\), got shape \(3,\)"):
        temporal_penalty(torch.ones(3))
    with pytest.raises(ValueError, match=r"less the last dimension, \(2, 3\), got \(2,\)"):
        activation_penalty(torch.ones(2, 3, 4), torch.ones(2, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"true where a position counts, got torch.float32; pass mask == 0 if"):
        activation_penalty(torch.ones(2, 3, 4), torch.ones(2, 3))
