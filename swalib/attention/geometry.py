"""Which tiles of queries × keys hold a visible pair, from positions alone, in time linear in the text.

A key is seen by a run of query positions: a recent key by the next w - s of them, a sink by all after it, an
empty slot by none. So `spans`, two numbers a key, is the whole mask, and a kernel's predicate is
`first <= q_pos <= last`, whatever the spec, the padding, the chunk or the order of a cache's slots.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from swalib import masks
from swalib.spec import SWA, Full

NEVER = 2**31 - 1


class Spans(NamedTuple):
    """first, last: int32 [1 or b, t_k]; the queries at positions first..last see the key. `NEVER` as first:
    no query does, for there is no token; as last: no end."""

    first: Tensor
    last: Tensor


def spans(k_pos: Tensor, spec: SWA | Full) -> Spans:
    """`masks.visible` by columns: `first <= q_pos <= last` iff `visible(q_pos, k_pos, spec)`.

    Args:
        k_pos: text positions, integers below 2^31 - 1, [t_k] or [b, t_k]; negative: no token.
    """
    k_pos = (k_pos if k_pos.ndim == 2 else k_pos[None]).long()
    last = torch.full_like(k_pos, NEVER)
    if isinstance(spec, SWA):
        last = torch.where(masks.is_sink(k_pos, spec), NEVER, k_pos + spec.recents - 1)
        last = last if spec.reach is None else last.minimum(k_pos + spec.reach - 1)
    empty = k_pos < 0
    first, last = k_pos.masked_fill(empty, NEVER), last.clamp(max=NEVER).masked_fill(empty, -1)
    return Spans(first.int(), last.int())


class TilePairs(NamedTuple):
    """The pairs of tiles that a kernel has to visit, int64 [n], sorted by row, query tile, whole, key tile.

    row: of the batch, 0 alone where all rows share their positions; query, key: indices of tiles; whole: 1
    where every query of the tile sees every key, so that no mask is needed, else 0; shape: (rows, tiles of
    queries, tiles of keys).
    """

    row: Tensor
    query: Tensor
    key: Tensor
    whole: Tensor
    shape: tuple[int, int, int]


def tile_pairs(seen: Spans, q_pos: Tensor, q_tile: int, k_tile: int) -> TilePairs:
    """The pairs of q_tile queries and k_tile keys among which there may be a visible one; tiles of keys that
    lie in a text's order are given exactly, others perhaps too many, never too few.

    Args:
        q_pos: text positions of the queries, [t_q] or [b, t_q]; negative: no token.
    """
    q_pos = (q_pos if q_pos.ndim == 2 else q_pos[None]).int()
    rows = max(q_pos.shape[0], seen.first.shape[0])
    alive = q_pos >= 0
    q_low = _tiled(q_pos.where(alive, NEVER), q_tile, NEVER, rows).amin(-1)
    q_all = _tiled(q_pos, q_tile, NEVER, rows).amin(-1)
    q_high = _tiled(q_pos, q_tile, -1, rows).amax(-1)
    first, last = _tiled(seen.first, k_tile, NEVER, rows), _tiled(seen.last, k_tile, -1, rows)
    low, high = first.amin(-1), last.amax(-1)
    row, query, key = (torch.cat(pair) for pair in zip(*_candidates(low, high, q_low, q_high), strict=True))
    meets = (low[row, key] <= q_high[row, query]) & (high[row, key] >= q_low[row, query])
    row, query, key = row[meets], query[meets], key[meets]
    whole = (first.amax(-1)[row, key] <= q_all[row, query]) & (last.amin(-1)[row, key] >= q_high[row, query])
    shape = (rows, q_low.shape[1], low.shape[1])
    order = (((row * shape[1] + query) * 2 + whole) * shape[2] + key).argsort()
    return TilePairs(row[order], query[order], key[order], whole[order].long(), shape)


def _tiled(x: Tensor, tile: int, fill: int, rows: int) -> Tensor:
    """[1 or b, t] as [rows, tiles, tile]."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % tile), value=fill)
    return padded.unflatten(1, (-1, tile)).expand(rows, -1, -1)


def _candidates(low: Tensor, high: Tensor, q_low: Tensor, q_high: Tensor) -> list[tuple[Tensor, ...]]:
    """(row, query tile, key tile) of pairs, no visible one left out: of the tiles with a sink, and of those
    without, whose spans end, so that sorted by their begin those of one query tile lie together."""
    endless = high == NEVER
    row, key = endless.nonzero(as_tuple=True)
    n = q_low.shape[1]
    anchored = row.repeat_interleave(n), torch.arange(n).repeat(len(row)), key.repeat_interleave(n)
    low, order = low.masked_fill(endless, NEVER).sort(dim=1)
    reached = high.masked_fill(endless, -1).gather(1, order).cummax(dim=1).values
    begin = torch.searchsorted(reached, q_low.contiguous())
    count = (torch.searchsorted(low, q_high.contiguous(), right=True) - begin).clamp(min=0).flatten()
    group = torch.arange(count.numel()).repeat_interleave(count)
    within = torch.arange(len(group)) - (count.cumsum(0) - count)[group]
    row = group // n
    return [anchored, (row, group % n, order[row, begin.flatten()[group] + within])]


class Lists(NamedTuple):
    """Tiles by group: those of group g are `tiles[offsets[g]:offsets[g + 1]]`; both int32."""

    offsets: Tensor
    tiles: Tensor


def lists(group: Tensor, groups: int, tiles: Tensor) -> Lists:
    """`tiles` [n] in the order of `group` [n], whose values are below `groups`."""
    order = group.argsort(stable=True)
    offsets = torch.nn.functional.pad(group.bincount(minlength=groups).cumsum(0), (1, 0))
    return Lists(offsets.int(), tiles[order].int())


def by_query(pairs: TilePairs) -> Lists:
    """Key tiles of each query tile; group (row · query tiles + query tile) · 2 has those that need a mask,
    the next group those that don't."""
    rows, n, _ = pairs.shape
    return lists((pairs.row * n + pairs.query) * 2 + pairs.whole, rows * n * 2, pairs.key)


def by_key(pairs: TilePairs) -> Lists:
    """Query tiles of each key tile; group row · key tiles + key tile."""
    rows, _, n = pairs.shape
    return lists(pairs.row * n + pairs.key, rows * n, pairs.query)


def table(pairs: TilePairs, whole: int) -> tuple[Tensor, Tensor]:
    """(how many key tiles each query tile has, which), int32 [rows, query tiles] and [rows, query tiles, key
    tiles], of the whole pairs or of those that need a mask; what lies beyond the count is 0."""
    rows, n_q, n_k = pairs.shape
    row, query, key = (x[pairs.whole == whole] for x in pairs[:3])
    group = row * n_q + query
    count = group.bincount(minlength=rows * n_q)
    within = torch.arange(len(group)) - (count.cumsum(0) - count)[group]
    index = torch.zeros(rows * n_q, n_k, dtype=torch.int32)
    index[group, within] = key.int()
    return count.int().view(rows, n_q), index.view(rows, n_q, n_k)
