"""Averaged SGD: the mean of the iterates, torch's own ASGD, and an exchange that loses no bit."""

import pytest
import torch
from torch import Tensor, nn

from anymax.training import AveragedSGDConfig, NonMonotone
from anymax.training.optim.averaged_sgd import AveragedSGD as Optimizer

RATES = [0.3, 0.1, 0.2, 0.4, 0.1, 0.3, 0.2, 0.15]


@pytest.fixture
def start() -> list[Tensor]:
    return [torch.randn(3, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]


@pytest.fixture
def gradients(start: list[Tensor]) -> list[list[Tensor]]:
    return [[torch.randn_like(each) for each in start] for _ in RATES]


def parameters_of(start: list[Tensor]) -> list[nn.Parameter]:
    return [nn.Parameter(each.clone()) for each in start]


def step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], lr: float, gradients: list[Tensor]) -> None:
    """As the loop does it: the rate is set before every step."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()


def averages(optimizer: Optimizer, parameters: list[nn.Parameter]) -> list[Tensor]:
    with optimizer.exchanged():
        return [parameter.detach().clone() for parameter in parameters]


def test_before_it_begins_it_is_plain_sgd_and_holds_nothing(start, gradients):
    ours, theirs = parameters_of(start), parameters_of(start)
    optimizer = AveragedSGDConfig(0.1, weight_decay=0.01, decay=0.5).build(ours)
    plain = torch.optim.SGD(theirs, 0.1, weight_decay=0.01)
    for lr, gradient in zip(RATES, gradients, strict=True):
        step(optimizer, ours, lr, gradient)
        step(plain, theirs, lr, gradient)
    torch.testing.assert_close(ours, theirs)
    assert not optimizer.state and not optimizer.is_averaging
    with optimizer.exchanged():
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("left_out", [0, 2])
def test_averages_are_the_means_of_the_iterates_since_it_began(start, gradients, first: int, left_out: int):
    parameters, iterates = parameters_of(start), []
    optimizer = AveragedSGDConfig(0.1, weight_decay=0.1, start=left_out).build(parameters)
    expected = [each.clone() for each in start]
    for number, (lr, gradient) in enumerate(zip(RATES, gradients, strict=True)):
        if number == first:
            optimizer.begin()
        step(optimizer, parameters, lr, gradient)
        expected = [each - lr * (g + 0.1 * each) for each, g in zip(expected, gradient, strict=True)]
        torch.testing.assert_close([parameter.detach() for parameter in parameters], expected)
        if number >= first:
            iterates.append(expected)
            # Where all are left out, the last one stands for them.
            counted = iterates[left_out:] or iterates[-1:]
            means = [torch.stack(each).mean(0) for each in zip(*counted, strict=True)]
            torch.testing.assert_close(averages(optimizer, parameters), means)


def test_with_a_decay_the_rate_falls_with_a_power_of_the_steps(start, gradients):
    parameters = parameters_of(start)
    optimizer = AveragedSGDConfig(0.1, decay=0.5, power=0.6).build(parameters)
    optimizer.begin()
    expected = [each.clone() for each in start]
    for number, (lr, gradient) in enumerate(zip(RATES, gradients, strict=True)):
        step(optimizer, parameters, lr, gradient)
        eta = lr / (1 + 0.5 * lr * number) ** 0.6
        expected = [each * (1 - 0.5 * eta) - eta * g for each, g in zip(expected, gradient, strict=True)]
    torch.testing.assert_close([parameter.detach() for parameter in parameters], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("decay", "power", "left_out"), [(0.0, 0.75, 0), (0.2, 0.75, 3), (0.01, 0.5, 1)])
def test_published_is_the_asgd_of_torch(start, gradients, dtype, decay: float, power: float, left_out: int):
    start = [each.to(dtype) for each in start]
    ours, theirs = parameters_of(start), parameters_of(start)
    config = AveragedSGDConfig(0.1, weight_decay=0.01, decay=decay, power=power, start=left_out, published=True)
    optimizer = config.build(ours)
    optimizer.begin()
    oracle = torch.optim.ASGD(theirs, 0.1, decay, power, left_out, weight_decay=0.01, foreach=False)
    # Torch holds its rate in single precision.
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-6, "atol": 1e-7}
    for lr, gradient in zip(RATES, gradients, strict=True):
        step(optimizer, ours, lr, [each.to(dtype) for each in gradient])
        step(oracle, theirs, lr, [each.to(dtype) for each in gradient])
        torch.testing.assert_close(ours, theirs, **close)
        held = [oracle.state[parameter]["ax"] for parameter in theirs]
        torch.testing.assert_close(averages(optimizer, ours), held, **close)


def test_what_is_published_leaves_the_first_iterate_out_and_lags_behind_the_rate(start, gradients):
    exact, published = parameters_of(start), parameters_of(start)
    optimizers = [AveragedSGDConfig(0.1).build(exact), AveragedSGDConfig(0.1, published=True).build(published)]
    for optimizer in optimizers:
        optimizer.begin()
    iterates = []
    for gradient in gradients[:3]:
        for optimizer, parameters in zip(optimizers, (exact, published), strict=True):
            step(optimizer, parameters, 0.5, gradient)
        iterates.append(exact[0].detach().clone())
    torch.testing.assert_close(published, exact)
    torch.testing.assert_close(averages(optimizers[0], exact)[0], torch.stack(iterates).mean(0))
    torch.testing.assert_close(averages(optimizers[1], published)[0], torch.stack(iterates[1:]).mean(0))
    before = [parameter.detach().clone() for parameter in exact]
    for optimizer, parameters, rate in zip(optimizers, (exact, published), (0.25, 0.5), strict=True):
        step(optimizer, parameters, 0.25, gradients[3])
        torch.testing.assert_close(parameters[0].detach(), before[0] - rate * gradients[3][0])


def test_an_exchange_and_another_leave_every_bit(start, gradients):
    parameters = parameters_of([each.float() for each in start])
    optimizer = AveragedSGDConfig(0.1).build(parameters)
    optimizer.begin()
    for lr, gradient in zip(RATES, gradients, strict=True):
        step(optimizer, parameters, lr, [each.float() for each in gradient])
    held = [*parameters, *(optimizer.state[parameter]["average"] for parameter in parameters)]
    before = [each.detach().clone() for each in held]
    with optimizer.exchanged():
        inside = [each.detach().clone() for each in held]
        assert "average" not in optimizer.state[parameters[0]]
    assert all(torch.equal(a, b) for a, b in zip(inside, before[2:] + before[:2], strict=True))
    assert all(torch.equal(a.detach(), b) for a, b in zip(held, before, strict=True))
    with pytest.raises(ZeroDivisionError), optimizer.exchanged():
        _ = 1 / 0
    assert all(torch.equal(a.detach(), b) for a, b in zip(held, before, strict=True))


def test_each_group_has_its_own_rate_and_its_own_average():
    slow, fast = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    optimizer = AveragedSGDConfig(1.0).build([{"params": [slow]}, {"params": [fast]}])
    optimizer.begin()
    for _ in range(3):
        for group, lr in zip(optimizer.param_groups, (0.5, 2.0), strict=True):
            group["lr"] = lr
        slow.grad, fast.grad = -torch.ones(2), -torch.ones(2)
        optimizer.step()
    with optimizer.exchanged():
        assert slow.tolist() == [1.0, 1.0] and fast.tolist() == [4.0, 4.0]


def test_sparse_gradients_give_what_dense_ones_give():
    tables = [nn.Embedding(6, 3, sparse=is_sparse) for is_sparse in (True, False)]
    tables[1].load_state_dict(tables[0].state_dict())
    optimizers = [AveragedSGDConfig(0.3, weight_decay=0.1).build(table.parameters()) for table in tables]
    for optimizer in optimizers:
        optimizer.begin()
    for _ in range(3):
        ids = torch.randint(6, (4,))
        for table, optimizer in zip(tables, optimizers, strict=True):
            table(ids).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(tables[0].weight, tables[1].weight)
    torch.testing.assert_close(averages(optimizers[0], [tables[0].weight]), averages(optimizers[1], [tables[1].weight]))


def test_a_parameter_without_a_gradient_stays_and_is_its_own_average():
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = AveragedSGDConfig(0.1).build([unused, used])
    optimizer.begin()
    used.grad = torch.ones(2)
    optimizer.step()
    used.grad = torch.ones(2)
    optimizer.step()
    assert unused.tolist() == [1.0, 1.0]
    with optimizer.exchanged():
        assert unused.tolist() == [1.0, 1.0]
        torch.testing.assert_close(used.detach(), torch.full((2,), 0.85))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AveragedSGDConfig(0.0), "lr must be above 0 and finite, got 0.0"),
        (lambda: AveragedSGDConfig(0.1, decay=-1.0), "decay must be at least 0"),
        (lambda: AveragedSGDConfig(0.1, start=-1), "start must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_averaged_is_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_by_default_it_begins_when_evaluations_get_worse():
    assert AveragedSGDConfig(0.1).begin == NonMonotone(5)
