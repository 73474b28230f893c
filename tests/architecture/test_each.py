"""The loop that replaces a case per value runs every value, with the same seed, and says which one failed."""

import inspect

import pytest
import torch

from tests.each import each


def test_every_value_is_run_with_the_same_seed() -> None:
    seen = []

    @each(("size", "name"), [(1, "a"), (2, "b")])
    @each("flag", [True, False])
    def collect(flag: bool, size: int, name: str, fixture: str) -> None:
        seen.append((size, name, flag, fixture, torch.rand(()).item()))

    assert list(inspect.signature(collect).parameters) == ["fixture"]
    collect(fixture="given")
    wanted = [(1, "a", True), (1, "a", False), (2, "b", True), (2, "b", False)]
    assert [row[:4] for row in seen] == [(*row, "given") for row in wanted]
    assert len({row[4] for row in seen}) == 1


def test_a_failure_names_the_value() -> None:
    @each("size", [1, 2, 3])
    def fails(size: int) -> None:
        if size == 2:
            pytest.fail("wrong")

    with pytest.raises(pytest.fail.Exception) as caught:
        fails()
    assert caught.value.__notes__ == ["failed for size=2"]


def test_a_skip_does_not_hide_the_values_after_it() -> None:
    @each("size", [1, 2])
    def skips(size: int) -> None:
        pytest.skip("not here")

    with pytest.raises(AssertionError, match="a skip would hide the values after"):
        skips()


def test_no_values_and_names_that_are_no_arguments_are_refused() -> None:
    with pytest.raises(AssertionError, match="nothing to run for size"):
        each("size", [])
    with pytest.raises(AssertionError, match="<lambda> takes no width"):
        each("width", [1])(lambda size: None)
