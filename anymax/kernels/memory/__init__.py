"""Large buffers, in memory that the system hands out in large pages where it can."""

import torch
from torch import Tensor

from anymax.kernels import library

# The page that x86 and most ARM systems call large; rows that begin a small page apart crowd the same cache sets.
_LARGE_PAGE = 2**21
_SMALL_PAGE = 2**12
_VECTOR = 64
_AWAY = 192

_PREFER_LARGE_PAGES = library.Function("anymax_prefer_large_pages", "pl")


def large_empty(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised tensor on the device of `like`."""
    memory = torch.empty(shape, dtype=dtype or like.dtype, device=like.device)
    num_bytes = memory.numel() * memory.element_size()
    if memory.is_cpu and num_bytes >= _LARGE_PAGE and library.why_missing() is None:
        _PREFER_LARGE_PAGES.of(None)(memory.data_ptr(), num_bytes)
    return memory


def spread_rows(num_rows: int, n: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    """An uninitialised matrix whose rows begin where a vector does, and not a multiple of a page from each other.

    A matrix product walks down columns as well as along rows; at such distances all of a column would share a few sets
    of the cache. It takes at most 448 bytes more per row than the entries do, and nothing for rows shorter than a page.
    """
    size = dtype.itemsize
    stride = n * size
    if stride >= _SMALL_PAGE:
        stride = -(-stride // _VECTOR) * _VECTOR
        if not _AWAY <= stride % _SMALL_PAGE <= _SMALL_PAGE - _AWAY:
            stride += (_AWAY - stride) % _SMALL_PAGE
    return large_empty((num_rows, stride // size), like, dtype)[:, :n]
