"""Our face of entmax 1.3 gives the numbers of the installed entmax 1.3 wherever those are right, gradients included."""

import inspect
from types import ModuleType

import pytest
import torch
from torch import Tensor

import anymax
import anymax.compat.entmax as ours
from tests.each import each

ALPHAS = (1.1, 1.5, 1.75, 2.0, 2.5)
MAPPINGS = [
    ("sparsemax", {}),
    ("sparsemax", {"k": 3}),
    ("entmax15", {}),
    ("entmax15", {"k": 3}),
    ("sparsemax_bisect", {}),
    ("sparsemax_bisect", {"n_iter": 60, "ensure_sum_one": False}),
    *(("entmax_bisect", {"alpha": alpha}) for alpha in ALPHAS),
    *(("normmax_bisect", {"alpha": alpha}) for alpha in (1.2, 1.5, 2, 3.0, 5.0)),
    *(("budget_bisect", {"budget": budget}) for budget in (-1, 0, 0.5, 1, 2, 2.5, 3, 9)),
]
MAPPING_MODULES = [
    ("Sparsemax", {}),
    ("Sparsemax", {"dim": 0, "k": 3}),
    ("Entmax15", {"dim": 1}),
    ("SparsemaxBisect", {}),
    ("SparsemaxBisect", {"n_iter": 60}),
    ("EntmaxBisect", {}),
    ("EntmaxBisect", {"alpha": 1.3, "dim": 0}),
    ("NormmaxBisect", {}),
    ("NormmaxBisect", {"alpha": 1.5, "dim": 1}),
    ("BudgetBisect", {}),
    ("BudgetBisect", {"budget": 3, "dim": 0}),
]
LOSSES = [
    ("sparsemax_loss", {}),
    ("sparsemax_loss", {"k": 3}),
    ("sparsemax_bisect_loss", {}),
    ("entmax15_loss", {}),
    ("entmax15_loss", {"k": 3}),
    *(("entmax_bisect_loss", {"alpha": alpha}) for alpha in ALPHAS),
    *(("normmax_bisect_loss", {"alpha": alpha}) for alpha in (1.2, 1.5, 2, 3.0)),
]
LOSS_MODULES = [
    ("SparsemaxLoss", {}),
    ("SparsemaxBisectLoss", {}),
    ("Entmax15Loss", {}),
    ("EntmaxBisectLoss", {"alpha": 1.3}),
    ("NormmaxBisectLoss", {"alpha": 1.5}),
]
PARTS = ("activations", "root_finding", "losses")


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    module = pytest.importorskip("entmax", reason="the peer package entmax is not installed")
    if module.__version__ != "1.3":
        pytest.skip(f"the peer package is entmax {module.__version__}, our face is that of 1.3")
    return module


