"""Softmax attention under a spec: one meaning, `attend(q, k, v, spec)`, and several ways to compute it."""

from __future__ import annotations

import torch
from torch import Tensor

from swalib.attention.implementations import IMPLEMENTATIONS, available, check_impl
from swalib.attention.scoring import Scoring, by_head
from swalib.attention.scoring import sink_logits as logits_of
from swalib.positions import RopeFunction
from swalib.spec import SWA, LayerSpec

__all__ = ["IMPLEMENTATIONS", "attend", "available", "check_impl"]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spec: LayerSpec,
    impl: str = "sdpa",
    *,
    q_pos: Tensor | None = None,
    k_pos: Tensor | None = None,
    scale: float | None = None,
    rope: RopeFunction | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
) -> Tensor:
    """Softmax attention in which each query sees exactly the keys `spec` shows it.

    Args:
        q: [b, h, t_q, d]; k: [b, h_kv, t_k, d]; v: [b, h_kv, t_k, d_v]; h a multiple of h_kv.
        impl: "reference" (the specification: every score, eagerly); "sdpa" (only the visible tiles, through
            torch's scaled_dot_product_attention); "flex" (FlexAttention, compiled); "flash" (flash-attn 2);
            "triton" (our own kernels). Honoured or refused, never replaced; see `available`.
        q_pos, k_pos: text positions, integers on the CPU, [t] or [b, t], in any order; a negative one holds
            no token. Default: the keys are tokens 0 .. t_k-1 and the queries the last t_q of them.
        scale, softcap: scores are scale · q·k (1/sqrt(d)), or softcap · tanh(that / softcap) (Gemma 2).
        rope: given when q and k come unrotated: `rope(x, positions)` turns them. Needed by positions="cache".
        sink_logits: [h], logits that join every softmax without key or value; for sink_logit="learned".

    Returns:
        [b, h, t_q, d_v], q's dtype.

    Raises:
        TypeError: a spec of another kind.
        ValueError: shapes that do not fit together, an unknown impl, positions="cache" without `rope`, sink
            logits that the spec does not have, or lacks; whatever `impl` does not take.
        RuntimeError: `impl` does not run on q's device.
    """
    check_impl(impl, q.device)
    _check_tensors(q, k, v, sink_logits)
    _check_spec(spec, rope)
    t_q, t_k = q.shape[-2], k.shape[-2]
    k_pos = _positions("k_pos", torch.arange(t_k) if k_pos is None else k_pos, k)
    q_pos = _positions("q_pos", torch.arange(t_k - t_q, t_k) if q_pos is None else q_pos, q)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scoring = Scoring(scale, rope, softcap, logits_of(spec, q.shape[1], sink_logits, q))
    plan, run = IMPLEMENTATIONS[impl][:2]

    def attention(spec, q, k, v, scoring):
        return run(plan(spec, q_pos, k_pos), q, k, v, spec, scoring)

    return by_head(spec, q, k, v, scoring, attention)[0]


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, sink_logits: Tensor | None) -> None:
    shapes_fit = q.ndim == k.ndim == v.ndim == 4 and k.shape[:3] == v.shape[:3] and q.shape[0] == k.shape[0]
    if not shapes_fit or q.shape[1] % k.shape[1] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "attend takes q [b, h, t_q, d], k [b, h_kv, t_k, d], v [b, h_kv, t_k, d_v] with h a multiple of "
            f"h_kv; got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if sink_logits is not None and sink_logits.shape != q.shape[1:2]:
        raise ValueError(f"sink_logits must be [{q.shape[1]}], one a head, got {tuple(sink_logits.shape)}")


def _check_spec(spec: LayerSpec, rope: RopeFunction | None) -> None:
    if not isinstance(spec, LayerSpec):
        raise TypeError(f"attend takes Full(), SWA(window, sinks) or PerHead(...), got {spec!r}")
    heads = getattr(spec, "heads", (spec,))
    if rope is None and any(isinstance(head, SWA) and head.positions == "cache" for head in heads):
        raise ValueError('positions="cache" turns keys anew at every step: pass unrotated q, k and rope=')


def _positions(name: str, position: Tensor, x: Tensor) -> Tensor:
    length = x.shape[-2]
    if position.shape not in ((length,), (1, length), (x.shape[0], length)):
        raise ValueError(f"{name} must be [{length}] or [b, {length}], got {tuple(position.shape)}")
    return position
