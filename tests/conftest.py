"""Shared by all tests: a seed for each, and the engines that kernels and everything above them are run through."""

import os
from collections.abc import Iterator

import pytest

# Some virtual machines announce AMX but end a process that uses it, as torch's bfloat16 products do. Read by torch at
# its first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch

# Read by Triton when it is imported: without a GPU its kernels run in the interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from anymax.kernels import library, use_backend

ENGINES = ["reference", *(f"native-{level}" for level in library.machine_levels())]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Texts that tests encode are kept apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYMAX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For files whose models only wait for a second thread, and long where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each backend, and the native one at each instruction level this machine can run."""
    backend, _, level = request.param.partition("-")
    with library.use_cpu_level(level or library.machine_levels()[-1]):
        if backend == "native" and library.why_missing() is not None:
            pytest.skip(library.why_missing())
        with use_backend(backend):
            yield request.param
