"""Fenchel-Young losses, under the names of `entmax.losses`. Functions give one loss per row, Modules reduce them.

Scores have shape (..., classes) and targets (...); `k` and `n_iter` have no effect on the result.
"""

import torch
from torch import Tensor, nn

from anymax import losses, mappings
from anymax.compat.entmax.settings import check_k, check_n_iter, floating, parameter
from anymax.losses.targets import check_arguments, inner, prepare_scores

REDUCTIONS = ("elementwise_mean", "sum", "none")


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """The sparsemax loss of each row, 0 where its target is -100.

    Args:
        X: (..., classes), scores.
        target: (...), classes; -100 where a row does not count.
        k: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.sparsemax_loss(torch.tensor([[2.0, 1.5, 0.5, -1.0]]), torch.tensor([0]))
        tensor([0.0625])
    """
    check_k(k)
    return _entmax_losses(X, target, 2.0)


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50) -> Tensor:
    """The sparsemax loss of each row, 0 where its target is -100.

    Args:
        X: (..., classes), scores.
        target: (...), classes; -100 where a row does not count.
        n_iter: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.sparsemax_bisect_loss(torch.tensor([[2.0, 1.5, 0.5, -1.0]]), torch.tensor([0]))
        tensor([0.0625])
    """
    return _entmax_losses(X, target, 2.0)


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """The loss of entmax with alpha 1.5 of each row, 0 where its target is -100.

    Args:
        X: (..., classes), scores.
        target: (...), classes; -100 where a row does not count.
        k: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.entmax15_loss(torch.tensor([[2.0, 1.5, 0.5, -1.0]]), torch.tensor([0]))
        tensor([0.1846])
    """
    check_k(k)
    return _entmax_losses(X, target, 1.5)


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int = 50) -> Tensor:
    """The entmax loss of each row, 0 where its target is -100.

    Args:
        X: (..., classes), scores.
        target: (...), classes; -100 where a row does not count.
        alpha: above 0 (at 1 it is cross-entropy); a number, or a tensor with one value per row, shaped like
            `target` or with a last dimension of size 1. It gets a gradient.
        n_iter: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.entmax_bisect_loss(torch.tensor([[2.0, 1.5, 0.5, -1.0]]), torch.tensor([0]), alpha=1.75)
        tensor([0.1112])
    """
    check_n_iter(n_iter)
    return _entmax_losses(X, target, alpha)


def normmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int = 50) -> Tensor:
    """The normmax loss of each row, 0 where its target is -100.

    Args:
        X: (..., classes), scores.
        target: (...), classes; -100 where a row does not count.
        alpha: above 1; a number, or a tensor with one value per row, shaped like `target` or with a last dimension
            of size 1. It gets a gradient.
        n_iter: has no effect on the result.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.normmax_bisect_loss(torch.tensor([[2.0, 1.5, 0.5, -1.0]]), torch.tensor([0]), alpha=10)
        tensor([0.2209])
    """
    check_n_iter(n_iter)
    return _normmax_losses(X, target, alpha)


