"""The kernels of `triton.py`: a block of rows on chip, or one long row that is read from memory in every pass.

Shapes: R rows, N entries of a row or of the part that is read at once; 1 for one number per row.
"""

import triton
import triton.language as tl

from anymax.kernels.entmax.triton_search import (
    MAX_STEPS,
    above_edge,
    any_of,
    from_last,
    halve,
    is_far,
    lambda_on_chip,
    largest_shift,
    last_on_chip,
    newton,
    parts_of_sums,
    power,
    row_sum,
    shift_of_top,
)


@triton.jit
def _load(scores, row_R1, row_stride, mask, sizes, mask_strides, column_1N, num_rows, n):
    """A tile of scores; -inf past the ends and where the mask is false."""
    is_there_RN = (row_R1 < num_rows) & (column_1N < n)
    x_RN = tl.load(scores + row_R1 * row_stride + column_1N, mask=is_there_RN, other=float("-inf")).to(tl.float32)
    if mask is not None:
        is_chosen_RN = tl.load(
            mask + _mask_offset(row_R1, sizes, mask_strides) + column_1N * mask_strides[3], mask=is_there_RN, other=0
        )
        x_RN = tl.where(is_chosen_RN != 0, x_RN, float("-inf"))
    return x_RN


@triton.jit
def _mask_offset(row_R1, sizes, mask_strides):
    """Where a row of the mask begins: rows are counted through two dimensions of these sizes and one before them."""
    inner_R1, outer_R1 = row_R1 % sizes[1], row_R1 // sizes[1]
    return inner_R1 * mask_strides[2] + outer_R1 % sizes[0] * mask_strides[1] + outer_R1 // sizes[0] * mask_strides[0]


@triton.jit
def _load_alpha(alpha, alpha_stride, row_R1, num_rows):
    return tl.load(alpha + row_R1 * alpha_stride, mask=row_R1 < num_rows, other=1.0).to(tl.float32)


@triton.jit
def _finish(p_RN, is_live_R1, is_bad_R1):
    return tl.where(is_bad_R1, float("nan"), tl.where(is_live_R1, p_RN, 0.0))


@triton.jit
def _conjugate(expected_R1, lambda_R1, alpha_R1, is_live_R1, is_bad_R1):
    """Not by a + 1: near alpha 0 that has lost its digits."""
    return _finish(((alpha_R1 - 1) * expected_R1 + lambda_R1) / alpha_R1, is_live_R1, is_bad_R1)


@triton.jit
def _store_per_row(top, conjugate, top_R1, conjugate_R1, row_R1, num_rows):
    tl.store(top + row_R1, top_R1, mask=row_R1 < num_rows)
    tl.store(conjugate + row_R1, conjugate_R1, mask=row_R1 < num_rows)


