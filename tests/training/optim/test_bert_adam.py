"""BertAdam: its published formulas in float64, the clip of each parameter, what decays, and what is refused."""

import pytest
import torch
from torch import nn

from anymax.training import BertAdamConfig
from tests.each import each

RATES = [0.1, 0.1, 0.05, 0.0, 0.3]


@each(("clip", "decay"), [(1.0, 0.01), (0.3, 0.0), (None, 0.1)])
def test_steps_are_the_published_ones(clip, decay):
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(*shape, dtype=torch.float64)) for shape in ((3, 4), (5,), (2, 2))]
    expected = [parameter.detach().clone() for parameter in parameters]
    means, squares = ([torch.zeros_like(each) for each in expected] for _ in range(2))
    optimizer = BertAdamConfig(1.0, betas=(0.8, 0.9), eps=1e-3, weight_decay=decay, clip=clip).build(parameters)
    for lr in RATES:
        for group in optimizer.param_groups:
            group["lr"] = lr
        for i, parameter in enumerate(parameters):
            gradient = torch.randn_like(parameter) * (0.2 if i == 2 else 1.0)
            parameter.grad = gradient.clone()
            if clip is not None:
                gradient = gradient * min(1.0, clip / (gradient.norm().item() + 1e-6))
            means[i] = 0.8 * means[i] + 0.2 * gradient
            squares[i] = 0.9 * squares[i] + 0.1 * gradient**2
            update = means[i] / (squares[i].sqrt() + 1e-3)
            # Vectors do not decay.
            update = update + (decay * expected[i] if expected[i].dim() > 1 else 0)
            expected[i] = expected[i] - lr * update
        optimizer.step()
    torch.testing.assert_close([parameter.detach() for parameter in parameters], expected, rtol=1e-12, atol=1e-12)


def test_without_correction_the_first_step_is_the_root_of_a_tenth_of_adams():
    # The mean is a tenth of the gradient, the root of the mean of squares that of a thousandth.
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.ones_like(parameter)
    optimizer = BertAdamConfig(1.0, eps=1e-12, clip=None).build([parameter])
    optimizer.step()
    assert parameter.item() == pytest.approx(-0.1 / 0.001**0.5)


def test_a_parameter_without_a_gradient_stays():
    parameter = nn.Parameter(torch.ones(2, 2))
    optimizer = BertAdamConfig(1.0).build([parameter])
    optimizer.step()
    assert parameter.eq(1).all() and not optimizer.state


def test_settings_that_cannot_work_are_refused():
    for changes, message in (({"clip": 0.0}, "clip must be"), ({"betas": (0.9, 1.0)}, "betas must be two numbers")):
        with pytest.raises(ValueError, match=message):
            BertAdamConfig(1.0, **changes)
