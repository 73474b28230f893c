"""What every estimator promises. A new one joins by one line in ESTIMATORS."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from anymax.latent import (
    NVIL,
    AnnealedTemperature,
    BitVector,
    Choice,
    DenseMarginal,
    Estimator,
    Gumbel,
    ScoreFunction,
    SparseMarginal,
    StraightThroughGumbel,
    SumAndSample,
)
from tests.each import each
from tests.latent.losses import SIZE, WIDTH, DistanceLoss, deviation, estimated_gradients, exact_gradients
from tests.latent.members import MEMBERS, Member

# Rows with the same scores, each a sample of the gradient.
MANY = 40_000


@dataclass(frozen=True)
class Kind:
    """How an estimator is made, and what it claims: to be exact or unbiased, for which latents, at how many calls."""

    make: Callable[[], Estimator]
    is_exact: bool = False
    is_unbiased: bool = True
    only_choices: bool = False
    only_relaxed: bool = False
    calls: int | None = None

    def fits(self, member: Member) -> bool:
        return (member.can_relax or not self.only_relaxed) and (member.is_choice or not self.only_choices)


def with_average(estimator: Estimator, value: float) -> Estimator:
    """An estimator whose running mean has already seen some losses."""
    estimator.average.update(torch.full((3,), value))
    return estimator


def predicting(value: float) -> Estimator:
    """An NVIL that begins near a prediction, so that losses lie on both sides of it."""
    estimator = NVIL(1, hidden=(8, 8, 8))
    estimator.baseline[-1].bias.data.fill_(value)
    return estimator


def relaxed(make: Callable[[], Estimator]) -> Kind:
    return Kind(make, is_unbiased=False, only_relaxed=True, calls=1)


ESTIMATORS = {
    "dense": Kind(DenseMarginal, is_exact=True),
    "sparse": Kind(SparseMarginal, is_exact=True),
    "score": Kind(ScoreFunction, calls=1),
    "score-average": Kind(lambda: with_average(ScoreFunction("average"), 2.5), calls=1),
    "score-sample": Kind(lambda: ScoreFunction("sample"), calls=2),
    "score-published": Kind(lambda: ScoreFunction("sample", published=True), is_unbiased=False, calls=2),
    "nvil": Kind(lambda: predicting(2.5), calls=1),
    "sum-and-sample": Kind(SumAndSample, only_choices=True),
    "sum-two": Kind(lambda: SumAndSample(2), only_choices=True),
    "sum-average": Kind(lambda: with_average(SumAndSample(baseline="average"), 4.0), only_choices=True),
    "gumbel": relaxed(lambda: Gumbel(0.5)),
    "gumbel-annealed": relaxed(lambda: Gumbel(annealed=AnnealedTemperature(0.1, every=2))),
    "gumbel-published": relaxed(lambda: Gumbel(0.5, published=True)),
    "straight-through": relaxed(lambda: StraightThroughGumbel(0.5)),
    "straight-through-published": relaxed(lambda: StraightThroughGumbel(0.5, published=True)),
}


# Of each way a latent is made one, for what need not be asked of all.
SOME = ["softmax", "entmax", "bits", "budget"]


def pairs(chosen: Callable[[Kind], bool], latents: Iterable[str] = MEMBERS) -> list[tuple[str, str]]:
    names = [name for name, kind in ESTIMATORS.items() if chosen(kind)]
    return [(name, latent) for name in names for latent in latents if ESTIMATORS[name].fits(MEMBERS[latent])]


def same_rows(num_rows: int) -> tuple[Tensor, Tensor]:
    scores = torch.tensor([0.6, -0.5, 0.2, 0.1], dtype=torch.float64)
    theta = torch.tensor([0.7, -0.3, 1.1], dtype=torch.float64)
    return scores.expand(num_rows, SIZE), theta.expand(num_rows, WIDTH)


@each(("name", "latent"), pairs(lambda kind: kind.is_exact))
def test_gradients_are_those_of_the_enumeration(name: str, latent: str) -> None:
    scores = torch.randn(9, SIZE, dtype=torch.float64)
    theta = torch.randn(9, WIDTH, dtype=torch.float64)
    found = estimated_gradients(ESTIMATORS[name].make(), MEMBERS[latent], scores, theta)
    torch.testing.assert_close(found, exact_gradients(MEMBERS[latent], scores, theta), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "latent"),
    [
        *pairs(lambda kind: kind.is_unbiased and not kind.is_exact, SOME),
        *(("score", latent) for latent in MEMBERS if latent not in SOME),
    ],
)
def test_gradients_are_those_of_the_enumeration_on_average(name: str, latent: str) -> None:
    exact = exact_gradients(MEMBERS[latent], *same_rows(1))
    found = estimated_gradients(ESTIMATORS[name].make(), MEMBERS[latent], *same_rows(MANY))
    for expected, estimates in zip(exact, found, strict=True):
        off = deviation(estimates, expected[0])
        assert off.in_errors < 4
        # Small enough that a wrong form would be seen.
        assert off.error.max() < 0.03 * expected.abs().max()


@pytest.mark.parametrize("latent", SOME)
def test_the_published_second_sample_is_biased_for_the_loss_by_the_entropy(latent: str) -> None:
    member, estimator = MEMBERS[latent], ScoreFunction("sample", published=True)
    exact = exact_gradients(member, *same_rows(1))
    entropy = member.latent(same_rows(1)[0]).entropy()
    found = estimated_gradients(estimator, member, *same_rows(MANY))
    assert deviation(found.scores, exact.scores[0]).in_errors < 4
    assert deviation(found.theta, exact.theta[0]).in_errors > 20
    assert deviation(found.theta, exact.theta[0] * (1 + entropy)).in_errors < 4


def bias(estimator: Estimator, latent: str) -> tuple[float, float]:
    """The bias of the gradient for the scores as a share of the gradient, and in standard errors."""
    exact = exact_gradients(MEMBERS[latent], *same_rows(1)).scores[0]
    off = deviation(estimated_gradients(estimator, MEMBERS[latent], *same_rows(2 * MANY)).scores, exact)
    return (off.difference.norm() / exact.norm()).item(), off.in_errors


@pytest.mark.parametrize("latent", ["softmax", "bits"])
def test_the_bias_of_gumbel_falls_with_the_temperature(latent: str) -> None:
    hot, warm, cold = (bias(Gumbel(temperature), latent) for temperature in (2.0, 0.5, 0.1))
    assert hot[1] > 20
    assert hot[0] > 2 * warm[0] > 4 * cold[0]


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("latent", ["softmax", "bits"])
def test_straight_through_is_biased_at_every_temperature(latent: str, published: bool) -> None:
    for temperature in (2.0, 0.5, 0.1):
        assert bias(StraightThroughGumbel(temperature, published=published), latent)[1] > 8


@each("shape", [(), (5,), (2, 3), (0,), (2, 0)])
@each(("name", "latent"), pairs(lambda kind: True, SOME))
def test_calls_are_the_rows_that_reached_the_loss(name: str, latent: str, shape: tuple[int, ...]) -> None:
    kind, num_rows = ESTIMATORS[name], torch.Size(shape).numel()
    scores = torch.randn(*shape, SIZE, dtype=torch.float64, requires_grad=True)
    loss_given = DistanceLoss(torch.randn(num_rows, WIDTH, dtype=torch.float64, requires_grad=True))
    estimate = kind.make()(MEMBERS[latent].latent(scores), loss_given, torch.randn(num_rows, 1))
    assert estimate.surrogate.shape == estimate.loss.shape == estimate.calls.shape == shape
    assert estimate.calls.dtype == torch.long and not estimate.loss.requires_grad
    (examples,) = loss_given.examples
    assert torch.equal(torch.bincount(examples, minlength=num_rows), estimate.calls.reshape(-1))
    assert kind.calls is None or (estimate.calls == kind.calls).all()
    assert torch.equal(estimate.surrogate, estimate.loss)
    estimate.surrogate.sum().backward()
    assert scores.grad is not None and scores.grad.isfinite().all()


def test_marginals_call_every_value_or_the_support() -> None:
    scores = torch.randn(6, SIZE, dtype=torch.float64)
    loss_given = DistanceLoss(torch.zeros(6, WIDTH, dtype=torch.float64))
    for member in MEMBERS.values():
        values = member.listed(scores[0])[0]
        assert (DenseMarginal()(member.latent(scores), loss_given).calls == len(values)).all()
        supports = torch.stack([(member.listed(row)[1] > 0).sum() for row in scores])
        assert torch.equal(SparseMarginal()(member.latent(scores), loss_given).calls, supports)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_any_estimator_trains_a_model_in_the_same_lines(name: str) -> None:
    encoder, decoder = torch.nn.Linear(1, SIZE), torch.nn.Linear(SIZE, 1)
    estimator, inputs = ESTIMATORS[name].make(), torch.randn(8, 1)
    latent = Choice(encoder(inputs))
    estimate = estimator(latent, lambda choice, example: decoder(choice).square().squeeze(-1), inputs)
    (estimate.surrogate - 0.1 * latent.entropy()).mean().backward()
    for parameter in [*encoder.parameters(), *decoder.parameters(), *estimator.parameters()]:
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any()


@pytest.mark.parametrize("inner", [ScoreFunction(), SumAndSample(), DenseMarginal()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("outer", [ScoreFunction("sample"), SparseMarginal()], ids=lambda e: type(e).__name__)
def test_a_choice_may_follow_a_choice(outer: Estimator, inner: Estimator) -> None:
    """A message is chosen, then a pick given the message; the gradient reaches both and the loss, unbiased."""
    first = torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64)
    second = torch.randn(3, 4, dtype=torch.float64)
    costs = torch.randn(4, dtype=torch.float64)

    def parameters(num_rows: int) -> list[Tensor]:
        return [p.expand(num_rows, *p.shape).clone().requires_grad_() for p in (first, second, costs)]

    message, pick, cost = exact = parameters(1)
    probs = message[0].softmax(-1) @ pick[0].softmax(-1)
    expected = torch.autograd.grad((probs * cost[0].square()).sum(), exact)
    message, pick, cost = sampled = parameters(MANY)

    def loss_given(choice: Tensor, example: Tensor) -> Tensor:
        scores = torch.einsum("pm,pmk->pk", choice, pick[example])
        return inner(Choice(scores), lambda chosen, pair: (chosen * cost[example][pair].square()).sum(-1)).surrogate

    surrogate = outer(Choice(message), loss_given).surrogate
    for found, wanted in zip(torch.autograd.grad(surrogate.sum(), sampled), expected, strict=True):
        assert deviation(found, wanted[0]).in_errors < 4.5


@pytest.mark.parametrize("name", ["score-average", "sum-average", "nvil", "gumbel", "gumbel-annealed"])
def test_the_state_can_be_saved_and_loaded(name: str) -> None:
    estimator, other = ESTIMATORS[name].make(), ESTIMATORS[name].make()

    def step(estimator: Estimator) -> Tensor:
        torch.manual_seed(3)
        scores, theta = torch.ones(6, SIZE, dtype=torch.float64), torch.ones(6, WIDTH, dtype=torch.float64)
        scores.requires_grad_()
        surrogate = estimator(Choice(scores), DistanceLoss(theta), torch.ones(6, 1)).surrogate
        return torch.autograd.grad(surrogate.sum(), scores)[0]

    for _ in range(3):
        step(estimator)
    if name == "gumbel":
        estimator.temperature = 0.25
    assert not torch.equal(step(estimator), step(other))
    other.load_state_dict(estimator.state_dict())
    for _ in range(3):
        assert torch.equal(step(estimator), step(other))


@each("name", [name for name, kind in ESTIMATORS.items() if "average" not in name])
def test_only_those_that_say_so_have_a_state(name: str) -> None:
    has_state = bool(ESTIMATORS[name].make().state_dict())
    assert has_state == (name == "nvil" or "gumbel" in name or "through" in name)


@each("name", list(ESTIMATORS))
def test_losses_that_are_not_one_finite_number_for_each_pair_are_refused(name: str) -> None:
    kind, context = ESTIMATORS[name], torch.zeros(3, 1)
    latent = Choice(torch.randn(3, SIZE))

    def estimate(loss_given: Callable[[Tensor, Tensor], object]) -> None:
        kind.make()(latent, loss_given, context)

    with pytest.raises(ValueError, match=r"one loss for each of the \d+ pairs"):
        estimate(lambda choice, example: choice.sum())
    with pytest.raises(TypeError, match="must return a tensor of losses, got float"):
        estimate(lambda choice, example: 1.0)
    with pytest.raises(TypeError, match=r"floating point losses, got torch.int64"):
        estimate(lambda choice, example: example)
    for wrong in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match=f"finite losses, got {wrong} for example 2"):
            estimate(lambda choice, example, wrong=wrong: torch.where(example == 2, wrong, 1.0))


@each("name", list(ESTIMATORS))
def test_scores_in_place_of_a_latent_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=r"latent must be a Latent, got Tensor; wrap scores as Choice\(scores\)"):
        ESTIMATORS[name].make()(torch.zeros(3, 4), lambda choice, example: choice.sum(-1))


def test_half_precision_scores_train_against_float32_losses() -> None:
    for name, kind in ESTIMATORS.items():
        scores = torch.randn(6, SIZE, dtype=torch.bfloat16, requires_grad=True)
        latent = BitVector(scores) if not kind.only_choices else Choice(scores)
        estimate = kind.make()(latent, lambda choice, example: choice.float().square().sum(-1), torch.zeros(6, 1))
        estimate.surrogate.sum().backward()
        assert estimate.loss.dtype == torch.float32, name
        assert scores.grad is not None and scores.grad.isfinite().all(), name
