# ruff: noqa: N803 (what a kernel is compiled for is spelt in capitals)
"""Triton's kernels of the gradients, over the tiles that the forward visits.

With p the weights, d o the output's gradient and delta = sum(o · d o) - d lse of a query:

    d v = pᵀ d o      d s = p (d o vᵀ - delta)      d q = scale · d s k      d k = scale · d sᵀ q

Arguments as in `_triton_forward`; `delta` and `log_sum_exp` are fp32 [b, h, t_q], contiguous.
"""

import triton
import triton.language as tl

from swalib.attention._triton_forward import LOG2_E, NEVER, load_rows, scores_of, seen_by


@triton.jit
def _weights_and_slopes(q, k, v, d_o, lse, delta, seen, scale, softcap, SOFTCAP: tl.constexpr):
    """(p, d s before `scale`), fp32 [m, n]."""
    scores = scores_of(q, k, scale, softcap, SOFTCAP)
    p = tl.where(seen, tl.exp2((scores - lse[:, None]) * LOG2_E), 0.0)
    slope = tl.dot(d_o, tl.trans(v), input_precision="ieee") - delta[:, None]
    if SOFTCAP:
        slope = slope * (1.0 - (scores / softcap) * (scores / softcap))
    return p, tl.where(seen, p * slope, 0.0)


@triton.jit
def queries_gradient(
    q, k, v, d_o, d_q, log_sum_exp, delta, q_pos, first, last, offsets, tiles, scale, softcap,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, v_b, v_h, v_t, v_d, o_b, o_h, o_t, o_d, h, groups, t_q, t_k, n_q,
    D: tl.constexpr, D_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, SOFTCAP: tl.constexpr, PER_ROW: tl.constexpr,
):  # fmt: skip
    """d q [b, h, t_q, d], contiguous; one program a tile of queries and head."""
    tile, program = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, head = program // h, program % h
    row = b * PER_ROW
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    at = tl.load(q_pos + row * t_q + m, mask=m < t_q, other=-1)
    low, high = tl.min(tl.where(at < 0, NEVER, at), 0), tl.max(at, 0)
    queries = load_rows(q + b * q_b + head * q_h, m, q_t, q_d, at >= 0, D, BLOCK_D)
    slopes = load_rows(d_o + b * o_b + head * o_h, m, o_t, o_d, at >= 0, D_V, BLOCK_V)
    lse = tl.load(log_sum_exp + program * t_q + m, mask=at >= 0, other=0.0)
    known = tl.load(delta + program * t_q + m, mask=at >= 0, other=0.0)
    gradient = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    group = 2 * (row * n_q + tile)
    for i in range(tl.load(offsets + group), tl.load(offsets + group + 2)):
        n = tl.load(tiles + i) * BLOCK_N + tl.arange(0, BLOCK_N)
        begin = tl.load(first + row * t_k + n, mask=n < t_k, other=NEVER)
        end = tl.load(last + row * t_k + n, mask=n < t_k, other=-1)
        live = (begin <= high) & (end >= low)
        keys = load_rows(k + b * k_b + head // groups * k_h, n, k_t, k_d, live, D, BLOCK_D)
        values = load_rows(v + b * v_b + head // groups * v_h, n, v_t, v_d, live, D_V, BLOCK_V)
        _, slope = _weights_and_slopes(
            queries, keys, values, slopes, lse, known, seen_by(at, begin, end), scale, softcap, SOFTCAP
        )
        gradient += tl.dot(slope.to(keys.dtype), keys, input_precision="ieee")
    columns = tl.arange(0, BLOCK_D)
    where = d_q + program * t_q * D + m[:, None].to(tl.int64) * D + columns[None, :]
    inside = (m[:, None] < t_q) & (columns[None, :] < D)
    tl.store(where, (gradient * scale).to(d_q.dtype.element_ty), mask=inside)


@triton.jit
def keys_gradient(
    q, k, v, d_o, d_k, d_v, log_sum_exp, delta, q_pos, first, last, offsets, tiles, items, scale, softcap,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, v_b, v_h, v_t, v_d, o_b, o_h, o_t, o_d,
    h_kv, groups, t_q, t_k, n_k, n_items, LONGEST: tl.constexpr,
    D: tl.constexpr, D_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, SOFTCAP: tl.constexpr, PER_ROW: tl.constexpr,
):  # fmt: skip
    """Parts of d k and d v, fp32 [b, h_kv, items, BLOCK_N, d]; one program an item and kv head.

    items: int32 [n, 2], a tile of keys and which `LONGEST` of its tiles of queries; `offsets`, `tiles`:
    `geometry.by_key`. All queries come back to a sink: its tile is shared among several items.
    """
    item, program = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, kv_head = program // h_kv, program % h_kv
    row = b * PER_ROW
    tile, part = tl.load(items + 2 * item), tl.load(items + 2 * item + 1)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    begin = tl.load(first + row * t_k + n, mask=n < t_k, other=NEVER)
    end = tl.load(last + row * t_k + n, mask=n < t_k, other=-1)
    keys = load_rows(k + b * k_b + kv_head * k_h, n, k_t, k_d, begin <= end, D, BLOCK_D)
    values = load_rows(v + b * v_b + kv_head * v_h, n, v_t, v_d, begin <= end, D_V, BLOCK_V)
    keys_sum = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    values_sum = tl.zeros((BLOCK_N, BLOCK_V), tl.float32)
    start = tl.load(offsets + row * n_k + tile) + part * LONGEST
    stop = tl.minimum(start + LONGEST, tl.load(offsets + row * n_k + tile + 1))
    for head in range(kv_head * groups, (kv_head + 1) * groups):
        lines = (b * h_kv * groups + head) * t_q
        for i in range(start, stop):
            m = tl.load(tiles + i) * BLOCK_M + tl.arange(0, BLOCK_M)
            at = tl.load(q_pos + row * t_q + m, mask=m < t_q, other=-1)
            queries = load_rows(q + b * q_b + head * q_h, m, q_t, q_d, at >= 0, D, BLOCK_D)
            slopes = load_rows(d_o + b * o_b + head * o_h, m, o_t, o_d, at >= 0, D_V, BLOCK_V)
            lse = tl.load(log_sum_exp + lines + m, mask=at >= 0, other=0.0)
            known = tl.load(delta + lines + m, mask=at >= 0, other=0.0)
            p, slope = _weights_and_slopes(
                queries, keys, values, slopes, lse, known, seen_by(at, begin, end), scale, softcap, SOFTCAP
            )
            values_sum += tl.dot(tl.trans(p).to(slopes.dtype), slopes, input_precision="ieee")
            keys_sum += tl.dot(tl.trans(slope).to(queries.dtype), queries, input_precision="ieee")
    lines = (program * n_items + item) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns, wide = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    tl.store(d_k + lines[:, None] * D + columns[None, :], keys_sum * scale, mask=columns[None, :] < D)
    tl.store(d_v + lines[:, None] * D_V + wide[None, :], values_sum, mask=wide[None, :] < D_V)
