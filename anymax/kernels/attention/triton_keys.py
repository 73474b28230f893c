"""Gradients by keys and values: each block of keys walks through the queries that may attend to it.

Tiles have keys as rows. Shapes as in `protocol.py`; Q queries and K keys of a tile, 1 for one number per query.
"""

import triton
import triton.language as tl

from anymax.kernels.attention.triton_tiles import (
    kept,
    part,
    probabilities,
    product,
    rows_of,
    store_part,
    where_allowed,
)
from anymax.kernels.entmax.triton_rows import weigh


@triton.jit
def backward_of_keys(
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
    anchor,
    last_probability,
    mean,
    is_chosen,
    by_key,
    by_value,
    visits,
    IS_CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients by a block of keys and values, of the columns that the second index of the program names.

    Args:
        is_chosen: None, or a byte for each tile of a head, zero where all its probabilities are.
        visits: None, or where the tiles that a program visited are counted.
    """
    heads, groups, num_queries, num_keys = sizes
    num_blocks = tl.cdiv(num_keys, BLOCK_K)
    one = tl.program_id(0) // num_blocks
    batch, group = one // groups, one % groups
    block = tl.program_id(0) % num_blocks
    at_K = block * BLOCK_K + tl.arange(0, BLOCK_K)
    is_key_K1 = (at_K < num_keys)[:, None]
    k_K1, v_K1 = rows_of(key, k_strides, batch, group, at_K), rows_of(value, v_strides, batch, group, at_K)
    k_KE = part(k_K1, k_strides[3], is_key_K1, 0, WIDTH, BLOCK_E)
    v_KF = part(v_K1, v_strides[3], is_key_K1, 0, VALUE_WIDTH, BLOCK_F)
    by_key_KE = tl.zeros([BLOCK_K, BLOCK_E], tl.float32)
    by_value_KF = tl.zeros([BLOCK_K, BLOCK_F], tl.float32)
    start_E, start_F = tl.program_id(1) * BLOCK_E, tl.program_id(1) * BLOCK_F
    first = 0
    if IS_CAUSAL:
        first = tl.maximum(block * BLOCK_K - causal_offset, 0) // BLOCK_Q * BLOCK_Q
    num_visited = 0
    for number in range(heads // groups):
        head = group * (heads // groups) + number
        of_head = batch * heads + head
        a = tl.load(alpha + of_head) - 1
        for start in range(first, num_queries, BLOCK_Q):
            is_wanted = True
            if is_chosen is not None:
                tile = (of_head.to(tl.int64) * tl.cdiv(num_queries, BLOCK_Q) + start // BLOCK_Q) * num_blocks + block
                is_wanted = tl.load(is_chosen + tile) != 0
            if is_wanted:
                num_visited += 1
                at_Q = start + tl.arange(0, BLOCK_Q)
                is_query_Q1, is_query_1Q = (at_Q < num_queries)[:, None], (at_Q < num_queries)[None, :]
                q_Q1 = rows_of(query, q_strides, batch, head, at_Q)
                g_Q1 = rows_of(grad, grad_strides, batch, head, at_Q)
                q_QE = part(q_Q1, q_strides[3], is_query_Q1, 0, WIDTH, BLOCK_E)
                x_KQ = scale * product(
                    k_KE,
                    k_K1,
                    k_strides[3],
                    is_key_K1,
                    q_QE,
                    q_Q1,
                    q_strides[3],
                    is_query_Q1,
                    WIDTH,
                    BLOCK_E,
                    PRECISION,
                )
                x_KQ = where_allowed(
                    x_KQ,
                    mask,
                    mask_strides,
                    batch,
                    head,
                    at_Q[None, :],
                    at_K[:, None],
                    num_queries,
                    num_keys,
                    causal_offset,
                    IS_CAUSAL,
                )
                row_1Q = of_head.to(tl.int64) * num_queries + at_Q[None, :]
                anchor_1Q = tl.load(anchor + row_1Q, mask=is_query_1Q, other=float("inf"))
                v_1Q = tl.load(last_probability + row_1Q, mask=is_query_1Q, other=0.0)
                mean_1Q = tl.load(mean + row_1Q, mask=is_query_1Q, other=0.0)
                p_KQ = probabilities(x_KQ, anchor_1Q, v_1Q, a)
                s_KQ, _ = weigh(p_KQ, a)
                g_QF = part(g_Q1, grad_strides[3], is_query_Q1, 0, VALUE_WIDTH, BLOCK_F)
                by_p_KQ = product(
                    v_KF,
                    v_K1,
                    v_strides[3],
                    is_key_K1,
                    g_QF,
                    g_Q1,
                    grad_strides[3],
                    is_query_Q1,
                    VALUE_WIDTH,
                    BLOCK_F,
                    PRECISION,
                )
                if seed is not None:
                    kept_KQ = kept(seed, row_1Q, at_K[:, None], threshold, kept_scale)
                    by_p_KQ *= kept_KQ
                    p_KQ *= kept_KQ
                by_x_KQ = tl.where(s_KQ != 0, s_KQ * (by_p_KQ - mean_1Q), 0.0).to(query.dtype.element_ty)
                if WIDTH > BLOCK_E:
                    q_QE = part(q_Q1, q_strides[3], is_query_Q1, start_E, WIDTH, BLOCK_E)
                if VALUE_WIDTH > BLOCK_F:
                    g_QF = part(g_Q1, grad_strides[3], is_query_Q1, start_F, VALUE_WIDTH, BLOCK_F)
                by_key_KE = tl.dot(by_x_KQ, q_QE, by_key_KE, input_precision=PRECISION)
                by_value_KF = tl.dot(p_KQ.to(grad.dtype.element_ty), g_QF, by_value_KF, input_precision=PRECISION)
    row_K1 = one.to(tl.int64) * num_keys + at_K[:, None]
    store_part(by_key + row_K1 * WIDTH, 1, is_key_K1, start_E, scale * by_key_KE, WIDTH, BLOCK_E)
    store_part(by_value + row_K1 * VALUE_WIDTH, 1, is_key_K1, start_F, by_value_KF, VALUE_WIDTH, BLOCK_F)
    if visits is not None:
        tl.store(visits + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), num_visited)
