# ruff: noqa: N803 (what a kernel is compiled for is spelt in capitals)
"""Triton's kernel of attention over the visible tiles, and what it shares with the backward kernels.

Importing this imports triton. Shapes: q [b, h, t_q, d], k [b, h_kv, t_k, d], v [b, h_kv, t_k, d_v], strides
in elements; q_pos, first, last: int32 [1 or b, t], see `geometry.Spans`; `offsets`, `tiles`: those of
`geometry.by_query`.
"""

import triton
import triton.language as tl

NEVER = tl.constexpr(2**31 - 1)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
WIDENED = tl.constexpr(bool(triton.knobs.runtime.interpret))  # the interpreter can't multiply bf16 matrices


@triton.jit
def load_rows(base, rows, stride_t, stride_d, live, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """[rows, BLOCK_D]: the rows that are `live`, 0 elsewhere; what is not live is not read."""
    columns = tl.arange(0, BLOCK_D)
    at = base + rows[:, None].to(tl.int64) * stride_t + columns[None, :] * stride_d
    x = tl.load(at, mask=live[:, None] & (columns[None, :] < D), other=0.0)
    if WIDENED:  # noqa: SIM102 (an `if` on types is resolved as the kernel is compiled)
        if x.dtype == tl.bfloat16:
            x = x.to(tl.float32)
    return x


@triton.jit
def tanh(x):
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    x2 = x * x  # near 0 that difference loses digits, and the series does not
    near = 1.0 + x2 * (-1 / 3 + x2 * (2 / 15 + x2 * (-17 / 315 + x2 * (62 / 2835))))
    return tl.where(tl.abs(x) < 0.25, x * near, tl.where(x < 0, -far, far))


@triton.jit
def scores_of(q, k, scale, softcap, SOFTCAP: tl.constexpr):
    """softcap(scale · q·k), fp32 [m, n]."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if SOFTCAP:
        scores = softcap * tanh(scores / softcap)
    return scores


@triton.jit
def seen_by(at, first, last):
    """bool [m, n]: the mask of queries at positions `at` [m] and keys with these spans [n]."""
    return (first[None, :] <= at[:, None]) & (at[:, None] <= last[None, :])


@triton.jit
def _visit(
    state, q, at, low, high, tile, k, v, first, last, k_t, k_d, v_t, v_d, t_k, scale, softcap,
    D: tl.constexpr, D_V: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    SOFTCAP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Take the keys of one tile into the running (output, weight, maximum) of each query."""
    o, total, top = state
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    live = n < t_k
    if MASKED:
        begin = tl.load(first + n, mask=live, other=NEVER)
        end = tl.load(last + n, mask=live, other=-1)
        live = (begin <= high) & (end >= low)
    keys = load_rows(k, n, k_t, k_d, live, D, BLOCK_D)
    values = load_rows(v, n, v_t, v_d, live, D_V, BLOCK_V)
    scores = scores_of(q, keys, scale, softcap, SOFTCAP) * LOG2_E
    if MASKED:
        scores = tl.where(seen_by(at, begin, end), scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == -float("inf"), 0.0, new_top)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(weights, 1)
    o = o * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return o, total, new_top


@triton.jit
def forward(
    q, k, v, o, log_sum_exp, q_pos, first, last, offsets, tiles, scale, softcap,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, v_b, v_h, v_t, v_d, h, groups, t_q, t_k, n_q,
    D: tl.constexpr, D_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, SOFTCAP: tl.constexpr, PER_ROW: tl.constexpr,
):  # fmt: skip
    """o [b, h, t_q, d_v] and log-sum-exp [b, h, t_q], both contiguous; one program a tile of queries and
    head. Only tiles that hold a key which some query does not see evaluate the mask."""
    tile, program = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, head = program // h, program % h
    row = b * PER_ROW
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    at = tl.load(q_pos + row * t_q + m, mask=m < t_q, other=-1)
    low, high = tl.min(tl.where(at < 0, NEVER, at), 0), tl.max(at, 0)
    queries = load_rows(q + b * q_b + head * q_h, m, q_t, q_d, at >= 0, D, BLOCK_D)
    k += b * k_b + head // groups * k_h
    v += b * v_b + head // groups * v_h
    first += row * t_k
    last += row * t_k
    output = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    group = 2 * (row * n_q + tile)
    begin, middle = tl.load(offsets + group), tl.load(offsets + group + 1)
    end = tl.load(offsets + group + 2)
    for i in range(begin, middle):
        output, total, top = _visit(
            (output, total, top), queries, at, low, high, tl.load(tiles + i), k, v, first, last, k_t, k_d,
            v_t, v_d, t_k, scale, softcap, D, D_V, BLOCK_N, BLOCK_D, BLOCK_V, SOFTCAP, True,
        )  # fmt: skip
    for i in range(middle, end):
        output, total, top = _visit(
            (output, total, top), queries, at, low, high, tl.load(tiles + i), k, v, first, last, k_t, k_d,
            v_t, v_d, t_k, scale, softcap, D, D_V, BLOCK_N, BLOCK_D, BLOCK_V, SOFTCAP, False,
        )  # fmt: skip
    blind = total == 0.0
    output = output / tl.where(blind, 1.0, total)[:, None]
    lse = tl.where(blind, -float("inf"), (top + tl.log2(tl.where(blind, 1.0, total))) * LN_2)
    columns = tl.arange(0, BLOCK_V)
    where = o + program * t_q * D_V + m[:, None].to(tl.int64) * D_V + columns[None, :]
    tl.store(where, output.to(o.dtype.element_ty), mask=(m[:, None] < t_q) & (columns[None, :] < D_V))
    tl.store(log_sum_exp + program * t_q + m, lse, mask=m < t_q)
