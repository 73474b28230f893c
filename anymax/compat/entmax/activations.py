"""Sparsemax and 1.5-entmax, under the names of `entmax.activations`."""

from torch import Tensor, nn

from anymax import mappings
from anymax.compat.entmax.settings import check_k, floating


def sparsemax(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """The point of the simplex nearest to `X` along `dim`.

    Args:
        X: scores, any shape.
        dim: the dimension of the entries.
        k: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.sparsemax(torch.tensor([2.0, 1.5, 0.5, -1.0]), dim=-1)
        tensor([0.7500, 0.2500, 0.0000, 0.0000])
    """
    check_k(k)
    return mappings.sparsemax(floating(X), dim=dim)


def entmax15(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """Entmax with alpha 1.5 along `dim`.

    Args:
        X: scores, any shape.
        dim: the dimension of the entries.
        k: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.entmax15(torch.tensor([2.0, 1.5, 0.5, -1.0]), dim=-1)
        tensor([0.6712, 0.3240, 0.0048, 0.0000])
    """
    check_k(k)
    return mappings.entmax(floating(X), 1.5, dim=dim)


class Sparsemax(nn.Module):
    """`sparsemax` as a Module.

    Args:
        dim: the dimension of the entries.
        k: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.Sparsemax(dim=0)(torch.tensor([2.0, 1.5, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000, 0.0000])
    """

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__()
        check_k(k)
        self.dim = dim
        self.k = k

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax(X, self.dim, self.k)


class Entmax15(nn.Module):
    """`entmax15` as a Module.

    Args:
        dim: the dimension of the entries.
        k: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.Entmax15(dim=0)(torch.tensor([2.0, 1.5, 0.5, -1.0]))
        tensor([0.6712, 0.3240, 0.0048, 0.0000])
    """

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__()
        check_k(k)
        self.dim = dim
        self.k = k

    def forward(self, X: Tensor) -> Tensor:
        return entmax15(X, self.dim, self.k)
