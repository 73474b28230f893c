"""Attention to many keys: the scores of a block of queries are computed tile by tile, in every pass again.

The first pass finds the maximum of each row and lists the tiles that may hold an entry with a probability: above alpha
1 those that reach within 1 / (alpha - 1) of the largest score so far. That grows, so no tile is missed. The passes of
the search walk through the list, and the last one marks the tiles in which a probability is not zero. Gradients walk
through those alone. Shapes as in `protocol.py`; Q queries and K keys of a tile, 1 for one number per row.
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
    MAX_STEPS,
    above_edge,
    any_of,
    from_last,
    halve,
    is_far,
    largest_shift,
    newton,
    parts_of_sums,
    row_sum,
    shift_of_top,
)


@triton.jit
def _list_tiles(
    listed,
    num_tiles,
    sink_Q1,
    a,
    q_QE,
    q_Q1,
    q_stride,
    key,
    k_strides,
    mask,
    mask_strides,
    batch,
    head,
    at_Q,
    scale,
    causal_offset,
    sizes,
    HAS_SINK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The maximum of each row, whether it has entries and an answer, whether it has none, and how many are listed."""
    top_Q1 = tl.full(sink_Q1.shape, float("-inf"), tl.float32)
    is_bad_Q1 = sink_Q1 != sink_Q1
    if HAS_SINK:
        top_Q1 = tl.where(is_bad_Q1, top_Q1, sink_Q1)
    count = 0
    for tile in range(num_tiles):
        x_QK = scores_of(
            q_QE,
            q_Q1,
            q_stride,
            key,
            k_strides,
            mask,
            mask_strides,
            batch,
            head,
            at_Q,
            tile * BLOCK_K + tl.arange(0, BLOCK_K),
            scale,
            causal_offset,
            sizes,
            IS_CAUSAL,
            WIDTH,
            BLOCK_E,
            PRECISION,
        )
        top_of_tile_Q1, _, is_bad_of_tile_Q1 = tops_of(x_QK, sink_Q1, False)
        is_bad_Q1 = is_bad_Q1 | is_bad_of_tile_Q1
        top_Q1 = tl.maximum(top_Q1, top_of_tile_Q1)
        edge_Q1 = tl.full(sink_Q1.shape, float("-inf"), tl.float32)
        if a > 0:
            edge_Q1 = top_Q1 - 1 / a
        # Of a row whose numbers are too large, the edge is the maximum itself.
        is_near_Q1 = (top_of_tile_Q1 > float("-inf")) & ((top_of_tile_Q1 > edge_Q1) | (top_of_tile_Q1 == top_Q1))
        tl.store(listed + count, tile)
        count += any_of(is_near_Q1).to(tl.int32)
    # What one thread wrote all will read.
    tl.debug_barrier()
    is_bad_Q1 = is_bad_Q1 | (top_Q1 == float("inf"))
    return top_Q1, (top_Q1 > float("-inf")) & (is_bad_Q1 == 0), is_bad_Q1, count


