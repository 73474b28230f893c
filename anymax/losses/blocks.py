"""Scores of a linear layer in blocks of rows, hidden @ weight.T + bias, and the matrix products of their gradient.

No tensor of rows x classes is ever alive. Shapes: T targets that count, G rows of scores for each, R = T G rows, B of
them in a block, N classes, D the dimension of the hidden states.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from anymax.kernels.matmul import matmul_, widens_half
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

T = TypeVar("T")


class Piece(NamedTuple, Generic[T]):
    """Some of the classes, with their own hidden states; the scores of all pieces are concatenated.

    Of tensors, of their gradients, or of whether each needs one.
    """

    hidden: T
    weight: T
    bias: T | None


class Gradients:
    """Gradients of a piece, summed over blocks; None where none is needed.

    In half precision the gradient of the hidden states is too, the others are float32.
    """

    def __init__(self, piece: Piece[Tensor], needed: Piece[bool]) -> None:
        hidden, weight, bias = self.piece = piece
        dtype = computed_in(weight.dtype)
        self.is_wide = _is_wide(weight)
        self.sums: Piece[Tensor | None] = Piece(
            large_empty(tuple(hidden.shape), hidden) if needed.hidden else None,
            # Zeros, for the product that adds to them is faster than the one that writes.
            large_empty(tuple(weight.shape), weight, dtype).zero_() if needed.weight else None,
            torch.zeros_like(bias, dtype=dtype) if needed.bias and bias is not None else None,
        )
        self._multiplier_ND = _by_columns(weight) if needed.hidden else weight

    def add(self, scores_BN: Tensor, rows: slice, coefficient_B: Tensor | None) -> None:
        """Multiply the gradient of a block of scores with the weight and the hidden states.

        Args:
            scores_BN: the gradient, in place of the scores.
            coefficient_B: what its rows are still to be multiplied with; None for 1.
        """
        grad_BN = scores_BN if self.is_wide else scores_BN.to(self.piece.weight.dtype)
        factor_B1 = None if coefficient_B is None else coefficient_B[:, None]
        into_hidden, into_weight, into_bias = self.sums
        if into_weight is not None:
            hidden_BD = self.piece.hidden[rows]
            _add_product(into_weight, grad_BN, hidden_BD if factor_B1 is None else hidden_BD * factor_B1)
        if into_hidden is not None:
            by_hidden_BD = torch.empty_like(into_hidden[rows], dtype=grad_BN.dtype)
            matmul_(by_hidden_BD, grad_BN, self._multiplier_ND)
            if factor_B1 is not None:
                by_hidden_BD.mul_(factor_B1)
            into_hidden[rows] = by_hidden_BD
        if into_bias is not None:
            ones_B = torch.ones_like(scores_BN[:, 0]) if coefficient_B is None else coefficient_B
            into_bias.addmv_(scores_BN.T, ones_B.to(scores_BN.dtype))


def score_blocks(
    pieces: Sequence[Piece[Tensor]], num_targets: int, group: int, per_block: int
) -> Iterator[tuple[slice, slice, Tensor]]:
    """The targets of each block, its rows, and their scores, all in the same memory."""
    weight = pieces[0].weight
    # As many blocks as it takes, all of about the same size.
    per_block = -(-num_targets // max(1, -(-num_targets // per_block)))
    buffer = spread_rows(per_block * group, num_classes(pieces), weight, computed_in(weight.dtype))
    for start in range(0, num_targets, max(1, per_block)):
        targets = slice(start, min(start + per_block, num_targets))
        rows = slice(targets.start * group, targets.stop * group)
        scores_BN = buffer[: rows.stop - rows.start]
        for piece, columns in zip(pieces, columns_of(pieces), strict=True):
            _multiply(piece, rows, scores_BN[:, columns])
        yield targets, rows, scores_BN


def columns_of(pieces: Sequence[Piece[Tensor]]) -> list[slice]:
    """Where the classes of each piece are among all."""
    ends = list(itertools.accumulate(piece.weight.shape[0] for piece in pieces))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def num_classes(pieces: Sequence[Piece[Tensor]]) -> int:
    return sum(piece.weight.shape[0] for piece in pieces)


def targets_per_block(memory_budget: int, pieces: Sequence[Piece[Tensor]], group: int) -> int:
    """The number of targets whose scores take that many bytes, at least one."""
    per_target = _bytes_per_target(pieces, group, is_wide=_is_wide(pieces[0].weight))
    if memory_budget < per_target:
        raise ValueError(
            f"memory_budget must hold the scores of one target, {per_target} bytes, got {memory_budget}; "
            "leave it out for a default that does"
        )
    return memory_budget // per_target


def default_budget(pieces: Sequence[Piece[Tensor]], group: int) -> int:
    """Bytes for a block of scores, `group` rows for each target."""
    weight_bytes = sum(piece.weight.numel() * piece.weight.element_size() for piece in pieces)
    # Of all backends: which one will run is not known while compiling.
    per_target = _bytes_per_target(pieces, group, is_wide=False)
    if pieces[0].weight.shape[1] < NARROW:
        return max(NARROW_BUDGET, min(weight_bytes, LEAST_BUDGET), per_target)
    return max(LEAST_BUDGET, min(weight_bytes, MOST_BUDGET), weight_bytes // PART_OF_WEIGHT, per_target)


def _bytes_per_target(pieces: Sequence[Piece[Tensor]], group: int, *, is_wide: bool) -> int:
    held_in = pieces[0].weight.dtype
    dtype = computed_in(held_in)
    # Products of half precision need the scores, and then their gradient, once more in that precision.
    return group * num_classes(pieces) * (dtype.itemsize + (0 if is_wide or dtype == held_in else held_in.itemsize))


def _multiply(piece: Piece[Tensor], rows: slice, scores_BN: Tensor) -> None:
    hidden_BD = piece.hidden[rows]
    if not _is_wide(piece.weight):
        scores_BN.copy_(torch.mm(hidden_BD, piece.weight.T))
        if piece.bias is not None:
            scores_BN.add_(piece.bias)
    else:
        matmul_(scores_BN, hidden_BD, piece.weight.T, piece.bias)


def _is_wide(weight: Tensor) -> bool:
    """Whether products are as precise as the scores: half precision only where nothing has to be copied for it."""
    return weight.dtype not in COMPUTED_IN or widens_half(weight)


def _by_columns(weight_ND: Tensor) -> Tensor:
    """The same numbers, of narrow ones laid out by columns."""
    return weight_ND.T.contiguous().T if weight_ND.shape[1] < NARROW else weight_ND


def _add_product(into_ND: Tensor, grad_BN: Tensor, hidden_BD: Tensor) -> None:
    if grad_BN.dtype in COMPUTED_IN:
        # A sum over many rows may leave the range of half precision before the mean brings it back: the hidden
        # states are scaled down so that no sum can.
        largest = len(hidden_BD) * grad_BN.abs().amax().float() * hidden_BD.abs().amax().float()
        scale = (torch.finfo(grad_BN.dtype).max / 2 / largest).clamp(max=1)
        product_ND = torch.mm(grad_BN.T, (hidden_BD.float() * scale).to(grad_BN.dtype)).float() / scale
        into_ND.add_(product_ND)
    elif hidden_BD.shape[1] < NARROW:
        into_ND.add_(torch.mm(hidden_BD.T.to(grad_BN.dtype), grad_BN).T)
    else:
        matmul_(into_ND, grad_BN.T, hidden_BD, adds=True)
