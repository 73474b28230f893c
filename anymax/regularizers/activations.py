"""Activation regularization: hidden vectors are kept small, and kept from jumping from position to position.

Shapes: R rows (sequences), N positions, D their width.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from anymax.mappings.arguments import check_boolean

Kind = Literal["mean_square", "norm"]


def activation_penalty(hidden: Tensor, mask: Tensor | None = None, *, kind: Kind = "mean_square") -> Tensor:
    """How large hidden vectors are, as a mean over the positions that count; zero where none does.

    Half precision is computed in float32. Times the number of positions that count it is a sum over rows, so parts of a
    batch add up to the whole.

    Args:
        hidden: (..., positions, dim).
        mask: true where a position counts, in the shape of `hidden` less the last dimension; by default all do.
        kind: "mean_square" of the numbers, which the authors' code has, or the Euclidean "norm" of each vector, which
            the paper prints.

    Merity et al. 2017.

    Example:
        >>> hidden = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])  # two positions
        >>> anymax.regularizers.activation_penalty(hidden)
        tensor(6.5000)
        >>> anymax.regularizers.activation_penalty(hidden, torch.tensor([[True, False]]), kind="norm")
        tensor(5.)
    """
    hidden_RND, mask_RN = _rows(hidden, mask, kind)
    sizes_RN = _sizes(hidden_RND, kind) * mask_RN
    return sizes_RN.sum() / mask_RN.sum().clamp(min=1)


def temporal_penalty(hidden: Tensor, mask: Tensor | None = None, *, kind: Kind = "mean_square") -> Tensor:
    """How far hidden vectors move from each position to the next, as a mean over the pairs whose both ends count.

    A row weighs as much as it has positions that count. Where all rows have equally many this is the mean over all
    pairs. Times the number of positions that count it is a sum over rows in any case, so parts of a batch add up to the
    whole. Arguments as in `activation_penalty`.

    Example:
        >>> hidden = torch.tensor([[[3.0, 4.0], [0.0, 0.0], [0.0, 0.0]]])  # it moves once and then stays
        >>> anymax.regularizers.temporal_penalty(hidden, kind="norm")
        tensor(2.5000)
    """
    hidden_RND, mask_RN = _rows(hidden, mask, kind)
    pairs_RN = mask_RN[:, 1:] * mask_RN[:, :-1]
    sizes_RN = _sizes(hidden_RND[:, 1:] - hidden_RND[:, :-1], kind) * pairs_RN
    mean_R = sizes_RN.sum(1) / pairs_RN.sum(1).clamp(min=1)
    count_R = mask_RN.sum(1)
    return (mean_R * count_R).sum() / count_R.sum().clamp(min=1)


def _sizes(vectors_RND: Tensor, kind: Kind) -> Tensor:
    return vectors_RND.square().mean(-1) if kind == "mean_square" else torch.linalg.vector_norm(vectors_RND, dim=-1)


def _rows(hidden: Tensor, mask: Tensor | None, kind: Kind) -> tuple[Tensor, Tensor]:
    """Hidden vectors by row, in the precision they are added up in, and ones where a position counts."""
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be one of {get_args(Kind)}, got {kind!r}")
    if hidden.dim() < 2:
        raise ValueError(f"hidden must be (..., positions, dim), got shape {tuple(hidden.shape)}")
    if mask is None:
        mask = torch.ones(hidden.shape[:-1], dtype=torch.bool, device=hidden.device)
    check_boolean(mask, "a position counts")
    if mask.shape != hidden.shape[:-1]:
        raise ValueError(
            f"mask must have the shape of hidden less the last dimension, {tuple(hidden.shape[:-1])}, "
            f"got {tuple(mask.shape)}"
        )
    wide = hidden if hidden.dtype == torch.float64 else hidden.float()
    positions, dim = hidden.shape[-2:]
    return wide.reshape(-1, positions, dim), mask.reshape(-1, positions).to(wide.dtype)
