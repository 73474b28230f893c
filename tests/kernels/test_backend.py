"""The choice of a backend: by name, nested, and in several threads at once."""

import contextvars
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import anymax
from anymax.kernels import entmax, library, use_backend
from anymax.kernels.backend import Kernels
from anymax.kernels.entmax import reference

PATHS = {name: f"anymax.kernels.entmax.{name}" for name in ("native", "reference")}
# Both can run everywhere, and native is chosen where none is named.
BOTH = Kernels[Any]("entmax")
for name, path in PATHS.items():
    BOTH._imported[path] = SimpleNamespace(name=name, why_unsupported=lambda scores: None)


def chosen() -> str:
    return BOTH.choose(torch.zeros(1)).name


def test_blocks_nest_and_an_error_inside_one_ends_its_choice() -> None:
    with use_backend("reference"):
        with use_backend("native"):
            assert chosen() == "native"
        assert chosen() == "reference"
        with pytest.raises(ZeroDivisionError), use_backend("native"):
            _ = 1 / 0
        assert chosen() == "reference"
    assert chosen() == "native"


def test_an_unknown_name_is_refused() -> None:
    with (
        pytest.raises(ValueError, match="backend must be one of native, triton, reference, got 'fast'"),
        use_backend("fast"),
    ):
        pass


@pytest.mark.parametrize("first_to_leave", [0, 1])
def test_threads_that_interleave_keep_their_own_choice_and_leave_none_behind(first_to_leave: int) -> None:
    before = library.current_level()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        threads = (one, other)
        blocks: list[AbstractContextManager[None]] = [use_backend("reference"), use_backend("native")]
        levels = [library.use_cpu_level("level of one"), library.use_cpu_level("level of the other")]
        for thread, block, level in zip(threads, blocks, levels, strict=True):
            thread.submit(block.__enter__).result()
            thread.submit(level.__enter__).result()
        assert [thread.submit(chosen).result() for thread in threads] == ["reference", "native"]
        named = [thread.submit(library.current_level).result() for thread in threads]
        assert named == ["level of one", "level of the other"]
        assert chosen() == "native" and library.current_level() == before
        for index in (first_to_leave, 1 - first_to_leave):
            threads[index].submit(levels[index].__exit__, None, None, None).result()
            threads[index].submit(blocks[index].__exit__, None, None, None).result()
        for thread in threads:
            assert thread.submit(chosen).result() == "native"
            assert thread.submit(library.current_level).result() == before


def test_forward_and_backward_of_a_thread_run_in_the_backend_it_named(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, str]] = []

    def recorded(name: str) -> Any:
        def forward(*arguments: Any) -> Any:
            runs.append((name, "forward"))
            return reference.forward(*arguments)

        def backward(*arguments: Any) -> Any:
            runs.append((name, "backward"))
            return reference.backward(*arguments)

        return SimpleNamespace(forward=forward, backward=backward, why_unsupported=reference.why_unsupported)

    for name, path in PATHS.items():
        monkeypatch.setitem(entmax.kernels._imported, path, recorded(name))
    scores = torch.randn(2, 3, requires_grad=True)

    def step() -> list[tuple[str, str]]:
        runs.clear()
        anymax.entmax(scores, 1.5)[:, 0].sum().backward()
        return list(runs)

    def named_step() -> list[tuple[str, str]]:
        with use_backend("reference"):
            return step()

    with use_backend("native"), ThreadPoolExecutor(1) as thread:
        assert thread.submit(named_step).result() == [("reference", "forward"), ("reference", "backward")]
        assert step() == [("native", "forward"), ("native", "backward")]
    with use_backend("reference"), ThreadPoolExecutor(1) as thread:
        # A thread takes the choice along where it is given the context.
        assert thread.submit(step).result() == [("native", "forward"), ("native", "backward")]
        taken_along = contextvars.copy_context().run
        assert thread.submit(taken_along, step).result() == [("reference", "forward"), ("reference", "backward")]


def test_a_compiled_function_runs_in_the_backend_named_around_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    for name, path in PATHS.items():
        backend = SimpleNamespace(**{part: getattr(reference, part) for part in ("backward", "why_unsupported")})
        backend.forward = lambda *tensors, name=name: (names.append(name), reference.forward(*tensors))[1]
        monkeypatch.setitem(entmax.kernels._imported, path, backend)
    torch._dynamo.reset()
    compiled = torch.compile(lambda scores: anymax.entmax(scores, 1.5), fullgraph=True, backend="aot_eager")
    for name in ("reference", "native"):
        with use_backend(name):
            compiled(torch.randn(2, 3))
    assert names == ["reference", "native"]
