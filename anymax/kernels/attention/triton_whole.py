"""Attention with all keys of a row on chip: scores are computed once, and the search runs over registers.

Shapes as in `protocol.py`; Q queries of a block, K all keys; 1 for one number per row.
"""

import triton
import triton.language as tl

from anymax.kernels.attention.triton_tiles import (
    kept,
    part,
    probabilities,
    product,
    rows_of,
    scores_of,
    store_part,
    tops_of,
)
from anymax.kernels.entmax.triton_rows import slope, weigh
from anymax.kernels.entmax.triton_search import (
    from_last,
    lambda_on_chip,
    last_on_chip,
    power,
    row_sum,
    shift_of_top,
)


@triton.jit
def forward(
    query,
    q_strides,
    key,
    k_strides,
    value,
    v_strides,
    alpha,
    mask,
    mask_strides,
    sink,
    seed,
    scale,
    threshold,
    kept_scale,
    causal_offset,
    sizes,
    out,
    shift,
    IS_CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What a block of queries gathers."""
    heads, groups, num_queries, num_keys = sizes
    num_blocks = tl.cdiv(num_queries, BLOCK_Q)
    one = tl.program_id(0) // num_blocks
    batch, head = one // heads, one % heads
    group = head // (heads // groups)
    at_Q = tl.program_id(0) % num_blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
    at_K = tl.arange(0, BLOCK_K)
    is_query_Q1, is_key_K1 = (at_Q < num_queries)[:, None], (at_K < num_keys)[:, None]
    q_Q1 = rows_of(query, q_strides, batch, head, at_Q)
    q_QE = part(q_Q1, q_strides[3], is_query_Q1, 0, WIDTH, BLOCK_E)
    x_QK = scores_of(
        q_QE,
        q_Q1,
        q_strides[3],
        key,
        k_strides,
        mask,
        mask_strides,
        batch,
        head,
        at_Q,
        at_K,
        scale,
        causal_offset,
        sizes,
        IS_CAUSAL,
        WIDTH,
        BLOCK_E,
        PRECISION,
    )
    a = tl.load(alpha + one) - 1
    a_Q1 = a + tl.zeros([BLOCK_Q, 1], tl.float32)
    sink_Q1 = tl.zeros([BLOCK_Q, 1], tl.float32)
    if sink is not None:
        sink_Q1 += tl.load(sink + one)
    top_Q1, is_live_Q1, is_bad_Q1 = tops_of(x_QK, sink_Q1, sink is not None)
    known_top_Q1 = tl.where(is_live_Q1, top_Q1, 0.0)
    if a > 1:
        last_Q1, v_Q1 = last_on_chip(x_QK, sink_Q1, top_Q1, a_Q1, is_live_Q1, sink is not None)
        p_QK = from_last(x_QK, last_Q1, v_Q1, a_Q1)
        sum_Q1 = row_sum(p_QK)
        if sink is not None:
            sum_Q1 += from_last(sink_Q1, last_Q1, v_Q1, a_Q1)
        lambda_Q1 = shift_of_top(from_last(known_top_Q1, last_Q1, v_Q1, a_Q1), a_Q1)
    else:
        lambda_Q1 = lambda_on_chip(
            x_QK - known_top_Q1, sink_Q1 - known_top_Q1, a_Q1, is_live_Q1, num_keys + 1, sink is not None
        )
        p_QK, _ = power(x_QK - known_top_Q1 - lambda_Q1, a_Q1)
        sum_Q1 = row_sum(p_QK)
        if sink is not None:
            sink_p_Q1, _ = power(sink_Q1 - known_top_Q1 - lambda_Q1, a_Q1)
            sum_Q1 += sink_p_Q1
    p_QK /= tl.where(is_live_Q1, sum_Q1, 1.0)
    p_QK = tl.where(is_bad_Q1, float("nan"), tl.where(is_live_Q1, p_QK, 0.0))
    shift_Q1 = tl.where(is_bad_Q1, float("nan"), tl.where(is_live_Q1, known_top_Q1 + lambda_Q1, float("inf")))
    row_Q1 = one.to(tl.int64) * num_queries + at_Q[:, None]
    tl.store(shift + row_Q1, shift_Q1, mask=is_query_Q1)
    if seed is not None:
        p_QK *= kept(seed, row_Q1, at_K[None, :], threshold, kept_scale)
    p_QK = p_QK.to(value.dtype.element_ty)
    v_K1 = rows_of(value, v_strides, batch, group, at_K)
    for start in tl.static_range(0, VALUE_WIDTH, BLOCK_F):
        v_KF = part(v_K1, v_strides[3], is_key_K1, start, VALUE_WIDTH, BLOCK_F)
        out_QF = tl.dot(p_QK, v_KF, input_precision=PRECISION)
        store_part(out + row_Q1 * VALUE_WIDTH, 1, is_query_Q1, start, out_QF, VALUE_WIDTH, BLOCK_F)


@triton.jit
def backward_of_queries(
    query,
    q_strides,
    key,
    k_strides,
    value,
    v_strides,
    alpha,
    mask,
    mask_strides,
    sink,
    seed,
    scale,
    threshold,
    kept_scale,
    causal_offset,
    sizes,
    grad,
    grad_strides,
    shift,
    by_query,
    anchor,
    last_probability,
    mean,
    by_alpha,
    by_sink,
    IS_CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient by a block of queries, what the block adds to those by alpha and the sink, and what
    `backward_of_keys` needs of each row."""
    heads, groups, num_queries, num_keys = sizes
    num_blocks = tl.cdiv(num_queries, BLOCK_Q)
    one = tl.program_id(0) // num_blocks
    batch, head = one // heads, one % heads
    group = head // (heads // groups)
    at_Q = tl.program_id(0) % num_blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
    at_K = tl.arange(0, BLOCK_K)
    is_query_Q1, is_key_K1 = (at_Q < num_queries)[:, None], (at_K < num_keys)[:, None]
    row_Q1 = one.to(tl.int64) * num_queries + at_Q[:, None]
    q_Q1 = rows_of(query, q_strides, batch, head, at_Q)
    q_QE = part(q_Q1, q_strides[3], is_query_Q1, 0, WIDTH, BLOCK_E)
    x_QK = scores_of(
        q_QE,
        q_Q1,
        q_strides[3],
        key,
        k_strides,
        mask,
        mask_strides,
        batch,
        head,
        at_Q,
        at_K,
        scale,
        causal_offset,
        sizes,
        IS_CAUSAL,
        WIDTH,
        BLOCK_E,
        PRECISION,
    )
    a = tl.load(alpha + one) - 1
    a_Q1 = a + tl.zeros([BLOCK_Q, 1], tl.float32)
    sink_Q1 = tl.zeros([BLOCK_Q, 1], tl.float32)
    if sink is not None:
        sink_Q1 += tl.load(sink + one)
    anchor_Q1 = tl.load(shift + row_Q1, mask=is_query_Q1, other=float("inf"))
    v_Q1 = tl.zeros([BLOCK_Q, 1], tl.float32)
    if a > 1:
        # Lambda is not exact enough.
        top_Q1, is_live_Q1, _ = tops_of(x_QK, sink_Q1, sink is not None)
        last_Q1, v_Q1 = last_on_chip(x_QK, sink_Q1, top_Q1, a_Q1, is_live_Q1, sink is not None)
        anchor_Q1 = tl.where(is_live_Q1, last_Q1, anchor_Q1)
    tl.store(anchor + row_Q1, anchor_Q1, mask=is_query_Q1)
    tl.store(last_probability + row_Q1, v_Q1, mask=is_query_Q1)

    g_Q1, v_K1 = rows_of(grad, grad_strides, batch, head, at_Q), rows_of(value, v_strides, batch, group, at_K)
    g_QF = part(g_Q1, grad_strides[3], is_query_Q1, 0, VALUE_WIDTH, BLOCK_F)
    v_KF = part(v_K1, v_strides[3], is_key_K1, 0, VALUE_WIDTH, BLOCK_F)
    by_p_QK = product(
        g_QF, g_Q1, grad_strides[3], is_query_Q1, v_KF, v_K1, v_strides[3], is_key_K1, VALUE_WIDTH, BLOCK_F, PRECISION
    )
    if seed is not None:
        by_p_QK *= kept(seed, row_Q1, at_K[None, :], threshold, kept_scale)
    p_QK = probabilities(x_QK, anchor_Q1, v_Q1, a)
    s_QK, log_QK = weigh(p_QK, a_Q1)
    total_Q1 = row_sum(s_QK)
    # Above alpha 2 the smallest probability may outweigh all others. Counted from its gradient, no difference is small.
    from_Q1 = tl.zeros([BLOCK_Q, 1], tl.float32)
    if a > 1:
        is_heaviest_QK = at_K[None, :] == tl.argmax(s_QK, 1)[:, None]
        from_Q1 = row_sum(tl.where(is_heaviest_QK, by_p_QK, 0.0))
    if sink is not None:
        sink_p_Q1 = probabilities(sink_Q1, anchor_Q1, v_Q1, a)
        sink_s_Q1, sink_log_Q1 = weigh(sink_p_Q1, a_Q1)
        from_Q1 = tl.where(sink_s_Q1 > tl.max(s_QK, 1, keep_dims=True), 0.0, from_Q1)
        total_Q1 += sink_s_Q1
    by_p_QK -= from_Q1
    inner_Q1 = row_sum(tl.where(s_QK != 0, s_QK * by_p_QK, 0.0))
    if sink is not None:
        inner_Q1 -= tl.where(sink_s_Q1 != 0, sink_s_Q1 * from_Q1, 0.0)
    mean_Q1 = inner_Q1 / tl.where(total_Q1 == 0, 1.0, total_Q1)
    tl.store(mean + row_Q1, from_Q1 + mean_Q1, mask=is_query_Q1)
    centred_QK = tl.where(s_QK != 0, by_p_QK - mean_Q1, 0.0)
    if by_alpha is not None:
        by_alpha_Q1 = row_sum(slope(p_QK, s_QK, log_QK, a_Q1) * centred_QK)
        if sink is not None:
            sink_slope_Q1 = slope(sink_p_Q1, sink_s_Q1, sink_log_Q1, a_Q1)
            by_alpha_Q1 -= tl.where(sink_s_Q1 != 0, sink_slope_Q1 * (from_Q1 + mean_Q1), 0.0)
        tl.store(by_alpha + tl.program_id(0), tl.sum(tl.where(is_query_Q1, by_alpha_Q1, 0.0)))
    if sink is not None:
        by_sink_Q1 = tl.where(is_query_Q1 & (sink_s_Q1 != 0), -sink_s_Q1 * (from_Q1 + mean_Q1), 0.0)
        tl.store(by_sink + tl.program_id(0), tl.sum(by_sink_Q1))
    by_x_QK = (s_QK * centred_QK).to(key.dtype.element_ty)
    k_K1 = rows_of(key, k_strides, batch, group, at_K)
    for start in tl.static_range(0, WIDTH, BLOCK_E):
        k_KE = part(k_K1, k_strides[3], is_key_K1, start, WIDTH, BLOCK_E)
        by_query_QE = scale * tl.dot(by_x_QK, k_KE, input_precision=PRECISION)
        store_part(by_query + row_Q1 * WIDTH, 1, is_query_Q1, start, by_query_QE, WIDTH, BLOCK_E)
