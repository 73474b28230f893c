"""Matrix products by torch: the definition the other backends are held to. Runs on every device."""

import torch
from torch import Tensor


def why_unsupported(out_MN: Tensor) -> str | None:
    return None


def widens_half(out_MN: Tensor) -> bool:
    return False


def prefers_matmul(out_MN: Tensor, a_MK: Tensor, b_KN: Tensor) -> bool:
    return True


def matmul_(out_MN: Tensor, a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None, adds: bool) -> None:
    a_MK, b_KN = a_MK.to(out_MN.dtype), b_KN.to(out_MN.dtype)
    if adds:
        out_MN.addmm_(a_MK, b_KN)
    elif bias_N is None:
        torch.mm(a_MK, b_KN, out=out_MN)
    else:
        torch.addmm(bias_N.to(out_MN.dtype), a_MK, b_KN, out=out_MN)
