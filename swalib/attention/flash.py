"""FlashAttention 2, the package flash-attn, as it is: two calls merged through their log-sum-exps.

Its window has no sinks. So the first s queries get a causal call of their own; for the others, one call goes
over the s sinks and one over the later keys in a window: no key is counted twice, and the two are merged by
weight. A single query gets one call over the keys it sees, whatever its spec. FlashAttention reports a
log-sum-exp but no gradient through it, so what needs a merge is for inference; `Full()` and SWA(w, 0) train.

All that is asked of the package is in `_call`. The merging is checked on a CPU with a plain stand-in for it;
the package itself by the tests marked `gpu`, where there is one.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch
from torch import Tensor

from swalib import masks
from swalib.attention.limits import HALF, Limits, needs_grad
from swalib.attention.scoring import Scoring, joined_by_sink, turned
from swalib.spec import SWA, Full

LIMITS = Limits("flash", HALF)


def missing(device: str) -> str | None:
    """Why it doesn't run on `device` ("cpu", "cuda"), and what to do, or None."""
    if device != "cuda" or not torch.cuda.is_available():
        return "FlashAttention needs a CUDA device: run it on a GPU machine"
    if importlib.util.find_spec("flash_attn") is None:
        return "flash-attn is not installed: pip install flash-attn --no-build-isolation"
    return None


@dataclass(frozen=True)
class Call:
    """Keys at columns `keys` (None: all, in order) for the queries from `first` to `end`, causally or not;
    how many keys behind its own a query sees, -1 for all."""

    first: int
    end: int
    keys: Tensor | None
    causal: bool
    behind: int = -1


@dataclass(frozen=True)
class Plan:
    """Calls whose outputs stand side by side, each a list of those to be merged; and the positions."""

    parts: tuple[tuple[Call, ...], ...]
    q_pos: Tensor
    k_pos: Tensor


def plan(spec: SWA | Full, q_pos: Tensor, k_pos: Tensor) -> Plan:
    """What `run` needs of the positions, as in `swalib.attention.attend`; once for all layers of a forward.

    Raises:
        ValueError: rows of a batch at different positions, or pads; several queries that are not the latest
            tokens of a text in order, or under sink_positions or a reach.
    """
    at, keys = (pos if pos.ndim == 2 else pos[None] for pos in (q_pos, k_pos))
    if any(bool((pos != pos[:1]).any()) for pos in (at, keys)) or bool((at < 0).any()):
        LIMITS.refuse("takes rows without padding only, all at the same positions")
    at, where = at[0], keys[0]
    if len(at) == 1:
        seen = masks.visible(at, where, spec)
        columns = None if bool(seen.all()) else seen.nonzero()[:, 0]
        return Plan(((Call(0, 1, columns, causal=False),),), q_pos, k_pos)
    if isinstance(spec, SWA) and (spec.sink_positions is not None or spec.reach is not None):
        LIMITS.refuse("has neither sink_positions nor a reach (local windows) when it reads several tokens")
    return Plan(_parts(spec, at, where), q_pos, k_pos)


def _parts(spec: SWA | Full, at: Tensor, where: Tensor) -> tuple[tuple[Call, ...], ...]:
    """The calls for queries at consecutive positions `at`, the latest tokens of a text."""
    start, stop = int(at.min()), int(at.max()) + 1
    full = isinstance(spec, Full)
    sinks, recents = (0, stop) if full else (spec.sinks, min(spec.recents, stop))
    column = torch.full((stop,), -1, dtype=torch.long)
    held = (where >= 0) & (where < stop)
    column[where[held]] = held.nonzero()[:, 0]
    oldest = min(max(sinks, start - recents + 1), stop)
    needed = torch.cat([torch.arange(min(sinks, stop)), torch.arange(oldest, stop)])
    if not torch.equal(at, torch.arange(start, stop)) or bool((column[needed] < 0).any()):
        LIMITS.refuse("takes queries that are the latest tokens of a text, in order, with the keys they see")
    parts = []
    if start < sinks:  # these see sinks alone
        end = min(sinks, stop)
        parts.append((Call(0, end - start, column[:end], causal=True),))
    if stop > sinks:
        first = max(sinks - start, 0)
        behind = -1 if full else recents - 1
        window = Call(first, stop - start, column[oldest:], causal=True, behind=behind)
        parts.append(
            (window, Call(first, stop - start, column[:sinks], causal=False)) if sinks else (window,)
        )
    return tuple(parts)


def run(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, spec: SWA | Full, scoring: Scoring
) -> tuple[Tensor, ...]:
    """(o,) of a plan made for the same positions; shapes and errors as in `swalib.attention.attend`.

    Raises:
        ValueError: gradients through a merge; in-cache positions, dropout, other dtypes than fp16 and bf16,
            values of another size than keys.
    """
    LIMITS.check(q, k, v, spec, scoring)
    if q.shape[-1] != v.shape[-1]:
        LIMITS.refuse(f"takes values as long as keys, not {v.shape[-1]} for {q.shape[-1]}")
    merges = scoring.sink_logits is not None or len(plan.parts) > 1 or len(plan.parts[0]) > 1
    if merges and needs_grad(q, k, v, scoring.sink_logits):
        LIMITS.refuse("computes no gradients where there are sinks", "use torch.no_grad(), or ")
    q, k = turned(q, k, plan.q_pos, plan.k_pos, scoring.rope)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    outputs = [_merged([_call(call, q, k, v, scoring) for call in part]) for part in plan.parts]
    o, log_sum_exp = (
        torch.cat(x, dim=axis) for x, axis in zip(zip(*outputs, strict=True), (1, 2), strict=True)
    )
    return (joined_by_sink(o.transpose(1, 2), log_sum_exp, scoring.sink_logits),)


def _call(call: Call, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """(o [b, t, h, d], log-sum-exp [b, h, t], fp32) of one call to flash-attn; q, k, v: [b, t, h, d]."""
    from flash_attn import flash_attn_func

    if call.keys is not None:
        columns = call.keys.to(k.device)
        k, v = k.index_select(1, columns), v.index_select(1, columns)
    o, log_sum_exp, _ = flash_attn_func(
        q[:, call.first : call.end],
        k,
        v,
        softmax_scale=scoring.scale,
        causal=call.causal,
        window_size=(call.behind, 0 if call.causal and call.behind >= 0 else -1),
        softcap=scoring.softcap or 0.0,
        return_attn_probs=True,
    )
    return o, log_sum_exp


def _merged(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over the union of disjoint sets of keys, from (o [b, t, h, d], log-sum-exp [b, h, t]) of
    each."""
    if len(parts) == 1:
        return parts[0]
    whole = torch.stack([log_sum_exp for _, log_sum_exp in parts]).logsumexp(0)
    shares = [(log_sum_exp - whole).exp().transpose(1, 2)[..., None] for _, log_sum_exp in parts]
    o = sum(share * o.float() for share, (o, _) in zip(shares, parts, strict=True))
    return o.to(parts[0][0].dtype), whole
