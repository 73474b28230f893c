"""Many values of one fact in one test case, where a case for each would cost more than it tells."""

import functools
import inspect
from collections.abc import Callable, Iterable

import pytest
import torch

Test = Callable[..., None]


def each(names: str | tuple[str, ...], values: Iterable[object]) -> Callable[[Test], Test]:
    """Run the test once per value, each run with the same seed. A failure names the value it failed for.

    Takes one name, or a tuple of names, and values as `pytest.mark.parametrize` does. Fixtures are set up once for all
    values, so the test must leave them as they were.
    """
    keys = [names] if isinstance(names, str) else list(names)
    rows = [(value,) if isinstance(names, str) else tuple(value) for value in values]
    cases = [dict(zip(keys, row, strict=True)) for row in rows]
    assert cases, f"nothing to run for {names}"

    def decorate(test: Test) -> Test:
        parameters = inspect.signature(test).parameters
        assert set(keys) <= set(parameters), f"{test.__name__} takes no {names}"

        @functools.wraps(test)
        def looped(**fixtures: object) -> None:
            for case in cases:
                torch.manual_seed(0)
                try:
                    test(**fixtures, **case)
                except pytest.skip.Exception as skip:
                    raise AssertionError(f"a skip would hide the values after {case}; leave it out instead") from skip
                except BaseException as error:
                    error.add_note(f"failed for {', '.join(f'{key}={value!r}' for key, value in case.items())}")
                    raise

        rest = [parameter for name, parameter in parameters.items() if name not in keys]
        looped.__signature__ = inspect.Signature(rest)
        return looped

    return decorate
