"""What every output layer promises. A new layer joins by one line in MEMBERS."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import anymax
from anymax.vocabulary import (
    AdaptiveInput,
    AdaptiveOutput,
    Bands,
    FullOutput,
    MixtureOutput,
    OutputLayer,
    SparseOutput,
    tie_,
)
from tests.each import each

V, D = 23, 8
BANDS = Bands.from_sizes((7, 9, 7), dim=D, factor=2)
LEADING = [(), (5,), (2, 3), (2, 1, 4)]


@dataclass(frozen=True)
class Member:
    """An output layer of V words and D dimensions, and what sets it apart."""

    make: Callable[..., OutputLayer]
    has_transform: bool = False


def adaptive(**options: int) -> OutputLayer:
    return AdaptiveOutput(BANDS, D, **options)


def adaptive_tied(**options: int) -> OutputLayer:
    layer = AdaptiveOutput(BANDS, D, head_projection=True, **options)
    tie_(AdaptiveInput(BANDS, D), layer, projections=True, head=True)
    return layer


def plif() -> nn.Module:
    return anymax.PLIF(pieces=40, bound=4.0, random_start=True)


MEMBERS = {
    "full": Member(lambda **options: FullOutput(V, D, **options)),
    "full-bias": Member(lambda **options: FullOutput(V, D, bias=True, **options)),
    "full-projected": Member(lambda **options: FullOutput(V, D, dim=3, **options)),
    "full-bias-sig": Member(lambda **options: FullOutput(V, D, bias=True, transform=anymax.Sig(), **options), True),
    "full-plif": Member(lambda **options: FullOutput(V, D, transform=plif(), **options), True),
    "adaptive": Member(adaptive),
    "adaptive-tied": Member(adaptive_tied),
    "mixture": Member(lambda **options: MixtureOutput(V, D, num_experts=3, dim=5, **options)),
    "mixture-plif": Member(lambda **options: MixtureOutput(V, D, num_experts=2, transform=plif(), **options), True),
    "sparse-1.5": Member(lambda **options: SparseOutput(V, D, bias=True, **options)),
    "sparse-learned": Member(lambda **options: SparseOutput(V, D, alpha=1.3, learn_alpha=True, dim=5, **options)),
    "sparsemax": Member(lambda **options: SparseOutput(V, D, alpha=2.0, **options)),
}


@pytest.fixture(params=list(MEMBERS))
def member(request: pytest.FixtureRequest) -> Member:
    return MEMBERS[request.param]


@pytest.fixture
def layer(member: Member) -> OutputLayer:
    return trained(member.make())


def trained(layer: OutputLayer) -> OutputLayer:
    """With biases that are not zero any more."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return layer


def batch(*leading: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randn(*leading, D, dtype=dtype) * 1.5, torch.randint(V, leading)


def eager_losses(layer: OutputLayer, hidden: Tensor, target: Tensor) -> Tensor:
    """One loss per token, by way of the scores of all words."""
    if layer.is_likelihood:
        return -layer.log_probs(hidden).gather(-1, target[..., None])[..., 0]
    assert isinstance(layer, SparseOutput)
    vectors = hidden if layer.projection is None else hidden @ layer.projection
    scores = nn.functional.linear(vectors, layer.table, layer.bias)
    return anymax.entmax_loss(scores, target, layer.alpha, reduction="none")


@each("leading", LEADING)
def test_probabilities_sum_to_one_in_any_leading_shape(layer: OutputLayer, leading: tuple[int, ...]) -> None:
    log_probs = layer.log_probs(batch(*leading)[0])
    assert log_probs.shape == (*leading, V)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(leading))


@each("leading", LEADING)
def test_log_prob_is_that_of_the_target_among_all(layer: OutputLayer, leading: tuple[int, ...]) -> None:
    hidden, target = batch(*leading)
    expected = layer.log_probs(hidden).gather(-1, target[..., None])[..., 0]
    torch.testing.assert_close(layer.log_prob(hidden, target), expected, rtol=1e-5, atol=1e-5)


