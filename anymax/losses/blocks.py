"""What the linear losses share: hidden @ weight.T + bias in blocks of rows, and the products of the gradient.

No tensor of rows x classes is ever alive. A block of scores is computed, gives way to its gradient in place, and is
multiplied with the weight and the hidden states at once, in the forward already where the reduction allows; the
backward then only scales. Shapes: T targets, G rows of scores for each, R = T G rows, B of them in a block, N classes,
D the dimension of the hidden states.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from anymax.kernels.memory import large_empty, spread_rows
from anymax.mappings.arguments import COMPUTED_IN, computed_in

# What a block of scores may take unless the caller says: as much as the weight, which makes the products square enough
# to be fast, between these bounds; but a quarter of a weight so large that its gradient dwarfs the block.
LEAST_BUDGET = 16 * 2**20
MOST_BUDGET = 64 * 2**20
PART_OF_WEIGHT = 4
# With fewer numbers than this in a hidden state, the products of the gradient are several times faster by columns, and
# blocks need not be large for them: they stay in the cache.
NARROW = 16
NARROW_BUDGET = 4 * 2**20


class Piece(NamedTuple):
    """A part of the classes with a hidden state of its own; the scores of all pieces stand side by side."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None


class Block(NamedTuple):
    """What a rule leaves of a block of scores.

    `coefficient_B` is still to be multiplied to the gradient that stands in place of the scores; None where it has
    been. A rule whose gradient is sparse has done the products itself and sets `is_multiplied`.
    """

    losses: Tensor
    coefficient_B: Tensor | None
    is_multiplied: bool = False


class Rule(Protocol):
    """How the scores of a block turn into losses and gradients: what sets one linear loss apart from another."""

    def block_(self, scores_BN: Tensor, targets: slice, coefficient: Tensor | None, products: "Products") -> Block:
        """Losses of a block's targets; the scores give way to their gradient unless `coefficient` is None."""

    def gradients(self) -> list[Tensor]:
        """Gradients of the rule's own tensors, after the last block."""


