"""What every backend of attention by entmax promises. A backend joins by one line in BACKENDS.

Values are held to a bisection in double precision that is written here, gradients to finite differences of it, for
every option and every pair of options; at alpha 1 all of torch's arguments are held to torch's own function.
Shapes: B batch, H heads of queries, G of keys and values, Q queries, K keys, N keys and the sink.
"""

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from anymax import entmax_attention
from anymax.attention.arguments import Inputs
from anymax.attention.entmax_attention import entmax_of_inputs
from anymax.kernels import attention as kernel
from anymax.kernels import library, use_backend
from anymax.kernels.dropout import reference as dropout
from tests.each import each
from tests.slow_kernels import RUNS_SLOW_KERNELS

# Each with the instruction level it runs at, where it has levels, and the types it must take.
BACKENDS = [
    ("reference", None, [torch.float64, torch.float32]),
    *(("native", level, [torch.float64, torch.float32]) for level in library.machine_levels()),
    # In Triton's interpreter, which takes minutes.
    *[("triton", None, [torch.float32])] * RUNS_SLOW_KERNELS,
]
B, H = 2, 4


@pytest.fixture(params=BACKENDS, ids=lambda backend: "-".join(filter(None, backend[:2])))
def dtypes(request: pytest.FixtureRequest) -> Iterator[list[torch.dtype]]:
    """The types that a backend takes, while it runs."""
    name, level, dtypes = request.param
    with library.use_cpu_level(level or library.machine_levels()[-1]), use_backend(name):
        try:
            kernel.kernels.choose(torch.zeros(1, 1, 1, 1, dtype=dtypes[0]))
        except RuntimeError as error:
            pytest.skip(str(error))
        yield dtypes


class Case(NamedTuple):
    """One value of each option."""

    alpha: Any
    mask: str | None
    is_causal: bool
    dropout: float
    groups: int
    sink: Any
    scale: float | None
    lengths: tuple[int, int]
    widths: tuple[int, int]
    layout: str


OPTIONS = Case(
    alpha=[1.5, 2.0, "one of each", "per head", "per batch and head", 0.5, 2.5],
    mask=[None, "boolean", "keys", "with empty rows", "additive", "additive with -inf"],
    is_causal=[False, True],
    dropout=[0.0, 0.3],
    groups=[4, 2, 1],
    sink=[None, 0.5, "per head"],
    scale=[None, 0.7],
    lengths=[(5, 7), (1, 9), (9, 6), (3, 1), (33, 70)],
    widths=[(4, 4), (8, 3), (5, 17)],
    layout=["plain", "heads inside", "expanded"],
)


def all_pairs() -> list[Case]:
    """Cases in which every pair of values of two options occurs, but for causal ones with a mask."""
    choose = random.Random(0)

    def drawn() -> Case:
        case = Case(*(choose.choice(values) for values in OPTIONS))
        return case._replace(mask=None) if case.is_causal else case

    def pairs(case: Case) -> set[tuple[object, ...]]:
        return {(i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(case)), 2)}

    left = {
        (i, a, j, b)
        for i, j in itertools.combinations(range(len(OPTIONS)), 2)
        for a in OPTIONS[i]
        for b in OPTIONS[j]
        if not (Case._fields[i] == "mask" and a is not None and Case._fields[j] == "is_causal" and b)
    }
    cases = []
    while left:
        cases.append(max((drawn() for _ in range(60)), key=lambda case: len(pairs(case) & left)))
        left -= pairs(cases[-1])
    return cases


class Given(NamedTuple):
    """The tensors of a case, in float32 so that every backend gets the same; None where there is none."""

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Tensor
    sink: Tensor | None


