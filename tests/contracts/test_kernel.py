"""What every backend of every operator promises: the results of the reference, forward and backward.

A backend joins by one line in BACKENDS, an operator by one in OPERATORS.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from anymax.kernels import attention, backend, cross_entropy, dropout, entmax, library, matmul, plif, use_backend
from anymax.kernels.attention.protocol import Choice
from tests.slow_kernels import RUNS_SLOW_KERNELS

# Each with the instruction level it runs at, where it has levels.
BACKENDS = [("native", level) for level in library.machine_levels()]
# In Triton's interpreter, which takes minutes: `make test-kernels` asks for it.
BACKENDS += [("triton", "")] * RUNS_SLOW_KERNELS
HALF = [torch.float16, torch.bfloat16]
FULL = [torch.float32, torch.float64]


class Call(NamedTuple):
    """Something to ask of a backend: the tensor that chooses it, the call, and how far the results may be off."""

    chosen_by: Tensor
    run: Callable[[Any], tuple[Tensor, ...]]
    rtol: float
    atol: float


def drawn(shape: tuple[int, ...], dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, dtype=torch.float64) * scale).to(dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype


ALPHAS = [1.0, 1.00001, 1.01, 1.05, 1.1, 1.33, 1.5, 1.7, 1.9, 1.99, 2.0, 2.5, 4.0]
WIDTHS = [1, 2, 3, 7, 8, 9, 31, 32, 33, 64, 127, 128, 129, 255, 600, 5000]
MASKED = [((11, 33), (11, 33)), ((3, 1, 9), (9,)), ((2, 3, 5, 17), (5, 17)), ((2, 3, 5, 200), (2, 1, 1, 200))]


def entmax_calls() -> Iterator[Call]:
    for dtype, alpha, n in product(FULL, ALPHAS, WIDTHS):
        for scale in (0.05, 1.0, 6.0):
            yield from rows_of_entmax(drawn((11, n), dtype, scale), torch.tensor([alpha], dtype=dtype), None)
    for alpha, num_rows in product(ALPHAS, (0, 1, 40)):
        yield from rows_of_entmax(torch.randn(num_rows, 0), torch.tensor([alpha]), None)
    for dtype, (shape, mask_shape) in product([*HALF, *FULL], MASKED):
        num_rows = drawn(shape, dtype)[..., 0].numel()
        alpha = torch.tensor(ALPHAS, dtype=wide(dtype))[torch.randint(len(ALPHAS), (num_rows,))]
        for mask in (None, torch.rand(mask_shape) < 0.6, torch.zeros(mask_shape, dtype=torch.bool)):
            for alphas in (alpha, alpha[:1]):
                yield from rows_of_entmax(drawn(shape, dtype, 2.0), alphas, mask)
    for dtype in FULL:
        yield from lists_of_entmax(dtype)


def rows_of_entmax(scores: Tensor, alpha: Tensor, mask: Tensor | None) -> Iterator[Call]:
    """All that a row gives, in its own dtype."""
    atol = 1e-9 if scores.dtype == torch.float64 else 3e-6
    rtol = torch.finfo(scores.dtype).eps if scores.dtype in HALF else 0.0
    yield Call(scores, lambda kernel: (kernel.forward(scores, alpha, mask),), rtol, atol)
    yield Call(scores, lambda kernel: kernel.conjugate(scores, alpha), max(rtol, 1e-6), atol)
    probs = entmax.kernels._import("anymax.kernels.entmax.reference").forward(scores, alpha, mask)
    grad = drawn(tuple(scores.shape), scores.dtype)
    tolerance = max(rtol, 2e-5)
    one = Call(scores, lambda kernel: (kernel.backward(grad, probs, alpha, mask),), tolerance, 2e-5)
    both = Call(scores, lambda kernel: kernel.backward_both(grad, probs, alpha, mask), tolerance, 2e-5)
    yield from (one, both)


def lists_of_entmax(dtype: torch.dtype) -> Iterator[Call]:
    """Rows in place without lists, and the products of lists."""
    for num_rows, n, wants_by_alpha in ((5, 9, True), (3, 700, False), (7, 64, True)):
        scores, alpha = drawn((num_rows, n), dtype, 4.0), torch.tensor([1.5], dtype=dtype)

        def in_place(
            kernel: Any, scores: Tensor = scores, alpha: Tensor = alpha, by_alpha: bool = wants_by_alpha
        ) -> Any:
            rows = scores.clone()
            support = kernel.support_(rows, alpha, 0, by_alpha)
            assert support.counts_R is None
            return rows, *(part for part in support if part is not None)

        yield Call(scores, in_place, 1e-6, 3e-6)
    for (n, dim), stored in product(((40, 1), (701, 6)), [dtype, *(HALF if dtype == torch.float32 else ())]):
        counts = torch.tensor([0, 1, n // 2, 5])
        rows = lists(counts, n, dtype)
        target, coefficient = torch.randint(n, (4,)), drawn((4,), dtype)
        weight, hidden = drawn((n, dim), stored), drawn((4, dim), dtype)
        before = (drawn((4, dim), dtype), drawn((n, dim), dtype), drawn((n,), dtype))
        given = (rows, counts, target, coefficient, weight, hidden)
        for wanted in product((True, False), repeat=3):

            def products(kernel: Any, given: Any = given, before: Any = before, wanted: Any = wanted) -> Any:
                into = [part.clone() if is_wanted else None for part, is_wanted in zip(before, wanted, strict=True)]
                names = ("into_hidden_RD", "into_weight_ND", "into_bias_N")
                kernel.add_products(*given, peak=0.9, **dict(zip(names, into, strict=True)))
                return tuple(part for part in into if part is not None)

            eps = torch.finfo(dtype).eps
            yield Call(rows, products, 30 * eps, 30 * eps)


def lists(counts: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Rows with as many probabilities at the front as the counts say, and their places at the back."""
    rows = torch.full((len(counts), n), torch.nan, dtype=dtype)
    for row, count in zip(rows, counts.tolist(), strict=True):
        row[:count] = torch.rand(count, dtype=dtype)
        row.view(torch.int32)[2 * n - count if dtype == torch.float64 else n - count :] = torch.randperm(n)[
            :count
        ].int()
    return rows