class Products:
    """Gradients of the pieces, summed over blocks in float32 or better."""

    def __init__(self, pieces: Sequence[Piece], wanted: Sequence[bool]) -> None:
        self.pieces = pieces
        self._hidden: list[Tensor | None] = []
        self._multipliers: list[Tensor] = []
        self._weight: list[Tensor | None] = []
        self._bias: list[Tensor | None] = []
        for i, piece in enumerate(pieces):
            for_hidden, for_weight, for_bias = wanted[3 * i : 3 * i + 3]
            dtype = computed_in(piece.weight.dtype)
            self._hidden.append(large_empty(tuple(piece.hidden.shape), piece.hidden) if for_hidden else None)
            self._multipliers.append(_by_columns(piece.weight) if for_hidden else piece.weight)
            # Zeros, for the product that adds to them is faster than the one that writes.
            self._weight.append(
                large_empty(tuple(piece.weight.shape), piece.weight, dtype).zero_() if for_weight else None
            )
            self._bias.append(
                torch.zeros_like(piece.bias, dtype=dtype) if for_bias and piece.bias is not None else None
            )

    def add(self, scores_BN: Tensor, rows: slice, coefficient_B: Tensor | None) -> None:
        """Multiply the gradient of a block of scores with the weights and the hidden states."""
        for i, (piece, columns) in enumerate(_with_columns(self.pieces)):
            grad_BN = scores_BN[:, columns].to(piece.weight.dtype)
            factor_B1 = None if coefficient_B is None else coefficient_B[:, None]
            into_hidden, into_weight, into_bias = self._hidden[i], self._weight[i], self._bias[i]
            if into_weight is not None:
                hidden_BD = piece.hidden[rows]
                self._add_product(into_weight, grad_BN, hidden_BD if factor_B1 is None else hidden_BD * factor_B1)
            if into_hidden is not None:
                torch.mm(grad_BN, self._multipliers[i], out=into_hidden[rows])
                if factor_B1 is not None:
                    into_hidden[rows].mul_(factor_B1)
            if into_bias is not None:
                ones_B = torch.ones_like(scores_BN[:, 0]) if coefficient_B is None else coefficient_B
                into_bias.addmv_(scores_BN[:, columns].T, ones_B.to(scores_BN.dtype))

    def of(self, index: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Where the gradients of a piece are summed: hidden states, weight and bias.

        Of half precision the first is in that, the others are in float32.
        """
        return self._hidden[index], self._weight[index], self._bias[index]

    def _add_product(self, into_ND: Tensor, grad_BN: Tensor, hidden_BD: Tensor) -> None:
        if grad_BN.dtype in COMPUTED_IN:
            # A sum over many rows may leave the range of half precision before the mean brings it back: the hidden
            # states are scaled down so that no sum can.
            largest = len(hidden_BD) * grad_BN.abs().amax().float() * hidden_BD.abs().amax().float()
            scale = (torch.finfo(grad_BN.dtype).max / 2 / largest).clamp(max=1)
            product_ND = torch.mm(grad_BN.T, (hidden_BD.float() * scale).to(grad_BN.dtype)).float() / scale
            into_ND.add_(product_ND)
        elif hidden_BD.shape[1] < NARROW:
            into_ND.add_(torch.mm(hidden_BD.T, grad_BN).T)
        else:
            into_ND.addmm_(grad_BN.T, hidden_BD)


def run(
    rule: Rule,
    pieces: Sequence[Piece],
    num_targets: int,
    coefficient: Tensor | None,
    *,
    per_block: int,
    wanted: Sequence[bool],
) -> tuple[Tensor, list[Tensor | None]]:
    """Losses of all targets and, if there is a coefficient for each, the gradients of the pieces and of the rule."""
    first = pieces[0]
    dtype = computed_in(first.weight.dtype)
    group, n = _rows_per_target(pieces, num_targets), _num_classes(pieces)
    losses_T = torch.zeros(num_targets, dtype=dtype, device=first.hidden.device)
    products = Products(pieces, wanted if coefficient is not None else [False] * len(wanted))
    # As many blocks as it takes, all of about the same size.
    per_block = -(-num_targets // max(1, -(-num_targets // per_block)))
    buffer = spread_rows(per_block * group, n, first.weight, dtype)
    for start in range(0, num_targets, max(1, per_block)):
        targets = slice(start, min(start + per_block, num_targets))
        rows = slice(targets.start * group, targets.stop * group)
        scores_BN = buffer[: rows.stop - rows.start]
        for piece, columns in _with_columns(pieces):
            _multiply(piece, rows, scores_BN[:, columns])
        here = None if coefficient is None else coefficient[targets]
        block = rule.block_(scores_BN, targets, here, products)
        losses_T[targets] = block.losses
        if coefficient is not None and not block.is_multiplied:
            products.add(scores_BN, rows, block.coefficient_B)
    if coefficient is None:
        return losses_T, []
    return losses_T, [*(grad for i in range(len(pieces)) for grad in products.of(i)), *rule.gradients()]


def _by_columns(weight_ND: Tensor) -> Tensor:
    """The same numbers, of narrow ones laid out by columns."""
    return weight_ND.T.contiguous().T if weight_ND.shape[1] < NARROW else weight_ND


def _multiply(piece: Piece, rows: slice, scores_BN: Tensor) -> None:
    hidden_BD = piece.hidden[rows]
    if scores_BN.dtype != piece.weight.dtype:
        scores_BN.copy_(torch.mm(hidden_BD, piece.weight.T))
        if piece.bias is not None:
            scores_BN.add_(piece.bias)
    elif piece.bias is None:
        torch.mm(hidden_BD, piece.weight.T, out=scores_BN)
    else:
        torch.addmm(piece.bias, hidden_BD, piece.weight.T, out=scores_BN)


def _with_columns(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, slice]]:
    end = 0
    for piece in pieces:
        start, end = end, end + piece.weight.shape[0]
        yield piece, slice(start, end)


def _num_classes(pieces: Sequence[Piece]) -> int:
    return sum(piece.weight.shape[0] for piece in pieces)


def _rows_per_target(pieces: Sequence[Piece], num_targets: int) -> int:
    return max(1, pieces[0].hidden.shape[0] // max(1, num_targets))


def _bytes_per_target(pieces: Sequence[Piece], group: int) -> int:
    held_in = pieces[0].weight.dtype
    dtype = computed_in(held_in)
    # In half precision the products need the scores, and then their gradient, once more in that precision.
    return group * _num_classes(pieces) * (dtype.itemsize + (0 if dtype == held_in else held_in.itemsize))


def targets_per_block(memory_budget: int, pieces: Sequence[Piece], num_targets: int) -> int:
    """As many as have scores of so many bytes, and at least one."""
    per_target = _bytes_per_target(pieces, _rows_per_target(pieces, num_targets))
    if memory_budget < per_target:
        raise ValueError(
            f"memory_budget must hold the scores of one target, {per_target} bytes, got {memory_budget}; "
            "leave it out for a default that does"
        )
    return memory_budget // per_target


def default_budget(pieces: Sequence[Piece], group: int) -> int:
    """Bytes for a block of scores, `group` rows for each target."""
    weight_bytes = sum(piece.weight.numel() * piece.weight.element_size() for piece in pieces)
    per_target = _bytes_per_target(pieces, group)
    if pieces[0].weight.shape[1] < NARROW:
        return max(NARROW_BUDGET, min(weight_bytes, LEAST_BUDGET), per_target)
    return max(LEAST_BUDGET, min(weight_bytes, MOST_BUDGET), weight_bytes // PART_OF_WEIGHT, per_target)
