"""Matrix products by torch: the definition the other backends are held to. Runs on every device."""

import torch
from torch import Tensor


def why_unsupported(out_MN: Tensor) -> str | None:
    return None


def prefers_matmul(out_MN: Tensor, a_MK: Tensor) -> bool:
    return True


def matmul_(out_MN: Tensor, a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None, adds: bool) -> None:
    if adds:
        out_MN.addmm_(a_MK, b_KN)
    elif bias_N is None:
        torch.mm(a_MK, b_KN, out=out_MN)
    else:
        torch.addmm(bias_N, a_MK, b_KN, out=out_MN)
