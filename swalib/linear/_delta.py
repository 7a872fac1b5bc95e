"""Recurrences that erase what a key recalls before they write: the delta rule, gated or not, and RWKV-7."""

from __future__ import annotations

import torch
from torch import Tensor

from swalib.linear import _fla
from swalib.linear._diagonal import decayed_products
from swalib.linear._forms import How, State, check_shapes, run
from swalib.linear._scalar import decays


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    *,
    scale: float = 1.0,
    state: State | None = None,
    form: str = "chunked",
    chunk_tokens: int = 32,
    impl: str = "torch",
) -> tuple[Tensor, State]:
    """The delta rule (DeltaNet, 2406.06484), and with `log_decay` the gated one (2412.06464).

        S = exp(log_decay_t) S_{t-1}        S_t = S + k_t^T beta_t (v_t - k_t S)        o_t = scale · q_t S_t

    Stable for keys of norm at most 1 with beta in [0, 2]; the caller normalises.

    Args:
        q, k: [b, h, t, f]; v: [b, h, t, d_v].
        beta, log_decay: [b, h, t], log_decay at most 0, -inf included; size 1 for an axis of constant gates.
        state: from the tokens before; None is zero.
        form: "parallel" (one triangular system over the whole length), "chunked" or "recurrent"; they agree
            to rounding.
        impl: "torch", or "fla" for flash-linear-attention's kernels on a GPU.

    Returns:
        o [b, h, t, d_v] in q's dtype, and the state after the last token.

    Raises:
        ValueError: shapes that do not fit together, or an unknown form.
    """
    gates = {"beta": beta} if log_decay is None else {"beta": beta, "log_decay": log_decay}
    axes = {"q": (q, "b h t f"), "k": (k, "b h t f"), "v": (v, "b h t d_v")}
    check_shapes("delta_rule", state, **axes, **{name: (gate, "b h t") for name, gate in gates.items()})
    initial = None if state is None else state.S
    kernel = _fla.DELTA if log_decay is None else _fla.GATED_DELTA
    how = How(form, chunk_tokens, impl)
    o, last = run(DELTA, kernel, (q, k, v, *gates.values()), initial, scale, how)
    return o.to(q.dtype), State(last)


def rwkv7(
    r: Tensor,
    log_decay: Tensor,
    k: Tensor,
    v: Tensor,
    kappa: Tensor,
    a: Tensor,
    *,
    scale: float = 1.0,
    state: State | None = None,
    form: str = "chunked",
    chunk_tokens: int = 32,
    impl: str = "torch",
) -> tuple[Tensor, State]:
    """RWKV-7's generalised delta rule (2503.14456), with w_t = exp(log_decay_t).

        S_t = diag(w_t) S_{t-1} - (a_t∘kappa_t)^T (kappa_t S_{t-1}) + k_t^T v_t        o_t = scale · r_t S_t

    S is [f, d_v] as everywhere here, the transpose of the paper's, which is S_{t-1} (diag(w_t) -
    kappa_t^T (a_t∘kappa_t)) + v_t^T k_t. The released code has no scale; RAD-RWKV7 passes d^(-1/2).

    Args:
        r, k, kappa, a: [b, h, t, f]: receptance, written key, removal key of unit norm, in-context rate.
        log_decay: [b, h, t, f], at most 0; size 1 for an axis it is constant over.
        v: [b, h, t, d_v].
        state: from the tokens before; None is zero.
        form: "parallel", "chunked" or "recurrent"; they agree to rounding.
        impl: "torch", or "fla" for flash-linear-attention's kernels on a GPU.

    Returns:
        o [b, h, t, d_v] in r's dtype, and the state after the last token.

    Raises:
        ValueError: shapes that do not fit together, or an unknown form.
    """
    alike = {"r": r, "log_decay": log_decay, "k": k, "kappa": kappa, "a": a}
    axes = {name: (x, "b h t f") for name, x in alike.items()} | {"v": (v, "b h t d_v")}
    check_shapes("rwkv7", state, **axes)
    initial = None if state is None else state.S
    tokens = (r, k, v, log_decay.expand_as(k), kappa, a)
    o, last = run(RWKV7, _fla.RWKV7, tokens, initial, scale, How(form, chunk_tokens, impl))
    return o.to(r.dtype), State(last)


def _solve(lower: Tensor, right: Tensor) -> Tensor:
    """x with (1 + lower) x = right; lower [n, t, t], of which only what is under the diagonal is read."""
    solution = torch.linalg.solve_triangular(lower.mT, right.mT, upper=True, left=False, unitriangular=True)
    return solution.mT


def _delta_piece(q, k, v, beta, *gate_and_state):
    """What is written, beta_t (v_t - k_t S), solves a triangular system; then it is linear attention."""
    *gate, state = gate_and_state
    n, t = q.shape[:2]
    both = torch.cat([k, q], dim=1)
    recalled, products = torch.bmm(both, state), torch.bmm(both, k.mT).view(n, 2, t, t)
    recalled = recalled.view(n, 2, t, -1)
    if gate:
        between, since_start, to_end = decays(*gate)
        recalled, products = recalled * since_start[:, None], products * between[:, None]
        k, state = k * to_end, state * since_start[:, -1:]
    by_k, by_q = recalled.unbind(1)
    k_k, q_k = products.tril_().unbind(1)
    written = _solve(k_k * beta, (v - by_k) * beta)
    o = torch.baddbmm(by_q, q_k, written)
    return o, torch.bmm(k.mT, written).add_(state)


def _delta_step(q, k, v, beta, *gate_and_state):
    *gate, state = gate_and_state
    for log_decay in gate:
        state = log_decay.exp() * state
    state = state + k.mT * (beta * (v - k @ state))
    return q @ state, state


def _rwkv7_piece(r, k, v, log_decay, kappa, a, state):
    """Two readers a token, r after its decay and kappa before it; two writers, k and the erasing a∘kappa."""
    n, t = r.shape[:2]
    decay, erasing = log_decay.exp(), a * kappa
    readers = torch.stack([r * decay, kappa], dim=2)
    writers = torch.stack([k, erasing], dim=2)
    own = torch.stack([(r * k).sum(-1), (r * erasing).sum(-1)], dim=-1)
    own = torch.stack([own, torch.zeros_like(own)], dim=2)
    products, readers, writers, total = decayed_products(readers, writers, decay, own)
    by_k, by_erasing = products.unbind(2)
    read = torch.baddbmm(torch.bmm(readers, state), by_k, v)
    by_r, by_kappa = read.view(n, t, 2, -1).unbind(2)
    r_erasing, kappa_erasing = by_erasing.view(n, t, 2, t).unbind(2)
    erased = _solve(kappa_erasing, by_kappa)
    o = torch.baddbmm(by_r, r_erasing, erased, alpha=-1)
    change = torch.bmm(writers.mT, torch.stack([v, -erased], dim=2).flatten(1, 2))
    return o, change.addcmul_(total.mT, state)


def _rwkv7_step(r, k, v, log_decay, kappa, a, state):
    state = log_decay.exp().mT * state - (a * kappa).mT * (kappa @ state) + k.mT * v
    return r @ state, state


DELTA = {"piece": _delta_piece, "step": _delta_step}
RWKV7 = {"piece": _rwkv7_piece, "step": _rwkv7_step}
