"""What every latent promises, by enumeration. A new one joins by one line in MEMBERS of members.py."""

import pytest
import torch
from torch import Tensor

from anymax.latent import Latent, Support
from tests.each import each
from tests.latent.members import MEMBERS, Member

SIZE = 4
SHAPES = [(), (3,), (2, 3), (1, 1, 2), (0,), (2, 0)]


@pytest.fixture(params=list(MEMBERS))
def member(request: pytest.FixtureRequest) -> Member:
    return MEMBERS[request.param]


def drawn_scores(*batch: int) -> Tensor:
    return torch.randn(*batch, SIZE, dtype=torch.float64)


def table(support: Support, example: int) -> dict[tuple[float, ...], float]:
    mine = support.example == example
    return {tuple(v.tolist()): p.item() for v, p in zip(support.values[mine], support.probs[mine], strict=True)}


def expected_table(member: Member, scores: Tensor) -> dict[tuple[float, ...], float]:
    values, probs = member.listed(scores)
    return {tuple(v.tolist()): p.item() for v, p in zip(values, probs, strict=True)}


@each("shape", SHAPES)
def test_results_have_the_batch_shape(member: Member, shape: tuple[int, ...]) -> None:
    latent = member.latent(drawn_scores(*shape))
    assert (latent.batch_shape, latent.size, latent.num_rows) == (shape, SIZE, torch.Size(shape).numel())
    sample = latent.sample()
    assert sample.shape == latent.mode().shape == (*shape, SIZE)
    assert latent.entropy().shape == latent.log_prob(sample).shape == shape
    assert latent.log_prob(sample.expand(5, 2, *sample.shape)).shape == (5, 2, *shape)
    assert latent.log_prob(sample).isfinite().all()
    if member.can_relax:
        assert latent.relaxed(0.5).shape == latent.relaxed(0.5, hard=True).shape == (*shape, SIZE)


@each("shape", SHAPES)
def test_everything_is_the_enumeration(member: Member, shape: tuple[int, ...]) -> None:
    scores = drawn_scores(*shape)
    everything = member.latent(scores).everything()
    rows = scores.reshape(-1, SIZE)
    assert everything.values.dtype == scores.dtype and everything.example.dtype == torch.long
    assert (everything.example.diff() >= 0).all()
    assert len(everything.example) == len(rows) * len(expected_table(member, torch.zeros(SIZE)))
    for example, row in enumerate(rows):
        assert table(everything, example) == pytest.approx(expected_table(member, row), abs=1e-12)


def test_the_support_is_what_has_positive_probability(member: Member) -> None:
    scores = drawn_scores(12)
    support = member.latent(scores).support()
    assert (support.probs > 0).all() and (support.example.diff() >= 0).all()
    for example, row in enumerate(scores):
        positive = {value: prob for value, prob in expected_table(member, row).items() if prob > 0}
        assert table(support, example) == pytest.approx(positive, abs=1e-12)
    everything = member.latent(scores).everything()
    assert (len(support.probs) < len(everything.probs)) == member.is_sparse


def test_log_prob_is_that_of_the_enumeration_with_its_gradient(member: Member) -> None:
    scores = drawn_scores().requires_grad_()
    values, probs = member.listed(scores)
    found = member.latent(scores).log_prob(values)
    torch.testing.assert_close(found.exp(), probs, rtol=0, atol=1e-12)
    possible = (probs > 0).nonzero().squeeze(-1)
    (expected,) = torch.autograd.grad(probs[possible].log().sum(), scores)
    (gradient,) = torch.autograd.grad(found[possible].sum(), scores)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)


def test_values_outside_of_the_support_have_log_prob_minus_infinity(member: Member) -> None:
    latent = member.latent(drawn_scores().requires_grad_())
    values = torch.stack([torch.full((SIZE,), 0.5), torch.full((SIZE,), 2.0), torch.full((SIZE,), -1.0)]).double()
    log_probs = latent.log_prob(values)
    assert (log_probs == -torch.inf).all()
    (gradient,) = torch.autograd.grad(log_probs.exp().sum(), latent.scores, allow_unused=True)
    assert gradient is None or (gradient == 0).all()


def test_entropy_is_that_of_the_enumeration_with_a_finite_gradient(member: Member) -> None:
    scores = (drawn_scores(6) * torch.tensor([0.0, 0.3, 1, 1, 3, 100]).unsqueeze(-1)).requires_grad_()
    probs = torch.stack([member.listed(row)[1] for row in scores])
    entropy = member.latent(scores).entropy()
    expected = -torch.where(probs > 0, probs * probs.clamp(min=1e-300).log(), 0).sum(-1)
    torch.testing.assert_close(entropy, expected, rtol=0, atol=1e-10)
    (gradient,) = torch.autograd.grad(entropy.sum(), scores)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), scores)
    assert gradient.isfinite().all()
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-8)


