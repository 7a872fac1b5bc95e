# ruff: noqa: N803 (what a kernel is compiled for is spelt in capitals)
"""Triton's kernels of one query a row over the slots of a cache: each visible key is read once.

Importing this imports triton. The query heads of a kv head share a program, and so its keys; the slots are
split among programs, whose outputs are merged by their log-sum-exps. Shapes as in `_triton_forward`, t_q = 1.
"""

import triton
import triton.language as tl

from swalib.attention._triton_forward import LN_2, LOG2_E, NEVER, load_rows, scores_of


@triton.jit
def decode(
    q, k, v, parts, log_sum_exp, q_pos, first, last, scale, softcap,
    q_b, q_h, q_d, k_b, k_h, k_t, k_d, v_b, v_h, v_t, v_d, h_kv, groups, t_k, n_splits, tiles_each,
    D: tl.constexpr, D_V: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, SOFTCAP: tl.constexpr, PER_ROW: tl.constexpr, ALL_SEEN: tl.constexpr,
):  # fmt: skip
    """Outputs [b, h, splits, d_v] and log-sum-exps [b, h, splits] of each share of the slots, contiguous; the
    dtype of `parts` is its own."""
    split, program = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, kv_head = program // h_kv, program % h_kv
    row = b * PER_ROW
    heads = tl.arange(0, BLOCK_H)
    real = heads < groups
    queries = load_rows(q + b * q_b + kv_head * groups * q_h, heads, q_h, q_d, real, D, BLOCK_D)
    at = tl.load(q_pos + row)
    k += b * k_b + kv_head * k_h
    v += b * v_b + kv_head * v_h
    output = tl.zeros((BLOCK_H, BLOCK_V), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    top = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    for i in range(split * tiles_each, tl.minimum((split + 1) * tiles_each, tl.cdiv(t_k, BLOCK_N))):
        n = i * BLOCK_N + tl.arange(0, BLOCK_N)
        seen = n < t_k
        if not ALL_SEEN:
            begin = tl.load(first + row * t_k + n, mask=seen, other=NEVER)
            end = tl.load(last + row * t_k + n, mask=seen, other=-1)
            seen = (begin <= at) & (at <= end)
        keys = load_rows(k, n, k_t, k_d, seen, D, BLOCK_D)
        values = load_rows(v, n, v_t, v_d, seen, D_V, BLOCK_V)
        scores = scores_of(queries, keys, scale, softcap, SOFTCAP) * LOG2_E
        scores = tl.where(seen[None, :], scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == -float("inf"), 0.0, new_top)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        output = output * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        top = new_top
    blind = total == 0.0
    output = output / tl.where(blind, 1.0, total)[:, None]
    lse = tl.where(blind, -float("inf"), (top + tl.log2(tl.where(blind, 1.0, total))) * LN_2)
    lines = (b * h_kv * groups + kv_head * groups + heads) * n_splits + split
    columns = tl.arange(0, BLOCK_V)
    where = parts + lines[:, None] * D_V + columns[None, :]
    tl.store(where, output.to(parts.dtype.element_ty), mask=real[:, None] & (columns[None, :] < D_V))
    tl.store(log_sum_exp + lines, lse, mask=real)


@triton.jit
def merge(
    parts, part_lse, o, log_sum_exp, n_splits,
    D_V: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """o [b, h, d_v] and log-sum-exp [b, h] of `n_splits` parts; one program a head."""
    program = tl.program_id(0).to(tl.int64)
    split, columns = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_V)
    lse = tl.load(part_lse + program * n_splits + split, mask=split < n_splits, other=-float("inf"))
    top = tl.max(lse, 0)
    base = tl.where(top == -float("inf"), 0.0, top)
    share = tl.exp(lse - base)
    total = tl.sum(share, 0)
    blind = total == 0.0
    where = parts + (program * n_splits + split[:, None]) * D_V + columns[None, :]
    inside = (split[:, None] < n_splits) & (columns[None, :] < D_V)
    output = tl.sum(tl.load(where, mask=inside, other=0.0) * share[:, None], 0)
    output = output / tl.where(blind, 1.0, total)
    tl.store(o + program * D_V + columns, output.to(o.dtype.element_ty), mask=columns < D_V)
    tl.store(
        log_sum_exp + program, tl.where(blind, -float("inf"), base + tl.log(tl.where(blind, 1.0, total)))
    )
