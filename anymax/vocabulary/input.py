"""What every input layer does with the ids it is given."""

import torch
from torch import Tensor

from anymax.mappings.arguments import check_values


def check_ids(ids: Tensor, vocabulary_size: int) -> None:
    """Ids are integers of the vocabulary; their values are checked where they can be read without waiting."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        came = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"ids must be an int64 or int32 tensor, got {came}; convert with .long() or torch.tensor")
    rule = f"from 0 to {vocabulary_size - 1}, as the vocabulary has {vocabulary_size} words"
    check_values("ids", rule, ids, lambda i: (i >= 0) & (i < vocabulary_size))


def check_index(name: str, index: int | None, vocabulary_size: int) -> None:
    """The id of a special word is one of the vocabulary, or None where there is no such word."""
    if index is not None and not 0 <= index < vocabulary_size:
        raise ValueError(
            f"{name} must be a word of the vocabulary, from 0 to {vocabulary_size - 1}, got {index}; "
            "negative numbers do not count from the end"
        )
