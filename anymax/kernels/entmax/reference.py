"""Entmax of rows in plain torch: the definition the other backends are held to. Runs on every device.

With a = alpha - 1 and u = z - lambda, where the row's maximum is already subtracted from z,

    p = [1 + a u]_+ ^ (1/a) = exp(log1p(a u) / a),    which is exp(u) at a = 0,

for the one lambda at which a row sums to one; a may be negative. It lies in [0, (1 - n^-a) / a]. Newton's method on
S(lambda)^a, where S is the sum, is kept inside that bracket. Shapes: R rows, N entries, C of them candidates, A is R
or 1.
"""

import torch
from torch import Tensor

from anymax.kernels.backend import widest
from anymax.kernels.entmax.omega import tsallis_by_alpha
from anymax.kernels.entmax.protocol import Support, alpha_error_of_loss
from anymax.kernels.rows import as_rows, from_rows

# Bisection alone narrows the bracket to the last bit of a double in this many steps; Newton's method needs about five.
MAX_STEPS = 64


def why_unsupported(scores: Tensor) -> str | None:
    return None


def forward(scores: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> Tensor:
    """Probabilities of each row."""
    _check_alpha(alpha_A, smallest=0)
    return from_rows(_conjugate(as_rows(scores, mask), alpha_A)[0], scores)


def conjugate(scores: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, and max over p of <p, z> - Omega(p) where z is the row minus its maximum."""
    _check_alpha(alpha_A)
    probs_RN, conjugate_R = _conjugate(as_rows(scores), alpha_A)
    return from_rows(probs_RN, scores), conjugate_R.to(scores.dtype)


def support_(scores_RN: Tensor, alpha_A: Tensor, capacity: int, wants_by_alpha: bool) -> Support:
    """Entmax in place, without lists whatever the capacity: the scores become probabilities."""
    _check_alpha(alpha_A)
    top_R = scores_RN.amax(1)
    probs_RN, conjugate_R = _conjugate(scores_RN, alpha_A)
    scores_RN.copy_(probs_RN)
    return Support(top_R, conjugate_R, tsallis_by_alpha(probs_RN, alpha_A) if wants_by_alpha else None, None)


def add_products(
    lists_RN: Tensor,
    counts_R: Tensor,
    target_R: Tensor,
    coefficient_R: Tensor,
    weight_ND: Tensor,
    hidden_RD: Tensor,
    *,
    peak: float,
    into_hidden_RD: Tensor | None,
    into_weight_ND: Tensor | None,
    into_bias_N: Tensor | None,
) -> None:
    """Multiply the gradient G of listed rows with a layer: c G W is written, G' c H and G' c are added."""
    grad_RN = unlisted(lists_RN, counts_R)
    grad_RN.scatter_add_(1, target_R[:, None], grad_RN.new_full((len(target_R), 1), -peak))
    grad_RN.mul_(coefficient_R[:, None])
    if into_hidden_RD is not None:
        into_hidden_RD.copy_(grad_RN @ weight_ND.to(grad_RN.dtype))
    if into_weight_ND is not None:
        into_weight_ND.add_(grad_RN.T @ hidden_RD)
    if into_bias_N is not None:
        into_bias_N.add_(grad_RN.sum(0))


def unlisted(lists_RN: Tensor, counts_R: Tensor) -> Tensor:
    """The probabilities of rows that `support_` of another backend made lists of."""
    words_RW = lists_RN.contiguous().view(torch.int32)
    first_R1 = words_RW.shape[1] - counts_R[:, None]
    index = words_RW[torch.arange(words_RW.shape[1], device=counts_R.device) >= first_R1].long()
    is_listed_RN = torch.arange(lists_RN.shape[1], device=counts_R.device) < counts_R[:, None]
    probs_RN = torch.zeros_like(lists_RN, memory_format=torch.contiguous_format)
    probs_RN[is_listed_RN.nonzero()[:, 0], index] = lists_RN[is_listed_RN]
    return probs_RN


def backward(grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> Tensor:
    """Gradient by the scores: s (g - <s, g> / sum s), with s = p^(2 - alpha) on the support."""
    grad_RN, probs_RN = as_rows(grad), as_rows(probs)
    weight_RN, centred_RN = _weigh(grad_RN, probs_RN, alpha_A)
    return from_rows((weight_RN * centred_RN).to(grad_RN.dtype), probs, mask)


def backward_both(grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Gradients by the scores and, one number per row, by alpha.

    At fixed lambda, dp/dalpha = c = p log(p)^2 psi(a log p) with psi(t) = (1 - exp(-t) - t) / t^2; lambda then moves so
    that the row still sums to one, which centres the incoming gradient.
    """
    grad_RN, probs_RN = as_rows(grad), as_rows(probs)
    weight_RN, centred_RN = _weigh(grad_RN, probs_RN, alpha_A)
    slope_RN = _slope(probs_RN.to(weight_RN.dtype), alpha_A.to(weight_RN.dtype)[:, None] - 1)
    by_scores = from_rows((weight_RN * centred_RN).to(grad_RN.dtype), probs, mask)
    return by_scores, (slope_RN * centred_RN).sum(1).to(alpha_A.dtype)


def _conjugate(scores_RN: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    num_rows, n = scores_RN.shape
    if scores_RN.numel() == 0:
        return torch.empty_like(scores_RN), scores_RN.new_zeros(num_rows)
    wide_RN = scores_RN.to(widest(scores_RN))
    a_A1 = alpha_A.to(wide_RN.dtype)[:, None] - 1
    top_R1 = wide_RN.amax(1, keepdim=True)
    empty_R1 = top_R1 == -torch.inf
    z_RN = wide_RN - top_R1.masked_fill(empty_R1, 0)
    lambda_R1, sum_R1 = _solve(z_RN, a_A1, n)
    probs_RN = _power(z_RN - lambda_R1, a_A1) / sum_R1
    if bool((a_A1 > 1).any()):
        probs_RN = torch.where(a_A1 > 1, _steep(z_RN, a_A1), probs_RN)
        lambda_R1 = torch.where(a_A1 > 1, (1 - probs_RN.amax(1, keepdim=True) ** a_A1) / a_A1, lambda_R1)
    expected_R1 = torch.where(probs_RN > 0, probs_RN * z_RN, 0).sum(1, keepdim=True)
    # Not a + 1: near alpha 0 that has lost its digits.
    conjugate_R1 = (a_A1 * expected_R1 + lambda_R1) / alpha_A.to(wide_RN.dtype)[:, None]
    bad_R1 = torch.isnan(wide_RN).any(1, keepdim=True) | (top_R1 == torch.inf)

    def settle(result: Tensor) -> Tensor:
        return result.masked_fill(empty_R1, 0).masked_fill(bad_R1, torch.nan).to(scores_RN.dtype)

    return settle(probs_RN), settle(conjugate_R1)[:, 0]


def _check_alpha(alpha_A: Tensor, smallest: float = 5e-324) -> None:
    """By default for a conjugate, which is infinite at alpha 0."""
    # Reading a value from an accelerator would make every call wait for it.
    if alpha_A.device.type != "cpu":
        return
    right_A = (alpha_A.double() >= smallest) & (alpha_A < torch.inf)
    if not bool(right_A.all()):
        raise alpha_error_of_loss(alpha_A[~right_A][0].item())


def _power(u_RN: Tensor, a_A1: Tensor) -> Tensor:
    t_RN = a_A1 * u_RN
    chosen_RN = t_RN > -1
    safe_a_A1 = torch.where(a_A1 == 0, 1, a_A1)
    exponent_RN = torch.where(a_A1 == 0, u_RN, torch.log1p(torch.where(chosen_RN, t_RN, 0)) / safe_a_A1)
    return torch.where(chosen_RN, exponent_RN.exp(), 0)


def _gain(sum_R1: Tensor, a_A1: Tensor) -> Tensor:
    """(1 - S^-a) / a, which is log S at a = 0."""
    log_sum_R1 = sum_R1.log()
    safe_a_A1 = torch.where(a_A1 == 0, 1, a_A1)
    return torch.where(a_A1 == 0, log_sum_R1, -torch.expm1(-a_A1 * log_sum_R1) / safe_a_A1)


def _solve(z_RN: Tensor, a_A1: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The lambda of each row, and the sum of the row's probabilities there (one, but for rounding)."""
    low_R1 = torch.zeros_like(z_RN[:, :1])
    high_R1 = _gain(torch.full_like(low_R1, n), a_A1)
    lambda_R1, smallest_step = low_R1, 4 * torch.finfo(z_RN.dtype).eps
    for _ in range(MAX_STEPS):
        probs_RN = _power(z_RN - lambda_R1, a_A1)
        sum_R1 = probs_RN.sum(1, keepdim=True)
        low_R1 = torch.where(sum_R1 >= 1, lambda_R1, low_R1)
        high_R1 = torch.where(sum_R1 <= 1, lambda_R1, high_R1)
        base_RN = torch.where(probs_RN > 0, 1 + a_A1 * (z_RN - lambda_R1), 1)
        step_R1 = sum_R1 / (probs_RN / base_RN).sum(1, keepdim=True) * _gain(sum_R1, a_A1)
        # A row with NaN never gets there, and one with alpha > 2 need not.
        if not bool(((step_R1.abs() > smallest_step * (1 + lambda_R1)) & (a_A1 <= 1)).any()):
            break
        newton_R1 = lambda_R1 + step_R1
        inside_R1 = (newton_R1 >= low_R1) & (newton_R1 <= high_R1)
        lambda_R1 = torch.where(inside_R1, newton_R1, (low_R1 + high_R1) / 2)
    return lambda_R1, sum_R1


def _weigh(grad_RN: Tensor, probs_RN: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    """s, and the gradient less its mean under s; both zero outside the support."""
    wide = widest(probs_RN)
    probs_RN, grad_RN = probs_RN.to(wide), grad_RN.to(wide)
    if probs_RN.shape[1] == 0:
        return probs_RN, grad_RN
    chosen_RN = probs_RN > 0
    power_RN = torch.where(chosen_RN, probs_RN, 1) ** (2 - alpha_A.to(wide)[:, None])
    # Zero stays zero and NaN stays NaN, at alpha 2 as well.
    weight_RN = torch.where(chosen_RN, power_RN, probs_RN)
    total_R1 = weight_RN.sum(1, keepdim=True)
    # Above alpha 2 the smallest probability may outweigh all others. Counted from its gradient, no difference is small.
    heaviest_R1 = weight_RN.argmax(1, keepdim=True)
    grad_RN = grad_RN - grad_RN.gather(1, heaviest_R1).detach()
    inner_R1 = torch.where(weight_RN != 0, weight_RN * grad_RN, 0).sum(1, keepdim=True)
    mean_R1 = inner_R1 / torch.where(total_R1 == 0, 1, total_R1)
    return weight_RN, torch.where(weight_RN != 0, grad_RN - mean_R1, 0)


def _slope(probs_RN: Tensor, a_A1: Tensor) -> Tensor:
    """The derivative of the probabilities by alpha at fixed lambda.

    Above alpha 2 without the term s / a^2, which is large there and sums to zero against a centred gradient.
    """
    log_RN = torch.where(probs_RN > 0, probs_RN, 1).log()
    is_steep_A1 = a_A1 > 1
    gentle_RN = probs_RN * log_RN**2 * _psi(torch.where(is_steep_A1, 0, a_A1 * log_RN))
    steep_RN = probs_RN * (1 - a_A1 * log_RN) / torch.where(is_steep_A1, a_A1, 1) ** 2
    return torch.where(is_steep_A1, steep_RN, gentle_RN)


def _steep(z_RN: Tensor, a_A1: Tensor) -> Tensor:
    """Probabilities for alpha > 2, where lambda cannot be exact enough: the power is steep where an entry enters.

    The unknown is v, the probability of the last entry that is in, at score z_k: p_i = [v^a + a (z_i - z_k)]^(1/a).
    """
    a_A1 = a_A1.clamp(min=1)
    # Only the first few may be chosen, those above -1/a.
    num_candidates = int((z_RN > -1 / a_A1).sum(1).max().clamp(min=1))
    sorted_RC = z_RN.topk(num_candidates, dim=1).values

    def probs_at(scores_RM: Tensor, last_R1: Tensor, v_R1: Tensor) -> Tensor:
        above_RM = scores_RM - sorted_RC.gather(1, last_R1)
        base_RM = v_R1**a_A1 + a_A1 * above_RM.clamp(min=0)
        power_RM = torch.where(base_RM > 0, base_RM, 1) ** (1 / a_A1)
        # v^a may be too small for a float where v is not.
        inside_RM = torch.where(above_RM > 0, power_RM, v_R1)
        return torch.where(above_RM >= 0, inside_RM, 0)

    def total_at(last_R1: Tensor, v_R1: Tensor) -> Tensor:
        return probs_at(sorted_RC, last_R1, v_R1).sum(1, keepdim=True)

    # An entry is in if the sum without it, at v = 0, is still below one: binary search for the last one.
    zero_R1 = torch.zeros_like(z_RN[:, :1])
    last_R1 = torch.zeros_like(zero_R1, dtype=torch.long)
    step = 1 << num_candidates.bit_length()
    while step := step // 2:
        next_R1 = (last_R1 + step).clamp(max=num_candidates - 1)
        last_R1 = torch.where(total_at(next_R1, zero_R1) < 1, next_R1, last_R1)
    low_R1, high_R1 = zero_R1, torch.ones_like(zero_R1)
    for _ in range(MAX_STEPS):
        middle_R1 = (low_R1 + high_R1) / 2
        is_low_R1 = total_at(last_R1, middle_R1) < 1
        low_R1, high_R1 = torch.where(is_low_R1, middle_R1, low_R1), torch.where(is_low_R1, high_R1, middle_R1)
    probs_RN = probs_at(z_RN, last_R1, low_R1)
    return probs_RN / probs_RN.sum(1, keepdim=True)


def _psi(t_RN: Tensor) -> Tensor:
    near_RN = t_RN.abs() < 1
    safe_RN = torch.where(near_RN, t_RN, 0)
    series_RN = torch.ones_like(t_RN)
    for k in range(17, 0, -1):
        series_RN = 1 - series_RN * safe_RN / (k + 2)
    far_RN = torch.where(near_RN, -1, t_RN)
    return torch.where(near_RN, -series_RN / 2, (1 - torch.exp(-far_RN) - far_RN) / far_RN**2)
