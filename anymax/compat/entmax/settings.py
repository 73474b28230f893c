"""The arguments of entmax 1.3: settings of its algorithms, which change nothing here, and parameters of any kind."""

import numbers
from typing import Any

import torch
from torch import Tensor


def check_k(k: int | None) -> None:
    """`k`: how many of the largest scores are sorted first."""
    if k is not None and k < 1:
        raise ValueError(f"k must be None or at least 1, got {k}; it does not change the result, so it can be left out")


def check_n_iter(n_iter: int | None) -> None:
    """`n_iter`: how often bisection halves its bracket."""
    if n_iter is not None and n_iter < 1:
        raise ValueError(
            f"n_iter must be at least 1, got {n_iter}; it does not change the result, so it can be left out"
        )


def floating(X: Tensor) -> Tensor:
    """Scores in floating point: entmax 1.3 takes integers where its algorithm divides."""
    is_whole = isinstance(X, Tensor) and not X.is_floating_point() and not X.is_complex()
    return X.to(torch.get_default_dtype()) if is_whole else X


def parameter(value: Any, X: Tensor) -> float | Tensor:
    """Alpha or a budget as a number or a tensor: entmax 1.3 takes everything that `torch.tensor` does."""
    if isinstance(value, Tensor | str) or (isinstance(value, numbers.Real) and not isinstance(value, bool)):
        return value  # type: ignore[return-value]
    return torch.as_tensor(value, dtype=X.dtype, device=X.device)


def promoted(X: Tensor, value: Any) -> Tensor:
    """Scores in the dtype of the result: a tensor as alpha or budget counts in it, as in arithmetic."""
    X = floating(X)
    if not isinstance(value, Tensor):
        return X
    dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
    return X.to(torch.promote_types(X.dtype, dtype))
