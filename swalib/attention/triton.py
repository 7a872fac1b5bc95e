"""Our own Triton kernels: prefill, its gradients, and decoding over the slots of a cache.

Prefill visits only tiles of queries × keys that hold a visible pair, and evaluates the mask only where a tile
holds an invisible one; decoding reads each visible key once. Fp32 products are computed in fp32, never TF32.

Checked on a CPU by Triton's interpreter (`TRITON_INTERPRET=1`, which is slow: for tests), gradients included;
the tests marked `gpu` check the compiled kernels where there is a GPU. Triton is imported at the first call.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from swalib.attention.geometry import Lists, Spans, by_key, by_query, spans, tile_pairs
from swalib.attention.limits import HALF, Limits, needs_grad
from swalib.attention.scoring import Scoring, joined_by_sink, turned
from swalib.spec import SWA, Full

LIMITS = Limits("triton", (torch.float32, *HALF))
LONGEST = 32  # tiles of queries that one program takes for a tile of keys, in the gradients


def missing(device: str) -> str | None:
    """Why it doesn't run on `device` ("cpu", "cuda"), and what to do, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: pip install triton (Linux)"
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return (
            "Triton compiles for GPUs; its interpreter runs the kernels on a CPU, for tests: set "
            "TRITON_INTERPRET=1 before Python starts"
        )
    if device == "cuda" and not torch.cuda.is_available():
        return "there is no CUDA device: run it on a GPU machine"
    return None if device in ("cpu", "cuda") else f"these kernels are for CUDA devices, not for {device}"


class Tiles(NamedTuple):
    """Queries and keys of a tile, and how Triton is to run it."""

    queries: int
    keys: int
    warps: int
    stages: int


def forward_tiles(dtype: torch.dtype, d: int) -> Tiles:
    """The forward's tiles for heads of up to d dimensions."""
    if dtype == torch.float32:
        return Tiles(64, 32, 4, 2) if d <= 128 else Tiles(32, 32, 4, 1)
    return Tiles(128, 64, 4 if d <= 64 else 8, 3) if d <= 128 else Tiles(64, 64, 8, 2)


def backward_tiles(dtype: torch.dtype, d: int) -> Tiles:
    """The gradients' tiles."""
    if dtype == torch.float32 or d > 128:
        return Tiles(32, 32, 4, 1)
    return Tiles(64, 64, 4 if d <= 64 else 8, 2)


@dataclass
class Plan:
    """One call's positions: spans of the keys and positions of the queries, int32 [1 or b, t]; text positions
    as they came; whether a single query sees every key; and what was made of them, on each device."""

    seen: Spans
    at: Tensor
    q_pos: Tensor
    k_pos: Tensor
    all_seen: bool
    _made: dict = field(default_factory=dict)

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """(q_pos, first, last), int32 [rows, t] each, contiguous, on `device`."""
        if device not in self._made:
            self._made[device] = tuple(x.contiguous().to(device) for x in (self.at, *self.seen))
        return self._made[device]

    def lists(self, device: torch.device, tiles: Tiles) -> tuple[Lists, Lists, Tensor, dict[int, list[int]]]:
        """Key tiles of each query tile, query tiles of each key tile, and `_items` of the latter; on
        `device`."""
        key = (device, tiles)
        if key not in self._made:
            pairs = tile_pairs(self.seen, self.at, tiles.queries, tiles.keys)
            columns = by_key(pairs)
            items, further = _items(columns, pairs.shape[0])
            moved = (Lists(*(x.to(device) for x in some)) for some in (by_query(pairs), columns))
            self._made[key] = (*moved, items.to(device), further)
        return self._made[key]


def plan(spec: SWA | Full, q_pos: Tensor, k_pos: Tensor) -> Plan:
    """What `run` needs of the positions of `swalib.attention.attend`; one plan serves all layers."""
    q_pos, k_pos = (pos if pos.ndim == 2 else pos[None] for pos in (q_pos, k_pos))
    rows = max(q_pos.shape[0], k_pos.shape[0])
    q_pos, k_pos = q_pos.expand(rows, -1), k_pos.expand(rows, -1)
    seen, at = spans(k_pos, spec), q_pos.int()
    all_seen = at.shape[1] == 1 and bool(((seen.first <= at) & (at <= seen.last)).all())
    return Plan(seen, at, q_pos, k_pos, all_seen)


