"""Checks of numbers that configs, layers and functions share; nothing here imports torch."""

import math
from typing import TypeVar

T = TypeVar("T")


def given(**values: T | None) -> dict[str, T]:
    """The values that are not None, for arguments that may be left out: `check_counts(size=3, **given(limit=None))`."""
    return {name: value for name, value in values.items() if value is not None}


def check_counts(least: int = 1, **values: int) -> None:
    """Integers of at least `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an integer, got {value!r}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def check_positive(**values: float) -> None:
    """Finite numbers above zero."""
    for name, value in values.items():
        if not (_is_number(name, value) and 0 < value < math.inf):
            raise ValueError(f"{name} must be above 0 and finite, got {value}")


def check_not_negative(**values: float) -> None:
    """Finite numbers of at least zero."""
    for name, value in values.items():
        if not (_is_number(name, value) and 0 <= value < math.inf):
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")


def check_shares(**values: float) -> None:
    """Numbers from 0 to 1, as the rate of a dropout."""
    for name, value in values.items():
        if not (_is_number(name, value) and 0 <= value <= 1):
            raise ValueError(f"{name} must be between 0 and 1, got {value}")


def check_alpha_range(low: float, high: float, *, initial: float | None, clamp: float | None) -> None:
    """The range of an alpha that is learned: what it stays between, starts from, and does not fall below."""
    if not 0 <= low < high < math.inf:
        raise ValueError(f"low and high must be finite with 0 <= low < high, got {low} and {high}")
    if clamp is not None and not low < clamp < high:
        raise ValueError(f"clamp must lie strictly between {low:g} and {high:g}, got {clamp}; leave it out for none")
    least = low if clamp is None else clamp
    if initial is not None and not least < initial < high:
        raise ValueError(
            f"initial must lie strictly between {least:g} and {high:g}, got {initial}; use Entmax for a fixed alpha"
        )


def _is_number(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return True
