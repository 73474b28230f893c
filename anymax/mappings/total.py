"""What the results of a mapping sum to, as each mapping declares it."""

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# "one": a row is a distribution, or k of them. "at most one": it may also choose nothing. "weights": entries have
# weights of their own, which do not depend on the scores of others.
Total = Literal["one", "at most one", "weights"]


def sums_to(total: Total) -> Callable[[F], F]:
    """Declare what the results of a mapping sum to, for a function or a Module class of your own.

    Attention and sinks read it: a mapping that declares nothing gives distributions.

    Args:
        total: "one" for distributions; "at most one" if a row may also choose nothing; "weights" if entries have
            weights that do not depend on the scores of others.

    Example:
        >>> @anymax.mappings.sums_to("weights")
        ... def tanh(scores, *, dim=-1, mask=None):
        ...     weights = scores.tanh()
        ...     return weights if mask is None else weights.masked_fill(~mask, 0)
        >>> anymax.mappings.total_of(tanh)
        'weights'
    """

    def declare(mapping: F) -> F:
        mapping.total = total  # type: ignore[attr-defined]
        return mapping

    return declare


def total_of(mapping: Callable[..., Any]) -> Total:
    """What the results of a mapping sum to: "one", "at most one" or "weights", as `sums_to` declares it.

    Args:
        mapping: a function, a `functools.partial` of one, or a Module; one that declares nothing gives distributions.

    Example:
        >>> [anymax.mappings.total_of(one) for one in (anymax.entmax, anymax.softpick, anymax.sigmoid)]
        ['one', 'at most one', 'weights']
    """
    while isinstance(mapping, functools.partial):
        mapping = mapping.func
    total: Total = getattr(mapping, "total", "one")
    return total
