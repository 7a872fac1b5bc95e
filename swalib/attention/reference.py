"""The specification of attention: every score formed, in plain torch, to be read and compared with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from swalib import masks
from swalib.attention.scoring import Scoring
from swalib.positions import key_position, query_position
from swalib.spec import SWA, Full


class Attended(NamedTuple):
    """o [b, h, t_q, d_v]; weights [b, h, t_q, t_k]; log_sum_exp [b, h, t_q] of the visible scores and
    the sink logit, if there is one."""

    o: Tensor
    weights: Tensor
    log_sum_exp: Tensor


def plan(spec: SWA | Full, q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor]:
    """What `run` needs of the positions: themselves."""
    return q_pos, k_pos


def run(
    plan: tuple[Tensor, Tensor], q: Tensor, k: Tensor, v: Tensor, spec: SWA | Full, scoring: Scoring
) -> Attended:
    """As `swalib.attention.attend`, and more; computed in fp32, or fp64 where q is."""
    return attend_with_weights(q, k, v, spec, *plan, scoring)


def attend_with_weights(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spec: SWA | Full,
    q_pos: Tensor,
    k_pos: Tensor,
    scoring: Scoring,
) -> Attended:
    """Attention, its weights and log-sum-exp. A query without a token (negative position) gets zeros."""
    if scoring.dropout:
        raise ValueError('impl="reference" has no attention dropout: call eval() or use impl="sdpa"')
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = q.shape[1] // k.shape[1]
    keys = k.to(dtype).repeat_interleave(groups, dim=1)
    values = v.to(dtype).repeat_interleave(groups, dim=1)
    q_pos, k_pos = (pos.to(q.device) if pos.ndim == 2 else pos.to(q.device)[None] for pos in (q_pos, k_pos))
    seen = masks.visible(q_pos[:, None, :, None], k_pos[:, None, None, :], spec)
    unseen = ~seen.any(-2)[..., None]  # what no query sees, an empty slot say, must never enter a product
    keys, values = keys.masked_fill(unseen, 0), values.masked_fill(unseen, 0)
    scores = scoring.capped(_scores(q.to(dtype), keys, spec, q_pos, k_pos, scoring.rope) * scoring.scale)
    blind = ~seen.any(-1, keepdim=True)
    scores = scoring.with_sink_column(scores.masked_fill(~seen, -torch.inf))
    weights = scoring.without_sink_column(scores.masked_fill(blind, 0).softmax(-1)).masked_fill(blind, 0)
    return Attended((weights @ values).to(q.dtype), weights.to(q.dtype), scores.logsumexp(-1))


def _scores(q, k, spec, q_pos, k_pos, rope) -> Tensor:
    if rope is None:
        return q @ k.mT
    if isinstance(spec, Full) or spec.positions == "text":
        return rope(q, q_pos) @ rope(k, k_pos).mT
    rows = []
    for i in range(q.shape[-2]):  # in-cache positions are defined query by query: so are these scores
        query = q_pos[:, i : i + 1]
        turned = rope(q[:, :, i : i + 1], query_position(query, spec))
        rows.append(turned @ rope(k, key_position(k_pos, query, spec)).mT)
    return torch.cat(rows, dim=-2)
