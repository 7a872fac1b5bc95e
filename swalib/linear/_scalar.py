"""Recurrences that keep all of the state, or the same share of it in every channel of a head."""

from __future__ import annotations

import torch
from torch import Tensor

from swalib.linear import _fla
from swalib.linear._forms import How, State, check_shapes, run


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normalised: bool = False,
    eps: float = 0.0,
    scale: float = 1.0,
    state: State | None = None,
    form: str = "chunked",
    chunk_tokens: int = 64,
    impl: str = "torch",
) -> tuple[Tensor, State]:
    """Linear attention (Katharopoulos 2020) of queries and keys that a feature map has been through.

        S_t = S_{t-1} + k_t^T v_t        z_t = z_{t-1} + k_t        o_t = q_t S_t [/ (q_t·z_t + eps)]

    Args:
        q, k: [b, h, t, f]; v: [b, h, t, d_v].
        normalised: divide, and keep z in the state. A denominator of exactly 0 (nothing seen) gives o = 0.
        eps: added to the denominator.
        scale: factor on q, in the denominator too.
        state: from the tokens before; None is zero. It holds z exactly if `normalised`.
        form: "parallel", "chunked" or "recurrent"; they agree to rounding.
        impl: "torch", or "fla" for flash-linear-attention's kernels on a GPU.

    Returns:
        o [b, h, t, d_v] in q's dtype, and the state after the last token.

    Raises:
        ValueError: shapes that do not fit together, an unknown form, or a state with z missing or unasked.
    """
    check_shapes("linear_attention", state, q=(q, "b h t f"), k=(k, "b h t f"), v=(v, "b h t d_v"))
    if state is not None and (state.z is not None) != normalised:
        raise ValueError(f"state.z must be given exactly if normalised; normalised is {normalised}")
    values, initial = v, None if state is None else state.S
    if normalised:  # z is what a value that is always 1 writes
        values = torch.cat([v, v.new_ones(*v.shape[:-1], 1)], dim=-1)
        initial = None if state is None else torch.cat([state.S, state.z[..., None]], dim=-1)
    o, last = run(PLAIN, _fla.PLAIN, (q, k, values), initial, scale, How(form, chunk_tokens, impl))
    if not normalised:
        return o.to(q.dtype), State(last)
    denominator = o[..., -1:] + eps
    o = o[..., :-1] / denominator.masked_fill(denominator == 0, 1)
    return o.to(q.dtype), State(last[..., :-1], last[..., -1])


def scalar_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    scale: float = 1.0,
    state: State | None = None,
    form: str = "chunked",
    chunk_tokens: int = 32,
    impl: str = "torch",
) -> tuple[Tensor, State]:
    """Linear attention whose state decays by one factor a head: RetNet, SUPRA, Mamba-2.

        S_t = exp(log_decay_t) S_{t-1} + k_t^T v_t        o_t = scale · q_t S_t

    Mamba-2 (SSD) is q = C, k = B, v = dt·x, log_decay = dt·A.

    Args:
        q, k: [b, h, t, f]; v: [b, h, t, d_v].
        log_decay: [b, h, t], at most 0, -inf included; size 1 for an axis it is constant over.
        state: from the tokens before; None is zero.
        form: "parallel", "chunked" or "recurrent"; they agree to rounding.
        impl: "torch", or "fla" for flash-linear-attention's kernels on a GPU.

    Returns:
        o [b, h, t, d_v] in q's dtype, and the state after the last token.

    Raises:
        ValueError: shapes that do not fit together, or an unknown form.
    """
    axes = {
        "q": (q, "b h t f"),
        "k": (k, "b h t f"),
        "v": (v, "b h t d_v"),
        "log_decay": (log_decay, "b h t"),
    }
    check_shapes("scalar_decay", state, **axes)
    initial = None if state is None else state.S
    how = How(form, chunk_tokens, impl)
    o, last = run(DECAYED, _fla.SCALAR, (q, k, v, log_decay), initial, scale, how)
    return o.to(q.dtype), State(last)


def decays(log_decay: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Products of decays inside a piece, from log_decay [n, t, 1].

    Logs of one sign are summed and none is subtracted again, so that a gate that is shut (-1e4) does not cost
    the gates behind it their digits; no positive number is exponentiated.

    Returns:
        between [n, t, t]: over the tokens j+1 .. i, and 0 for j > i; since_start [n, t, 1]: over 0 .. i;
        to_end [n, t, 1]: over j+1 .. t-1.
    """
    t = log_decay.shape[1]
    finite = log_decay.clamp(min=torch.finfo(log_decay.dtype).min)
    between = finite.expand(-1, -1, t).tril(-1).cumsum(1).exp_().tril()  # exp of -inf would be slow
    return between, finite.cumsum(1).exp(), between[:, -1, :, None]


def _plain_piece(q, k, v, state):
    weights = torch.bmm(q, k.mT).tril_()
    o = torch.bmm(weights, v).baddbmm_(q, state)
    return o, torch.bmm(k.mT, v).add_(state)


def _plain_step(q, k, v, state):
    state = state + k.mT * v
    return q @ state, state


def _decayed_piece(q, k, v, log_decay, state):
    between, since_start, to_end = decays(log_decay)
    weights = torch.bmm(q, k.mT) * between
    o = torch.bmm(weights, v).baddbmm_(q * since_start, state)
    return o, torch.bmm((k * to_end).mT, v).addcmul_(state, since_start[:, -1:])


def _decayed_step(q, k, v, log_decay, state):
    state = log_decay.exp() * state + k.mT * v
    return q @ state, state


PLAIN = {"piece": _plain_piece, "step": _plain_step}
DECAYED = {"piece": _decayed_piece, "step": _decayed_step}
