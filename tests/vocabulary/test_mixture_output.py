"""The mixture of softmaxes: against its formula in probabilities, and its known special cases."""

import pytest
import torch
from torch import Tensor, nn

import anymax
from anymax.vocabulary import FullOutput, MixtureOutput
from tests.each import each


def mixed(layer: MixtureOutput, hidden: Tensor) -> Tensor:
    """The probabilities, with the scores of all experts at once."""
    prior = (hidden @ layer.prior.weight.T).softmax(-1)
    latents = torch.tanh(hidden @ layer.latent.weight.T + layer.latent.bias)
    latents = latents.reshape(*hidden.shape[:-1], layer.num_experts, layer.dim)
    scores = latents @ layer.table.T
    if layer.bias is not None:
        scores = scores + layer.bias
    if layer.transform is not None:
        scores = layer.transform(scores)
    return (prior[..., None] * scores.softmax(-1)).sum(-2)


@each("bias", [False, True])
@each("dim", [None, 3])
@each("num_experts", [1, 2, 5])
def test_is_the_mixture_of_its_formula(num_experts: int, dim: int | None, bias: bool) -> None:
    layer = MixtureOutput(13, 6, num_experts=num_experts, dim=dim, bias=bias).double()
    hidden, target = torch.randn(3, 4, 6, dtype=torch.float64), torch.randint(13, (3, 4))
    probs = mixed(layer, hidden)
    torch.testing.assert_close(layer.log_probs(hidden).exp(), probs)
    expected = -probs.gather(-1, target[..., None]).log().mean()
    loss = layer(hidden, target)
    torch.testing.assert_close(loss, expected)
    sources = list(layer.parameters())
    torch.testing.assert_close(torch.autograd.grad(loss, sources), torch.autograd.grad(expected, sources))


def test_with_a_transform_every_expert_goes_through_it() -> None:
    layer = MixtureOutput(13, 6, num_experts=3, transform=anymax.PLIF(pieces=30, bound=3.0, random_start=True)).double()
    hidden, target = torch.randn(9, 6, dtype=torch.float64), torch.randint(13, (9,))
    expected = -mixed(layer, hidden).gather(-1, target[..., None]).log().sum()
    loss = layer(hidden, target, "sum")
    torch.testing.assert_close(loss, expected)
    sources = list(layer.parameters())
    torch.testing.assert_close(torch.autograd.grad(loss, sources), torch.autograd.grad(expected, sources))


def test_weights_and_scores_are_the_parts_of_the_mixture() -> None:
    layer = MixtureOutput(13, 6, num_experts=3, transform=anymax.Sig())
    hidden = torch.randn(2, 4, 6)
    weights, scores = layer.weights(hidden), layer.scores(hidden)
    assert weights.shape == (2, 4, 3) and scores.shape == (2, 4, 3, 13)
    probs = (weights[..., None] * anymax.Sig()(scores).softmax(-1)).sum(-2)
    torch.testing.assert_close(probs, layer.log_probs(hidden).exp())


def test_one_expert_is_a_full_output_on_its_latent() -> None:
    layer = MixtureOutput(13, 6, num_experts=1, dim=4)
    full = FullOutput(13, 4, bias=True)
    full.table, full.bias = layer.table, layer.bias
    hidden, target = torch.randn(10, 6), torch.randint(13, (10,))
    latent = torch.tanh(layer.latent(hidden))
    torch.testing.assert_close(layer.log_probs(hidden), full.log_probs(latent))
    loss = layer(hidden, target)
    torch.testing.assert_close(loss, full(latent, target))
    loss.backward()
    assert (layer.prior.weight.grad == 0).all()


def test_log_probabilities_far_below_a_floor_are_exact() -> None:
    layer = MixtureOutput(3, 2, num_experts=2).double()
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([0.0, -60.0, -60.0]))
    hidden = torch.randn(4, 2, dtype=torch.float64)
    log_probs = layer.log_probs(hidden)
    assert (log_probs[:, 1:] < -50).all()
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(layer.log_prob(hidden, torch.full((4,), 2)), log_probs[:, 2])


def test_lifts_the_rank_of_the_log_probabilities() -> None:
    contexts = torch.randn(60, 4, dtype=torch.float64)
    single = MixtureOutput(40, 4, num_experts=1, bias=False).double()
    several = MixtureOutput(40, 4, num_experts=3, bias=False).double()
    assert torch.linalg.matrix_rank(single.log_probs(contexts)) == 5
    assert torch.linalg.matrix_rank(several.log_probs(contexts)) > 20


def test_dropout_of_latents_is_on_in_training_alone() -> None:
    layer = MixtureOutput(13, 6, num_experts=3, latent_dropout=0.5)
    hidden = torch.randn(10, 6)
    assert not layer.log_probs(hidden).equal(layer.log_probs(hidden))
    layer.eval()
    torch.testing.assert_close(layer.log_probs(hidden).exp(), mixed(layer, hidden))


def test_a_module_may_drop_the_latents_of_all_experts() -> None:
    class OneMaskForAllPositions(nn.Module):
        widths: tuple[int, ...] = ()

        def forward(self, latents: Tensor) -> Tensor:
            self.widths = tuple(latents.shape)
            return latents * torch.arange(latents.shape[-1]).remainder(2)

    layer = MixtureOutput(13, 6, num_experts=3, dim=4, latent_dropout=OneMaskForAllPositions())
    layer(torch.randn(2, 5, 6), torch.zeros(2, 5, dtype=torch.long)).backward()
    assert layer.latent_dropout.widths == (2, 5, 12)
    assert (layer.latent.weight.grad[::2] == 0).all() and (layer.latent.weight.grad[1::2] != 0).any()


def test_label_smoothing_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"label_smoothing must be 0 for MixtureOutput, got 0.1; .*FullOutput"):
        MixtureOutput(13, 6, num_experts=2, label_smoothing=0.1)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="num_experts must be at least 1"):
        MixtureOutput(13, 6, num_experts=0)
    with pytest.raises(ValueError, match="latent_dropout must be between 0 and 1"):
        MixtureOutput(13, 6, num_experts=2, latent_dropout=1.5)
