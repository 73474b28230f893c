"""Entmax, sparsemax, normmax and budgeted marginals, under the names of `entmax.root_finding`.

The names say how the peer finds its threshold. Here it is found exactly, so `n_iter` and `ensure_sum_one` have no
effect on the result.
"""

from torch import Tensor, nn

from anymax import mappings
from anymax.compat.entmax.settings import check_n_iter, floating, parameter, promoted


def entmax_bisect(
    X: Tensor, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True
) -> Tensor:
    """Entmax along `dim`.

    Args:
        X: scores, any shape.
        alpha: at least 0; a number, or a tensor that broadcasts against `X` with size 1 along `dim`. It has a gradient.
        dim: the dimension of the entries.
        n_iter: has no effect on the result.
        ensure_sum_one: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.entmax_bisect(torch.tensor([2.0, 1.5, 0.5, -1.0]), alpha=1.75)
        tensor([0.7082, 0.2918, 0.0000, 0.0000])
    """
    check_n_iter(n_iter)
    X = promoted(X, alpha)
    return mappings.entmax(X, parameter(alpha, X), dim=dim)


def sparsemax_bisect(X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True) -> Tensor:
    """Sparsemax along `dim`.

    Args:
        X: scores, any shape.
        dim: the dimension of the entries.
        n_iter: has no effect on the result.
        ensure_sum_one: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.sparsemax_bisect(torch.tensor([2.0, 1.5, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000, 0.0000])
    """
    return mappings.sparsemax(floating(X), dim=dim)


def normmax_bisect(X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    """Normmax along `dim`: the p that maximises `<p, X> - ||p||_alpha`.

    Args:
        X: scores, any shape.
        alpha: above 1; a number, or a tensor that broadcasts against `X` with size 1 along `dim`.
        dim: the dimension of the entries.
        n_iter: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.normmax_bisect(torch.tensor([2.0, 1.5, 0.5, -1.0]), alpha=10)
        tensor([0.5285, 0.4715, 0.0000, 0.0000])
    """
    check_n_iter(n_iter)
    X = promoted(X, alpha)
    return mappings.normmax(X, parameter(alpha, X), dim=dim)


def budget_bisect(X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    """Values in [0, 1] along `dim` that sum to `budget`, nearest to `X`.

    Args:
        X: scores, any shape.
        budget: a number, or a tensor that broadcasts against `X` with size 1 along `dim`. 0 and below give zeros and no
            gradient. Where there are fewer entries than that, all are chosen.
        dim: the dimension of the entries.
        n_iter: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.budget_bisect(torch.tensor([2.0, 1.0, 0.7, -1.0]), budget=2)
        tensor([1.0000, 0.6500, 0.3500, 0.0000])
    """
    check_n_iter(n_iter)
    X = promoted(X, budget)
    n, budget = X.shape[dim], parameter(budget, X)
    feasible = budget.clamp(0, n) if isinstance(budget, Tensor) else max(0, min(budget, n))
    return mappings.subset_marginals(X, feasible, dim=dim)


class SparsemaxBisect(nn.Module):
    """`sparsemax_bisect` as a Module.

    Args:
        dim: the dimension of the entries.
        n_iter: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.SparsemaxBisect()(torch.tensor([2.0, 1.5, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000, 0.0000])
    """

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.n_iter = n_iter

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax_bisect(X, self.dim, self.n_iter)


class EntmaxBisect(nn.Module):
    """`entmax_bisect` as a Module.

    Args:
        alpha: a number, or a tensor that broadcasts with size 1 along `dim`; a Parameter is registered.
        dim: the dimension of the entries.
        n_iter: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> mapping = entmax.EntmaxBisect(alpha=torch.nn.Parameter(torch.tensor(1.5)))
        >>> mapping(torch.tensor([2.0, 1.5, 0.5, -1.0]))[0].backward()
        >>> mapping.alpha.grad
        tensor(0.2319)
    """

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        check_n_iter(n_iter)
        self.dim = dim
        self.n_iter = n_iter
        self.alpha = alpha

    def forward(self, X: Tensor) -> Tensor:
        return entmax_bisect(X, self.alpha, self.dim, self.n_iter)


class NormmaxBisect(nn.Module):
    """`normmax_bisect` as a Module.

    Args:
        alpha: a number, or a tensor that broadcasts with size 1 along `dim`; a Parameter is registered.
        dim: the dimension of the entries.
        n_iter: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.NormmaxBisect(alpha=10)(torch.tensor([2.0, 1.5, 0.5, -1.0]))
        tensor([0.5285, 0.4715, 0.0000, 0.0000])
    """

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        check_n_iter(n_iter)
        self.dim = dim
        self.n_iter = n_iter
        self.alpha = alpha

    def forward(self, X: Tensor) -> Tensor:
        return normmax_bisect(X, self.alpha, self.dim, self.n_iter)


class BudgetBisect(nn.Module):
    """`budget_bisect` as a Module.

    Args:
        budget: a number, or a tensor that broadcasts with size 1 along `dim`.
        dim: the dimension of the entries.
        n_iter: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.BudgetBisect(budget=2)(torch.tensor([2.0, 1.0, 0.7, -1.0]))
        tensor([1.0000, 0.6500, 0.3500, 0.0000])
    """

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        check_n_iter(n_iter)
        self.dim = dim
        self.n_iter = n_iter
        self.budget = budget

    def forward(self, X: Tensor) -> Tensor:
        return budget_bisect(X, self.budget, self.dim, self.n_iter)
