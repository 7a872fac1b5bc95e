"""PyTorch's FlexAttention, compiled, under a block mask made from positions.

The block mask is built from `geometry.tile_pairs`, in time linear in the text but for its index table of one
int32 a pair of tiles. What differs from call to call, positions, spans and the soft cap, is in tensors: a
number captured in a mask would be compiled into it. On a CPU it computes no gradients.

Checked on a CPU, compiled; the GPU's way differs in its tiles and gradients, and is checked by the tests
marked `gpu` where there is one.
"""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from swalib.attention.geometry import NEVER, Spans, spans, table, tile_pairs
from swalib.attention.limits import HALF, Limits, needs_grad
from swalib.attention.scoring import Scoring, turned
from swalib.spec import SWA, Full

LIMITS = Limits("flex", (torch.float32, *HALF), sink_logits=False)
TILES = {"cpu": (64, 32), "cuda": (128, 128)}  # (queries, keys): small where a masked score costs a flop
MOST_KERNELS = 256  # one for all lengths, another for each dtype, number of heads and size of a head
ROOM = 65536  # tokens; longer texts get another kernel


def missing(device: str) -> str | None:
    """Why it doesn't run on `device` ("cpu", "cuda"), and what to do, or None."""
    if device not in TILES:
        return f"FlexAttention is used on CPUs and CUDA devices, not on {device}: move the tensors there"
    if device == "cuda":
        return None if torch.cuda.is_available() else "there is no CUDA device: run it on a GPU machine"
    if not torch.cpu._is_avx2_supported():
        return "FlexAttention compiles for CPUs with AVX2, which this one has not: run it on another machine"
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return "FlexAttention is compiled by a C++ compiler on a CPU: install g++"
    return None


@dataclass
class Plan:
    """One call's positions: spans of the keys, text positions [1 or b, t] of queries and keys, which keys are
    without a token (None: none is); and the block masks made of them."""

    seen: Spans
    q_pos: Tensor
    k_pos: Tensor
    empty: Tensor | None
    _made: dict = field(default_factory=dict)

    def block_mask(self, device: torch.device, rows: slice, batch: int):
        """FlexAttention's block mask for these rows of the positions and a batch of so many, on `device`."""
        key = (device, rows.start, rows.stop, batch)
        if key not in self._made:
            seen = Spans(*(x[rows] for x in self.seen))
            self._made[key] = _block_mask(seen, self.q_pos[rows], device, batch)
        return self._made[key]


def plan(spec: SWA | Full, q_pos: Tensor, k_pos: Tensor) -> Plan:
    """What `run` needs of the positions of `swalib.attention.attend`; one plan serves all layers."""
    q_pos, k_pos = (pos if pos.ndim == 2 else pos[None] for pos in (q_pos, k_pos))
    rows, empty = max(q_pos.shape[0], k_pos.shape[0]), k_pos < 0
    q_pos, k_pos = q_pos.expand(rows, -1), k_pos.expand(rows, -1)
    return Plan(spans(k_pos, spec), q_pos, k_pos, empty if bool(empty.any()) else None)


def _block_mask(seen: Spans, q_pos: Tensor, device: torch.device, batch: int):
    from torch.nn.attention.flex_attention import BlockMask

    tiles = TILES[device.type]
    lengths = _lengths(q_pos.shape[1], seen.first.shape[1], device)
    q_pos = F.pad(q_pos, (0, lengths[0] - q_pos.shape[1]), value=-1)
    pairs = tile_pairs(seen, q_pos, *tiles)
    masked, whole = (
        [_fixed(x[:, None].to(device), 0, 1) for x in _filled_up(*table(pairs, whole=part))]
        for part in (0, 1)
    )
    q_at, first, last = (
        _fixed(_roomy(x.int(), fill).expand(batch, -1).contiguous().to(device), 0, 1)
        for x, fill in ((q_pos, -1), (seen.first, NEVER), (seen.last, -1))
    )

    def sees(b, h, q, k):
        return (first[b, k] <= q_at[b, q]) & (q_at[b, q] <= last[b, k])

    return BlockMask.from_kv_blocks(
        *masked,
        *whole,
        BLOCK_SIZE=tiles,
        mask_mod=sees,
        seq_lengths=lengths,
        compute_q_blocks=device.type != "cpu",  # they serve the gradients
    )