def plif_calls() -> Iterator[Call]:
    shapes = [(), (1,), (3,), (7,), (0,), (2, 0, 3), (5, 13), (2, 3, 9), (4099,), (150, 131)]
    for dtype, shape, num_pieces in product([*HALF, *FULL], shapes, (1, 2, 5, 1000)):
        # Partly outside a bound of 2.
        grad, scores = drawn(shape, dtype), drawn(shape, dtype, 1.5)
        slopes = (torch.rand(num_pieces, dtype=torch.float64) * 2).to(wide(dtype))
        eps, total = 4 * torch.finfo(dtype).eps, max(float(grad.abs().sum()), 1.0)
        given = (grad, scores, slopes, 2.0)
        yield Call(scores, lambda kernel, given=given: (kernel.forward(*given[1:]),), eps, 4 * eps)
        yield Call(scores, lambda kernel, given=given: (kernel.backward(*given),), eps, eps)
        yield Call(scores, lambda kernel, given=given: kernel.backward_both(*given)[:1], eps, eps)
        eps = 4 * torch.finfo(slopes.dtype).eps
        yield Call(scores, lambda kernel, given=given: kernel.backward_both(*given)[1:], eps, eps * total)


def dropout_calls() -> Iterator[Call]:
    """To the bit: the mask is a function of the seed."""
    shapes = [(1, 1), (1, 7), (3, 8), (2, 9), (0, 5), (2, 0), (5, 33), (1, 4099), (3, 40_001)]
    for dtype, rate, shape in product([*HALF, *FULL], (1e-9, 0.1, 0.5, 0.9, 1 - 1e-9, 1.0), shapes):
        given = (drawn(shape, dtype), torch.randint(-(2**63), 2**63 - 1, shape[:1]), rate)
        yield Call(given[0], lambda kernel, given=given: (kernel.forward(*given),), 0.0, 0.0)