@triton.jit
def _lambda_of(
    listed,
    count,
    sink_Q1,
    top_Q1,
    is_live_Q1,
    a_Q1,
    q_QE,
    q_Q1,
    q_stride,
    key,
    k_strides,
    mask,
    mask_strides,
    batch,
    head,
    at_Q,
    scale,
    causal_offset,
    sizes,
    HAS_SINK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Lambda less the maximum of each row up to alpha 2, and the number of passes."""
    lambda_Q1 = 0 * a_Q1
    low_Q1, high_Q1 = lambda_Q1, largest_shift(sizes[3] + 1, a_Q1)
    step = 0
    is_open = any_of(is_live_Q1)
    while is_open & (step < MAX_STEPS):
        sum_Q1, slope_Q1 = 0 * a_Q1, 0 * a_Q1
        if HAS_SINK:
            sum_Q1, slope_Q1 = parts_of_sums(sink_Q1 - top_Q1 - lambda_Q1, a_Q1)
        for number in range(count):
            tile = tl.load(listed + number)
            x_QK = scores_of(
                q_QE,
                q_Q1,
                q_stride,
                key,
                k_strides,
                mask,
                mask_strides,
                batch,
                head,
                at_Q,
                tile * BLOCK_K + tl.arange(0, BLOCK_K),
                scale,
                causal_offset,
                sizes,
                IS_CAUSAL,
                WIDTH,
                BLOCK_E,
                PRECISION,
            )
            p_QK, s_QK = parts_of_sums(x_QK - top_Q1 - lambda_Q1, a_Q1)
            sum_Q1, slope_Q1 = sum_Q1 + row_sum(p_QK), slope_Q1 + row_sum(s_QK)
        next_Q1, low_Q1, high_Q1 = newton(lambda_Q1, low_Q1, high_Q1, sum_Q1, slope_Q1, a_Q1)
        is_open = any_of(is_live_Q1 & is_far(sum_Q1) & (next_Q1 != lambda_Q1))
        lambda_Q1 = tl.where(is_live_Q1, next_Q1, lambda_Q1)
        step += 1
    return lambda_Q1, step


@triton.jit
def _last_of(
    listed,
    count,
    sink_Q1,
    top_Q1,
    is_live_Q1,
    a_Q1,
    q_QE,
    q_Q1,
    q_stride,
    key,
    k_strides,
    mask,
    mask_strides,
    batch,
    head,
    at_Q,
    scale,
    causal_offset,
    sizes,
    HAS_SINK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Above alpha 2: the score of the last entry that is in, its probability, and the number of passes."""
    low_Q1, high_Q1 = top_Q1 - 1 / a_Q1, top_Q1
    step = 0
    is_open = any_of(is_live_Q1)
    while is_open & (step < MAX_STEPS):
        edge_Q1 = (low_Q1 + high_Q1) / 2
        sum_Q1 = 0 * a_Q1
        if HAS_SINK:
            sum_Q1 += above_edge(sink_Q1, edge_Q1, a_Q1)
        for number in range(count):
            tile = tl.load(listed + number)
            x_QK = scores_of(
                q_QE,
                q_Q1,
                q_stride,
                key,
                k_strides,
                mask,
                mask_strides,
                batch,
                head,
                at_Q,
                tile * BLOCK_K + tl.arange(0, BLOCK_K),
                scale,
                causal_offset,
                sizes,
                IS_CAUSAL,
                WIDTH,
                BLOCK_E,
                PRECISION,
            )
            sum_Q1 += row_sum(above_edge(x_QK, edge_Q1, a_Q1))
        low_Q1, high_Q1, is_wide_Q1 = halve(low_Q1, high_Q1, sum_Q1 >= 1)
        is_open = any_of(is_live_Q1 & is_wide_Q1)
        step += 1
    last_Q1 = tl.full(a_Q1.shape, float("inf"), tl.float32)
    if HAS_SINK:
        last_Q1 = tl.where(sink_Q1 >= high_Q1, sink_Q1, last_Q1)
    for number in range(count):
        tile = tl.load(listed + number)
        x_QK = scores_of(
            q_QE,
            q_Q1,
            q_stride,
            key,
            k_strides,
            mask,
            mask_strides,
            batch,
            head,
            at_Q,
            tile * BLOCK_K + tl.arange(0, BLOCK_K),
            scale,
            causal_offset,
            sizes,
            IS_CAUSAL,
            WIDTH,
            BLOCK_E,
            PRECISION,
        )
        above_QK = tl.where(x_QK >= high_Q1, x_QK, float("inf"))
        last_Q1 = tl.minimum(last_Q1, tl.min(above_QK, 1, keep_dims=True))
    last_Q1 = tl.where(is_live_Q1, last_Q1, 0.0)
    num_passes = step + 1
    low_Q1, high_Q1 = 0 * a_Q1, 0 * a_Q1 + 1
    step = 0
    is_open = any_of(is_live_Q1)
    while is_open & (step < MAX_STEPS):
        middle_Q1 = (low_Q1 + high_Q1) / 2
        sum_Q1 = 0 * a_Q1
        if HAS_SINK:
            sum_Q1 += from_last(sink_Q1, last_Q1, middle_Q1, a_Q1)
        for number in range(count):
            tile = tl.load(listed + number)
            x_QK = scores_of(
                q_QE,
                q_Q1,
                q_stride,
                key,
                k_strides,
                mask,
                mask_strides,
                batch,
                head,
                at_Q,
                tile * BLOCK_K + tl.arange(0, BLOCK_K),
                scale,
                causal_offset,
                sizes,
                IS_CAUSAL,
                WIDTH,
                BLOCK_E,
                PRECISION,
            )
            sum_Q1 += row_sum(from_last(x_QK, last_Q1, middle_Q1, a_Q1))
        low_Q1, high_Q1, is_wide_Q1 = halve(low_Q1, high_Q1, sum_Q1 < 1)
        is_open = any_of(is_live_Q1 & is_wide_Q1)
        step += 1
    return last_Q1, low_Q1, num_passes + step


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
    listed,
    chosen,
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
    """What a block of queries gathers.

    Args:
        listed: room for the numbers of all tiles of a program.
        chosen: None, or a byte for each tile, which becomes 1 where a probability is not zero.
        visits: None, or where the tiles are counted whose scores a program computed.
    """
    heads, groups, num_queries, num_keys = sizes
    num_blocks = tl.cdiv(num_queries, BLOCK_Q)
    one, block = tl.program_id(0) // num_blocks, tl.program_id(0) % num_blocks
    batch, head = one // heads, one % heads
    group = head // (heads // groups)
    at_Q = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    is_query_Q1 = (at_Q < num_queries)[:, None]
    row_Q1 = one.to(tl.int64) * num_queries + at_Q[:, None]
    q_Q1, q_stride = rows_of(query, q_strides, batch, head, at_Q), q_strides[3]
    q_QE = part(q_Q1, q_stride, is_query_Q1, 0, WIDTH, BLOCK_E)
    num_tiles = tl.cdiv(num_keys, BLOCK_K)
    mine = tl.program_id(0).to(tl.int64) * num_tiles
    listed += mine
    if IS_CAUSAL:
        num_tiles = tl.minimum(num_tiles, tl.cdiv(tl.maximum((block + 1) * BLOCK_Q + causal_offset, 0), BLOCK_K))
    a = tl.load(alpha + one) - 1
    a_Q1 = a + tl.zeros([BLOCK_Q, 1], tl.float32)
    sink_Q1 = tl.zeros([BLOCK_Q, 1], tl.float32)
    if sink is not None:
        sink_Q1 += tl.load(sink + one)
    top_Q1, is_live_Q1, is_bad_Q1, count = _list_tiles(
        listed,
        num_tiles,
        sink_Q1,
        a,
        q_QE,
        q_Q1,
        q_stride,
        key,
        k_strides,
        mask,
        mask_strides,
        batch,
        head,
        at_Q,
        scale,
        causal_offset,
        sizes,
        sink is not None,
        IS_CAUSAL,
        WIDTH,
        BLOCK_K,
        BLOCK_E,
        PRECISION,
    )
    top_Q1 = tl.where(is_live_Q1, top_Q1, 0.0)
    last_Q1, v_Q1, lambda_Q1 = top_Q1, 0 * a_Q1, 0 * a_Q1
    num_passes = 0
    if a > 1:
        last_Q1, v_Q1, num_passes = _last_of(
            listed,
            count,
            sink_Q1,
            top_Q1,
            is_live_Q1,
            a_Q1,
            q_QE,
            q_Q1,
            q_stride,
            key,
            k_strides,
            mask,
            mask_strides,
            batch,
            head,
            at_Q,
            scale,
            causal_offset,
            sizes,
            sink is not None,
            IS_CAUSAL,
            WIDTH,
            BLOCK_K,
            BLOCK_E,
            PRECISION,
        )
        lambda_Q1 = shift_of_top(from_last(top_Q1, last_Q1, v_Q1, a_Q1), a_Q1)
    else:
        lambda_Q1, num_passes = _lambda_of(
            listed,
            count,
            sink_Q1,
            top_Q1,
            is_live_Q1,
            a_Q1,
            q_QE,
            q_Q1,
            q_stride,
            key,
            k_strides,
            mask,
            mask_strides,
            batch,
            head,
            at_Q,
            scale,
            causal_offset,
            sizes,
            sink is not None,
            IS_CAUSAL,
            WIDTH,
            BLOCK_K,
            BLOCK_E,
            PRECISION,
        )
    shift_Q1 = tl.where(is_bad_Q1, float("nan"), tl.where(is_live_Q1, top_Q1 + lambda_Q1, float("inf")))
    tl.store(shift + row_Q1, shift_Q1, mask=is_query_Q1)
    anchor_Q1 = shift_Q1
    if a > 1:
        anchor_Q1 = tl.where(is_live_Q1, last_Q1, shift_Q1)
    for start in tl.static_range(0, VALUE_WIDTH, BLOCK_F):
        sum_Q1 = 0 * a_Q1
        if sink is not None:
            sum_Q1 += probabilities(sink_Q1, anchor_Q1, v_Q1, a)
        out_QF = tl.zeros([BLOCK_Q, BLOCK_F], tl.float32)
        for number in range(count):
            tile = tl.load(listed + number)
            x_QK = scores_of(
                q_QE,
                q_Q1,
                q_stride,
                key,
                k_strides,
                mask,
                mask_strides,
                batch,
                head,
                at_Q,
                tile * BLOCK_K + tl.arange(0, BLOCK_K),
                scale,
                causal_offset,
                sizes,
                IS_CAUSAL,
                WIDTH,
                BLOCK_E,
                PRECISION,
            )
            p_QK = probabilities(x_QK, anchor_Q1, v_Q1, a)
            if tl.max(tl.where(p_QK > 0, 1, 0)) > 0:
                sum_Q1 += row_sum(p_QK)
                at_K = tile * BLOCK_K + tl.arange(0, BLOCK_K)
                if seed is not None:
                    p_QK *= kept(seed, row_Q1, at_K[None, :], threshold, kept_scale)
                v_K1 = rows_of(value, v_strides, batch, group, at_K)
                v_KF = part(v_K1, v_strides[3], (at_K < num_keys)[:, None], start, VALUE_WIDTH, BLOCK_F)
                out_QF = tl.dot(p_QK.to(value.dtype.element_ty), v_KF, out_QF, input_precision=PRECISION)
                if chosen is not None:
                    tl.store(chosen + mine + tile, 1)
        out_QF = tl.where(is_bad_Q1, float("nan"), out_QF / tl.where(is_live_Q1, sum_Q1, 1.0))
        store_part(out + row_Q1 * VALUE_WIDTH, 1, is_query_Q1, start, out_QF, VALUE_WIDTH, BLOCK_F)
        num_passes += 1
    if visits is not None:
        tl.store(visits + tl.program_id(0), num_tiles + num_passes * count)


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
    listed,
    chosen,
    visits,
    KNOWS_CHOSEN: tl.constexpr,
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
    `backward_of_keys` needs of each row.

    Args:
        chosen: a byte for each tile, which `forward` wrote if it is known, or which this writes.
        KNOWS_CHOSEN: whether it is known.
    """
    heads, groups, num_queries, num_keys = sizes
    num_blocks = tl.cdiv(num_queries, BLOCK_Q)
    one, block = tl.program_id(0) // num_blocks, tl.program_id(0) % num_blocks
    batch, head = one // heads, one % heads
    group = head // (heads // groups)
    at_Q = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    is_query_Q1 = (at_Q < num_queries)[:, None]
    row_Q1 = one.to(tl.int64) * num_queries + at_Q[:, None]
    q_Q1, q_stride = rows_of(query, q_strides, batch, head, at_Q), q_strides[3]
    q_QE = part(q_Q1, q_stride, is_query_Q1, 0, WIDTH, BLOCK_E)
    num_tiles = tl.cdiv(num_keys, BLOCK_K)
    mine = tl.program_id(0).to(tl.int64) * num_tiles
    listed += mine
    if IS_CAUSAL:
        num_tiles = tl.minimum(num_tiles, tl.cdiv(tl.maximum((block + 1) * BLOCK_Q + causal_offset, 0), BLOCK_K))
    a = tl.load(alpha + one) - 1
    a_Q1 = a + tl.zeros([BLOCK_Q, 1], tl.float32)
    sink_Q1 = tl.zeros([BLOCK_Q, 1], tl.float32)
    if sink is not None:
        sink_Q1 += tl.load(sink + one)
    anchor_Q1 = tl.load(shift + row_Q1, mask=is_query_Q1, other=float("inf"))
    is_bad_Q1 = anchor_Q1 != anchor_Q1
    v_Q1 = 0 * a_Q1
    num_visited = 0
    if a > 1:
        # Lambda is not exact enough.
        top_Q1, is_live_Q1, _, count = _list_tiles(
            listed,
            num_tiles,
            sink_Q1,
            a,
            q_QE,
            q_Q1,
            q_stride,
            key,
            k_strides,
            mask,
            mask_strides,
            batch,
            head,
            at_Q,
            scale,
            causal_offset,
            sizes,
            sink is not None,
            IS_CAUSAL,
            WIDTH,
            BLOCK_K,
            BLOCK_E,
            PRECISION,
        )
        last_Q1, v_Q1, num_passes = _last_of(
            listed,
            count,
            sink_Q1,
            tl.where(is_live_Q1, top_Q1, 0.0),
            is_live_Q1,
            a_Q1,
            q_QE,
            q_Q1,
            q_stride,
            key,
            k_strides,
            mask,
            mask_strides,
            batch,
            head,
            at_Q,
            scale,
            causal_offset,
            sizes,
            sink is not None,
            IS_CAUSAL,
            WIDTH,
            BLOCK_K,
            BLOCK_E,
            PRECISION,
        )
        anchor_Q1 = tl.where(is_live_Q1, last_Q1, anchor_Q1)
        num_visited += num_tiles + num_passes * count
        # All have read the list before it is written again.
        tl.debug_barrier()
    tl.store(anchor + row_Q1, anchor_Q1, mask=is_query_Q1)
    tl.store(last_probability + row_Q1, v_Q1, mask=is_query_Q1)

    g_Q1, g_stride = rows_of(grad, grad_strides, batch, head, at_Q), grad_strides[3]
    g_QF = part(g_Q1, g_stride, is_query_Q1, 0, VALUE_WIDTH, BLOCK_F)
    total_Q1, inner_Q1 = 0 * a_Q1, 0 * a_Q1
    # Above alpha 2 the smallest probability may outweigh all others. Counted from its gradient, no difference is small.
    heaviest_Q1, from_Q1 = 0 * a_Q1, 0 * a_Q1
    if sink is not None:
        sink_p_Q1 = probabilities(sink_Q1, anchor_Q1, v_Q1, a)
        sink_s_Q1, sink_log_Q1 = weigh(sink_p_Q1, a_Q1)
        total_Q1 += sink_s_Q1
        heaviest_Q1 = tl.where(sink_s_Q1 == sink_s_Q1, sink_s_Q1, 0.0)
    count = 0
    for tile in range(num_tiles):
        is_wanted = True
        if KNOWS_CHOSEN:
            is_wanted = tl.load(chosen + mine + tile) != 0
        if is_wanted:
            num_visited += 1
            x_QK = scores_of(
                q_QE,
                q_Q1,
                q_stride,
                key,
                k_strides,
                mask,
                mask_strides,
                batch,
                head,
                at_Q,
                tile * BLOCK_K + tl.arange(0, BLOCK_K),
                scale,
                causal_offset,
                sizes,
                IS_CAUSAL,
                WIDTH,
                BLOCK_E,
                PRECISION,
            )
            p_QK = probabilities(x_QK, anchor_Q1, v_Q1, a)
            s_QK, _ = weigh(p_QK, a_Q1)
            if tl.max(tl.where(p_QK == 0, 0, 1)) > 0:
                tl.store(listed + count, tile)
                count += 1
                if not KNOWS_CHOSEN:
                    tl.store(chosen + mine + tile, 1)
                at_K = tile * BLOCK_K + tl.arange(0, BLOCK_K)
                v_K1, is_key_K1 = rows_of(value, v_strides, batch, group, at_K), (at_K < num_keys)[:, None]
                v_KF = part(v_K1, v_strides[3], is_key_K1, 0, VALUE_WIDTH, BLOCK_F)
                by_p_QK = product(
                    g_QF,
                    g_Q1,
                    g_stride,
                    is_query_Q1,
                    v_KF,
                    v_K1,
                    v_strides[3],
                    is_key_K1,
                    VALUE_WIDTH,
                    BLOCK_F,
                    PRECISION,
                )
                if seed is not None:
                    by_p_QK *= kept(seed, row_Q1, at_K[None, :], threshold, kept_scale)
                total_Q1 += row_sum(s_QK)
                inner_Q1 += row_sum(tl.where(s_QK != 0, s_QK * by_p_QK, 0.0))
                if a > 1:
                    is_heaviest_QK = tl.arange(0, BLOCK_K)[None, :] == tl.argmax(s_QK, 1)[:, None]
                    s_of_tile_Q1 = tl.max(s_QK, 1, keep_dims=True)
                    from_of_tile_Q1 = row_sum(tl.where(is_heaviest_QK, by_p_QK, 0.0))
                    from_Q1 = tl.where(s_of_tile_Q1 > heaviest_Q1, from_of_tile_Q1, from_Q1)
                    heaviest_Q1 = tl.maximum(heaviest_Q1, s_of_tile_Q1)
    tl.debug_barrier()
    safe_total_Q1 = tl.where(total_Q1 == 0, 1.0, total_Q1)
    mean_Q1 = inner_Q1 / safe_total_Q1
    if a > 1:
        inner_Q1 = 0 * a_Q1
        if sink is not None:
            inner_Q1 -= tl.where(sink_s_Q1 != 0, sink_s_Q1 * from_Q1, 0.0)
        for number in range(count):
            tile = tl.load(listed + number)
            x_QK = scores_of(
                q_QE,
                q_Q1,
                q_stride,
                key,
                k_strides,
                mask,
                mask_strides,
                batch,
                head,
                at_Q,
                tile * BLOCK_K + tl.arange(0, BLOCK_K),
                scale,
                causal_offset,
                sizes,
                IS_CAUSAL,
                WIDTH,
                BLOCK_E,
                PRECISION,
            )
            at_K = tile * BLOCK_K + tl.arange(0, BLOCK_K)
            p_QK = probabilities(x_QK, anchor_Q1, v_Q1, a)
            s_QK, _ = weigh(p_QK, a_Q1)
            v_K1, is_key_K1 = rows_of(value, v_strides, batch, group, at_K), (at_K < num_keys)[:, None]
            v_KF = part(v_K1, v_strides[3], is_key_K1, 0, VALUE_WIDTH, BLOCK_F)
            by_p_QK = product(
                g_QF, g_Q1, g_stride, is_query_Q1, v_KF, v_K1, v_strides[3], is_key_K1, VALUE_WIDTH, BLOCK_F, PRECISION
            )
            if seed is not None:
                by_p_QK *= kept(seed, row_Q1, at_K[None, :], threshold, kept_scale)
            inner_Q1 += row_sum(tl.where(s_QK != 0, s_QK * (by_p_QK - from_Q1), 0.0))
        num_visited += count
        mean_Q1 = inner_Q1 / safe_total_Q1
    mean_Q1 = tl.where(is_bad_Q1, float("nan"), mean_Q1)
    tl.store(mean + row_Q1, from_Q1 + mean_Q1, mask=is_query_Q1)
    by_alpha_Q1 = 0 * a_Q1
    if sink is not None:
        by_sink_Q1 = tl.where(is_query_Q1 & (sink_s_Q1 != 0), -sink_s_Q1 * (from_Q1 + mean_Q1), 0.0)
        tl.store(by_sink + tl.program_id(0), tl.sum(by_sink_Q1))
        if by_alpha is not None:
            sink_slope_Q1 = slope(sink_p_Q1, sink_s_Q1, sink_log_Q1, a_Q1)
            by_alpha_Q1 -= tl.where(sink_s_Q1 != 0, sink_slope_Q1 * (from_Q1 + mean_Q1), 0.0)
    for start in tl.static_range(0, WIDTH, BLOCK_E):
        by_query_QE = tl.zeros([BLOCK_Q, BLOCK_E], tl.float32)
        for number in range(count):
            tile = tl.load(listed + number)
            x_QK = scores_of(
                q_QE,
                q_Q1,
                q_stride,
                key,
                k_strides,
                mask,
                mask_strides,
                batch,
                head,
                at_Q,
                tile * BLOCK_K + tl.arange(0, BLOCK_K),
                scale,
                causal_offset,
                sizes,
                IS_CAUSAL,
                WIDTH,
                BLOCK_E,
                PRECISION,
            )
            at_K = tile * BLOCK_K + tl.arange(0, BLOCK_K)
            p_QK = probabilities(x_QK, anchor_Q1, v_Q1, a)
            s_QK, log_QK = weigh(p_QK, a_Q1)
            v_K1, is_key_K1 = rows_of(value, v_strides, batch, group, at_K), (at_K < num_keys)[:, None]
            v_KF = part(v_K1, v_strides[3], is_key_K1, 0, VALUE_WIDTH, BLOCK_F)
            by_p_QK = product(
                g_QF, g_Q1, g_stride, is_query_Q1, v_KF, v_K1, v_strides[3], is_key_K1, VALUE_WIDTH, BLOCK_F, PRECISION
            )
            if seed is not None:
                by_p_QK *= kept(seed, row_Q1, at_K[None, :], threshold, kept_scale)
            centred_QK = tl.where(s_QK != 0, by_p_QK - from_Q1 - mean_Q1, 0.0)
            if by_alpha is not None and start == 0:
                by_alpha_Q1 += row_sum(slope(p_QK, s_QK, log_QK, a_Q1) * centred_QK)
            k_KE = part(rows_of(key, k_strides, batch, group, at_K), k_strides[3], is_key_K1, start, WIDTH, BLOCK_E)
            by_x_QK = (s_QK * centred_QK).to(key.dtype.element_ty)
            by_query_QE = tl.dot(by_x_QK, k_KE, by_query_QE, input_precision=PRECISION)
        store_part(by_query + row_Q1 * WIDTH, 1, is_query_Q1, start, scale * by_query_QE, WIDTH, BLOCK_E)
        num_visited += count
    if by_alpha is not None:
        tl.store(by_alpha + tl.program_id(0), tl.sum(tl.where(is_query_Q1, by_alpha_Q1, 0.0)))
    if visits is not None:
        tl.store(visits + tl.program_id(0), num_visited)