def _lengths(t_q: int, t_k: int, device: torch.device) -> tuple[int, int]:
    """How long q and k are made: sizes of 1 and, on a CPU, where compiling takes long, equal sizes would get
    kernels of their own."""
    t_q, t_k = max(2, t_q), max(2, t_k)
    return t_q + (t_q == t_k and device.type == "cpu"), t_k


def _filled_up(count: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """A `table` with at least 2 tiles of queries and 3 of keys, for the same reason."""
    more_q, more_k = (max(0, least - size) for least, size in zip((2, 3), index.shape[1:], strict=True))
    return F.pad(count, (0, more_q)), F.pad(index, (0, more_k, 0, more_q))


def _roomy(x: Tensor, fill: int) -> Tensor:
    """x [rows, t] lengthened to ROOM or the next power of two beyond it. A captured size that varies has a
    name in the generated code which PyTorch 2.13 takes, on CPUs, for another's."""
    room = max(ROOM, 1 << (x.shape[1] - 1).bit_length())
    return F.pad(x, (0, room - x.shape[1]), value=fill)


def _fixed(x: Tensor, *axes: int) -> Tensor:
    """x, for whose sizes along `axes` a kernel is compiled; it serves all sizes of the other axes."""
    for axis in axes:
        torch._dynamo.mark_static(x, axis)
    return x


@functools.cache
def _compiled():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def run(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, spec: SWA | Full, scoring: Scoring
) -> tuple[Tensor, ...]:
    """(o,) of a plan made for the same positions; shapes and errors as in `swalib.attention.attend`.

    Raises:
        ValueError: gradients on a CPU; in-cache positions, dropout, sink logits, fp64.
    """
    LIMITS.check(q, k, v, spec, scoring)
    if needs_grad(q, k, v) and q.device.type == "cpu":
        LIMITS.refuse("computes no gradients on a CPU", "use torch.no_grad(), or ")
    q, k = turned(q, k, plan.q_pos, plan.k_pos, scoring.rope)
    if plan.empty is not None:  # what lies in empty slots and padding must never enter a product
        empty = plan.empty[:, None, :, None].to(k.device)
        k, v = k.masked_fill(empty, 0), v.masked_fill(empty, 0)
    if q.device.type != "cpu":
        return (_attend(plan.block_mask(q.device, slice(0, None), q.shape[0]), q, k, v, scoring),)
    o = []
    for row in range(q.shape[0]):  # the CPU's generated code can't tell the rows of a batch apart, see _roomy
        own = slice(row, row + 1) if plan.q_pos.shape[0] > 1 else slice(0, 1)
        block_mask = plan.block_mask(q.device, own, 1)
        o.append(_attend(block_mask, q[row : row + 1], k[row : row + 1], v[row : row + 1], scoring))
    return (torch.cat(o),)


def _attend(block_mask, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
    t = q.shape[2]
    t_q, t_k = _lengths(t, k.shape[2], q.device)
    q, k, v = (_fixed(_lengthened(x, n), 0, 1, 3) for x, n in ((q, t_q), (k, t_k), (v, t_k)))
    learns = needs_grad(q, k, v)
    with torch.set_grad_enabled(learns), torch._dynamo.config.patch(recompile_limit=MOST_KERNELS):
        return _compiled()(
            q,
            k,
            v,
            score_mod=_capped(scoring.softcap, q.device),
            block_mask=block_mask,
            scale=scoring.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )[:, :, :t]


def _lengthened(x: Tensor, t: int) -> Tensor:
    """x [b, h, <= t, d] with t rows, as no view: a kernel would be compiled for the origin's sizes too."""
    x = F.pad(x, (0, 0, 0, t - x.shape[2])) if x.shape[2] < t else x.view(x.shape)
    return x if needs_grad(x) else x.data


def _capped(softcap: float | None, device: torch.device):
    if softcap is None:
        return None
    cap = torch.tensor(softcap, device=device)

    def score(score, b, h, q, k):
        return cap * torch.tanh(score / cap)

    return score
