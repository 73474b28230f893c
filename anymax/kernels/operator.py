"""Makes a torch operator of a kernel, so that compile, vmap and modes see one opaque call."""

from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("anymax", "FRAGMENT")


def operator(
    schema: str,
    kernel: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    batched: Callable[[Any], Callable[..., Any]] | None = None,
) -> Any:
    """Define the operator `anymax::<schema>`.

    Args:
        kernel: does the work, on any device; it chooses its backend each time it runs.
        fake: makes results of the right shape without doing the work.
        batched: given the operator, its rule under vmap; without one, vmap is refused.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    overload = getattr(torch.ops.anymax, name).default
    torch.library.register_fake(f"anymax::{name}", fake)
    if batched is not None:
        torch.library.register_vmap(f"anymax::{name}", batched(overload))
    return overload
