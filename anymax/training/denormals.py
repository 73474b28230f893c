"""Numbers too small to be held in full are taken as zero: some processors spend a hundred times as long on them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Take such numbers as zero on the CPU, in this thread and in those it starts.

    Weights that no gradient reaches, as those of pixels that are always black, decay into them, and so do their means
    in Adam; products with them are right and slow.
    """
    before = are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def are_flushed() -> bool:
    """Whether half of the least number held in full is zero."""
    least = torch.tensor(torch.finfo(torch.float32).tiny)
    return bool(least / 2 == 0)