def cross_entropy_calls() -> Iterator[Call]:
    for dtype, n, smoothing, wants_gradient in product(FULL, (1, 7, 64, 65, 4097), (0.0, 0.1), (True, False)):
        scores, target = drawn((5, n), dtype, 3.0), torch.randint(n, (5,))

        def in_place(
            kernel: Any,
            scores: Tensor = scores,
            target: Tensor = target,
            smoothing: float = smoothing,
            wants_gradient: bool = wants_gradient,
        ) -> Any:
            rows = scores.clone()
            losses = kernel.cross_entropy_(rows, target, smoothing, wants_gradient)
            return (losses, rows) if wants_gradient else (losses,)

        eps = torch.finfo(dtype).eps
        yield Call(scores, in_place, 40 * eps, 40 * eps)
        hidden, weight, bias = drawn((5, 3), dtype), drawn((n, 3), dtype), drawn((n,), dtype)
        given = (hidden, weight, bias, target, smoothing, drawn((5,), dtype) if wants_gradient else None)

        def layer(kernel: Any, given: Any = given) -> Any:
            losses, gradients = kernel.layer_cross_entropy(*given, (True, True, True))
            assert all((gradient is None) == (given[-1] is None) for gradient in gradients)
            return losses, *(gradient for gradient in gradients if gradient is not None)

        yield Call(hidden, layer, 40 * eps, 40 * eps)


def matmul_calls() -> Iterator[Call]:
    """By rows and by columns; of no, of fewer and of more rows, columns and sums than a tile or a part has."""
    shapes = [(1, 1, 1), (0, 5, 3), (5, 0, 3), (5, 3, 0), (3, 5, 7), (15, 17, 33), (14, 600, 32), (100, 70, 300)]
    halves = [(torch.float32, torch.bfloat16, torch.float16), (torch.float32, torch.float32, torch.bfloat16)]
    for dtypes, (m, k, n), by_columns in product(
        [*((dtype,) * 3 for dtype in FULL), *halves], [*shapes, (530, 90, 40)], product((False, True), repeat=2)
    ):
        dtype, of_a, of_b = dtypes
        a = drawn((k, m), of_a).T if by_columns[0] else drawn((m, k), of_a)
        b = drawn((n, k), of_b).T if by_columns[1] else drawn((k, n), of_b)
        before = drawn((m, n + 3), dtype)
        for bias, adds in ((None, False), (drawn((n,), of_b), False), (None, True)):

            def into(kernel: Any, before: Tensor = before, given: Any = (a, b, bias, adds)) -> Any:
                wider = before.clone()
                kernel.matmul_(wider[:, :-3], *given)
                return (wider,)

            eps = torch.finfo(dtype).eps
            yield Call(before, into, 400 * eps, 400 * eps)