def _items(columns: Lists, rows: int) -> tuple[Tensor, dict[int, list[int]]]:
    """Programs of `keys_gradient`: int32 [n, 2] of (key tile, which LONGEST of its query tiles), first the
    first of each tile, then the others; and where those of a tile with several stand."""
    count = (columns.offsets[1:] - columns.offsets[:-1]).view(rows, -1).amax(0)
    further = [
        (tile, part)
        for tile in (count > LONGEST).nonzero()[:, 0].tolist()
        for part in range(1, -(-int(count[tile]) // LONGEST))
    ]
    items = torch.tensor([(tile, 0) for tile in range(len(count))] + further, dtype=torch.int32)
    places: dict[int, list[int]] = {}
    for place, (tile, _) in enumerate(further, start=len(count)):
        places.setdefault(tile, []).append(place)
    return items, places


def run(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, spec: SWA | Full, scoring: Scoring
) -> tuple[Tensor, ...]:
    """(o,) of a plan made for the same positions; shapes and errors as in `swalib.attention.attend`.

    Raises:
        ValueError: in-cache positions, dropout, fp64, heads of more than 256 dimensions.
    """
    LIMITS.check(q, k, v, spec, scoring)
    q, k = turned(q, k, plan.q_pos, plan.k_pos, scoring.rope)
    cap = scoring.softcap or 0.0
    if q.shape[2] == 1 and not needs_grad(q, k, v, scoring.sink_logits):
        o, log_sum_exp = decode(plan, q, k, v, scoring.scale, cap)
    else:
        o, log_sum_exp = _Prefill.apply(q, k, v, plan, scoring.scale, cap)
    return (joined_by_sink(o, log_sum_exp, scoring.sink_logits),)


def _shape(q: Tensor, k: Tensor, v: Tensor, *blocks: int) -> dict:
    """Sizes that the kernels are compiled for; heads are padded to powers of two of at least 16."""
    d, d_v = q.shape[-1], v.shape[-1]
    wide = [max(16, 1 << (size - 1).bit_length()) for size in (d, d_v)]
    return {"D": d, "D_V": d_v, "BLOCK_D": wide[0], "BLOCK_V": wide[1]}


class _Prefill(torch.autograd.Function):
    """(o, log-sum-exp) of q, k, v, with gradients through both."""

    @staticmethod
    def forward(ctx, q, k, v, plan: Plan, scale: float, softcap: float):
        from swalib.attention._triton_forward import forward

        (b, h, t_q, d), t_k = q.shape, k.shape[2]
        tiles = forward_tiles(q.dtype, max(d, v.shape[-1]))
        q_pos, first, last = plan.positions(q.device)
        lists = plan.lists(q.device, tiles)[0]
        o = q.new_empty(b, h, t_q, v.shape[-1])
        log_sum_exp = torch.empty(b, h, t_q, dtype=torch.float32, device=q.device)
        n_q = -(-t_q // tiles.queries)
        forward[n_q, b * h](
            q, k, v, o, log_sum_exp, q_pos, first, last, *lists, scale, softcap,
            *q.stride(), *k.stride(), *v.stride(), h, h // k.shape[1], t_q, t_k, n_q,
            **_shape(q, k, v), BLOCK_M=tiles.queries, BLOCK_N=tiles.keys, SOFTCAP=softcap > 0,
            PER_ROW=int(len(q_pos) > 1), num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, o, log_sum_exp)
        ctx.plan, ctx.scale, ctx.softcap = plan, scale, softcap
        return o, log_sum_exp

    @staticmethod
    def backward(ctx, d_o, d_lse):
        q, k, v, o, log_sum_exp = ctx.saved_tensors
        delta = ((o.float() * d_o.float()).sum(-1) - d_lse).contiguous()
        tiles = backward_tiles(q.dtype, max(q.shape[-1], v.shape[-1]))
        known = (q, k, v, d_o, log_sum_exp, delta)
        d_q = _queries_gradient(ctx.plan, known, tiles, ctx.scale, ctx.softcap)
        d_k, d_v = _keys_gradient(ctx.plan, known, tiles, ctx.scale, ctx.softcap)
        return d_q, d_k.to(k.dtype), d_v.to(v.dtype), None, None, None


def _options(plan: Plan, q: Tensor, k: Tensor, v: Tensor, tiles: Tiles, softcap: float) -> dict:
    blocks = {"BLOCK_M": tiles.queries, "BLOCK_N": tiles.keys}
    how = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    return _shape(q, k, v) | blocks | how | {"SOFTCAP": softcap > 0, "PER_ROW": int(len(plan.at) > 1)}


def _queries_gradient(plan: Plan, known: tuple[Tensor, ...], tiles: Tiles, scale: float, softcap: float):
    from swalib.attention._triton_backward import queries_gradient

    q, k, v, d_o, log_sum_exp, delta = known
    (b, h, t_q, _), t_k = q.shape, k.shape[2]
    n_q = -(-t_q // tiles.queries)
    d_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    queries_gradient[n_q, b * h](
        q, k, v, d_o, d_q, log_sum_exp, delta, *plan.positions(q.device),
        *plan.lists(q.device, tiles)[0], scale, softcap, *q.stride(), *k.stride(), *v.stride(),
        *d_o.stride(), h, h // k.shape[1], t_q, t_k, n_q, **_options(plan, q, k, v, tiles, softcap),
    )  # fmt: skip
    return d_q


def _keys_gradient(plan: Plan, known: tuple[Tensor, ...], tiles: Tiles, scale: float, softcap: float):
    from swalib.attention._triton_backward import keys_gradient

    q, k, v, d_o, log_sum_exp, delta = known
    (b, h, t_q, _), (h_kv, t_k) = q.shape, k.shape[1:3]
    _, columns, items, further = plan.lists(q.device, tiles)
    d_k, d_v = (
        torch.empty(b, h_kv, len(items), tiles.keys, x.shape[-1], dtype=torch.float32, device=q.device)
        for x in (k, v)
    )
    n_k = -(-t_k // tiles.keys)
    keys_gradient[len(items), b * h_kv](
        q, k, v, d_o, d_k, d_v, log_sum_exp, delta, *plan.positions(q.device), *columns, items, scale,
        softcap, *q.stride(), *k.stride(), *v.stride(), *d_o.stride(), h_kv, h // h_kv, t_q, t_k, n_k,
        len(items), LONGEST=LONGEST, **_options(plan, q, k, v, tiles, softcap),
    )  # fmt: skip
    for tile, places in further.items():
        for parts in (d_k, d_v):
            parts[:, :, tile] += parts[:, :, places].sum(2)
    return (x[:, :, :n_k].flatten(2, 3)[:, :, :t_k] for x in (d_k, d_v))


def splits(programs: int, tiles: int, device: torch.device) -> int:
    """Among how many programs the slots of a row and kv head are shared, so that a GPU is kept busy."""
    if device.type != "cuda":
        return min(2, tiles)
    wanted = 2 * torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(tiles, wanted // programs))


def decode(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float
) -> tuple[Tensor, Tensor]:
    """(o [b, h, 1, d_v], log-sum-exp [b, h, 1]) of one query a row."""
    from swalib.attention import _triton_decode as kernels

    (b, h, _, _), (h_kv, t_k), d_v = q.shape, k.shape[1:3], v.shape[-1]
    block = 64 if max(q.shape[-1], d_v) <= 128 else 32
    tiles = -(-t_k // block)
    each = -(-tiles // splits(b * h_kv, tiles, q.device))
    n = -(-tiles // each)
    o, log_sum_exp = q.new_empty(b, h, 1, d_v), torch.empty(b, h, 1, dtype=torch.float32, device=q.device)
    parts = o if n == 1 else torch.empty(b, h, n, d_v, dtype=torch.float32, device=q.device)
    part_lse = log_sum_exp if n == 1 else torch.empty(b, h, n, dtype=torch.float32, device=q.device)
    shape, groups = _shape(q, k, v), h // h_kv
    kernels.decode[n, b * h_kv](
        q, k, v, parts, part_lse, *plan.positions(q.device), scale, softcap,
        q.stride(0), q.stride(1), q.stride(3), *k.stride(), *v.stride(), h_kv, groups, t_k, n, each,
        **shape, BLOCK_H=max(16, 1 << (groups - 1).bit_length()), BLOCK_N=block, SOFTCAP=softcap > 0,
        PER_ROW=int(len(plan.at) > 1), ALL_SEEN=plan.all_seen, num_warps=4, num_stages=3,
    )  # fmt: skip
    if n > 1:
        most = 1 << (n - 1).bit_length()
        kernels.merge[(b * h,)](
            parts, part_lse, o, log_sum_exp, n, D_V=d_v, BLOCK_S=most, BLOCK_V=shape["BLOCK_V"]
        )
    return o, log_sum_exp
