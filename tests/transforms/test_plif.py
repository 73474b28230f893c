"""PLIF: an increasing, continuous function whose gradients are those of its definition."""

import math

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from anymax.kernels import library, use_backend
from anymax.transforms import PLIF, plif
from tests.each import each

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def some(shape: tuple[int, ...] = (4, 7), num_pieces: int = 12) -> tuple[Tensor, Tensor]:
    """Scores, some of them outside a bound of 2, and slopes, in float64 and with gradients."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5
    slopes = torch.rand(num_pieces, generator=generator, dtype=torch.float64) * 2 + 0.1
    return scores.requires_grad_(), slopes.requires_grad_()


def random_plif(pieces: int, bound: float) -> PLIF:
    torch.manual_seed(0)
    return PLIF(pieces, bound, random_start=True)


@pytest.fixture(params=["native", "reference"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and library.why_missing() is not None:
        pytest.skip("no native kernels")
    return str(request.param)


@each("pieces", [1, 7, 100_000])
@each("dtype", DTYPES)
def test_the_start_is_the_identity(pieces: int, dtype: torch.dtype) -> None:
    scores = torch.linspace(-40, 40, 4001).to(dtype)
    tolerance = max(2e-6, 2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(PLIF(pieces)(scores), scores, rtol=tolerance, atol=3e-6)


def test_a_random_start_has_the_published_distribution() -> None:
    weight = random_plif(100_000, 20.0).weight
    assert weight.mean().item() == pytest.approx(math.log(math.e - 1), abs=0.02)
    assert weight.std().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
def test_larger_scores_never_give_smaller_results(dtype: torch.dtype, backend: str) -> None:
    scores = torch.cat([torch.linspace(-30, 30, 100_003), torch.linspace(-0.01, 0.01, 50_001)]).to(dtype).sort().values
    with use_backend(backend):
        results = random_plif(100_000, 20.0)(scores)
    assert bool((results.diff() >= 0).all())


def test_it_is_continuous_at_the_knots_and_the_ends() -> None:
    slopes = random_plif(50, 3.0).slopes.detach().double()
    knots = torch.linspace(-3, 3, 51, dtype=torch.float64)
    below, above = plif(knots - 1e-9, slopes, bound=3.0), plif(knots + 1e-9, slopes, bound=3.0)
    torch.testing.assert_close(below, above, rtol=0, atol=1e-7)


def test_it_starts_at_the_bound_and_goes_on_with_the_end_slopes() -> None:
    slopes = torch.tensor([0.5, 1.0, 3.0])
    results = plif(torch.tensor([-5.0, -3.0, 3.0, 4.0]), slopes, bound=3.0)
    torch.testing.assert_close(results, torch.tensor([-4.0, -3.0, 6.0, 9.0]))


def test_infinite_scores_stay_infinite_and_nan_stays_alone() -> None:
    scores = torch.tensor([-torch.inf, 0.5, torch.nan, torch.inf, -0.5])
    results = random_plif(9, 2.0)(scores)
    assert results[0] == -torch.inf and results[3] == torch.inf and results[2].isnan()
    torch.testing.assert_close(results[[1, 4]], random_plif(9, 2.0)(scores[[1, 4]]))


def test_masked_scores_leave_the_gradients_finite(backend: str) -> None:
    scores = torch.tensor([-torch.inf, 0.5, -0.5], requires_grad=True)
    transform = random_plif(9, 2.0)
    with use_backend(backend):
        torch.softmax(transform(scores), -1)[1].backward()
    assert scores.grad is not None and scores.grad.isfinite().all()
    assert transform.weight.grad is not None and transform.weight.grad.isfinite().all()


def test_gradients_match_finite_differences_twice(backend: str) -> None:
    with use_backend(backend):
        assert torch.autograd.gradcheck(lambda x, s: plif(x, s, bound=2.0), some())
        assert torch.autograd.gradgradcheck(lambda x, s: plif(x, s, bound=2.0) ** 2, some())
        transform = random_plif(6, 2.0).double()
        assert torch.autograd.gradcheck(
            lambda w: functional_call(transform, {"weight": w}, (some()[0],)), transform.weight
        )


def test_gradients_equal_the_closed_form(backend: str) -> None:
    scores, slopes = some((50,), 12)
    delta = 4 / 12
    place = ((scores.detach() + 2) / delta).long().clamp(0, 11)
    pieces = torch.arange(12)
    offset = scores.detach() + 2 - place.double() * delta
    jacobian = torch.where(pieces < place[:, None], delta, torch.where(pieces == place[:, None], offset[:, None], 0))
    weights = torch.linspace(-1, 2, 50, dtype=torch.float64)
    with use_backend(backend):
        (plif(scores, slopes, bound=2.0) * weights).sum().backward()
    torch.testing.assert_close(scores.grad, weights * slopes.detach()[place])
    torch.testing.assert_close(slopes.grad, weights @ jacobian)


def test_frozen_slopes_get_no_gradient_and_scores_the_same() -> None:
    scores, slopes = some()
    by_scores = torch.autograd.grad(plif(scores, slopes, bound=2.0).sum(), scores)[0]
    frozen = torch.autograd.grad(plif(scores, slopes.detach(), bound=2.0).sum(), scores)[0]
    torch.testing.assert_close(frozen, by_scores)


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_the_size_of_the_scores_only_the_scores_are_saved(dtype: torch.dtype) -> None:
    saved: list[Tensor] = []
    scores = torch.randn(64, 33, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        PLIF(10, 2.0)(scores)
    large = [t for t in saved if t.numel() > 10]
    assert len(large) == 1 and large[0].data_ptr() == scores.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_rounding_of_single(dtype: torch.dtype) -> None:
    transform = random_plif(1000, 20.0)
    scores = (torch.randn(5, 9) * 9).to(dtype).requires_grad_()
    wide = scores.detach().float().requires_grad_()
    result, expected = transform(scores), transform(wide)
    assert torch.equal(result, expected.to(dtype))
    result.sum().backward()
    expected.sum().backward()
    assert scores.grad is not None and wide.grad is not None
    assert scores.grad.dtype == dtype and torch.equal(scores.grad, wide.grad.to(dtype))


def test_shape_and_layout_do_not_matter() -> None:
    transform = random_plif(100, 3.0)
    scores = torch.randn(6, 5, 4)
    for view in (
        scores.permute(2, 0, 1),
        scores[::2, 1:],
        scores[:, :, :1].expand(6, 5, 3),
        scores[0, 0, 0],
        scores[:0],
    ):
        assert torch.equal(transform(view), transform(view.clone(memory_format=torch.contiguous_format)))
        assert transform(view).shape == view.shape


def test_num_outside_counts_scores_beyond_the_bound() -> None:
    count = PLIF(10, 2.0).num_outside(torch.tensor([[-2.1, -2.0, 0.0], [2.0, 2.5, torch.inf]]))
    assert count.shape == () and int(count) == 3


def test_vmap_and_grad_compose_in_any_order() -> None:
    transform = random_plif(20, 2.0).double()
    rows = some()[0].detach()

    def loss(weight: Tensor, row: Tensor) -> Tensor:
        result: Tensor = functional_call(transform, {"weight": weight}, (row,))
        return (result**2).sum()

    weight = transform.weight.detach()
    per_row = vmap(grad(loss), (None, 0))(weight, rows)
    torch.testing.assert_close(per_row, torch.stack([grad(loss)(weight, row) for row in rows]))
    whole = grad(lambda w: vmap(loss, (None, 0))(w, rows).sum())(weight)
    torch.testing.assert_close(whole, per_row.sum(0))
    ensemble = vmap(loss, (0, None))(torch.stack([weight, 2 * weight]), rows)
    torch.testing.assert_close(ensemble, torch.stack([loss(weight, rows), loss(2 * weight, rows)]))


def test_compiled_equals_eager() -> None:
    transform = random_plif(100, 2.0)
    scores = (torch.randn(8, 9) * 2).requires_grad_()
    expected = torch.autograd.grad(transform(scores).square().sum(), (scores, transform.weight))
    compiled = torch.compile(transform, fullgraph=True, backend="aot_eager")
    results = torch.autograd.grad(compiled(scores).square().sum(), (scores, transform.weight))
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@each(
    ("call", "error", "says"),
    [
        (lambda: PLIF(0), ValueError, "pieces must be at least 1, got 0"),
        (lambda: PLIF(10, 0.0), ValueError, "bound must be a positive finite number, got 0.0"),
        (lambda: PLIF(10, math.nan), ValueError, "bound must be a positive finite number, got nan"),
        (lambda: PLIF(10)(torch.arange(3)), TypeError, "scores must be floating point, got torch.int64"),
        (lambda: plif(torch.ones(3), torch.arange(3), bound=1.0), TypeError, "slopes must be floating point"),
        (lambda: plif(torch.ones(3), torch.ones(2, 2), bound=1.0), ValueError, r"slopes must be a vector .* \(2, 2\)"),
        (lambda: plif(torch.ones(3), torch.ones(0), bound=1.0), ValueError, "slopes must be a vector"),
        (
            lambda: plif(torch.ones(3), torch.ones(2, device="meta"), bound=1.0),
            ValueError,
            "slopes must be on the device",
        ),
        (lambda: plif(torch.ones(3), torch.ones(2), bound=-1.0), ValueError, "bound must be a positive finite number"),
    ],
)
def test_bad_input_is_refused_by_name(call, error: type[Exception], says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=says):
        call()
