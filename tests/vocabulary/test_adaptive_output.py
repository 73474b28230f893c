"""The adaptive softmax: against torch's own, and against the distribution over all words."""

import pytest
import torch
from torch import Tensor
from torch.nn import AdaptiveLogSoftmaxWithLoss

from anymax.vocabulary import AdaptiveOutput, Bands

SIZES = [(10, 20, 12), (3, 4), (1, 1, 1, 30), (25, 2, 9)]


def torchs(layer: AdaptiveOutput, div_value: float) -> AdaptiveLogSoftmaxWithLoss:
    """Torch's layer with the same weights."""
    bands = layer.bands
    module = AdaptiveLogSoftmaxWithLoss(
        layer.model_dim, bands.vocabulary_size, list(bands.cutoffs), div_value=div_value, dtype=layer.tables[0].dtype
    )
    with torch.no_grad():
        module.head.weight.copy_(torch.cat([layer.tables[0], layer.clusters]))
        for i, (down, out) in enumerate(module.tail):
            down.weight.copy_(layer.tail_projections[i].T)
            out.weight.copy_(layer.tables[i + 1])
    return module


@pytest.mark.parametrize("factor", [2, 4])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_agrees_with_torch_in_losses_gradients_and_all_log_probabilities(sizes: tuple[int, ...], factor: int) -> None:
    layer = AdaptiveOutput(Bands.from_sizes(sizes, dim=64, factor=factor), 64).double()
    module = torchs(layer, float(factor))
    hidden = torch.randn(50, 64, dtype=torch.float64, requires_grad=True)
    target = torch.randint(sum(sizes), (50,))
    output, loss = module(hidden, target)
    torch.testing.assert_close(layer(hidden, target), loss)
    torch.testing.assert_close(layer.log_prob(hidden, target), output)
    torch.testing.assert_close(layer.log_probs(hidden), module.log_prob(hidden))
    (expected,) = torch.autograd.grad(loss, hidden, retain_graph=True)
    (got,) = torch.autograd.grad(layer(hidden, target), hidden)
    torch.testing.assert_close(got, expected)
    loss.backward()
    layer(hidden, target).backward()
    torch.testing.assert_close(torch.cat([layer.tables[0].grad, layer.clusters.grad]), module.head.weight.grad)
    for i, (down, out) in enumerate(module.tail):
        # Torch leaves a tail out where no target is of it.
        for gradient, weight in (
            (layer.tail_projections[i].grad.T, down.weight),
            (layer.tables[i + 1].grad, out.weight),
        ):
            torch.testing.assert_close(gradient, torch.zeros_like(weight) if weight.grad is None else weight.grad)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_best_word_is_that_of_torch(sizes: tuple[int, ...]) -> None:
    layer = AdaptiveOutput(Bands.from_sizes(sizes, dim=64, factor=2), 64)
    hidden = 2 * torch.randn(80, 64)
    assert layer.topk(hidden, 1).words[:, 0].equal(torchs(layer, 2.0).predict(hidden))


def test_one_band_is_a_plain_softmax() -> None:
    layer = AdaptiveOutput(Bands(9, (), (4,)), 4)
    hidden, target = torch.randn(7, 4), torch.randint(9, (7,))
    assert layer.clusters is None
    scores = hidden @ layer.tables[0].T
    torch.testing.assert_close(layer.log_probs(hidden), scores.log_softmax(-1))
    torch.testing.assert_close(layer(hidden, target), torch.nn.functional.cross_entropy(scores, target))
    assert layer.topk(hidden, 2).words.equal(scores.topk(2).indices)
    assert layer.sample(hidden).shape == (7,)


def test_the_probability_of_a_band_is_that_of_its_words() -> None:
    for bands in (Bands(9, (), (4,)), Bands.from_sizes((4, 6, 3), dim=4, factor=2)):
        layer = AdaptiveOutput(bands, 4)
        hidden = 2 * torch.randn(2, 5, 4)
        of_bands = layer.log_probs(hidden).exp().split(bands.sizes, -1)
        expected = torch.stack([band.sum(-1) for band in of_bands], -1)
        torch.testing.assert_close(layer.band_log_probs(hidden).exp(), expected)


def test_a_head_projection_stands_before_the_words_and_not_before_the_clusters() -> None:
    bands = Bands.from_sizes((4, 6), dims=(3, 2))
    layer = AdaptiveOutput(bands, 8)
    hidden = torch.randn(5, 8)
    scores = torch.cat([hidden @ layer.head_projection @ layer.tables[0].T, hidden @ layer.clusters.T], -1)
    head = scores.log_softmax(-1)
    torch.testing.assert_close(layer.log_probs(hidden)[:, :4], head[:, :4])
    torch.testing.assert_close(layer.log_probs(hidden)[:, 4:].logsumexp(-1), head[:, 4])


def test_the_words_of_a_tail_beside_the_ignored_word_of_the_head_still_cost() -> None:
    layer = AdaptiveOutput(Bands.from_sizes((4, 6, 5), dim=8, factor=2), 8, ignore_index=1)
    hidden, target = torch.randn(3, 8), torch.tensor([5, 11, 1])
    expected = -layer.log_probs(hidden).gather(1, target[:, None])[:, 0]
    losses = layer(hidden, target, "none")
    torch.testing.assert_close(losses[:2], expected[:2])
    assert losses[2] == 0