def attention_calls() -> Iterator[Call]:
    """Of one query and of several blocks of them, short rows and long ones, few keys chosen and many."""
    alphas = [0.0, 0.5, 0.7, 1.0, 1.05, 1.3, 1.5, 1.8, 2.0, 3.0]
    shapes = [(1, 1, 1, 1, 1, 1, 1), (2, 4, 2, 5, 7, 3, 5), (2, 1, 1, 3, 0, 4, 4), (1, 3, 1, 20, 130, 16, 32)]
    shapes += [(1, 2, 1, 33, 300, 64, 64), (1, 2, 2, 70, 600, 40, 70)]
    for number, (dtype, shape, scale) in enumerate(product([*FULL, *HALF], shapes, (0.3, 2.0))):
        batch, heads, groups, num_queries, num_keys, width, value_width = shape
        # Heads beside each other, as a linear layer leaves them.
        query = drawn((batch, num_queries, heads, width), dtype).transpose(1, 2)
        key = drawn((batch, num_keys, groups, width), dtype).transpose(1, 2)
        value = drawn((batch, groups, num_keys, value_width), dtype)
        grad = drawn((batch, heads, num_queries, value_width), dtype)
        alpha = torch.tensor(alphas)[torch.arange(number, number + batch * heads) % len(alphas)]
        alpha_BH = alpha.view(batch, heads).to(wide(dtype))
        sink_BH, seed = drawn((batch, heads), wide(dtype)), torch.tensor(2**63 - 1)
        masks = [None, torch.rand(batch, 1, 1, num_keys) < 0.7, torch.rand(1, heads, num_queries, num_keys) < 0.4]
        masks += [drawn((num_keys, batch, 1, num_queries), wide(dtype)).permute(1, 2, 3, 0)]
        for mask, sink, dropout_rate, offset in zip(
            masks,
            (None, sink_BH, sink_BH, None),
            (0.0, 0.0, 0.3, 1.0),
            (None, None, num_keys - num_queries, 0),
            strict=True,
        ):
            choice = Choice(alpha_BH, mask, sink, seed if dropout_rate else None, scale, dropout_rate, offset)
            given = (query, key, value, choice)

            def both(kernel: Any, given: Any = given, grad: Tensor = grad) -> tuple[Tensor, ...]:
                gathered = kernel.forward(*given, keeps_lists=False)
                return *gathered[:2], *kernel.backward(grad, *given, gathered, wants_alpha=True)

            eps = torch.finfo(dtype).eps
            rtol, atol = (
                (4 * eps, eps * num_keys**0.5)
                if dtype in HALF
                else (1e-4, 2e-4)
                if dtype == torch.float32
                else (1e-9, 1e-9)
            )
            yield Call(query, both, rtol, atol)


class Operator(NamedTuple):
    """The backends of an operator, the calls that compare them, and its torch operators with arguments of a dtype."""

    kernels: backend.Kernels[Any]
    calls: Callable[[], Iterator[Call]]
    rules: Callable[[torch.dtype], list[tuple[Any, tuple[Any, ...]]]]


