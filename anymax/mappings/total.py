"""What the results of a mapping sum to, as each mapping declares it."""

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# "one": a row is a distribution, or k of them. "at most one": it may also choose nothing. "weights": entries have
# weights of their own, which do not depend on the scores of others.
Total = Literal["one", "at most one", "weights"]


def sums_to(total: Total) -> Callable[[F], F]:
    """Declare it of a function, or of the Module over one."""

    def declare(mapping: F) -> F:
        mapping.total = total  # type: ignore[attr-defined]
        return mapping

    return declare


def total_of(mapping: Callable[..., Any]) -> Total:
    """What a mapping declares; one that declares nothing gives distributions."""
    while isinstance(mapping, functools.partial):
        mapping = mapping.func
    total: Total = getattr(mapping, "total", "one")
    return total
