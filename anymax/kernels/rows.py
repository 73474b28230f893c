"""Scores of any floating dtype and leading shape, with a mask, as the rows that a simple kernel takes, and back.

A backend that reads half precision and masks itself needs none of this; the others begin and end with it. Everything
here can be differentiated.
"""

import torch
from torch import Tensor

# Half precision is computed in float32 and returned in its own dtype.
COMPUTED_IN = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype that numbers of a dtype are computed in."""
    return COMPUTED_IN.get(dtype, dtype)


def as_rows(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scores (..., n) as a contiguous (rows, n) matrix in the dtype they are computed in, -inf where the mask is false.

    Args:
        mask: boolean, broadcasts to the scores.
    """
    if scores.dtype in COMPUTED_IN:
        scores = scores.to(COMPUTED_IN[scores.dtype])
        if mask is not None:
            scores.masked_fill_(~mask, -torch.inf)
    elif mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    scores = scores.contiguous()
    return scores if scores.dim() == 2 else scores.flatten(0, -2)


def from_rows(rows_RN: Tensor, like: Tensor, mask: Tensor | None = None) -> Tensor:
    """Rows in the shape and dtype of `like`, zero where the mask is false."""
    result = rows_RN if like.dim() == 2 else rows_RN.reshape(like.shape)
    if mask is not None:
        # In place where nothing is differentiated.
        result = torch.where(mask, result, 0) if torch.is_grad_enabled() else result.masked_fill_(~mask, 0)
    return result.to(like.dtype)