def test_the_loss_is_minus_log_prob_where_the_layer_is_a_likelihood(layer: OutputLayer) -> None:
    hidden, target = batch(3, 5)
    losses = layer(hidden, target, "none")
    agrees = torch.allclose(losses, -layer.log_prob(hidden, target), atol=1e-6)
    assert agrees == layer.is_likelihood


def test_loss_and_gradients_are_those_of_the_scores_of_all_words(layer: OutputLayer) -> None:
    layer.double()
    hidden, target = batch(4, 6, dtype=torch.float64)
    hidden.requires_grad_()
    losses = layer(hidden, target, "none")
    expected = eager_losses(layer, hidden, target)
    torch.testing.assert_close(losses, expected)
    weights = torch.randn(4, 6, dtype=torch.float64)
    sources = [hidden, *layer.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad((losses * weights).sum(), sources),
        torch.autograd.grad((expected * weights).sum(), sources),
        rtol=1e-7,
        atol=1e-9,
    )


@each("reduction", ["mean", "sum"])
def test_a_reduced_loss_and_its_gradients_are_those_of_the_single_losses(layer: OutputLayer, reduction: str) -> None:
    hidden, target = batch(4, 6)
    target[1, 2:5] = -100
    hidden.requires_grad_()
    sources = [hidden, *layer.parameters()]
    total = layer(hidden, target, "none").sum()
    expected = total / 21 if reduction == "mean" else total
    loss = layer(hidden, target, reduction)
    torch.testing.assert_close(loss, expected)
    got = torch.autograd.grad(loss, sources)
    torch.testing.assert_close(got, torch.autograd.grad(expected, sources), rtol=1e-4, atol=1e-5)


def test_the_order_of_tokens_is_the_order_of_losses(layer: OutputLayer) -> None:
    hidden, target = batch(40)
    order = torch.randperm(40)
    losses = layer(hidden, target, "none")
    torch.testing.assert_close(layer(hidden[order], target[order], "none"), losses[order], rtol=1e-5, atol=1e-5)


