"""Sparsemax and 1.5-entmax, under the names of `entmax.activations`."""

from torch import Tensor, nn

from anymax import mappings
from anymax.compat.entmax.settings import check_k, floating


def sparsemax(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """The point of the simplex nearest to `X` along `dim`. `k` has no effect on the result."""
    check_k(k)
    return mappings.sparsemax(floating(X), dim=dim)


def entmax15(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """Entmax with alpha 1.5 along `dim`. `k` has no effect on the result."""
    check_k(k)
    return mappings.entmax(floating(X), 1.5, dim=dim)


class Sparsemax(nn.Module):
    """`sparsemax` as a Module. `k` has no effect on the result."""

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__()
        check_k(k)
        self.dim = dim
        self.k = k

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax(X, self.dim, self.k)


class Entmax15(nn.Module):
    """`entmax15` as a Module. `k` has no effect on the result."""

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__()
        check_k(k)
        self.dim = dim
        self.k = k

    def forward(self, X: Tensor) -> Tensor:
        return entmax15(X, self.dim, self.k)