@triton.jit
def forward(
    scores,
    row_stride,
    alpha,
    alpha_stride,
    mask,
    sizes,
    mask_strides,
    probs,
    probs_stride,
    top,
    conjugate,
    num_rows,
    n,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Probabilities of a block of rows, and where asked for their maximum and conjugate."""
    row_R1 = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    column_1N = tl.arange(0, BLOCK_N)[None, :]
    x_RN = _load(scores, row_R1, row_stride, mask, sizes, mask_strides, column_1N, num_rows, n)
    alpha_R1 = _load_alpha(alpha, alpha_stride, row_R1, num_rows)
    a_R1 = alpha_R1 - 1
    is_nan_RN = x_RN != x_RN
    top_R1 = tl.max(tl.where(is_nan_RN, float("-inf"), x_RN), 1, keep_dims=True)
    is_bad_R1 = (tl.max(is_nan_RN.to(tl.int32), 1, keep_dims=True) > 0) | (top_R1 == float("inf"))
    is_live_R1 = (top_R1 > float("-inf")) & (is_bad_R1 == 0)
    z_RN = x_RN - tl.where(is_live_R1, top_R1, 0.0)
    lambda_R1 = lambda_on_chip(z_RN, a_R1, a_R1, is_live_R1, n, False)
    p_RN, _ = power(z_RN - lambda_R1, a_R1)
    is_steep_R1 = is_live_R1 & (a_R1 > 1)
    if any_of(is_steep_R1):
        last_R1, v_R1 = last_on_chip(x_RN, a_R1, top_R1, a_R1, is_live_R1, False)
        p_RN = tl.where(is_steep_R1, from_last(x_RN, last_R1, v_R1, tl.maximum(a_R1, 1.0)), p_RN)
    p_RN /= tl.where(is_live_R1, row_sum(p_RN), 1.0)
    is_there_RN = (row_R1 < num_rows) & (column_1N < n)
    tl.store(probs + row_R1 * probs_stride + column_1N, _finish(p_RN, is_live_R1, is_bad_R1), mask=is_there_RN)
    if conjugate is not None:
        top_probability_R1 = tl.max(p_RN, 1, keep_dims=True)
        lambda_R1 = tl.where(is_steep_R1, shift_of_top(top_probability_R1, tl.maximum(a_R1, 1.0)), lambda_R1)
        expected_R1 = row_sum(tl.where(p_RN > 0, p_RN * z_RN, 0.0))
        conjugate_R1 = _conjugate(expected_R1, lambda_R1, alpha_R1, is_live_R1, is_bad_R1)
        top_R1 = tl.where(tl.max(is_nan_RN.to(tl.int32), 1, keep_dims=True) > 0, float("nan"), top_R1)
        _store_per_row(top, conjugate, top_R1, conjugate_R1, row_R1, num_rows)


@triton.jit
def forward_long(
    scores,
    row_stride,
    alpha,
    alpha_stride,
    mask,
    sizes,
    mask_strides,
    probs,
    probs_stride,
    top,
    conjugate,
    num_rows,
    n,
    BLOCK_N: tl.constexpr,
):
    """The same of one row, which every pass reads again."""
    row_R1 = tl.program_id(0).to(tl.int64) + tl.zeros([1, 1], tl.int64)
    column_1N = tl.arange(0, BLOCK_N)[None, :]
    alpha_R1 = _load_alpha(alpha, alpha_stride, row_R1, num_rows)
    a_R1 = alpha_R1 - 1
    top_1N = tl.full([1, BLOCK_N], float("-inf"), tl.float32)
    is_nan_1N = tl.zeros([1, BLOCK_N], tl.int32)
    for start in range(0, n, BLOCK_N):
        x_1N = _load(scores, row_R1, row_stride, mask, sizes, mask_strides, start + column_1N, num_rows, n)
        top_1N = tl.maximum(top_1N, tl.where(x_1N != x_1N, float("-inf"), x_1N))
        is_nan_1N = is_nan_1N | (x_1N != x_1N).to(tl.int32)
    top_R1 = tl.max(top_1N, 1, keep_dims=True)
    has_nan_R1 = tl.max(is_nan_1N, 1, keep_dims=True) > 0
    is_bad_R1 = has_nan_R1 | (top_R1 == float("inf"))
    is_live_R1 = (top_R1 > float("-inf")) & (is_bad_R1 == 0)
    known_top_R1 = tl.where(is_live_R1, top_R1, 0.0)

    gentle_R1 = tl.minimum(a_R1, 1.0)
    is_gentle_R1 = is_live_R1 & (a_R1 <= 1)
    lambda_R1 = 0 * a_R1
    low_R1, high_R1 = lambda_R1, largest_shift(n, gentle_R1)
    step = 0
    is_open = any_of(is_gentle_R1)
    while is_open & (step < MAX_STEPS):
        p_1N, s_1N = tl.zeros([1, BLOCK_N], tl.float32), tl.zeros([1, BLOCK_N], tl.float32)
        for start in range(0, n, BLOCK_N):
            x_1N = _load(scores, row_R1, row_stride, mask, sizes, mask_strides, start + column_1N, num_rows, n)
            more_p_1N, more_s_1N = parts_of_sums(x_1N - known_top_R1 - lambda_R1, gentle_R1)
            p_1N, s_1N = p_1N + more_p_1N, s_1N + more_s_1N
        sum_R1 = row_sum(p_1N)
        next_R1, low_R1, high_R1 = newton(lambda_R1, low_R1, high_R1, sum_R1, row_sum(s_1N), gentle_R1)
        is_open = any_of(is_gentle_R1 & is_far(sum_R1) & (next_R1 != lambda_R1))
        lambda_R1 = tl.where(is_gentle_R1, next_R1, lambda_R1)
        step += 1

    is_steep_R1 = is_live_R1 & (a_R1 > 1)
    steep_R1 = tl.maximum(a_R1, 1.0)
    low_R1, high_R1 = known_top_R1 - 1 / steep_R1, known_top_R1
    step = 0
    is_open = any_of(is_steep_R1)
    while is_open & (step < MAX_STEPS):
        edge_R1 = (low_R1 + high_R1) / 2
        p_1N = tl.zeros([1, BLOCK_N], tl.float32)
        for start in range(0, n, BLOCK_N):
            x_1N = _load(scores, row_R1, row_stride, mask, sizes, mask_strides, start + column_1N, num_rows, n)
            p_1N += above_edge(x_1N, edge_R1, steep_R1)
        low_R1, high_R1, is_wide_R1 = halve(low_R1, high_R1, row_sum(p_1N) >= 1)
        is_open = any_of(is_wide_R1)
        step += 1
    last_R1, v_R1 = known_top_R1, 0 * a_R1
    if any_of(is_steep_R1):
        last_1N = tl.full([1, BLOCK_N], float("inf"), tl.float32)
        for start in range(0, n, BLOCK_N):
            x_1N = _load(scores, row_R1, row_stride, mask, sizes, mask_strides, start + column_1N, num_rows, n)
            last_1N = tl.minimum(last_1N, tl.where(x_1N >= high_R1, x_1N, float("inf")))
        last_R1 = tl.min(last_1N, 1, keep_dims=True)
    low_R1, high_R1 = 0 * a_R1, 0 * a_R1 + 1
    step = 0
    is_open = any_of(is_steep_R1)
    while is_open & (step < MAX_STEPS):
        v_R1 = (low_R1 + high_R1) / 2
        p_1N = tl.zeros([1, BLOCK_N], tl.float32)
        for start in range(0, n, BLOCK_N):
            x_1N = _load(scores, row_R1, row_stride, mask, sizes, mask_strides, start + column_1N, num_rows, n)
            p_1N += from_last(x_1N, last_R1, v_R1, steep_R1)
        low_R1, high_R1, is_wide_R1 = halve(low_R1, high_R1, row_sum(p_1N) < 1)
        is_open = any_of(is_wide_R1)
        step += 1
    v_R1 = low_R1

    p_1N = tl.zeros([1, BLOCK_N], tl.float32)
    expected_1N = tl.zeros([1, BLOCK_N], tl.float32)
    for start in range(0, n, BLOCK_N):
        x_1N = _load(scores, row_R1, row_stride, mask, sizes, mask_strides, start + column_1N, num_rows, n)
        more_1N, _ = power(x_1N - known_top_R1 - lambda_R1, gentle_R1)
        more_1N = tl.where(is_steep_R1, from_last(x_1N, last_R1, v_R1, steep_R1), more_1N)
        p_1N += more_1N
        expected_1N += tl.where(more_1N > 0, more_1N * (x_1N - known_top_R1), 0.0)
    sum_R1 = tl.where(is_live_R1, row_sum(p_1N), 1.0)
    if conjugate is not None:
        top_probability_R1 = from_last(known_top_R1, last_R1, v_R1, steep_R1) / sum_R1
        by_top_R1 = shift_of_top(top_probability_R1, steep_R1)
        of_row_R1 = tl.where(is_steep_R1, by_top_R1, lambda_R1)
        conjugate_R1 = _conjugate(row_sum(expected_1N) / sum_R1, of_row_R1, alpha_R1, is_live_R1, is_bad_R1)
        shown_top_R1 = tl.where(has_nan_R1, float("nan"), top_R1)
        _store_per_row(top, conjugate, shown_top_R1, conjugate_R1, row_R1, num_rows)
    for start in range(0, n, BLOCK_N):
        x_1N = _load(scores, row_R1, row_stride, mask, sizes, mask_strides, start + column_1N, num_rows, n)
        p_1N, _ = power(x_1N - known_top_R1 - lambda_R1, gentle_R1)
        p_1N = tl.where(is_steep_R1, from_last(x_1N, last_R1, v_R1, steep_R1), p_1N) / sum_R1
        place_1N = probs + row_R1 * probs_stride + start + column_1N
        tl.store(place_1N, _finish(p_1N, is_live_R1, is_bad_R1), mask=start + column_1N < n)


@triton.jit
def weigh(p_RN, a_R1):
    """s = p^(2 - alpha), and log p; zero outside the support, but NaN stays NaN."""
    is_in_RN = p_RN > 0
    log_RN = tl.log(tl.where(is_in_RN, p_RN, 1.0))
    return tl.where(is_in_RN, tl.exp((1 - a_R1) * log_RN), p_RN), log_RN


@triton.jit
def slope(p_RN, s_RN, log_RN, a_R1):
    """The derivative of the probabilities by alpha at fixed lambda: p log(p)^2 psi(a log p).

    psi(t) = (1 - exp(-t) - t) / t^2. Above alpha 2 it lacks s / a^2, which sums to zero against a centred gradient.
    """
    t_RN = a_R1 * log_RN
    is_near_RN = tl.abs(t_RN) < 1
    near_RN = tl.where(is_near_RN, t_RN, 0.0)
    series_RN = 1 - near_RN / 13
    for k in tl.static_range(10, 0, -1):
        series_RN = 1 - series_RN * near_RN / (k + 2)
    near_RN = -0.5 * p_RN * log_RN * log_RN * series_RN
    square_R1 = tl.where(a_R1 == 0, 1.0, a_R1 * a_R1)
    # s = p exp(-t), where the exponential alone may be too large.
    far_RN = (p_RN - tl.where(a_R1 > 1, 0.0, s_RN) - p_RN * t_RN) / square_R1
    return tl.where(is_near_RN & (a_R1 <= 1), near_RN, far_RN)


@triton.jit
def backward(
    grad,
    probs,
    alpha,
    alpha_stride,
    mask,
    sizes,
    mask_strides,
    by_scores,
    by_alpha,
    num_rows,
    n,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The gradient by the scores of a block of rows, and where asked for that by alpha."""
    row_R1 = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    column_1N = tl.arange(0, BLOCK_N)[None, :]
    is_there_RN = (row_R1 < num_rows) & (column_1N < n)
    p_RN = tl.load(probs + row_R1 * n + column_1N, mask=is_there_RN, other=0.0).to(tl.float32)
    grad_RN = tl.load(grad + row_R1 * n + column_1N, mask=is_there_RN, other=0.0).to(tl.float32)
    a_R1 = _load_alpha(alpha, alpha_stride, row_R1, num_rows) - 1
    s_RN, log_RN = weigh(p_RN, a_R1)
    # Above alpha 2 the smallest probability may outweigh all others. Counted from its gradient, no difference is small.
    is_heaviest_RN = column_1N == tl.argmax(s_RN, 1)[:, None]
    grad_RN -= row_sum(tl.where(is_heaviest_RN, grad_RN, 0.0))
    total_R1 = row_sum(s_RN)
    mean_R1 = row_sum(tl.where(s_RN != 0, s_RN * grad_RN, 0.0)) / tl.where(total_R1 == 0, 1.0, total_R1)
    centred_RN = tl.where(s_RN != 0, grad_RN - mean_R1, 0.0)
    by_scores_RN = s_RN * centred_RN
    if mask is not None:
        offset_RN = _mask_offset(row_R1, sizes, mask_strides) + column_1N * mask_strides[3]
        by_scores_RN = tl.where(tl.load(mask + offset_RN, mask=is_there_RN, other=0) != 0, by_scores_RN, 0.0)
    tl.store(by_scores + row_R1 * n + column_1N, by_scores_RN, mask=is_there_RN)
    if by_alpha is not None:
        by_alpha_R1 = row_sum(slope(p_RN, s_RN, log_RN, a_R1) * centred_RN)
        tl.store(by_alpha + row_R1, by_alpha_R1, mask=row_R1 < num_rows)


@triton.jit
def backward_long(
    grad,
    probs,
    alpha,
    alpha_stride,
    mask,
    sizes,
    mask_strides,
    by_scores,
    by_alpha,
    num_rows,
    n,
    BLOCK_N: tl.constexpr,
):
    """The same of one row, in three passes."""
    row = tl.program_id(0).to(tl.int64)
    row_R1 = row + tl.zeros([1, 1], tl.int64)
    column_1N = tl.arange(0, BLOCK_N)[None, :]
    a_R1 = _load_alpha(alpha, alpha_stride, row_R1, num_rows) - 1
    heaviest_1N = tl.zeros([1, BLOCK_N], tl.float32)
    grad_of_heaviest_1N = tl.zeros([1, BLOCK_N], tl.float32)
    total_1N = tl.zeros([1, BLOCK_N], tl.float32)
    for start in range(0, n, BLOCK_N):
        place_1N = row * n + start + column_1N
        p_1N = tl.load(probs + place_1N, mask=start + column_1N < n, other=0.0).to(tl.float32)
        grad_1N = tl.load(grad + place_1N, mask=start + column_1N < n, other=0.0).to(tl.float32)
        s_1N, _ = weigh(p_1N, a_R1)
        grad_of_heaviest_1N = tl.where(s_1N > heaviest_1N, grad_1N, grad_of_heaviest_1N)
        heaviest_1N = tl.maximum(heaviest_1N, s_1N)
        total_1N += s_1N
    is_heaviest_1N = column_1N == tl.argmax(heaviest_1N, 1)[:, None]
    from_R1 = row_sum(tl.where(is_heaviest_1N, grad_of_heaviest_1N, 0.0))
    inner_1N = tl.zeros([1, BLOCK_N], tl.float32)
    for start in range(0, n, BLOCK_N):
        place_1N = row * n + start + column_1N
        p_1N = tl.load(probs + place_1N, mask=start + column_1N < n, other=0.0).to(tl.float32)
        grad_1N = tl.load(grad + place_1N, mask=start + column_1N < n, other=0.0).to(tl.float32)
        s_1N, _ = weigh(p_1N, a_R1)
        inner_1N += tl.where(s_1N != 0, s_1N * (grad_1N - from_R1), 0.0)
    total_R1 = row_sum(total_1N)
    mean_R1 = row_sum(inner_1N) / tl.where(total_R1 == 0, 1.0, total_R1)
    by_alpha_1N = tl.zeros([1, BLOCK_N], tl.float32)
    for start in range(0, n, BLOCK_N):
        place_1N = row * n + start + column_1N
        is_there_1N = start + column_1N < n
        p_1N = tl.load(probs + place_1N, mask=is_there_1N, other=0.0).to(tl.float32)
        grad_1N = tl.load(grad + place_1N, mask=is_there_1N, other=0.0).to(tl.float32)
        s_1N, log_1N = weigh(p_1N, a_R1)
        centred_1N = tl.where(s_1N != 0, grad_1N - from_R1 - mean_R1, 0.0)
        by_scores_1N = s_1N * centred_1N
        if mask is not None:
            offset_1N = _mask_offset(row_R1, sizes, mask_strides) + (start + column_1N) * mask_strides[3]
            by_scores_1N = tl.where(tl.load(mask + offset_1N, mask=is_there_1N, other=0) != 0, by_scores_1N, 0.0)
        tl.store(by_scores + place_1N, by_scores_1N, mask=is_there_1N)
        if by_alpha is not None:
            by_alpha_1N += slope(p_1N, s_1N, log_1N, a_R1) * centred_1N
    if by_alpha is not None:
        tl.store(by_alpha + row_R1, row_sum(by_alpha_1N))