def scores(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def value_and_gradients(function, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The result and the gradients, by every floating-point input, of its product with fixed random weights."""
    inputs = tuple(x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs)
    result = function(*inputs)
    weights = scores(*result.shape, seed=7) if result.dim() else torch.tensor(1.7, dtype=torch.float64)
    gradients = torch.autograd.grad((result * weights).sum(), [x for x in inputs if x.is_floating_point()])
    return result.detach(), *gradients


def assert_agree(ours_function, peer_function, *inputs: Tensor, atol: float = 1e-9) -> None:
    results = zip(value_and_gradients(ours_function, *inputs), value_and_gradients(peer_function, *inputs), strict=True)
    for mine, theirs in results:
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=atol)


def public_names(module: ModuleType) -> set[str]:
    return {name for name, value in vars(module).items() if not name.startswith("_") and not inspect.ismodule(value)}


def parameters(function) -> list[tuple[str, object, object]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_every_public_name_is_here(peer):
    assert public_names(peer) == set(ours.__all__)


def test_every_signature_is_the_same(peer):
    for name in ours.__all__:
        mine, theirs = getattr(ours, name), getattr(peer, name)
        assert parameters(mine) == parameters(theirs), name
        if inspect.isclass(theirs):
            assert parameters(mine.forward) == parameters(theirs.forward), name


def test_every_name_is_found_in_the_same_part(peer):
    for part in PARTS:
        mine, theirs = getattr(ours, part), getattr(peer, part)
        defined = {
            n for n in public_names(theirs) & set(ours.__all__) if getattr(theirs, n).__module__ == theirs.__name__
        }
        assert defined <= public_names(mine)


def test_every_module_holds_the_same_attributes(peer):
    for name in ours.__all__:
        if inspect.isclass(getattr(peer, name)):
            mine, theirs = getattr(ours, name)(), getattr(peer, name)()
            for argument in inspect.signature(getattr(peer, name)).parameters:
                assert getattr(mine, argument) == getattr(theirs, argument), (name, argument)


@each(("name", "options"), MAPPINGS)
@each(("shape", "dim"), [((5, 7), -1), ((7, 5), 0), ((3, 6, 2), 1)])
def test_mappings_agree(peer, name, options, shape, dim):
    x = scores(*shape)
    assert_agree(
        lambda x: getattr(ours, name)(x, dim=dim, **options), lambda x: getattr(peer, name)(x, dim=dim, **options), x
    )


@each("scale", [0.01, 30.0])
@each("name", ["sparsemax", "entmax15", "entmax_bisect", "normmax_bisect", "budget_bisect"])
def test_mappings_agree_on_flat_and_on_peaked_scores(peer, name, scale):
    assert_agree(getattr(ours, name), getattr(peer, name), scale * scores(6, 9))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_entmax_agrees_in_the_gradient_of_one_alpha_per_row(peer, dim):
    x = scores(3, 4, 5)
    shape = list(x.shape)
    shape[dim] = 1
    alpha = 1.1 + 1.4 * torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_agree(
        lambda x, alpha: ours.entmax_bisect(x, alpha, dim), lambda x, alpha: peer.entmax_bisect(x, alpha, dim), x, alpha
    )


@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_agrees_in_the_gradient_of_a_single_alpha(peer, alpha):
    assert_agree(ours.entmax_bisect, peer.entmax_bisect, scores(4, 6), torch.tensor(alpha, dtype=torch.float64))


def test_normmax_and_budget_agree_with_one_parameter_per_row(peer):
    x, parameter = scores(3, 6), torch.tensor([[1.5], [2.0], [3.0]], dtype=torch.float64)
    assert_agree(lambda x: ours.normmax_bisect(x, parameter), lambda x: peer.normmax_bisect(x, parameter), x)
    assert_agree(lambda x: ours.budget_bisect(x, parameter), lambda x: peer.budget_bisect(x, parameter), x)


@each("name", ["entmax_bisect", "normmax_bisect", "budget_bisect"])
def test_a_tensor_as_parameter_gives_the_result_the_same_dtype(peer, name):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for parameter in (torch.full((3, 1), 1.5), torch.tensor(2.5, dtype=torch.float64), torch.tensor(2)):
            mine, theirs = (getattr(m, name)(scores(3, 6).to(dtype), parameter) for m in (ours, peer))
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    for parameter in (2, torch.tensor([[2.0], [3.0]])):
        x = torch.tensor([[3, 1, 0, 1], [2, 2, -5, 1]])
        torch.testing.assert_close(getattr(ours, name)(x, parameter), getattr(peer, name)(x, parameter))


# The peer's budget_bisect returns NaN there.
@each(("name", "options"), [case for case in MAPPINGS if case[0] != "budget_bisect"])
def test_mappings_agree_on_scores_masked_by_minus_infinity(peer, name, options):
    x = scores(4, 6)
    x[:, 4:] = -torch.inf
    assert_agree(lambda x: getattr(ours, name)(x, **options), lambda x: getattr(peer, name)(x, **options), x)


@each(("name", "options"), MAPPING_MODULES)
def test_mapping_modules_agree(peer, name, options):
    assert_agree(getattr(ours, name)(**options), getattr(peer, name)(**options), scores(6, 7))


@each(("name", "options"), LOSSES)
@each("scale", [0.3, 1.0, 10.0])
def test_losses_agree_row_by_row(peer, name, options, scale):
    target = torch.tensor([0, 3, 6, 2, 2])
    assert_agree(
        lambda x: getattr(ours, name)(x, target, **options),
        lambda x: getattr(peer, name)(x, target, **options),
        scale * scores(5, 7),
    )


@each(("name", "options"), LOSS_MODULES)
@each("reduction", ["elementwise_mean", "sum", "none"])
@each("ignore_index", [-100, 2])
def test_loss_modules_agree(peer, name, options, reduction, ignore_index):
    target = torch.tensor([0, 3, 6, 2, 2])
    options = options | {"reduction": reduction, "ignore_index": ignore_index}
    mine, theirs = getattr(ours, name)(**options), getattr(peer, name)(**options)
    assert_agree(lambda x: mine(x, target), lambda x: theirs(x, target), scores(5, 7))


@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.2, 0.5, 0.75, 0.95])
def test_entmax_below_one_agrees_with_its_gradients(peer, alpha):
    learned = torch.tensor(alpha, dtype=torch.float64)
    assert_agree(ours.entmax_bisect, peer.entmax_bisect, scores(4, 6), learned)
    if alpha > 0:
        target = torch.tensor([0, 3, 5, 2])
        assert_agree(
            lambda x: ours.entmax_bisect_loss(x, target, alpha),
            lambda x: peer.entmax_bisect_loss(x, target, alpha),
            scores(4, 6),
        )


def test_alpha_below_one_agrees(peer):
    x = scores(6)
    for alpha in (0.05, 0.2, 0.5, 0.75, 0.95):
        solved = anymax.regularized_argmax(x, lambda p, alpha=alpha: (p**alpha).sum() / (alpha * (alpha - 1)))
        torch.testing.assert_close(peer.entmax_bisect(x, alpha), solved, rtol=0, atol=1e-8)
        for same in (alpha, torch.tensor([alpha], dtype=torch.float64)):
            torch.testing.assert_close(ours.entmax_bisect(x, same), peer.entmax_bisect(x, alpha), rtol=0, atol=1e-12)
        target = torch.tensor([0])
        torch.testing.assert_close(
            ours.entmax_bisect_loss(x[None], target, alpha), peer.entmax_bisect_loss(x[None], target, alpha)
        )
