"""What NVIL does with its network."""

import pytest
import torch
from torch import Tensor, nn

from anymax.latent import NVIL, Choice


def own_loss(choice: Tensor, example: Tensor) -> Tensor:
    """One for even examples, five for odd ones, whatever is chosen."""
    return 1.0 + 4 * (example % 2)


def test_the_network_has_three_hidden_layers_of_512() -> None:
    layers = list(NVIL(7).baseline)
    sizes = [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear)]
    assert sizes == [(7, 512), (512, 512), (512, 512), (512, 1)]
    assert [type(layer) for layer in layers[1::2]] == [nn.ReLU] * 3


def test_the_network_gets_the_gradient_of_its_squared_error_alone() -> None:
    estimator, context = NVIL(2, hidden=(5,)), torch.randn(8, 2, requires_grad=True)
    surrogate = estimator(Choice(torch.zeros(8, 3)), own_loss, context).surrogate
    torch.testing.assert_close(surrogate, own_loss(torch.zeros(8, 3), torch.arange(8)))
    found = torch.autograd.grad(surrogate.sum(), list(estimator.parameters()), retain_graph=True)
    error = (estimator.baseline(context.detach()).squeeze(-1) - surrogate.detach()).square().sum()
    for gradient, expected in zip(found, torch.autograd.grad(error, list(estimator.parameters())), strict=True):
        torch.testing.assert_close(gradient, expected)
    assert torch.autograd.grad(surrogate.sum(), context, allow_unused=True) == (None,)


def test_a_trained_network_takes_the_noise_off() -> None:
    context = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(20, 1)
    estimator, scores = NVIL(2, hidden=(16,)), torch.randn(40, 3, requires_grad=True)

    def noise() -> float:
        surrogate = estimator(Choice(scores), own_loss, context).surrogate
        return torch.autograd.grad(surrogate.sum(), scores)[0].abs().mean().item()

    before, parameters = noise(), list(estimator.parameters())
    for _ in range(200):
        surrogate = estimator(Choice(scores), own_loss, context).surrogate
        for parameter, gradient in zip(parameters, torch.autograd.grad(surrogate.mean(), parameters), strict=True):
            parameter.data -= 0.05 * gradient
    assert noise() < 0.02 * before


def test_a_context_that_is_missing_or_does_not_fit_is_refused() -> None:
    latent = Choice(torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match=r"context must be given to NVIL, of shape \(8, 5\), got None"):
        NVIL(5)(latent, own_loss)
    for shape in ((7, 5), (8, 4), (2, 4, 5)):
        with pytest.raises(ValueError, match=r"a row for each example and context_size columns, \(8, 5\)"):
            NVIL(5)(latent, own_loss, torch.zeros(shape))


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="context_size must be at least 1"):
        NVIL(0)
    with pytest.raises(ValueError, match=r"hidden\[1\] must be at least 1"):
        NVIL(3, hidden=(4, 0))