def inputs_of(case: Case) -> tuple[Given, Tensor | None]:
    (num_queries, num_keys), (width, value_width) = case.lengths, case.widths

    def vectors(heads: int, length: int, width: int) -> Tensor:
        if case.layout == "heads inside":
            return torch.randn(B, length, heads, width).transpose(1, 2)
        if case.layout == "expanded":
            return torch.randn(1, heads, length, width).expand(B, -1, -1, -1)
        return torch.randn(B, heads, length, width)

    alphas = {
        "one of each": torch.tensor([1.0, 1.0001, 1.5, 2.0]),
        "per head": 1 + torch.rand(H),
        "per batch and head": 1 + torch.rand(B, H),
    }
    masks: dict[str | None, Callable[[], Tensor | None]] = {
        None: lambda: None,
        "boolean": lambda: torch.rand(B, H, num_queries, num_keys) < 0.7,
        "keys": lambda: torch.rand(B, 1, 1, num_keys) < 0.7,
        "with empty rows": lambda: (
            (torch.rand(num_queries, num_keys) < 0.6) & (torch.arange(num_queries) % 3 > 0)[:, None]
        ),
        "additive": lambda: torch.randn(H, num_queries, num_keys),
        "additive with -inf": lambda: torch.randn(B, 1, num_queries, num_keys).masked_fill(
            torch.rand(num_queries, num_keys) < 0.4, -math.inf
        ),
    }
    sink = torch.randn(H) if case.sink == "per head" else None if case.sink is None else torch.tensor(case.sink)
    inputs = Given(
        vectors(H, num_queries, width),
        vectors(case.groups, num_keys, width),
        vectors(case.groups, num_keys, value_width),
        alphas[case.alpha] if isinstance(case.alpha, str) else torch.tensor(case.alpha),
        sink,
    )
    return inputs, masks[case.mask]()