def test_the_mode_has_the_largest_probability(member: Member) -> None:
    latent = member.latent(drawn_scores(20))
    everything = latent.everything()
    largest = everything.probs.reshape(20, -1).amax(-1)
    torch.testing.assert_close(latent.log_prob(latent.mode()).exp(), largest)


def assert_frequencies(samples: Tensor, latent: Latent) -> None:
    """Every value of a latent without a batch comes as often as it should, within five standard errors."""
    everything = latent.everything()
    counts = (samples.unsqueeze(1) == everything.values).all(-1).double().mean(0)
    error = (everything.probs * (1 - everything.probs) / len(samples)).sqrt()
    assert counts.sum() == pytest.approx(1)
    assert ((counts - everything.probs).abs() <= 5 * error + 1e-9).all()


def test_samples_come_as_often_as_they_should(member: Member) -> None:
    scores = drawn_scores()
    samples = member.latent(scores.expand(20_000, SIZE)).sample()
    assert_frequencies(samples, member.latent(scores))


def test_cold_relaxed_samples_are_samples(member: Member) -> None:
    if not member.can_relax:
        pytest.skip("no relaxation draws from this distribution")
    scores = drawn_scores()
    many = member.latent(scores.expand(20_000, SIZE))
    assert_frequencies(many.relaxed(1e-6).round(), member.latent(scores))
    assert_frequencies(many.relaxed(3.0, hard=True), member.latent(scores))
    assert not torch.equal(many.relaxed(3.0), many.relaxed(3.0).round())


def test_a_hard_relaxed_sample_has_the_gradient_of_the_soft_one(member: Member) -> None:
    if not member.can_relax:
        pytest.skip("no relaxation draws from this distribution")
    scores, weights = drawn_scores(5).requires_grad_(), drawn_scores(5)
    latent = member.latent(scores)
    soft, hard = (latent.relaxed(0.7, hard=hard, generator=torch.Generator().manual_seed(2)) for hard in (False, True))
    gradients = [torch.autograd.grad((sample * weights).sum(), scores)[0] for sample in (soft, hard)]
    torch.testing.assert_close(gradients[0], gradients[1])
    assert ((hard == 0) | (hard == 1)).all()
    assert ((soft - hard).abs() < 1).all()


def test_a_generator_repeats_samples(member: Member) -> None:
    latent = member.latent(drawn_scores(50))
    one, other = (latent.sample(generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(one, other)


@each("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(member: Member, dtype: torch.dtype) -> None:
    scores = drawn_scores(6).to(dtype)
    half, single = member.latent(scores), member.latent(scores.float())
    support = half.support()
    assert half.sample().dtype == half.mode().dtype == support.values.dtype == dtype
    assert support.probs.dtype == half.entropy().dtype == torch.float32
    torch.testing.assert_close(support.probs, single.support().probs, rtol=0, atol=0)
    torch.testing.assert_close(half.log_prob(half.mode()), single.log_prob(single.mode()), rtol=0, atol=0)
    if member.can_relax:
        assert half.relaxed(1.0).dtype == dtype


def test_scores_of_minus_infinity_forbid(member: Member) -> None:
    scores = drawn_scores(30)
    scores[:, 1] = -torch.inf
    scores.requires_grad_()
    latent = member.latent(scores)
    support = latent.support()
    assert (support.values[:, 1] == 0).all() and (latent.sample()[:, 1] == 0).all()
    total = latent.entropy().sum() + latent.log_prob(latent.sample()).sum() + (support.probs**2).sum()
    (gradient,) = torch.autograd.grad(total, scores)
    assert total.isfinite() and gradient.isfinite().all()


@each("poison", [torch.nan, torch.inf])
def test_scores_that_are_not_numbers_are_refused(member: Member, poison: float) -> None:
    scores = drawn_scores(3)
    scores[1, 2] = poison
    with pytest.raises(ValueError, match="scores must be finite"):
        member.latent(scores)


def test_scores_of_a_wrong_kind_are_refused(member: Member) -> None:
    with pytest.raises(TypeError, match="scores must be floating point"):
        member.latent(torch.ones(3, 4, dtype=torch.long))
    with pytest.raises(TypeError, match="scores must be a tensor"):
        member.latent([1.0, 2.0])  # type: ignore[arg-type]
    for scores in (torch.tensor(1.0), torch.zeros(3, 0)):
        with pytest.raises(ValueError, match="at least one entry"):
            member.latent(scores)


def test_values_of_a_wrong_shape_are_refused(member: Member) -> None:
    latent = member.latent(drawn_scores(3))
    for shape in ((SIZE,), (2, SIZE), (3, SIZE + 1), (3, 2, SIZE)):
        with pytest.raises(ValueError, match="values must have a shape that ends with batch and size"):
            latent.log_prob(torch.zeros(shape, dtype=torch.float64))
