"""Triton's kernels beside the reference: on a GPU where there is one, in Triton's interpreter elsewhere.

The interpreter takes milliseconds for each operation of a program, so there are few programs: `make test` runs these,
and `make test-kernels` the contracts of all backends too. Inputs and outputs stand between guard words, since the
interpreter checks no bounds, and outputs begin as NaN.
"""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import anymax
from anymax.kernels import use_backend
from anymax.kernels.attention import reference as attention_reference
from anymax.kernels.attention.protocol import Choice
from anymax.kernels.entmax import reference as entmax_reference
from tests.each import each

pytest.importorskip("triton", reason="triton is not installed")

from anymax.kernels.attention import triton as attention_triton
from anymax.kernels.entmax import triton as entmax_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and not entmax_triton.is_interpreted():
    pytest.skip("Triton was imported without TRITON_INTERPRET=1", allow_module_level=True)

GUARD = 64
ALPHAS = [0.0, 0.5, 1.0, 1.00001, 1.3, 1.5, 2.0, 3.0, 9.0]


class Guards:
    """Memory in which every tensor stands between words that nobody may change."""

    def __init__(self) -> None:
        self.buffers: list[tuple[Tensor, int]] = []

    def empty(self, shape: Any, dtype: torch.dtype) -> Tensor:
        numel = math.prod(shape)
        word = math.nan if dtype.is_floating_point else 77
        buffer = torch.full((numel + 2 * GUARD,), word, dtype=dtype, device=DEVICE)
        self.buffers.append((buffer, numel))
        return buffer[GUARD : GUARD + numel].view(shape)

    def holding(self, tensor: Tensor) -> Tensor:
        """A copy with the same strides, which reads NaN where it is read outside."""
        order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
        copy = self.empty([tensor.shape[dim] for dim in order], tensor.dtype)
        return copy.permute([order.index(dim) for dim in range(tensor.dim())]).copy_(tensor)

    def check(self) -> None:
        for buffer, numel in self.buffers:
            for words in (buffer[:GUARD], buffer[GUARD + numel :]):
                assert bool((words.isnan() if buffer.is_floating_point() else words == 77).all())


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guards]:
    """Guard words around all that is allocated without a value."""
    guards = Guards()

    def empty_like(like: Tensor, **_: Any) -> Tensor:
        return guards.empty(like.shape, like.dtype)

    def new_empty(like: Tensor, *shape: Any, **_: Any) -> Tensor:
        return guards.empty(shape[0] if isinstance(shape[0], (tuple, torch.Size)) else shape, like.dtype)

    monkeypatch.setattr(torch, "empty_like", empty_like)
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    yield guards
    guards.check()


