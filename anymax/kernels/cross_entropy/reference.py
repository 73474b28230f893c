"""Cross-entropy of rows in plain torch: the definition the other backends are held to. Runs on every device."""

import torch
from torch import Tensor


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
