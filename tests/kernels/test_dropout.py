"""The dropout kernel: every backend gives the bits of the definition, at every level, layout and number of threads."""

import pytest
import torch
from torch import Tensor

from anymax.kernels import dropout as kernel
from anymax.kernels import library, use_backend
from anymax.kernels.dropout import native, reference
from tests.each import each

needs_native = pytest.mark.skipif(library.why_missing() is not None, reason=f"{library.why_missing()}")
every_level = pytest.mark.parametrize("level", library.machine_levels())
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
WORD = 2**32


def draw(shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Entries, and seeds of either sign."""
    return torch.randn(shape, dtype=torch.float64).to(dtype), torch.randint(-(2**63), 2**63 - 1, shape[:1])


def written_out(seed: int, number: int) -> int:
    """The random bits of one entry, with Python's integers."""
    word, low = divmod(number, WORD)
    z = (seed + (word + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    z ^= z >> 31
    x = (z % WORD + low * 0x9E3779B9) % WORD
    x = ((x ^ (x >> 16)) * 0x7FEB352D % WORD) ^ (z >> 32)
    return (x ^ (x >> 14)) * 0x846CA68B % WORD


@each("seed", [0, 1, -1, 2**63 - 1, -(2**63), 123_456_789_012])
@each("first", [0, 5, 2**31 - 2, WORD - 3, WORD, 7 * WORD + 11, 2**40 - 2])
def test_the_random_bits_are_those_of_the_formula(seed: int, first: int) -> None:
    bits = reference.random_bits(torch.tensor([seed]), first, 6)
    assert bits.tolist() == [[written_out(seed, number) for number in range(first, first + 6)]]


@needs_native
@every_level
@each("first", [0, 3, 2**15 - 1, WORD - 20_000, 3 * WORD - 7])
def test_a_row_in_pieces_gives_the_row_across_the_border_of_words(level: str, first: int) -> None:
    entries, seeds = draw((2, 40_001))
    whole = reference.forward(entries, seeds, 0.3, first)
    with library.use_cpu_level(level):
        assert torch.equal(native.forward(entries, seeds, 0.3, first), whole)
        for start, end in ((0, 1), (1, 20_001), (20_001, 40_001)):
            piece = entries[:, start:end].contiguous()
            assert torch.equal(native.forward(piece, seeds, 0.3, first + start), whole[:, start:end])
            assert torch.equal(reference.forward(piece, seeds, 0.3, first + start), whole[:, start:end])


@needs_native
@pytest.mark.parametrize("num_threads", [1, 2, 3, 64])
def test_the_number_of_threads_changes_nothing(num_threads: int) -> None:
    entries, seeds = draw((3, 150_001))
    expected = reference.forward(entries, seeds, 0.5)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(native.forward(entries, seeds, 0.5), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("engine")
def test_an_entry_whose_bits_are_the_threshold_is_kept_and_the_next_rate_drops_it() -> None:
    # More entries than the widest vector has, so that vectors and what is left over are both asked.
    entries, seeds = torch.ones(1, 37), torch.tensor([5])
    for number in (0, 11, 36):
        bits = written_out(5, number)
        assert kernel.dropout(entries, seeds, bits / WORD)[0, number] > 0
        assert kernel.dropout(entries, seeds, (bits + 1) / WORD)[0, number] == 0


@pytest.mark.usefixtures("engine")
@each("dtype", DTYPES)
@each("value", [torch.nan, torch.inf, -torch.inf, -1.0, 60_000.0])
def test_what_is_dropped_is_zero_whatever_it_was_and_the_rest_is_scaled(dtype: torch.dtype, value: float) -> None:
    entries = torch.full((1, 1001), value, dtype=dtype)
    seeds = torch.tensor([3])
    kept = reference.random_bits(seeds, 0, 1001) >= 2**30
    result = kernel.dropout(entries, seeds, 0.25)
    assert (result[~kept] == 0).all() and not result[~kept].signbit().any()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = (torch.tensor(value, dtype=dtype).to(wide) * (4 / 3)).to(dtype)
    torch.testing.assert_close(result[kept], expected.expand(int(kept.sum())), rtol=0, atol=0, equal_nan=True)


def test_the_mean_is_kept_exactly_at_every_rate() -> None:
    for rate in (1e-12, 1e-9, 0.1, 0.5, 0.7, 1 - 1e-9):
        share = 1 - reference.threshold(rate) / WORD
        assert abs(share - (1 - rate)) <= 2**-33
        assert reference.scale(rate) * share == pytest.approx(1, abs=1e-15)
    assert reference.threshold(0.5) == 2**31 and reference.scale(0.5) == 2
    assert reference.threshold(1.0) == WORD and reference.scale(1.0) == 0


@pytest.mark.usefixtures("engine")
def test_vmap_over_either_argument_equals_a_loop() -> None:
    entries, _ = draw((4 * 3, 50))
    entries = entries.reshape(4, 3, 50)
    seeds = torch.arange(12).reshape(4, 3)
    for dims in ((0, 0), (0, None), (None, 0)):
        given = [tensor if dim == 0 else tensor[0] for tensor, dim in zip((entries, seeds), dims, strict=True)]
        result = torch.vmap(kernel.dropout, (*dims, None))(*given, 0.4)
        loop = [kernel.dropout(entries[i * (dims[0] == 0)], seeds[i * (dims[1] == 0)], 0.4) for i in range(4)]
        assert torch.equal(result, torch.stack(loop))
    at_the_back = torch.vmap(kernel.dropout, (2, 1, None))(entries.movedim(0, 2), seeds.T, 0.4)
    assert torch.equal(at_the_back, torch.vmap(kernel.dropout, (0, 0, None))(entries, seeds, 0.4))


@pytest.mark.parametrize("seeds", [torch.zeros(2, dtype=torch.int64), torch.zeros(3), torch.tensor(1)])
def test_seeds_that_do_not_fit_the_rows_are_refused(seeds: Tensor) -> None:
    with pytest.raises(ValueError, match="seed must be int64 with one entry per row, 3, got"):
        kernel.dropout(torch.ones(3, 4), seeds, 0.5)


@needs_native
def test_a_named_backend_says_why_it_cannot_run() -> None:
    with use_backend("native"), pytest.raises(RuntimeError, match=r"and the entries are torch.int64"):
        kernel.dropout(torch.ones(3, 4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), 0.5)
