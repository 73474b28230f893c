"""Checks that configs share; nothing here imports torch."""

import math


def check_counts(least: int = 1, **values: int | None) -> None:
    """Whole numbers of at least `least`; None stands for a choice that was not made."""
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def check_positive(**values: float | None) -> None:
    """Finite numbers above zero; None stands for a choice that was not made."""
    for name, value in values.items():
        if value is not None and not (_is_number(name, value) and 0 < value < math.inf):
            raise ValueError(f"{name} must be above 0 and finite, got {value}")


def check_not_negative(**values: float) -> None:
    """Finite numbers of at least zero."""
    for name, value in values.items():
        if not (_is_number(name, value) and 0 <= value < math.inf):
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")


def check_shares(**values: float) -> None:
    """Numbers from 0 to 1."""
    for name, value in values.items():
        if not (_is_number(name, value) and 0 <= value <= 1):
            raise ValueError(f"{name} must lie from 0 to 1, got {value}")


def _is_number(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return True
