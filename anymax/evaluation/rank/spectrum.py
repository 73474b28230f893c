"""Singular values of a tall matrix whose rows come a few at a time.

Shapes: R rows of a chunk, M rows in all, N columns, S the smaller of the two.
"""

import math
import os
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from anymax.checks import check_counts

Method = Literal["svd", "gram"]

# Below this number of rows x columns x the smaller of both, the exact method takes some seconds at most.
SVD_WORK = 2**34
# Torch computes singular values and eigenvalues from a copy.
COPIES = 2
FLOAT64_BYTES, FLOAT64_EPS = 8, torch.finfo(torch.float64).eps
# Of a matrix of products, only blocks on and above the diagonal are computed.
GRAM_BLOCK = 1024


class Spectrum(NamedTuple):
    """Singular values, and how far down they can be trusted."""

    values: Tensor
    """Float64, falling, as many as the smaller side of the matrix."""
    floor: float
    """Values below it are rounding errors."""
    method: Method
    """How they were computed."""


def singular_values(
    chunks: Iterable[Tensor],
    *,
    num_rows: int,
    num_columns: int,
    method: Method | None = None,
    memory_limit: int | None = None,
) -> Spectrum:
    """The singular values of a matrix, computed in float64.

    By "svd" they are exact up to a few eps of the largest, and the whole matrix is held. By "gram" they are the roots
    of the eigenvalues of the products of its columns, or of its rows where there are fewer: that holds a square matrix
    of the smaller side S, but squares what is small too, so that values below `sqrt(S * eps)` of the largest drown in
    rounding. Here eps is 2.2e-16.

    Args:
        chunks: matrices of `num_columns` finite numbers that together have `num_rows` rows.
        method: by default "svd" where that takes a few seconds, else "gram".
        memory_limit: how many bytes may be held; by default what the machine has free. More is refused at once.
        num_rows, num_columns: the size of the matrix.

    Example:
        >>> from anymax.evaluation import singular_values
        >>> matrix = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> found = singular_values(matrix.split(2), num_rows=3, num_columns=3)
        >>> found.values.round(decimals=3), found.method
        (tensor([3., 2., 1.], dtype=torch.float64), 'svd')
    """
    check_counts(num_rows=num_rows, num_columns=num_columns)
    if method is None:
        method = choose_method(num_rows, num_columns)
    elif method not in get_args(Method):
        raise ValueError(f"method must be one of {get_args(Method)} or None, got {method!r}")
    check_memory(num_rows, num_columns, method, memory_limit)
    checked = _checked(chunks, num_rows, num_columns)
    if method == "svd":
        values = torch.linalg.svdvals(torch.cat([chunk_RN.double() for chunk_RN in checked]))
        return Spectrum(values, FLOAT64_EPS * values[0].item(), method)
    if num_rows < num_columns:
        # Held as given, and read by columns, which then are the rows of the transposed matrix.
        checked = (part.T for part in torch.cat(list(checked)).split(GRAM_BLOCK, 1))
    size = min(num_rows, num_columns)
    values = torch.linalg.eigvalsh(_gram(checked, size), UPLO="U").clamp(min=0).sqrt().flip(0)
    return Spectrum(values, math.sqrt(size * FLOAT64_EPS) * values[0].item(), method)


def choose_method(num_rows: int, num_columns: int) -> Method:
    """The exact method where it takes a few seconds."""
    return "svd" if num_rows * num_columns * min(num_rows, num_columns) <= SVD_WORK else "gram"


def check_memory(num_rows: int, num_columns: int, method: Method, memory_limit: int | None = None) -> None:
    """Refuse what does not fit; arguments as in `singular_values`."""
    needed = _needed_bytes(num_rows, num_columns, method)
    limit = _free_bytes() if memory_limit is None else memory_limit
    if limit is not None and needed > limit:
        side = int(math.sqrt(limit / (COPIES * FLOAT64_BYTES)))
        raise ValueError(
            f"the singular values of {num_rows:,} x {num_columns:,} numbers must fit into {_size(limit)}, but take "
            f"{_size(needed)} by {method!r}; take at most about {side:,} columns (the most frequent words) or fewer "
            "rows (contexts)" + ("" if method == "gram" else ", or the method 'gram'")
        )


def _needed_bytes(num_rows: int, num_columns: int, method: Method) -> int:
    if method == "svd":
        return COPIES * FLOAT64_BYTES * num_rows * num_columns
    # Fewer rows than columns are held, twice while they are put together, in half the bytes of float64.
    held = FLOAT64_BYTES * num_rows * num_columns if num_rows < num_columns else 0
    return COPIES * FLOAT64_BYTES * min(num_rows, num_columns) ** 2 + held


def _gram(chunks: Iterable[Tensor], size: int) -> Tensor:
    """The products of all pairs of columns, above the diagonal and beside it."""
    gram_SS = torch.zeros(size, size, dtype=torch.float64)
    for chunk_RS in chunks:
        wide_RS = chunk_RS.double()
        for start in range(0, size, GRAM_BLOCK):
            rows = slice(start, start + GRAM_BLOCK)
            gram_SS[rows, start:].addmm_(wide_RS[:, rows].T, wide_RS[:, start:])
    return gram_SS


def _checked(chunks: Iterable[Tensor], num_rows: int, num_columns: int) -> Iterator[Tensor]:
    """The chunks on the CPU; numbers that are none, and other sizes than announced, are refused."""
    seen = 0
    for chunk in chunks:
        if chunk.dim() != 2 or chunk.shape[1] != num_columns or not chunk.is_floating_point():
            raise ValueError(
                f"chunks must be matrices of {num_columns} floating-point columns, got {chunk.dtype} "
                f"{tuple(chunk.shape)}"
            )
        if not bool(chunk.isfinite().all()):
            raise ValueError(
                f"chunks must hold finite numbers, got {chunk[~chunk.isfinite()][0].item()} in row "
                f"{seen + int((~chunk.isfinite()).any(1).nonzero()[0])}; raise minus infinity to a number first"
            )
        seen += len(chunk)
        if seen > num_rows:
            break
        yield chunk.detach().cpu()
    if seen != num_rows:
        got = "more" if seen > num_rows else f"{seen}"
        raise ValueError(f"chunks must have {num_rows} rows in all, as num_rows says, got {got}")


def _free_bytes() -> int | None:
    """The memory that can be had without swapping, where the system reports it."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        names = os.sysconf_names
        if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= names.keys():
            return None
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _size(number: float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"