@each("ignore_index", [-100, 1, 8])
def test_ignored_tokens_count_for_nothing_whatever_their_index(member: Member, ignore_index: int) -> None:
    layer = trained(member.make(ignore_index=ignore_index))
    hidden, target = batch(60)
    target = torch.where(target == ignore_index, 0, target)
    target[::4] = ignore_index
    kept = target != ignore_index
    hidden.requires_grad_()
    losses = layer(hidden, target, "none")
    assert (losses[~kept] == 0).all() and (layer.log_prob(hidden, target)[~kept] == 0).all()
    torch.testing.assert_close(
        losses[kept], eager_losses(layer, hidden, target.clamp(min=0))[kept], rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(layer(hidden, target), losses.sum() / kept.sum())
    (gradient,) = torch.autograd.grad(layer(hidden, target), hidden)
    assert (gradient[~kept] == 0).all() and (gradient[kept] != 0).any()


@each("reduction", ["mean", "sum", "none"])
@each("num_tokens", [0, 3])
def test_no_token_left_costs_nothing_and_gives_zero_gradients(
    layer: OutputLayer, num_tokens: int, reduction: str
) -> None:
    layer.zero_grad()
    hidden = torch.randn(num_tokens, D, requires_grad=True)
    loss = layer(hidden, torch.full((num_tokens,), -100), reduction)
    assert loss.shape == ((num_tokens,) if reduction == "none" else ()) and (loss == 0).all()
    loss.sum().backward()
    for source in (hidden, *layer.parameters()):
        assert source.grad is not None and (source.grad == 0).all()


def test_an_empty_batch_gives_empty_answers(layer: OutputLayer) -> None:
    hidden, target = torch.randn(2, 0, D), torch.zeros(2, 0, dtype=torch.long)
    assert layer.log_probs(hidden).shape == (2, 0, V)
    assert layer.log_prob(hidden, target).shape == (2, 0)
    assert layer.topk(hidden, 3).words.shape == (2, 0, 3)
    assert layer.sample(hidden).shape == (2, 0)


def test_every_parameter_gets_a_gradient_though_all_targets_are_one_word(layer: OutputLayer) -> None:
    layer(torch.randn(4, D), torch.zeros(4, dtype=torch.long)).backward()
    assert [name for name, parameter in layer.named_parameters() if parameter.grad is None] == []


def test_int32_targets_serve(layer: OutputLayer) -> None:
    hidden, target = batch(7)
    torch.testing.assert_close(layer(hidden, target.int()), layer(hidden, target))
    torch.testing.assert_close(layer.log_prob(hidden, target.int()), layer.log_prob(hidden, target))


def test_hidden_need_not_be_contiguous(layer: OutputLayer) -> None:
    hidden, target = torch.randn(D, 6, 2)[..., 0].T, torch.randint(V, (6,))
    torch.testing.assert_close(layer(hidden, target), layer(hidden.contiguous(), target))


@each("k", [1, 4, 9, V])
def test_topk_is_that_of_all_log_probabilities(layer: OutputLayer, k: int) -> None:
    hidden, _ = batch(5, 6)
    log_probs = layer.log_probs(hidden)
    best = layer.topk(hidden, k)
    expected = log_probs.topk(k).values
    torch.testing.assert_close(best.log_probs, expected)
    torch.testing.assert_close(log_probs.gather(-1, best.words), expected)
    assert (best.words.sort(-1).values.diff(dim=-1) > 0).all()


def test_samples_follow_the_generator_and_the_support(layer: OutputLayer) -> None:
    hidden, _ = batch(3, 50)
    draws = [layer.sample(hidden, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert draws[0].equal(draws[1]) and not draws[0].equal(draws[2])
    assert draws[0].shape == (3, 50)
    assert layer.log_probs(hidden).gather(-1, draws[0][..., None]).isfinite().all()


def test_cold_samples_are_the_best_words(layer: OutputLayer) -> None:
    hidden, _ = batch(30)
    torch.testing.assert_close(layer.sample(hidden, temperature=1e-4), layer.topk(hidden, 1).words[:, 0])


def test_a_small_budget_changes_no_answer(member: Member) -> None:
    plain = trained(member.make())
    layer = member.make(memory_budget=8 * 4 * V)
    layer.load_state_dict(plain.state_dict())
    hidden, target = batch(11, 3)
    torch.testing.assert_close(layer(hidden, target), plain(hidden, target))
    # Another number of rows rounds the scores otherwise, which the logarithm of a small probability shows.
    near = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(layer.log_prob(hidden, target), plain.log_prob(hidden, target), **near)
    torch.testing.assert_close(layer.topk(hidden, 3), plain.topk(hidden, 3), **near)
    assert layer.sample(hidden).shape == (11, 3)


def test_autocast_gives_a_float32_loss_near_the_full_one(layer: OutputLayer) -> None:
    hidden, target = batch(4, 6)
    full = layer(hidden, target)
    for given in (hidden, hidden.bfloat16()):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(given, target)
            log_probs = layer.log_probs(given)
        assert loss.dtype == log_probs.dtype == torch.float32
        torch.testing.assert_close(loss, full, rtol=0.05, atol=0.05)
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(4, 6))
        loss.backward()
        for parameter in layer.parameters():
            assert parameter.grad is not None and parameter.grad.dtype == torch.float32


def test_a_bfloat16_layer_gives_a_float32_loss_and_gradients_near_the_full_ones(layer: OutputLayer) -> None:
    layer.bfloat16()
    wide = copy.deepcopy(layer).float()
    hidden, target = batch(4, 6)
    given = hidden.bfloat16().requires_grad_()
    wanted = given.detach().float().requires_grad_()
    loss, full = layer(given, target), wide(wanted, target)
    assert loss.dtype == layer.log_probs(given).dtype == torch.float32
    torch.testing.assert_close(loss, full, rtol=0.03, atol=0.03)
    loss.backward()
    full.backward()
    for source, expected in zip((given, *layer.parameters()), (wanted, *wide.parameters()), strict=True):
        assert source.grad is not None and expected.grad is not None and source.grad.dtype == torch.bfloat16
        difference = (source.grad - expected.grad).norm()
        assert difference < 0.1 * expected.grad.norm()


def test_hidden_is_taken_in_the_type_of_the_parameters(layer: OutputLayer) -> None:
    hidden, target = batch(5)
    short = hidden.bfloat16()
    torch.testing.assert_close(layer(short, target), layer(short.float(), target))
    torch.testing.assert_close(layer.log_probs(short), layer.log_probs(short.float()))


def test_the_state_dict_carries_everything(member: Member) -> None:
    layer, fresh = trained(member.make()), member.make()
    fresh.load_state_dict(layer.state_dict())
    hidden, target = batch(6)
    assert fresh(hidden, target).equal(layer(hidden, target))


def test_a_deep_copy_is_its_own_layer(layer: OutputLayer) -> None:
    hidden, target = batch(6)
    before = layer(hidden, target)
    twin = copy.deepcopy(layer)
    assert twin(hidden, target).equal(before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(torch.randn(parameter.shape))
    assert layer(hidden, target).equal(before) and not twin(hidden, target).equal(before)


def test_hidden_of_another_width_is_refused(layer: OutputLayer) -> None:
    hidden, target = torch.randn(3, D + 1), torch.zeros(3, dtype=torch.long)
    calls: list[Callable[[], object]] = [
        lambda: layer(hidden, target),
        lambda: layer.log_prob(hidden, target),
        lambda: layer.log_probs(hidden),
        lambda: layer.topk(hidden, 1),
        lambda: layer.sample(hidden),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"hidden must be 8 wide .* got shape \(3, 9\)"):
            call()
    with pytest.raises(TypeError, match="hidden must be a floating-point tensor"):
        layer(target[:, None], target)


def test_wrong_targets_are_refused(layer: OutputLayer) -> None:
    hidden = torch.randn(3, D)
    for call in (layer, layer.log_prob):
        for wrong in (torch.tensor([0, V, 1]), torch.tensor([0, -1, 1])):
            with pytest.raises(ValueError, match=r"target must be a .* from 0 to 22, or ignore_index"):
                call(hidden, wrong)
        with pytest.raises(ValueError, match=r"target must have the shape|shape of target"):
            call(hidden, torch.zeros(4, dtype=torch.long))
        with pytest.raises(TypeError, match="target must be a tensor of"):
            call(hidden, torch.rand(3))


def test_wrong_options_are_refused(member: Member) -> None:
    layer = member.make()
    hidden, target = batch(3)
    with pytest.raises(ValueError, match="reduction must be one of mean, sum, none"):
        layer(hidden, target, "average")
    with pytest.raises(ValueError, match="k must be at most the vocabulary size, 23, got 24"):
        layer.topk(hidden, V + 1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        layer.topk(hidden, 0)
    for temperature in (0.0, -1.0, torch.inf, torch.nan):
        with pytest.raises(ValueError, match="temperature must be a positive finite number"):
            layer.sample(hidden, temperature=temperature)
    with pytest.raises(ValueError, match="memory_budget must be at least 1"):
        member.make(memory_budget=0)
    with pytest.raises(ValueError, match="label_smoothing must"):
        member.make(label_smoothing=1.5)


# Torch's own, when it goes on tracing after the break that a transform makes.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiles_and_agrees_with_eager(member: Member) -> None:
    torch._dynamo.reset()
    layer = trained(member.make())
    hidden, target = batch(3, 4)
    target[1, 1] = -100
    hidden.requires_grad_()
    sources = [hidden, *layer.parameters()]
    compiled = torch.compile(layer, fullgraph=not member.has_transform, backend="aot_eager")
    loss = compiled(hidden, target)
    torch.testing.assert_close(loss, layer(hidden, target))
    got = torch.autograd.grad(loss, sources)
    torch.testing.assert_close(got, torch.autograd.grad(layer(hidden, target), sources), rtol=1e-4, atol=1e-5)