def entmax_rules(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    scores, alpha = drawn((3, 5), dtype), torch.tensor([1.5], dtype=wide(dtype))
    found = [(entmax.entmax_conjugate, (scores, alpha))]
    for mask in (None, torch.rand(5) < 0.7):
        probs = entmax.entmax(scores, alpha, mask)
        arguments = (probs + 1, probs, alpha, mask)
        found += [(entmax.entmax, (scores, alpha, mask))]
        found += [(entmax.entmax_backward, arguments), (entmax.entmax_backward_both, arguments)]
    return found


def plif_rules(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    grad, scores, slopes = drawn((3, 5), dtype), drawn((3, 5), dtype), torch.rand(7)
    found = []
    for layout in (scores, scores.T.contiguous().T):
        arguments = (grad, layout, slopes, 2.0)
        found += [(plif.plif, arguments[1:]), (plif.plif_backward, arguments), (plif.plif_backward_both, arguments)]
    return found


def dropout_rules(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    entries, seeds = drawn((3, 5), dtype), torch.randint(2**40, (3,))
    return [(dropout.dropout, (layout, seeds, 0.5)) for layout in (entries, entries.T.contiguous().T)]


def attention_rules(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    query, key, alpha = drawn((1, 2, 3, 4), dtype), drawn((1, 1, 5, 4), dtype), torch.full((1, 2), 1.5)
    settings = (0.5, 0.0, None)
    given = (query, key, key, alpha, None, alpha, None)
    found = attention.attention(*given, *settings, False)
    backward = (found[0], *given, *found, *settings, True)
    return [(attention.attention, (*given, *settings, False)), (attention.attention_backward, backward)]


OPERATORS = {
    "attention": Operator(attention.kernels, attention_calls, attention_rules),
    "entmax": Operator(entmax.kernels, entmax_calls, entmax_rules),
    "plif": Operator(plif.kernels, plif_calls, plif_rules),
    "dropout": Operator(dropout.kernels, dropout_calls, dropout_rules),
    # Not torch operators: only linear losses, which are, call them.
    "cross_entropy": Operator(cross_entropy.kernels, cross_entropy_calls, lambda dtype: []),
    "matmul": Operator(matmul.kernels, matmul_calls, lambda dtype: []),
}


def test_every_operator_is_here() -> None:
    assert sorted(OPERATORS) == sorted(backend.OPERATORS)


@pytest.mark.parametrize("name", OPERATORS)
def test_forward_and_backward_are_those_of_the_reference(name: str) -> None:
    kernels, calls, _ = OPERATORS[name]
    members = [member for member in BACKENDS if why_missing(*member, kernels) is None]
    if not members:
        pytest.skip("; ".join(f"{why_missing(*member, kernels)}" for member in BACKENDS))
    for call in calls():
        with use_backend("reference"):
            wanted = call.run(kernels.choose(call.chosen_by))
        for member, level in members:
            with use_backend(member), library.use_cpu_level(level or library.current_level()):
                if member == "triton" and call.chosen_by.dtype in (torch.bfloat16, torch.float64):
                    continue
                got = call.run(kernels.choose(call.chosen_by))
            # Scores that are computed again differ in their last bits, which an infinite slope above alpha 2 enlarges.
            slack = 5 if member == "triton" and name == "attention" else 1
            torch.testing.assert_close(
                got,
                wanted,
                rtol=slack * call.rtol,
                atol=slack * call.atol,
                equal_nan=True,
                msg=lambda difference, member=member, level=level: f"{member} {level}: {difference}",
            )


def why_missing(member: str, level: str, kernels: backend.Kernels[Any]) -> str | None:
    if kernels.operator not in backend._backends[member].modules:
        return f"{member} has no such kernel"
    with library.use_cpu_level(level):
        return library.why_missing() if member == "native" else None


def test_entmax_of_a_mask_is_that_of_masked_rows_in_double_precision(engine: str) -> None:
    for dtype, (shape, mask_shape) in product([*HALF, *FULL], MASKED):
        scores, mask, alpha = drawn(shape, dtype, 2.0), torch.rand(mask_shape) < 0.6, torch.tensor([1.5])
        poisoned = scores.clone()
        poisoned.view(-1)[0] = torch.nan
        chosen_RN = mask.expand(shape).reshape(-1, shape[-1])
        rows_RN = scores.double().reshape(-1, shape[-1]).masked_fill(~chosen_RN, -torch.inf)
        wanted_RN = entmax.entmax(rows_RN, alpha.double())
        grad = drawn(shape, dtype)
        wanted_gradient_RN = entmax.entmax_backward(grad.double().view_as(rows_RN), wanted_RN, alpha.double())
        alpha = alpha.to(wide(dtype))
        probs = entmax.entmax(scores, alpha, mask)
        gradient = entmax.entmax_backward(grad, probs, alpha, mask)
        assert probs.dtype == gradient.dtype == dtype
        eps, atol = torch.finfo(dtype).eps, 1e-9 if dtype == torch.float64 else 1e-5
        # The gradient is that of the rounded probabilities.
        of_gradient = 2 * eps if dtype in HALF else atol
        for got, wanted, least in ((probs, wanted_RN, atol), (gradient, wanted_gradient_RN, of_gradient)):
            torch.testing.assert_close(got.double(), wanted.reshape(shape), rtol=eps, atol=least)
            assert (got[~mask.expand(shape)] == 0).all()
        # A row without an answer says nothing of the entries that are masked.
        probs = entmax.entmax(poisoned, alpha, torch.ones_like(mask))
        assert probs.isnan().any()
        for is_enabled in (True, False):
            with torch.set_grad_enabled(is_enabled):
                gradient = entmax.entmax_backward(grad, probs, alpha, mask)
            assert (gradient[~mask.expand(shape)] == 0).all() and gradient.isnan().any()


@pytest.mark.parametrize("name", [name for name, operator in OPERATORS.items() if operator.rules(torch.float32)])
def test_operators_keep_the_rules_of_torch(engine: str, name: str) -> None:
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    for dtype in (torch.float32, torch.bfloat16):
        for operator, arguments in OPERATORS[name].rules(dtype):
            torch.library.opcheck(operator, arguments, test_utils=checks)
