"""Only the visible tiles, through torch's scaled_dot_product_attention: time linear in the number of queries.

Queries are cut into tiles; each tile meets only the keys that some query of it sees, wherever those lie. Keys
carry their positions, so a ring-buffer cache, a chunk and a padded batch are all the same case.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from swalib import masks
from swalib.attention.geometry import lists, spans, tile_pairs
from swalib.attention.scoring import Scoring
from swalib.positions import RopeFunction, query_position
from swalib.spec import SWA, Full

NEARBY = 64  # keys that are looked at together where a tile's are searched
LANES = 16  # a matmul over a whole number of these many keys is 8 to 15 % faster (fp32, AVX)


class Shown:
    """Which keys of a tile each query sees, bool [1 or b, t, n], and the bias that makes a kernel obey."""

    def __init__(self, seen: Tensor) -> None:
        self.seen = seen
        self._biases: dict[tuple, Tensor] = {}

    def bias(self, groups: int, like: Tensor) -> Tensor:
        """0 where seen, -inf elsewhere: [1 or b, 1, groups · t, n], dtype and device of `like`. A query that
        sees nothing gets zeros: what it attends to is of no account, but must be finite."""
        key = (groups, like.dtype, like.device)
        if key not in self._biases:
            bias = torch.zeros(self.seen.shape, dtype=like.dtype).masked_fill_(~self.seen, -torch.inf)
            bias.masked_fill_(~self.seen.any(-1, keepdim=True), 0)
            self._biases[key] = bias.to(like.device).repeat(1, groups, 1)[:, None]
        return self._biases[key]


class Tile(NamedTuple):
    """Some consecutive queries and the keys that any of them sees.

    queries: slice of the query axis; keys: slice of the key axis, or indices [n]; shown: which key is seen by
    which query, or None where all are by all; dead: bool [1 or b, n], keys without a token, or None; q_pos
    [1 or b, t] and k_pos [1 or b, n]: text positions.
    """

    queries: slice
    keys: slice | Tensor
    shown: Shown | None
    dead: Tensor | None
    q_pos: Tensor
    k_pos: Tensor


def tile_length(spec: SWA | Full) -> int:
    """Queries per tile: a share of the window, so that few scores are masked, yet enough for a matmul."""
    return 256 if isinstance(spec, Full) else min(256, max(64, spec.window // 2))


def plan(spec: SWA | Full, q_pos: Tensor, k_pos: Tensor) -> list[Tile]:
    """The tiles of one call. They depend on positions alone, so one plan serves all layers of a forward."""
    q_pos, k_pos = (pos if pos.ndim == 2 else pos[None] for pos in (q_pos, k_pos))
    step, tiles = tile_length(spec), []
    for number, columns in enumerate(_columns(spec, q_pos, k_pos, step)):
        tile = _tile(spec, slice(number * step, (number + 1) * step), q_pos, k_pos, columns)
        before = tiles[-1].shown if tiles else None
        if before and tile.shown and torch.equal(before.seen, tile.shown.seen):
            # once the window slides all tiles look alike: share their bias
            tile = tile._replace(shown=before)
        tiles.append(tile)
    return tiles


def _columns(spec: SWA | Full, q_pos: Tensor, k_pos: Tensor, step: int) -> list[Tensor]:
    """For each `step` queries the columns of keys among which are all that one of them sees, ascending; found
    in time linear in the text."""
    t_k = k_pos.shape[1]
    if q_pos.shape[1] <= step:
        return [torch.arange(t_k)]
    pairs = tile_pairs(spans(k_pos, spec), q_pos, step, NEARBY)
    rows = lists(pairs.query, pairs.shape[1], pairs.key)
    found = []
    for begin, end in pairwise(rows.offsets.tolist()):
        tiles = rows.tiles[begin:end].long().unique()
        columns = (tiles[:, None] * NEARBY + torch.arange(NEARBY)).flatten()
        found.append(columns[columns < t_k])
    return found


def _tile(spec: SWA | Full, queries: slice, q_pos: Tensor, k_pos: Tensor, columns: Tensor) -> Tile:
    rows, where = q_pos[:, queries], k_pos[:, columns]
    lowest, highest = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    wanted = (where >= 0) & (where <= highest)
    if isinstance(spec, SWA):
        wanted &= masks.is_sink(where, spec) | (lowest - where < spec.recents)
        if spec.reach is not None:
            wanted &= lowest - where < spec.reach
    index = columns[wanted.any(0)]
    if not len(index):  # queries of padding alone: any one column will do, its weight is cleared below
        index = torch.zeros(1, dtype=torch.long)
    first, last = int(index[0]), int(index[-1])
    keys = slice(first, last + 1) if last - first + 1 == len(index) else index
    where = k_pos[:, keys]
    seen = masks.visible(rows[:, :, None], where[:, None, :], spec)
    if isinstance(keys, Tensor) and rows.shape[1] >= NEARBY:
        fill = index[:1].expand(-len(index) % LANES)  # one more time, and seen by none
        keys, where = torch.cat([index, fill]), k_pos[:, torch.cat([index, fill])]
        seen = F.pad(seen, (0, len(fill)))
    shown = None if bool(seen.all()) else Shown(seen)
    dead = where < 0
    return Tile(queries, keys, shown, dead if bool(dead.any()) else None, rows, where)


def run(
    tiles: list[Tile], q: Tensor, k: Tensor, v: Tensor, spec: SWA | Full, scoring: Scoring
) -> tuple[Tensor]:
    """(o,) of a plan made by `plan` for the same positions; shapes as in `swalib.attention.attend`."""
    outputs = []
    for tile in tiles:
        queries, keys, values = q[:, :, tile.queries], _take(k, tile.keys), _take(v, tile.keys)
        if tile.dead is not None:  # what lies in empty slots and padding must never enter a product
            dead = tile.dead[:, None, :, None].to(k.device)
            keys, values = keys.masked_fill(dead, 0), values.masked_fill(dead, 0)
        outputs.append(_tile_output(tile, queries, keys, values, spec, scoring))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-2),)


def _take(x: Tensor, keys: slice | Tensor) -> Tensor:
    return x[:, :, keys] if isinstance(keys, slice) else x.index_select(2, keys.to(x.device))


def _tile_output(tile: Tile, q: Tensor, k: Tensor, v: Tensor, spec: SWA | Full, scoring: Scoring) -> Tensor:
    rope = scoring.rope
    if rope is not None and isinstance(spec, SWA) and spec.positions == "cache":
        return _weighted(_in_cache_scores(tile, q, k, spec, rope), tile.shown, v, scoring)
    if rope is not None:
        base = tile.q_pos.amin(1, keepdim=True)
        q, k = rope(q, tile.q_pos - base), rope(k, tile.k_pos - base)
    if scoring.softcap is None and scoring.sink_logits is None:
        return _fused(q, k, v, tile.shown, scoring)
    return _weighted(q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT, tile.shown, v, scoring)


def _fused(q: Tensor, k: Tensor, v: Tensor, shown: Shown | None, scoring: Scoring) -> Tensor:
    """Queries that share a kv head become rows of one matrix, so keys are neither repeated nor copied."""
    b, h, t, d = q.shape
    groups = h // k.shape[1]
    q = q.reshape(b, k.shape[1], groups * t, d)
    bias = None if shown is None else shown.bias(groups, q)
    o = F.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, dropout_p=scoring.dropout, scale=scoring.scale
    )
    return o.reshape(b, h, t, v.shape[-1])


def _weighted(products: Tensor, shown: Shown | None, v: Tensor, scoring: Scoring) -> Tensor:
    """What the fused kernel can't do, from q·k [b, h, t, n]: soft-capping and sink logits, in fp32."""
    scores = scoring.capped(products.to(torch.promote_types(products.dtype, torch.float32)) * scoring.scale)
    if shown is not None:
        scores = scores + shown.bias(1, scores)
    weights = scoring.without_sink_column(scoring.with_sink_column(scores).softmax(-1))
    weights = F.dropout(weights.to(v.dtype), scoring.dropout)
    return weights @ v.repeat_interleave(products.shape[1] // v.shape[1], dim=1)


def _in_cache_scores(tile: Tile, q: Tensor, k: Tensor, spec: SWA, rope: RopeFunction) -> Tensor:
    """positions="cache": relative to a recent key the query stands where the text has it; relative to a sink,
    at slot min(i, window-1). So two turned copies of the query."""
    base = tile.q_pos.amin(1, keepdim=True)
    is_sink = (tile.k_pos < spec.sinks).to(q.device)[:, None, None, :]
    nearby = (tile.k_pos - base).clamp(min=-spec.window)  # sinks lie further back, and are turned otherwise
    keys = torch.where(is_sink.mT, rope(k, tile.k_pos.clamp(max=spec.sinks)), rope(k, nearby))
    keys = keys.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    to_sinks = rope(q, query_position(tile.q_pos, spec)) @ keys.mT
    to_recents = rope(q, tile.q_pos - base) @ keys.mT
    return torch.where(is_sink, to_sinks, to_recents)
