"""The search for the lambda of each row, in Triton: what the kernels of rows and of attention are made of.

With a = alpha - 1, an entry's probability is p = w^(1/a), w = 1 + a (x - lambda), and exp(x - lambda) at a = 0. Up to
alpha 2 the search is Newton's method on S^a from the left, kept in a bracket, as in
`docs/decisions/0003-the-search-for-theta.md`. Above, lambda cannot be exact enough in float32: the unknown is there the
probability v of the last entry that is in, at x_k, and w = v^a + a (x - x_k). Both searches end after a fixed number of
steps at most, whatever the scores are.

Shapes: R rows, N entries of a tile; 1 for one number per row. All numbers are float32.
"""

import triton
import triton.language as tl

# Newton's method needs 2 to 10 steps; a bisection of the bracket takes no more than these.
MAX_STEPS = tl.constexpr(40)
# How far from one a sum may be before the last step of a search, which squares the distance.
SUM_TOLERANCE = tl.constexpr(2e-6)


@triton.jit
def power(u_RN, a_R1):
    """Probabilities of entries u = x - lambda, and their w; -inf and NaN give zero."""
    w_RN = 1 + a_R1 * u_RN
    is_in_RN = (w_RN > 0) & (u_RN > float("-inf"))
    safe_RN = tl.where(is_in_RN & (w_RN != 1), w_RN, 2.0)
    # log1p(t) / t of t = w - 1, exact although 1 + t was rounded: it was rounded alike above and below the line.
    ratio_RN = tl.where(w_RN == 1, 1.0, tl.log(safe_RN) / (safe_RN - 1))
    return tl.where(is_in_RN, tl.exp(u_RN * ratio_RN), 0.0), w_RN


@triton.jit
def parts_of_sums(u_RN, a_R1):
    """What entries add to the sum of the probabilities and to minus its derivative by lambda."""
    p_RN, w_RN = power(u_RN, a_R1)
    return p_RN, tl.where(p_RN > 0, p_RN / w_RN, 0.0)


@triton.jit
def gain(log_sum_R1, a_R1):
    """(1 - S^-a) / a of the sum S, which is log S at a = 0."""
    e_R1 = tl.exp(-a_R1 * log_sum_R1)
    safe_R1 = tl.where(e_R1 == 1, 2.0, e_R1)
    return log_sum_R1 * tl.where(e_R1 == 1, 1.0, (safe_R1 - 1) / tl.log(safe_R1))


@triton.jit
def largest_shift(n, a_R1):
    """Above the lambda of every row of n entries whose maximum is zero."""
    return gain(tl.log(n + 0 * a_R1), a_R1) * 1.00001 + 1e-6


@triton.jit
def newton(lambda_R1, low_R1, high_R1, sum_R1, slope_R1, a_R1):
    """The next lambda, and the bracket that is known now."""
    low_R1 = tl.where(sum_R1 >= 1, lambda_R1, low_R1)
    high_R1 = tl.where(sum_R1 <= 1, lambda_R1, high_R1)
    next_R1 = lambda_R1 + sum_R1 / slope_R1 * gain(tl.log(sum_R1), a_R1)
    is_inside_R1 = (next_R1 >= low_R1) & (next_R1 <= high_R1)
    return tl.where(is_inside_R1, next_R1, (low_R1 + high_R1) / 2), low_R1, high_R1


@triton.jit
def is_far(sum_R1):
    return tl.abs(sum_R1 - 1) > SUM_TOLERANCE


@triton.jit
def any_of(is_R1):
    return tl.max(is_R1.to(tl.int32)) > 0


@triton.jit
def above_edge(x_RN, edge_R1, a_R1):
    """Probabilities where the last entry that is in has score `edge` and probability zero."""
    w_RN = a_R1 * (x_RN - edge_R1)
    is_in_RN = w_RN > 0
    return tl.where(is_in_RN, tl.exp(tl.log(tl.where(is_in_RN, w_RN, 1.0)) / a_R1), 0.0)


@triton.jit
def from_last(x_RN, last_R1, v_R1, a_R1):
    """Probabilities where the last entry that is in has score `last` and probability v."""
    above_RN = x_RN - last_R1
    base_R1 = tl.exp(a_R1 * tl.log(tl.maximum(v_R1, 2e-38)))
    # v^a may be too small for a float where v is not.
    p_RN = tl.exp(tl.log(tl.where(above_RN > 0, base_R1 + a_R1 * above_RN, 1.0)) / a_R1)
    return tl.where(above_RN > 0, p_RN, tl.where(above_RN == 0, v_R1, 0.0))


