"""How large a model may be: limits that configs check, and whether its weights fit into memory. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

# The deepest Transformers that were trained have a thousand layers; beyond, building alone takes minutes.
MOST_LAYERS = 1000


def check_sizes(num_layers: int, **widths: int) -> None:
    """Refuse layers and widths that no model has."""
    for name, value in {**widths, "num_layers": num_layers}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if num_layers > MOST_LAYERS:
        raise ValueError(f"num_layers must be at most {MOST_LAYERS}, got {num_layers}")


def check_fits_memory(make: Callable[[], nn.Module]) -> None:
    """Refuse a model whose weights are larger than this machine's memory, before any are allocated.

    Args:
        make: builds the model; called where nothing is allocated.
    """
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with torch.device("meta"):
            needed = sum(parameter.numel() * parameter.element_size() for parameter in make().parameters())
    except RuntimeError as error:
        # Sizes that no integer holds.
        raise ValueError(f"model must fit into memory, but torch cannot even describe it: {error}") from None
    if needed > memory:
        raise ValueError(
            f"model must fit into memory, but its weights take {needed / 1e9:,.0f} GB and this machine has "
            f"{memory / 1e9:,.0f} GB; make it smaller"
        )