class _GenericLoss(nn.Module):
    """Rows whose target is `ignore_index` cost nothing and do not count in the mean; the mean of no rows is 0."""

    def __init__(self, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
        self.reduction = reduction
        self.ignore_index = int(ignore_index)

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        """One loss per row, 0 where the target is `ignore_index`."""
        raise NotImplementedError

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        rows = self.loss(X, target)
        if self.reduction == "none":
            return rows
        total = rows.sum(dtype=torch.promote_types(rows.dtype, torch.float32))
        if self.reduction == "elementwise_mean":
            total = total / (target != self.ignore_index).sum().clamp(min=1)
        return total.to(rows.dtype)


class SparsemaxLoss(_GenericLoss):
    """`sparsemax_loss` as a Module.

    Args:
        k: has no effect on the result.
        ignore_index: the target of rows that cost nothing and do not count in the mean.
        reduction: "elementwise_mean" over the rows that count, "sum", or "none" for one loss per row.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> scores = torch.tensor([[2.0, 1.5, 0.5, -1.0]], requires_grad=True)
        >>> entmax.SparsemaxLoss()(scores, torch.tensor([0])).backward()
        >>> scores.grad
        tensor([[-0.2500,  0.2500,  0.0000,  0.0000]])
    """

    def __init__(self, k: int | None = None, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        check_k(k)
        self.k = k

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return _entmax_losses(X, target, 2.0, self.ignore_index)


class SparsemaxBisectLoss(_GenericLoss):
    """`sparsemax_bisect_loss` as a Module.

    Args:
        n_iter: has no effect on the result.
        ignore_index: the target of rows that cost nothing and do not count in the mean.
        reduction: "elementwise_mean" over the rows that count, "sum", or "none" for one loss per row.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.SparsemaxBisectLoss()(torch.tensor([[2.0, 1.5, 0.5, -1.0]]), torch.tensor([0]))
        tensor(0.0625)
    """

    def __init__(self, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.n_iter = n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return _entmax_losses(X, target, 2.0, self.ignore_index)


class Entmax15Loss(_GenericLoss):
    """`entmax15_loss` as a Module.

    Args:
        k: has no effect on the result.
        ignore_index: the target of rows that cost nothing and do not count in the mean.
        reduction: "elementwise_mean" over the rows that count, "sum", or "none" for one loss per row.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> scores = torch.tensor([[2.0, 1.5, 0.5, -1.0]], requires_grad=True)
        >>> entmax.Entmax15Loss(reduction="sum")(scores, torch.tensor([0])).backward()
        >>> scores.grad
        tensor([[-0.3288,  0.3240,  0.0048,  0.0000]])
    """

    def __init__(self, k: int | None = 100, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        check_k(k)
        self.k = k

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return _entmax_losses(X, target, 1.5, self.ignore_index)


class EntmaxBisectLoss(_GenericLoss):
    """`entmax_bisect_loss` as a Module.

    Args:
        alpha: a number or a tensor; a Parameter is registered.
        n_iter: has no effect on the result.
        ignore_index: the target of rows that cost nothing and do not count in the mean.
        reduction: "elementwise_mean" over the rows that count, "sum", or "none" for one loss per row.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.EntmaxBisectLoss(alpha=1.75)(torch.tensor([[2.0, 1.5, 0.5, -1.0]]), torch.tensor([0]))
        tensor(0.1112)
    """

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        check_n_iter(n_iter)
        self.alpha = alpha
        self.n_iter = n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return _entmax_losses(X, target, self.alpha, self.ignore_index)


class NormmaxBisectLoss(_GenericLoss):
    """`normmax_bisect_loss` as a Module.

    Args:
        alpha: a number or a tensor; a Parameter is registered.
        n_iter: has no effect on the result.
        ignore_index: the target of rows that cost nothing and do not count in the mean.
        reduction: "elementwise_mean" over the rows that count, "sum", or "none" for one loss per row.

    Example:
        >>> import anymax.compat.entmax as entmax
        >>> entmax.NormmaxBisectLoss(alpha=10)(torch.tensor([[2.0, 1.5, 0.5, -1.0]]), torch.tensor([0]))
        tensor(0.2209)
    """

    def __init__(
        self,
        alpha: float | Tensor = 2,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        check_n_iter(n_iter)
        self.alpha = alpha
        self.n_iter = n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return _normmax_losses(X, target, self.alpha, self.ignore_index)


def _entmax_losses(X: Tensor, target: Tensor, alpha: float | Tensor, ignore_index: int = -100) -> Tensor:
    X, target = floating(X), _checked_target(X, target)
    alpha = _per_row(parameter(alpha, X), target)
    return losses.entmax_loss(X, target, alpha, reduction="none", ignore_index=ignore_index)


def _normmax_losses(X: Tensor, target: Tensor, alpha: float | Tensor, ignore_index: int = -100) -> Tensor:
    """max over p of (<p, x> - |p|_alpha), plus the norm of one class, which is 1, minus the score of the target."""
    X, target = floating(X), _checked_target(X, target)
    scores = prepare_scores(X)
    check_arguments(scores, target, "none", ignore_index, label_smoothing=0.0)
    # A constant added to all scores changes nothing, and the loss is a small difference: take the maximum off first.
    top = scores.detach().amax(-1, keepdim=True)
    shifted = scores - torch.where(top.isfinite(), top, 0)
    alpha = _per_row(parameter(alpha, X), target)
    if isinstance(alpha, Tensor):
        alpha = alpha.to(scores.dtype)
    probs = mappings.normmax(shifted, alpha)
    is_counted = target != ignore_index
    wanted = shifted.gather(-1, torch.where(is_counted, target, 0).long()[..., None])
    rows = inner(shifted, probs)[..., None] - _norm(probs, alpha) + 1 - wanted
    return torch.where(is_counted, rows[..., 0], 0).to(X.dtype)


def _norm(probs: Tensor, alpha: float | Tensor) -> Tensor:
    """The alpha-norm over the last dimension, whose derivatives are finite at exact zeros; 1 for a row of zeros."""
    chosen = probs > 0
    total = torch.where(chosen, torch.where(chosen, probs, 1) ** alpha, 0).sum(-1, keepdim=True)
    return torch.where(total > 0, total, 1) ** (1 / alpha)


def _per_row(alpha: float | Tensor, target: Tensor) -> float | Tensor:
    """Alpha as it broadcasts against the scores."""
    if isinstance(alpha, Tensor) and alpha.dim() and alpha.shape == target.shape:
        return alpha.unsqueeze(-1)
    return alpha


def _checked_target(X: Tensor, target: Tensor) -> Tensor:
    if target.shape == X.shape[:-1] and not target.numel():
        # A list of no classes makes a tensor of floats.
        return target.long()
    if target.is_floating_point() or target.shape != X.shape[:-1]:
        raise ValueError(
            f"target must hold one class index per row, of shape {tuple(X.shape[:-1])}, "
            f"got {target.dtype} of shape {tuple(target.shape)}; soft targets are taken by anymax.entmax_loss"
        )
    return target
