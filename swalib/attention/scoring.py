"""How a head turns visible keys into weights: scale, rotation, soft-capping, a sink logit; and heads that see
differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from swalib.positions import RopeFunction
from swalib.spec import SWA, LayerSpec, PerHead


@dataclass(frozen=True)
class Scoring:
    """What a score is made of: `softcap(scale · q·k)`, one softmax over it and the sink logit.

    Args:
        scale: factor on q·k.
        rope: turns q and k that come unrotated, or None.
        softcap: score -> softcap · tanh(score / softcap) (Gemma 2), or None.
        sink_logits: [h], joins every softmax of its head without key or value, or None.
        dropout: probability that a weight is dropped.
    """

    scale: float
    rope: RopeFunction | None = None
    softcap: float | None = None
    sink_logits: Tensor | None = None
    dropout: float = 0.0

    def capped(self, scores: Tensor) -> Tensor:
        """Scaled scores, soft-capped if the model does so."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)

    def with_sink_column(self, scores: Tensor) -> Tensor:
        """scores [b, h, t, n] with the sink logit of each head as a last column, if there is one."""
        if self.sink_logits is None:
            return scores
        column = self.sink_logits.to(scores.dtype).view(1, -1, 1, 1)
        return torch.cat([scores, column.expand(*scores.shape[:2], scores.shape[2], 1)], dim=-1)

    def without_sink_column(self, weights: Tensor) -> Tensor:
        """The weights of real keys."""
        return weights if self.sink_logits is None else weights[..., :-1]


def sink_logits(spec: LayerSpec, h: int, own: Tensor | None, like: Tensor) -> Tensor | None:
    """The sink logit of each of h heads under `spec`, [h], or None where no head has one.

    Args:
        own: the logits that the spec calls "learned", or those of a model that came with some; [h] or None.

    Raises:
        ValueError: the spec's are learned and none are given, or it adds some to a model's own.
    """
    heads = spec.heads if isinstance(spec, PerHead) else (spec,) * h
    wanted = [head.sink_logit if isinstance(head, SWA) else None for head in heads]
    if not any(logit is not None for logit in wanted):
        return own
    if "learned" in wanted and own is None:
        raise ValueError('sink_logit="learned" needs sink_logits [h]')
    if "learned" not in wanted and own is not None:
        raise ValueError(f"{spec} has a constant sink logit, but the model has its own: leave sink_logit out")
    constants = [logit if isinstance(logit, float) else -torch.inf for logit in wanted]  # exp(-inf): none
    logits = torch.tensor(constants, dtype=torch.float32, device=like.device)
    learned = torch.tensor([logit == "learned" for logit in wanted], device=like.device)
    return logits if own is None else torch.where(learned, own.float(), logits)


Attention = Callable[[LayerSpec, Tensor, Tensor, Tensor, Scoring], tuple[Tensor, ...]]


def by_head(
    spec: LayerSpec, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, attention: Attention
) -> tuple:
    """`attention(spec, q, k, v, scoring)`; where heads differ, once for the heads of each spec.

    Args:
        attention: returns tensors whose axis 1 is the query heads of the q it is given.

    Raises:
        ValueError: `PerHead` has not one entry per query head.
    """
    if not isinstance(spec, PerHead):
        return attention(spec, q, k, v, scoring)
    if len(spec.heads) != q.shape[1]:
        raise ValueError(f"PerHead has {len(spec.heads)} specs, but the layer has {q.shape[1]} heads")
    parts, order = [], []
    for distinct in dict.fromkeys(spec.heads):
        heads = [head for head, other in enumerate(spec.heads) if other == distinct]
        order += heads
        index = torch.tensor(heads, device=q.device)
        kv = torch.tensor(_kv_heads(heads, q.shape[1] // k.shape[1]), device=q.device)
        own = scoring.sink_logits
        own = scoring if own is None else replace(scoring, sink_logits=own[index])
        parts.append(attention(distinct, q[:, index], k[:, kv], v[:, kv], own))
    back = torch.tensor(order, device=q.device).argsort()
    return tuple(torch.cat(part, dim=1)[:, back] for part in zip(*parts, strict=True))


def _kv_heads(heads: list[int], groups: int) -> list[int]:
    """The kv heads of some query heads: each once where all its group is there, else one for each query."""
    kv = [head // groups for head in heads]
    whole = all(kv.count(head) == groups for head in kv)
    return kv[::groups] if whole else kv


def turned(
    q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, rope: RopeFunction | None
) -> tuple[Tensor, Tensor]:
    """q and k [b, h, t, d] turned to their text positions [1 or b, t], counted from each row's first query,
    so that no angle grows with the text; as they are where `rope` is None."""
    if rope is None:
        return q, k
    base = q_pos.amin(1, keepdim=True)
    return rope(q, q_pos - base), rope(k, k_pos - base)


def joined_by_sink(o: Tensor, log_sum_exp: Tensor, sink_logits: Tensor | None) -> Tensor:
    """o [b, h, t, d_v] of a softmax with this log-sum-exp [b, h, t], fp32, after the sink logit of each head
    [h] has joined it; as it is where there is none."""
    if sink_logits is None:
        return o
    kept = log_sum_exp.clamp(min=torch.finfo(log_sum_exp.dtype).min)  # a query that sees nothing: o is 0
    share = torch.sigmoid(kept - sink_logits.to(kept.dtype)[None, :, None])
    return (o * share[..., None]).to(o.dtype)
