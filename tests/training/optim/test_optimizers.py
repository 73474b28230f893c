"""Optimizers: their published formulas in float64, what decays, and what is refused."""

import pytest
import torch
from torch import Tensor, nn

from anymax.training import AdagradConfig, AdamConfig, AdamWConfig, AveragedSGDConfig, NesterovConfig, SGDConfig

RATES = [0.1, 0.1, 0.05, 0.2, 0.0, 0.3]


def run(config, start: Tensor, gradients: Tensor) -> Tensor:
    """Steps with rates that change, as the loop sets them."""
    parameter = nn.Parameter(start.clone())
    optimizer = config.build([parameter])
    for lr, gradient in zip(RATES, gradients, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = lr
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.fixture
def start() -> Tensor:
    return torch.randn(3, 4, dtype=torch.float64)


@pytest.fixture
def gradients() -> Tensor:
    return torch.randn(len(RATES), 3, 4, dtype=torch.float64)


def test_nesterov_is_the_published_update_with_a_changing_rate(start: Tensor, gradients: Tensor):
    # Bengio et al. 2013, with a velocity in units of parameters: v' = m v lr' / lr - lr' g, p' = p + m v' - lr' g.
    # A rate of zero cannot be divided by, so the velocity is held over the rate.
    p, v = start.clone(), torch.zeros_like(start)
    for lr, g in zip(RATES, gradients, strict=True):
        v = 0.9 * v - g
        p = p + lr * (0.9 * v - g)
    torch.testing.assert_close(run(NesterovConfig(1.0, momentum=0.9), start, gradients), p)


def test_nesterov_looks_ahead_of_plain_momentum_by_one_step():
    # Sutskever et al. 2013: the gradient is taken at p + m v. Its look-ahead points are what Nesterov holds.
    hessian = torch.tensor([1.0, 4.0], dtype=torch.float64)
    held = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
    optimizer = NesterovConfig(0.05, momentum=0.8).build([held])
    p, v = held.detach().clone(), torch.zeros(2, dtype=torch.float64)
    for _ in range(20):
        torch.testing.assert_close(held.detach(), p + 0.8 * v)
        v = 0.8 * v - 0.05 * hessian * (p + 0.8 * v)
        p = p + v
        held.grad = hessian * held.detach()
        optimizer.step()


def test_adagrad_divides_by_the_root_of_all_squares(start: Tensor, gradients: Tensor):
    p, total = start.clone(), torch.full_like(start, 0.1)
    for lr, g in zip(RATES, gradients, strict=True):
        g = g + 0.01 * p
        total = total + g**2
        p = p - lr * g / (total.sqrt() + 1e-10)
    config = AdagradConfig(1.0, weight_decay=0.01, initial_accumulator=0.1)
    torch.testing.assert_close(run(config, start, gradients), p)


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_and_adamw_differ_in_where_weights_decay(start: Tensor, gradients: Tensor, decoupled: bool):
    p, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for t, (lr, g) in enumerate(zip(RATES, gradients, strict=True), start=1):
        if decoupled:
            p = p * (1 - lr * 0.1)
        else:
            g = g + 0.1 * p
        m = 0.8 * m + 0.2 * g
        v = 0.9 * v + 0.1 * g**2
        p = p - lr * (m / (1 - 0.8**t)) / ((v / (1 - 0.9**t)).sqrt() + 1e-8)
    config = (AdamWConfig if decoupled else AdamConfig)(1.0, betas=(0.8, 0.9), weight_decay=0.1)
    torch.testing.assert_close(run(config, start, gradients), p)


def test_adamw_decays_matrices_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Embedding(5, 4))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = AdamWConfig(0.5, weight_decay=0.1).build(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        share = 0.95 if parameter.dim() == 2 else 1.0
        torch.testing.assert_close(parameter.detach(), share * before[name])


def test_adamw_of_vectors_alone_has_nothing_to_decay():
    parameter = nn.Parameter(torch.ones(3))
    optimizer = AdamWConfig(0.1).build([parameter])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0]


def test_sgd_steps_against_the_gradient(start: Tensor, gradients: Tensor):
    p = start.clone()
    for lr, g in zip(RATES, gradients, strict=True):
        p = p - lr * (g + 0.01 * p)
    torch.testing.assert_close(run(SGDConfig(1.0, weight_decay=0.01), start, gradients), p)


ALL = [
    NesterovConfig(0.1),
    AdagradConfig(0.1),
    AdamConfig(0.1),
    AdamWConfig(0.1),
    SGDConfig(0.1),
    AveragedSGDConfig(0.1),
]
every_optimizer = pytest.mark.parametrize("config", ALL, ids=lambda config: type(config).__name__)


@every_optimizer
def test_groups_keep_what_they_hold_and_their_own_rates(config):
    parameters = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 3))]
    optimizer = config.build([{"params": parameters[:2], "factor": 1.0}, {"params": parameters[2:], "factor": 0.0}])
    for group in optimizer.param_groups:
        group["lr"] = 0.5 * group["factor"]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all((parameter < 1).all() for parameter in parameters[:2]) and (parameters[2] == 1).all()


def test_adamw_decays_matrices_alone_in_every_group():
    groups = [
        {"params": [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3))], "factor": f} for f in (1.0, 0.5)
    ]
    built = AdamWConfig(0.1, weight_decay=0.2).build(groups).param_groups
    assert [(group["factor"], group["weight_decay"]) for group in built] == [(1, 0.2), (1, 0), (0.5, 0.2), (0.5, 0)]


@every_optimizer
def test_an_optimizer_holds_as_many_tensors_for_a_parameter_as_it_says(config):
    parameter = nn.Parameter(torch.ones(3, 2))
    optimizer = config.build([parameter])
    if isinstance(config, AveragedSGDConfig):
        optimizer.begin()
    parameter.grad = torch.ones(3, 2)
    optimizer.step()
    held = [value for state in optimizer.state.values() for value in state.values()]
    assert sum(torch.as_tensor(value).shape == parameter.shape for value in held) == config.held


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NesterovConfig(0.0), "lr must be above 0 and finite, got 0.0"),
        (lambda: NesterovConfig(float("inf")), "lr must be above 0 and finite"),
        (lambda: NesterovConfig(0.1, momentum=1.5), "momentum must be between 0 and 1, got 1.5"),
        (lambda: NesterovConfig(0.1, momentum=0.0), "momentum must be above 0"),
        (lambda: AdagradConfig(0.1, weight_decay=-1.0), "weight_decay must be at least 0 and finite, got -1.0"),
        (lambda: AdamConfig(0.1, betas=(0.9, 1.0)), r"betas must be two numbers from 0 to below 1, got \(0.9, 1.0\)"),
        (lambda: AdamWConfig(0.1, eps=-1e-8), "eps must be at least 0"),
    ],
)
def test_what_is_no_optimizer_is_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rate_must_be_a_number():
    with pytest.raises(TypeError, match=r"lr must be a number, got '0\.1'"):
        AdamConfig("0.1")
