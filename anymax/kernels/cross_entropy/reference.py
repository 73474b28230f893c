"""Cross-entropy of rows in plain torch: the definition the other backends are held to. Runs on every device."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from anymax.kernels.backend import widest


def why_unsupported(scores: Tensor) -> str | None:
    return None


def cross_entropy_(scores_RN: Tensor, target_R: Tensor, label_smoothing: float, wants_gradient: bool) -> Tensor:
    n = scores_RN.shape[1]
    scores_RN.sub_(scores_RN.amax(1, keepdim=True))
    wanted_R = (1 - label_smoothing) * scores_RN.gather(1, target_R[:, None])[:, 0]
    if label_smoothing > 0:
        wanted_R += label_smoothing * scores_RN.mean(1)
    if not wants_gradient:
        return scores_RN.logsumexp(1) - wanted_R
    total_R1 = scores_RN.exp_().sum(1, keepdim=True)
    scores_RN.div_(total_R1)
    if label_smoothing > 0:
        scores_RN.sub_(label_smoothing / n)
    scores_RN.scatter_add_(1, target_R[:, None], torch.full_like(total_R1, label_smoothing - 1))
    return total_R1[:, 0].log() - wanted_R


def prefers_layer(hidden_RD: Tensor, weight_ND: Tensor) -> bool:
    return False


def layer_cross_entropy(
    hidden_RD: Tensor,
    weight_ND: Tensor,
    bias_N: Tensor | None,
    target_R: Tensor,
    label_smoothing: float,
    coefficient_R: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss of every row of a linear layer, and what is wanted of the gradients of the first three tensors."""
    dtype, wide = hidden_RD.dtype, widest(hidden_RD)
    hidden_RD, weight_ND = hidden_RD.to(wide), weight_ND.to(wide)
    grad_RN = F.linear(hidden_RD, weight_ND, None if bias_N is None else bias_N.to(wide))
    losses_R = cross_entropy_(grad_RN, target_R, label_smoothing, coefficient_R is not None).to(dtype)
    if coefficient_R is None:
        return losses_R, [None, None, None]
    grad_RN.mul_(coefficient_R[:, None])
    by_hidden = (grad_RN @ weight_ND).to(dtype) if wanted[0] else None
    by_weight = (grad_RN.T @ hidden_RD).to(dtype) if wanted[1] else None
    return losses_R, [by_hidden, by_weight, grad_RN.sum(0).to(dtype) if wanted[2] else None]