def enumerated(inputs: Given, case: Case, mask: Tensor | None, seed: int) -> Tensor:
    """The definition in double precision: each row's lambda by bisection."""
    query, key, value, alpha = (tensor.double() for tensor in inputs[:4])
    num_queries, num_keys = case.lengths
    # Head h reads head h // (H / G).
    of_head = [h * case.groups // H for h in range(H)]
    scale = 1 / math.sqrt(case.widths[0]) if case.scale is None else case.scale
    scores = torch.einsum("bhqe,bhke->bhqk", query, key[:, of_head]) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    if case.is_causal:
        scores = scores.masked_fill(torch.arange(num_keys) > torch.arange(num_queries)[:, None], -math.inf)
    if inputs.sink is not None:
        sinks = inputs.sink.double().expand(B, H)[..., None, None].expand(B, H, num_queries, 1)
        scores = torch.cat([scores, sinks], -1)
    probs = bisected(scores, alpha.expand(B, H)[..., None, None])[..., :num_keys]
    if case.dropout:
        seeds = seed + torch.arange(B * H * num_queries)
        kept = dropout.random_bits(seeds, 0, num_keys) >= dropout.threshold(case.dropout)
        probs = torch.where(kept.view_as(probs), probs / (1 - case.dropout), 0)
    return torch.einsum("bhqk,bhkf->bhqf", probs, value[:, of_head])


def bisected(scores: Tensor, alpha: Tensor) -> Tensor:
    top = scores.amax(-1, keepdim=True)
    z = scores - torch.where(top == -math.inf, 0, top)
    a = alpha - 1

    def probs_at(shift: Tensor) -> Tensor:
        u = z - shift
        is_in = a * u > -1
        power = torch.log1p(torch.where(is_in, a * u, 0)) / torch.where(a == 0, 1, a)
        return torch.where(is_in & (u > -math.inf), torch.where(a == 0, u, power).exp(), 0)

    low, high = torch.zeros_like(top), torch.full_like(top, 1e4)
    for _ in range(70):
        middle = (low + high) / 2
        is_low = probs_at(middle).sum(-1, keepdim=True) > 1
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    return torch.where(top == -math.inf, 0, probs_at((low + high) / 2))


class Wanted(NamedTuple):
    """What a case must give: values, and the slope of their weighted sum in one direction per tensor."""

    case: Case
    inputs: Given
    mask: Tensor | None
    seed: int
    out: Tensor
    weight: Tensor
    directions: list[Tensor | None]
    slopes: list[float | None]


@functools.cache
def wanted() -> list[Wanted]:
    torch.manual_seed(0)
    results = []
    for number, case in enumerate(all_pairs()):
        inputs, mask = inputs_of(case)
        torch.manual_seed(number)
        seed = int(torch.randint(2**62, ()))
        out = enumerated(inputs, case, mask, seed)
        weight = torch.randn_like(out)
        directions = [None if tensor is None else torch.randn(tensor.shape).double() for tensor in inputs]
        slopes = []
        for place, direction in enumerate(directions):
            if direction is None:
                slopes.append(None)
                continue
            eps, ends = 1e-6, []
            for step in (eps, -eps):
                moved = inputs._replace(**{Given._fields[place]: inputs[place].double() + step * direction})
                ends.append((enumerated(moved, case, mask, seed) * weight).sum().item())
            slopes.append((ends[0] - ends[1]) / (2 * eps))
        results.append(Wanted(case, inputs, mask, seed, out, weight, directions, slopes))
    return results


def run(one: Wanted, number: int, dtype: torch.dtype, *, keeps_lists: bool) -> tuple[Tensor, list[Tensor | None]]:
    """Values and gradients. Through the operators, as compiled, nothing is kept but what the protocol names."""
    tensors = [None if tensor is None else tensor.to(dtype).requires_grad_() for tensor in one.inputs]
    query, key, value, alpha, sink = tensors
    mask = one.mask.to(dtype) if one.mask is not None and one.mask.is_floating_point() else one.mask
    torch.manual_seed(number)
    with without_lists(not keeps_lists):
        out = entmax_attention(
            query,
            key,
            value,
            alpha,
            mask,
            one.case.dropout,
            one.case.is_causal,
            scale=one.case.scale,
            enable_gqa=True,
            sink=sink,
        )
        given = [tensor for tensor in tensors if tensor is not None]
        found = iter(torch.autograd.grad(out, given, one.weight.to(dtype)))
    return out, [None if tensor is None else next(found) for tensor in tensors]


@contextmanager
def without_lists(leaves_out: bool) -> Iterator[None]:
    before = kernel.attention_of_plain
    with pytest.MonkeyPatch.context() as patch:
        if leaves_out:
            patch.setattr(kernel, "attention_of_plain", lambda *arguments: before(*arguments[:-1], False))
        yield


@each("keeps_lists", [True, False])
def test_values_and_gradients_are_those_of_the_definition(dtypes: list[torch.dtype], keeps_lists: bool) -> None:
    for number, one in enumerate(wanted()):
        for dtype in dtypes:
            # Where entries enter a row above alpha 2, its slope is infinite.
            is_steep = one.case.alpha == 2.5
            exact = dtype == torch.float64
            atol = 1e-9 if exact else 1e-4 if is_steep else 1e-5
            out, gradients = run(one, number, dtype, keeps_lists=keeps_lists)
            note = f"{one.case} in {dtype}"
            assert out.dtype == dtype, note
            torch.testing.assert_close(
                out.double(), one.out, rtol=0, atol=atol, msg=lambda text, n=note: f"{n}: {text}"
            )
            for name, gradient, direction, slope in zip(
                Given._fields, gradients, one.directions, one.slopes, strict=True
            ):
                if gradient is None or (is_steep and not exact):
                    continue
                got = (gradient.double() * direction).sum().item()
                assert got == pytest.approx(slope, rel=1e-4, abs=1e-6 if exact else 3e-4), f"{name} of {note}"


def test_rows_with_nothing_to_attend_to_give_zeros_and_zero_gradients(dtypes: list[torch.dtype]) -> None:
    for shape, mask in (
        ((2, 3, 4, 5), torch.tensor([True, False, True, True])[:, None]),
        ((2, 3, 4, 5), torch.zeros(2, 1, 1, 5, dtype=torch.bool)),
        ((2, 3, 4, 5), torch.full((4, 5), -math.inf)),
        ((2, 3, 4, 0), None),
        ((2, 3, 0, 5), None),
        ((0, 3, 4, 5), None),
    ):
        batch, heads, num_queries, num_keys = shape
        q = torch.randn(batch, heads, num_queries, 6, dtype=dtypes[0], requires_grad=True)
        k, v = (torch.randn(batch, heads, num_keys, 6, dtype=dtypes[0], requires_grad=True) for _ in range(2))
        alpha = torch.full((heads,), 1.5, dtype=dtypes[0], requires_grad=True)
        out = entmax_attention(
            q, k, v, alpha, mask.to(dtypes[0]) if mask is not None and mask.is_floating_point() else mask
        )
        assert out.shape == (batch, heads, num_queries, 6)
        out.square().sum().backward()
        for tensor in (q, k, v, alpha):
            assert tensor.grad is not None and tensor.grad.shape == tensor.shape and tensor.grad.isfinite().all()
        if mask is None or not mask.any() or mask.is_floating_point():
            assert (out == 0).all() and all((tensor.grad == 0).all() for tensor in (q, k, v, alpha))
        else:
            assert (out[:, :, 1] == 0).all() and (q.grad[:, :, 1] == 0).all() and (out[:, :, 0] != 0).all()


def test_a_sink_of_minus_infinity_is_none(dtypes: list[torch.dtype]) -> None:
    q, k, v = (torch.randn(2, 3, 9, 8, dtype=dtypes[0], requires_grad=True) for _ in range(3))
    mask = torch.rand(9, 9) < 0.6
    mask[4] = False
    for alpha in (torch.tensor([1.0, 1.5, 2.0]), 1.3):
        sink = torch.full((3,), -math.inf, requires_grad=True)
        got, wanted = (entmax_attention(q, k, v, alpha, mask, sink=one) for one in (sink, None))
        torch.testing.assert_close(got, wanted)
        weight = torch.randn_like(got)
        of = torch.autograd.grad(got, (q, k, v, sink), weight)
        torch.testing.assert_close(of[:3], torch.autograd.grad(wanted, (q, k, v), weight))
        assert (of[3] == 0).all()


def test_a_causal_offset_is_a_mask_beside_the_other(dtypes: list[torch.dtype]) -> None:
    tensors = [
        torch.randn(2, heads, n, 8, dtype=dtypes[0], requires_grad=True) for heads, n in ((4, 5), (2, 9), (2, 9))
    ]
    alpha = torch.tensor([1.0, 1.5, 2.0, 1.2], dtype=dtypes[0], requires_grad=True)
    boolean, additive = torch.rand(2, 1, 5, 9) < 0.7, torch.randn(4, 1, 9, dtype=dtypes[0])[None]
    for offset, mask in itertools.product((0, 2, 4, 8, 20), (None, boolean, additive)):
        allowed = torch.ones(5, 9, dtype=torch.bool).tril(offset)[None, None]
        both = allowed if mask is None else mask & allowed if mask is boolean else mask.masked_fill(~allowed, -math.inf)
        results = []
        for one in (Inputs(*tensors, mask, 0.4, 0.0, offset), Inputs(*tensors, both, 0.4, 0.0, None)):
            out = entmax_of_inputs(one, one.query_BHQE.shape[:2], alpha, 0.1)
            weight = torch.linspace(-1, 1, out.numel(), dtype=dtypes[0]).view_as(out)
            results.append([out, *torch.autograd.grad(out, [*tensors, alpha], weight)])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_a_nan_spoils_its_row_and_no_other(dtypes: list[torch.dtype]) -> None:
    q, k, v = (torch.randn(2, 3, 20, 8, dtype=dtypes[0]) for _ in range(3))
    clean = entmax_attention(q, k, v, torch.full((3,), 1.5))
    q[1, 2, 7, 0] = math.nan
    q.requires_grad_()
    out = entmax_attention(q, k, v, torch.full((3,), 1.5))
    others = torch.ones(2, 3, 20, dtype=torch.bool)
    others[1, 2, 7] = False
    assert out[1, 2, 7].isnan().all()
    torch.testing.assert_close(out[others], clean[others])
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert gradient[others].isfinite().all()


def test_half_precision_is_computed_in_float32(dtypes: list[torch.dtype]) -> None:
    # Triton's interpreter takes no float64, and cannot compute with bfloat16.
    for dtype in [torch.float16, *[torch.bfloat16] * (torch.float64 in dtypes)]:
        q, k, v = (torch.randn(2, 3, 9, 16).to(dtype).requires_grad_() for _ in range(3))
        alpha = torch.tensor([1.0, 1.5, 2.0], requires_grad=True)
        bias = torch.randn(9, 9)
        wide = [tensor.detach().float().requires_grad_() for tensor in (q, k, v, alpha)]
        for mask in (bias, bias.to(dtype), bias > 0):
            wide_mask = mask if mask.dtype == torch.bool else mask.float()
            got, expected = entmax_attention(q, k, v, alpha, mask), entmax_attention(*wide, wide_mask)
            assert got.dtype == dtype
            # Rounded once, at the end.
            torch.testing.assert_close(got, expected.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-3)
            weight = torch.randn(got.shape).to(dtype)
            gradients = torch.autograd.grad(got, (q, k, v, alpha), weight)
            others = torch.autograd.grad(expected, wide, weight.float())
            for mine, other in zip(gradients, others, strict=True):
                torch.testing.assert_close(mine.float(), other, rtol=2e-2, atol=5e-2)


@st.composite
def arguments_of_torch(draw: st.DrawFn) -> dict[str, Any]:
    groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch = draw(st.sampled_from([(), (1,), (2,), (2, 2)]))
    num_queries, num_keys = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    heads = groups * per_group
    mask = draw(st.sampled_from(["none", "causal", "boolean", "additive", "both"]))
    shapes = [(num_queries, num_keys), (heads, 1, num_keys), (1, num_queries, num_keys), (num_keys,)]
    return {
        "lead": (*batch, heads),
        "groups": groups,
        "lengths": (num_queries, num_keys),
        "widths": (draw(st.integers(1, 20)), draw(st.integers(1, 20))),
        "mask": mask,
        "mask_shape": draw(st.sampled_from(shapes)),
        "scale": draw(st.sampled_from([None, 0.3, 1.7])),
        "seed": draw(st.integers(0, 1000)),
        "dropout": draw(st.sampled_from([0.0, 0.0, 1.0])),
    }


@hypothesis.settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(drawn=arguments_of_torch())
def test_alpha_1_is_the_function_of_torch_in_all_its_arguments(
    dtypes: list[torch.dtype], drawn: dict[str, Any]
) -> None:
    torch.manual_seed(drawn["seed"])
    (num_queries, num_keys), (width, value_width) = drawn["lengths"], drawn["widths"]
    lead = drawn["lead"]
    of_keys = (*lead[:-1], drawn["groups"])
    tensors = [
        torch.randn(*lead, num_queries, width, dtype=dtypes[0]),
        torch.randn(*of_keys, num_keys, width, dtype=dtypes[0]),
        torch.randn(*of_keys, num_keys, value_width, dtype=dtypes[0]),
    ]
    allowed, bias = torch.rand(drawn["mask_shape"]) < 0.6, torch.randn(drawn["mask_shape"], dtype=dtypes[0])
    mask = {"boolean": allowed, "additive": bias, "both": bias.masked_fill(~allowed, -math.inf)}.get(drawn["mask"])
    options = {
        "attn_mask": mask,
        "is_causal": drawn["mask"] == "causal",
        "dropout_p": drawn["dropout"],
        "scale": drawn["scale"],
        "enable_gqa": drawn["groups"] != lead[-1],
    }
    results = []
    for call in (functools.partial(entmax_attention, alpha=torch.ones(())), F.scaled_dot_product_attention):
        mine = [tensor.clone().requires_grad_() for tensor in tensors]
        out = call(*mine, **options)
        results.append([out, *torch.autograd.grad(out, mine, torch.ones_like(out))])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