def poisoned(sizes: tuple[int, ...], cluster_scores: list[float]) -> AdaptiveOutput:
    """Clusters of the given scores against one word that scores 0, and NaN in the last tail."""
    layer = AdaptiveOutput(Bands.from_sizes(sizes, dim=8, factor=2), 8)
    with torch.no_grad():
        layer.tables[0].zero_()
        layer.clusters.zero_()
        layer.clusters[:, 0] = torch.tensor(cluster_scores)
        layer.tables[-1].fill_(torch.nan)
    return layer


def test_topk_leaves_out_tails_that_cannot_hold_a_better_word() -> None:
    layer = poisoned((4, 6, 5), [3.0, -1.0])
    hidden = torch.zeros(2, 8)
    hidden[:, 0] = 1
    best = layer.topk(hidden, 4)
    assert best.log_probs.isfinite().all()
    with torch.no_grad():
        layer.tables[-1].zero_()
    torch.testing.assert_close(best.log_probs, layer.log_probs(hidden).topk(4).values)
    # A word more, and the cluster of the last tail, which scores less than any of the head, has to be looked into.
    with torch.no_grad():
        layer.tables[-1].fill_(torch.nan)
    assert not layer.topk(hidden, 11).log_probs.isfinite().all()


def test_topk_may_ask_for_more_words_than_the_head_holds() -> None:
    layer = AdaptiveOutput(Bands.from_sizes((2, 3, 5), dim=8, factor=2), 8)
    hidden = torch.randn(20, 8)
    for k in (3, 6, 10):
        torch.testing.assert_close(layer.topk(hidden, k).log_probs, layer.log_probs(hidden).topk(k).values)


def test_sampling_leaves_out_tails_that_no_token_fell_into() -> None:
    layer = poisoned((4, 6, 5), [3.0, -300.0])
    hidden = torch.zeros(500, 8)
    hidden[:, 0] = 1
    words = layer.sample(hidden)
    assert (words < 10).all() and (words >= 4).any() and (words < 4).any()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_samples_follow_the_distribution_over_all_words(temperature: float) -> None:
    layer = AdaptiveOutput(Bands.from_sizes((4, 6, 5), dim=8, factor=2), 8)
    num_draws = 20_000
    hidden = torch.randn(8)
    probs = (layer.log_probs(hidden) / temperature).softmax(-1)
    words = layer.sample(hidden.expand(num_draws, 8), temperature=temperature)
    counts = torch.bincount(words, minlength=15)
    statistic = ((counts - num_draws * probs) ** 2 / (num_draws * probs)).sum()
    # Chi-square of 14 degrees of freedom: mean 14, deviation 5.3.
    assert statistic < 14 + 6 * 5.3


def test_tail_dropout_leaves_the_head_alone() -> None:
    layer = AdaptiveOutput(Bands.from_sizes((4, 6, 5), dim=8, factor=2), 8, tail_dropout=(0.5, 0.0))
    hidden = torch.randn(20, 8)
    first, second = layer.log_probs(hidden), layer.log_probs(hidden)
    assert first[:, :4].equal(second[:, :4]) and first[:, 10:].equal(second[:, 10:])
    assert not first[:, 4:10].equal(second[:, 4:10])
    layer.eval()
    assert layer.log_probs(hidden).equal(layer.log_probs(hidden))


def test_softmax_input_dropout_reaches_the_head() -> None:
    layer = AdaptiveOutput(Bands.from_sizes((4, 6), dim=8, factor=2), 8, softmax_input_dropout=0.5)
    hidden, target = torch.randn(20, 8), torch.zeros(20, dtype=torch.long)
    assert layer(hidden, target) != layer(hidden, target)
    layer.eval()
    assert layer(hidden, target) == layer(hidden, target)


def test_dropout_scales_what_it_keeps() -> None:
    """A tail hidden of ones, dropped at a half, is zero or two: the loss is one of two known ones."""
    layer = AdaptiveOutput(Bands.from_sizes((1, 2), dims=(1, 1)), 1, tail_dropout=0.5)
    with torch.no_grad():
        layer.tail_projections[0].fill_(1.0)
        layer.tables[1].copy_(torch.tensor([[1.0], [0.0]]))
    hidden, target = torch.ones(64, 1), torch.ones(64, dtype=torch.long)
    head = torch.cat([layer.tables[0], layer.clusters])[:, 0].log_softmax(0)[1]
    known = torch.stack([-head - torch.tensor([x, 0.0]).log_softmax(0)[0] for x in (0.0, 2.0)])
    losses = layer(hidden, target, "none")
    distance: Tensor = (losses[:, None] - known).abs()
    assert (distance.min(1).values < 1e-6).all()
    assert set(distance.argmin(1).tolist()) == {0, 1}


def test_label_smoothing_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"label_smoothing must be 0 for AdaptiveOutput, got 0.1; .*FullOutput"):
        AdaptiveOutput(Bands(9, (3,), (4, 2)), 4, label_smoothing=0.1)


def test_wrong_options_are_refused() -> None:
    bands = Bands(9, (3, 6), (4, 2, 1))
    with pytest.raises(ValueError, match="tail_dropout must be one rate, or one for each of the 2 tails"):
        AdaptiveOutput(bands, 4, tail_dropout=(0.1, 0.2, 0.3))
    with pytest.raises(ValueError, match="tail_dropout must be between 0 and 1"):
        AdaptiveOutput(bands, 4, tail_dropout=1.5)
    with pytest.raises(ValueError, match="softmax_input_dropout must be between 0 and 1"):
        AdaptiveOutput(bands, 4, softmax_input_dropout=-0.1)
    with pytest.raises(ValueError, match="head_projection must not be False where the head is 4 wide and the model 8"):
        AdaptiveOutput(bands, 8, head_projection=False)