@triton.jit
def halve(low_R1, high_R1, is_low_R1):
    """The next bracket, and whether its middle differs from both ends."""
    middle_R1 = (low_R1 + high_R1) / 2
    low_R1, high_R1 = tl.where(is_low_R1, middle_R1, low_R1), tl.where(is_low_R1, high_R1, middle_R1)
    middle_R1 = (low_R1 + high_R1) / 2
    return low_R1, high_R1, (middle_R1 > low_R1) & (middle_R1 < high_R1)


@triton.jit
def row_sum(x_RN):
    return tl.sum(x_RN, 1, keep_dims=True)


@triton.jit
def shift_of_top(top_probability_R1, a_R1):
    """Lambda less the row's maximum, by the probability of that, above alpha 2."""
    return (1 - tl.exp(a_R1 * tl.log(tl.maximum(top_probability_R1, 2e-38)))) / a_R1


@triton.jit
def lambda_on_chip(z_RN, sink_R1, a_R1, is_live_R1, n, HAS_SINK: tl.constexpr):
    """Lambda of rows up to alpha 2 whose maximum is zero; 0 of others.

    Args:
        sink_R1: one more entry of each row, or anything where there is none.
        is_live_R1: false for a row that is empty or has no answer.
    """
    is_live_R1 = is_live_R1 & (a_R1 <= 1)
    a_R1 = tl.minimum(a_R1, 1.0)
    lambda_R1 = 0 * a_R1
    low_R1, high_R1 = lambda_R1, largest_shift(n, a_R1)
    step = 0
    is_open = any_of(is_live_R1)
    while is_open & (step < MAX_STEPS):
        p_RN, s_RN = parts_of_sums(z_RN - lambda_R1, a_R1)
        sum_R1, slope_R1 = row_sum(p_RN), row_sum(s_RN)
        if HAS_SINK:
            p_R1, s_R1 = parts_of_sums(sink_R1 - lambda_R1, a_R1)
            sum_R1, slope_R1 = sum_R1 + p_R1, slope_R1 + s_R1
        next_R1, low_R1, high_R1 = newton(lambda_R1, low_R1, high_R1, sum_R1, slope_R1, a_R1)
        is_open = any_of(is_live_R1 & is_far(sum_R1) & (next_R1 != lambda_R1))
        lambda_R1 = tl.where(is_live_R1, next_R1, lambda_R1)
        step += 1
    return lambda_R1


@triton.jit
def last_on_chip(x_RN, sink_R1, top_R1, a_R1, is_live_R1, HAS_SINK: tl.constexpr):
    """The score of the last entry that is in, and its probability v, of rows above alpha 2; anything of others."""
    is_live_R1 = is_live_R1 & (a_R1 > 1)
    a_R1 = tl.maximum(a_R1, 1.0)
    top_R1 = tl.where(is_live_R1, top_R1, 0.0)
    low_R1, high_R1 = top_R1 - 1 / a_R1, top_R1
    step = 0
    is_open = any_of(is_live_R1)
    while is_open & (step < MAX_STEPS):
        edge_R1 = (low_R1 + high_R1) / 2
        sum_R1 = row_sum(above_edge(x_RN, edge_R1, a_R1))
        if HAS_SINK:
            sum_R1 += above_edge(sink_R1, edge_R1, a_R1)
        low_R1, high_R1, is_wide_R1 = halve(low_R1, high_R1, sum_R1 >= 1)
        is_open = any_of(is_live_R1 & is_wide_R1)
        step += 1
    last_R1 = tl.min(tl.where(x_RN >= high_R1, x_RN, float("inf")), 1, keep_dims=True)
    if HAS_SINK:
        last_R1 = tl.minimum(last_R1, tl.where(sink_R1 >= high_R1, sink_R1, float("inf")))
    last_R1 = tl.where(is_live_R1, last_R1, 0.0)
    low_R1, high_R1 = 0 * a_R1, 0 * a_R1 + 1
    step = 0
    is_open = any_of(is_live_R1)
    while is_open & (step < MAX_STEPS):
        middle_R1 = (low_R1 + high_R1) / 2
        sum_R1 = row_sum(from_last(x_RN, last_R1, middle_R1, a_R1))
        if HAS_SINK:
            sum_R1 += from_last(sink_R1, last_R1, middle_R1, a_R1)
        low_R1, high_R1, is_wide_R1 = halve(low_R1, high_R1, sum_R1 < 1)
        is_open = any_of(is_live_R1 & is_wide_R1)
        step += 1
    return last_R1, low_R1