def assert_close(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    """By the largest number, as sums are rounded; NaN and infinity where they are wanted."""
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    largest = wanted.float().nan_to_num(0, 0, 0).abs().max().item() if wanted.numel() else 0.0
    eps = torch.finfo(wanted.dtype).eps
    atol = tolerance * max(1.0, largest)
    torch.testing.assert_close(got.float(), wanted.float(), rtol=2 * eps, atol=atol, equal_nan=True)


@each("n", [1, 45, 300])
@each("dtype", [torch.float32, torch.float16])
def test_rows_and_their_gradients_are_those_of_the_reference(
    guards: Guards, monkeypatch: pytest.MonkeyPatch, n: int, dtype: torch.dtype
) -> None:
    if n == 300:
        # As rows of ten thousands.
        monkeypatch.setattr(entmax_triton, "LONGEST_ON_CHIP", 200)
        monkeypatch.setattr(entmax_triton, "PART", 128)
    num_rows = len(ALPHAS)
    scores = torch.randn(1, num_rows, n) * torch.tensor([0.1, 1.0, 5.0]).repeat(3)[:, None]
    mask = (torch.rand(num_rows, n) < 0.8) if n > 1 else None
    if n > 1:
        scores[0, 2, 1], scores[0, 5, 0] = math.nan, math.inf
        mask[4] = False
        mask[5, 0] = mask[2, 1] = True
    scores = guards.holding(scores.to(dtype).to(DEVICE))
    alpha = guards.holding(torch.tensor(ALPHAS, device=DEVICE))
    mask = None if mask is None else mask.to(DEVICE)
    wanted = entmax_reference.forward(scores, alpha, mask)
    assert_close(entmax_triton.forward(scores, alpha, mask), wanted, 1e-6)
    grad, probs = guards.holding(torch.randn(wanted.shape, device=DEVICE).to(dtype)), guards.holding(wanted)
    by_scores, by_alpha = entmax_triton.backward_both(grad, probs, alpha, mask)
    wanted_by_scores, wanted_by_alpha = entmax_reference.backward_both(grad, probs, alpha, mask)
    assert_close(by_scores, wanted_by_scores, 1e-5)
    assert_close(by_alpha, wanted_by_alpha, 2e-5)
    if n > 1:
        assert (by_scores[0, 4] == 0).all() and (by_alpha[4] == 0)
    if n == 45:
        # At alpha 0 the conjugate is infinite.
        got, wanted_both = (kernel.conjugate(scores[:, 1:], alpha[1:]) for kernel in (entmax_triton, entmax_reference))
        for one, other in zip(got, wanted_both, strict=True):
            assert_close(one, other, 1e-6)


def given(guards: Guards, dtype: torch.dtype, shape: tuple[int, ...], alphas: list[float], **options: Any) -> Any:
    """Queries, keys, values and a choice, with heads beside each other as a linear layer leaves them."""
    batch, heads, groups, num_queries, num_keys, width, value_width = shape

    def vectors(heads: int, length: int, width: int) -> Tensor:
        return guards.holding(torch.randn(batch, length, heads, width, device=DEVICE).to(dtype).transpose(1, 2))

    tensors = (
        vectors(heads, num_queries, width),
        vectors(groups, num_keys, width),
        vectors(groups, num_keys, value_width),
    )
    alpha = torch.tensor(alphas, device=DEVICE).expand(batch, heads).contiguous()
    sink = torch.randn(batch, heads, device=DEVICE) if options.get("sink") else None
    seed = torch.tensor(2**63 - 7, device=DEVICE) if options.get("dropout") else None
    mask = options.get("mask")
    mask = mask if mask is None else mask.to(DEVICE)
    choice = Choice(alpha, mask, sink, seed, 0.4, options.get("dropout", 0.0), options.get("causal_offset"))
    return *tensors, choice


def compare(guards: Guards, arguments: Any, *, keeps_lists: bool, tolerance: float) -> None:
    dtype = arguments[0].dtype
    grad = guards.holding(torch.randn(*arguments[0].shape[:3], arguments[2].shape[3], device=DEVICE).to(dtype))
    results = []
    for kernel in (attention_triton, attention_reference):
        gathered = kernel.forward(*arguments, keeps_lists=keeps_lists)
        results.append((*gathered[:2], *kernel.backward(grad, *arguments, gathered, wants_alpha=True)))
    for got, wanted in zip(*results, strict=True):
        assert_close(got, wanted, tolerance if dtype == torch.float32 else 2e-3)


@each("is_whole", [True, False])
@each("dtype", [torch.float32, torch.float16])
def test_attention_and_its_gradients_are_those_of_the_reference(
    guards: Guards, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, is_whole: bool
) -> None:
    monkeypatch.setattr(attention_triton, "longest_on_chip", lambda dtype: 128 if is_whole else 0)
    some = torch.rand(1, 2, 19, 70) < 0.5
    some[:, :, 3] = False
    added = torch.randn(19, 1, 1, 70).permute(1, 2, 0, 3)
    grouped, wide = (1, 2, 1, 19, 70, 16, 40), (1, 1, 1, 19, 70, 70, 70)
    compare(guards, given(guards, dtype, grouped, [1.5, 1.0], mask=some), keeps_lists=True, tolerance=2e-5)
    options = {"sink": True, "dropout": 0.3, "causal_offset": 20}
    compare(guards, given(guards, dtype, grouped, [2.0, 0.5], **options), keeps_lists=False, tolerance=2e-5)
    compare(guards, given(guards, dtype, wide, [1.3], mask=added), keeps_lists=True, tolerance=2e-5)
    # Where an entry enters above alpha 2 its slope is infinite.
    if dtype == torch.float32:
        compare(guards, given(guards, dtype, wide, [2.5], sink=True), keeps_lists=False, tolerance=2e-4)


@each("is_whole", [True, False])
def test_nan_stays_in_its_row_and_ends_no_search_too_late(
    guards: Guards, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    monkeypatch.setattr(attention_triton, "longest_on_chip", lambda dtype: 128 if is_whole else 0)
    for alphas in ([1.0, 1.5], [3.0, 0.5]):
        query, key, value, choice = given(guards, torch.float32, (1, 2, 2, 19, 40, 16, 16), alphas)
        query[0, 1, 3, 2] = math.nan
        gathered = attention_triton.forward(query, key, value, choice, keeps_lists=True)
        is_nan = gathered.out_BHQF.isnan()
        assert is_nan[0, 1, 3].all() and is_nan.sum() == 16
        assert gathered.shift_BHQ.isnan().nonzero().tolist() == [[0, 1, 3]]
        grad = torch.randn(1, 2, 19, 16, device=DEVICE)
        found = attention_triton.backward(grad, query, key, value, choice, gathered, wants_alpha=True)
        assert found.query_BHQE.isnan().any(-1).nonzero().tolist() == [[0, 1, 3]]
        # The other head hears nothing of it.
        assert not any(part[:, 0].isnan().any() for part in found)


def test_rows_with_nothing_to_attend_to_give_zeros_and_zero_gradients(guards: Guards) -> None:
    for num_keys in (5, 0):
        for sink in (False, True):
            mask = torch.zeros(1, 1, 1, num_keys, dtype=torch.bool)
            arguments = given(guards, torch.float32, (1, 1, 1, 3, num_keys, 4, 4), [1.5], mask=mask, sink=sink)
            gathered = attention_triton.forward(*arguments, keeps_lists=False)
            grad = torch.randn(1, 1, 3, 4, device=DEVICE)
            found = attention_triton.backward(grad, *arguments, gathered, wants_alpha=True)
            assert all((part == 0).all() for part in (gathered.out_BHQF, *found))
            assert sink or (gathered.shift_BHQ == math.inf).all()


def test_the_streaming_kernels_skip_tiles_in_which_no_probability_can_be(
    guards: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_triton, "longest_on_chip", lambda dtype: 0)
    blocks = attention_triton.blocks_of_tiles((16, 16), torch.float32)
    num_tiles = 6
    query, key, value, choice = given(guards, torch.float32, (1, 1, 1, 20, num_tiles * blocks.keys, 16, 16), [1.5])
    # All look for the keys of one tile; after the first, those of the tile before are too far as well.
    query.copy_(torch.nn.functional.one_hot(torch.zeros(20, dtype=torch.long), 16) * 10.0)
    key[0, 0, :, 0] = torch.arange(num_tiles, device=DEVICE).repeat_interleave(blocks.keys).flip(0) * 3.0
    visited = {
        name: torch.zeros(num, dtype=torch.int32, device=DEVICE) for name, num in (("forward", 1), ("queries", 1))
    }
    visited["keys"] = torch.zeros(num_tiles, dtype=torch.int32, device=DEVICE)
    monkeypatch.setattr(attention_triton, "visited", visited)
    gathered = attention_triton.forward(query, key, value, choice, keeps_lists=True)
    assert gathered.lists.tolist() == [1, 0, 0, 0, 0, 0]
    # All once for the maximum, then one tile for each step of the search and for the result.
    num_steps = visited["forward"].item() - num_tiles
    assert 2 <= num_steps <= 8
    grad = torch.randn(1, 1, 20, 16, device=DEVICE)
    attention_triton.backward(grad, query, key, value, choice, gathered, wants_alpha=True)
    assert visited["queries"].item() == 2
    assert visited["keys"].tolist() == [1, 0, 0, 0, 0, 0]
    # Without lists the backward finds out for itself.
    gathered = attention_triton.forward(query, key, value, choice, keeps_lists=False)
    assert gathered.lists.numel() == 0
    attention_triton.backward(grad, query, key, value, choice, gathered, wants_alpha=True)
    assert visited["queries"].item() == num_tiles + 1
    assert visited["keys"].tolist() == [1, 0, 0, 0, 0, 0]


def test_public_functions_run_in_it_by_name() -> None:
    query, key, value = (torch.randn(1, 2, 5, 8, device=DEVICE, requires_grad=True) for _ in range(3))
    alpha = torch.tensor([1.2, 1.8], device=DEVICE, requires_grad=True)
    results = []
    for name in ("triton", "reference"):
        with use_backend(name):
            out = anymax.entmax_attention(query, key, value, alpha, is_causal=True)
            probs = anymax.entmax(query[0], alpha[:, None, None])
            loss = anymax.entmax_loss(query[0, 0], torch.zeros(5, dtype=torch.long, device=DEVICE))
            total = out.square().sum() + probs.square().sum() + loss
            results.append((out, probs, loss, *torch.autograd.grad(total, (query, key, value, alpha))))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_what_it_cannot_take_it_refuses_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(2, 3, device=DEVICE)
    with (
        use_backend("triton"),
        pytest.raises(RuntimeError, match=r"triton backend.*takes float16, bfloat16 and float32"),
    ):
        anymax.softmax(scores.double())
    with use_backend("triton"), pytest.raises(RuntimeError, match="this kernel has no such backend"):
        anymax.PLIF(pieces=3).to(DEVICE)(scores)
    if DEVICE == "cpu":
        with use_backend("triton"), pytest.raises(RuntimeError, match="interpreter cuts bfloat16 off"):
            anymax.softmax(scores.bfloat16())
    monkeypatch.setattr(entmax_triton, "is_interpreted", lambda: False)
    with use_backend("triton"), pytest.raises(RuntimeError, match=r"runs on GPUs.*TRITON_INTERPRET=1"):
        anymax.softmax(scores.cpu())
