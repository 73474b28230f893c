"""Tiles of scores, of dropout and of products, in Triton: what the kernels of attention are made of.

Shapes: Q queries and K keys of a tile, whichever of them are its rows; A and B the rows of two factors, E the part of
their width that is read at once; 1 for one number per row or column. A tile's products are summed in float32.
"""

import triton
import triton.language as tl

from anymax.kernels.entmax.triton_search import from_last, power


@triton.jit
def rows_of(tensor, strides, batch, head, at_R):
    """Pointers to the rows of one head, (R, 1)."""
    base = tensor + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    return base + at_R[:, None].to(tl.int64) * strides[2]


@triton.jit
def part(row_R1, stride, is_there_R1, start, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Columns `start` and following of rows, zero past the ends."""
    column_1E = start + tl.arange(0, BLOCK)[None, :]
    return tl.load(row_R1 + column_1E * stride, mask=is_there_R1 & (column_1E < WIDTH), other=0.0)


@triton.jit
def store_part(row_R1, stride, is_there_R1, start, value_RE, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    column_1E = start + tl.arange(0, BLOCK)[None, :]
    tl.store(row_R1 + column_1E * stride, value_RE, mask=is_there_R1 & (column_1E < WIDTH))


@triton.jit
def product(
    first_AE,
    a_A1,
    a_stride,
    is_there_A1,
    first_BE,
    b_B1,
    b_stride,
    is_there_B1,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Products of all rows of two factors, whose first parts were read already."""
    sum_AB = tl.dot(first_AE, tl.trans(first_BE), input_precision=PRECISION)
    for start in tl.static_range(BLOCK, WIDTH, BLOCK):
        a_AE = part(a_A1, a_stride, is_there_A1, start, WIDTH, BLOCK)
        b_BE = part(b_B1, b_stride, is_there_B1, start, WIDTH, BLOCK)
        sum_AB = tl.dot(a_AE, tl.trans(b_BE), sum_AB, input_precision=PRECISION)
    return sum_AB


@triton.jit
def where_allowed(
    score_QK, mask, mask_strides, batch, head, at_Q, at_K, num_queries, num_keys, causal_offset, IS_CAUSAL: tl.constexpr
):
    """Scores with the mask, -inf where a query may not attend; queries and keys are counted along either side."""
    is_allowed_QK = (at_Q < num_queries) & (at_K < num_keys)
    if mask is not None:
        base = mask + batch.to(tl.int64) * mask_strides[0] + head.to(tl.int64) * mask_strides[1]
        place_QK = base + at_Q.to(tl.int64) * mask_strides[2] + at_K.to(tl.int64) * mask_strides[3]
        mask_QK = tl.load(place_QK, mask=is_allowed_QK, other=0)
        if mask.dtype.element_ty == tl.uint8:
            is_allowed_QK = is_allowed_QK & (mask_QK != 0)
        else:
            score_QK += mask_QK.to(tl.float32)
    if IS_CAUSAL:
        is_allowed_QK = is_allowed_QK & (at_K <= at_Q + causal_offset)
    return tl.where(is_allowed_QK, score_QK, float("-inf"))


@triton.jit
def kept(seed, row_Q, at_K, threshold, scale):
    """What dropout multiplies entries with; the bits are defined in `kernels/dropout/reference.py`."""
    key_Q = (tl.load(seed) + row_Q).to(tl.uint64) + 0x9E3779B97F4A7C15
    key_Q = (key_Q ^ (key_Q >> 30)) * 0xBF58476D1CE4E5B9
    key_Q = (key_Q ^ (key_Q >> 27)) * 0x94D049BB133111EB
    key_Q = key_Q ^ (key_Q >> 31)
    x_QK = (key_Q & 0xFFFFFFFF).to(tl.uint32) + at_K.to(tl.uint32) * 0x9E3779B9
    x_QK = (x_QK ^ (x_QK >> 16)) * 0x7FEB352D ^ (key_Q >> 32).to(tl.uint32)
    x_QK = (x_QK ^ (x_QK >> 14)) * 0x846CA68B
    return tl.where(x_QK.to(tl.int64) >= threshold, scale, 0.0)


@triton.jit
def probabilities(score_QK, anchor_Q, v_Q, a):
    """Probabilities of rows whose search is done; NaN where the anchor is.

    Args:
        anchor_Q: lambda, or above alpha 2 the score of the last entry that is in, whose probability is v.
    """
    if a > 1:
        # Scores that were computed again may differ in their last bits.
        is_last_QK = tl.abs(score_QK - anchor_Q) <= 5e-7 * tl.abs(anchor_Q)
        p_QK = from_last(tl.where(is_last_QK, anchor_Q, score_QK), anchor_Q, v_Q, a)
    else:
        p_QK, _ = power(score_QK - anchor_Q, a)
    return tl.where(anchor_Q != anchor_Q, float("nan"), p_QK)


@triton.jit
def scores_of(
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
    at_K,
    scale,
    causal_offset,
    sizes,
    IS_CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The scores of a tile with queries as rows, whose first columns were read already."""
    is_query_Q1, is_key_K1 = (at_Q < sizes[2])[:, None], (at_K < sizes[3])[:, None]
    k_K1 = rows_of(key, k_strides, batch, head // (sizes[0] // sizes[1]), at_K)
    k_KE = part(k_K1, k_strides[3], is_key_K1, 0, WIDTH, BLOCK)
    x_QK = scale * product(
        q_QE, q_Q1, q_stride, is_query_Q1, k_KE, k_K1, k_strides[3], is_key_K1, WIDTH, BLOCK, PRECISION
    )
    return where_allowed(
        x_QK,
        mask,
        mask_strides,
        batch,
        head,
        at_Q[:, None],
        at_K[None, :],
        sizes[2],
        sizes[3],
        causal_offset,
        IS_CAUSAL,
    )


@triton.jit
def tops_of(x_QK, sink_Q1, HAS_SINK: tl.constexpr):
    """The maximum of each row, whether it has entries and an answer, and whether it has none for NaN or infinity."""
    is_nan_QK = x_QK != x_QK
    top_Q1 = tl.max(tl.where(is_nan_QK, float("-inf"), x_QK), 1, keep_dims=True)
    is_bad_Q1 = tl.max(is_nan_QK.to(tl.int32), 1, keep_dims=True) > 0
    if HAS_SINK:
        top_Q1 = tl.maximum(top_Q1, tl.where(sink_Q1 != sink_Q1, float("-inf"), sink_Q1))
        is_bad_Q1 = is_bad_Q1 | (sink_Q1 != sink_Q1)
    is_bad_Q1 = is_bad_Q1 | (top_Q1 == float("inf"))
    return top_Q1, (top_Q1 > float("-inf")) & (is_bad_Q1 == 0), is_bad_Q1
