"""Recurrences in which every channel of the key decays at a rate of its own: GLA, RWKV-6."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from swalib.linear import _fla
from swalib.linear._forms import How, State, check_shapes, compute_dtype, run


def diagonal_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    bonus: Tensor | None = None,
    output: str = "after",
    scale: float = 1.0,
    state: State | None = None,
    form: str = "chunked",
    chunk_tokens: int = 64,
    impl: str = "torch",
) -> tuple[Tensor, State]:
    """Linear attention whose state decays channel by channel of the key.

        S_t = diag(exp(log_decay_t)) S_{t-1} + k_t^T v_t
        output="after" (GLA 2312.06635, Liger, RAD-RWKV6):  o_t = scale · q_t S_t
        output="before" (RWKV-6 2404.05892):  o_t = scale · q_t (S_{t-1} + diag(bonus) k_t^T v_t)

    Args:
        q, k: [b, h, t, f]; v: [b, h, t, d_v].
        log_decay: [b, h, t, f], at most 0, -inf included; size 1 for an axis it is constant over.
        bonus: [h, f], u of RWKV-6, the share of a token's own key in its output; None is 0. "before" only.
        state: from the tokens before; None is zero.
        form: "parallel", "chunked" or "recurrent"; they agree to rounding.
        impl: "torch", or "fla" for flash-linear-attention's kernels on a GPU.

    Returns:
        o [b, h, t, d_v] in q's dtype, and the state after the last token.

    Raises:
        ValueError: shapes that do not fit together, an unknown form or output, a bonus with "after".
    """
    axes = {"q": (q, "b h t f"), "k": (k, "b h t f"), "v": (v, "b h t d_v")}
    axes["log_decay"] = (log_decay, "b h t f")
    check_shapes("diagonal_decay", state, **axes, **({} if bonus is None else {"bonus": (bonus, "h f")}))
    if output not in ("after", "before"):
        raise ValueError(f'output must be "after" or "before" the update, got {output!r}')
    if output == "after" and bonus is not None:
        raise ValueError(
            'a bonus weights the own key in an output="before" the update; "after" holds it already'
        )
    advance, kernel, constants = AFTER, _fla.DIAGONAL, {}
    if output == "before":
        advance, kernel, constants = _before(q, compute_dtype(q, k, v), bonus)
    initial = None if state is None else state.S
    tokens, how = (q, k, v, log_decay.expand_as(k)), How(form, chunk_tokens, impl)
    o, last = run(advance, kernel, tokens, initial, scale, how, **constants)
    return o.to(q.dtype), State(last)


def _before(q: Tensor, dtype: torch.dtype, bonus: Tensor | None) -> tuple:
    """How the output before the update is computed: moves, kernel and its constants."""
    own = q.new_zeros(q.shape[1], q.shape[3]) if bonus is None else bonus
    own = own.to(dtype).repeat(q.shape[0], 1)[:, None]
    moves = {name: partial(move, bonus=own) for name, move in BEFORE.items()}
    return moves, _fla.BEFORE, {"u": own[: q.shape[1], 0]}


def balanced_keys(k: Tensor, log_decay: Tensor) -> Tensor:
    """RAD-RWKV6's state balancing (2505.03005), k·(1 - w), w = exp(log_decay): what decays, is written.

    Args:
        k, log_decay: [b, h, t, f].
    """
    return -torch.expm1(log_decay) * k


def decayed_products(
    readers: Tensor, writers: Tensor, decay: Tensor, own: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reader i times writer j, each channel times the decays between them, for all pairs in a piece.

    By halving: inside a block, its second half's readers meet its first half's writers at the middle, both
    decayed up to there. So decays are only ever multiplied, never divided by: shut gates give exact zeros.

    Args:
        readers: [n, t, x, f], x of them a token, decayed by their own token if they read after its decay.
        writers: [n, t, y, f], y of them a token.
        decay: [n, t, f], in [0, 1].
        own: [n, t, x, y], the products within a token.

    Returns:
        products [n, t·x, y, t], 0 for later writers; readers [n, t·x, f] decayed since the piece began,
        writers [n, t·y, f] decayed to its end, total decay [n, 1, f].
    """
    (n, t, x, f), y = readers.shape, writers.shape[2]
    padded = 1 << (t - 1).bit_length()
    if padded > t:  # by tokens that do nothing
        tail = (0, 0, 0, padded - t)
        readers, writers, own = (F.pad(rows, (0, 0, *tail)) for rows in (readers, writers, own))
        decay = F.pad(decay, tail, value=1)
    products = own.new_zeros(n, padded * x, y, padded)
    _blocks(products, padded)[:, :, :, 0] = own.permute(0, 2, 3, 1)
    readers, writers = (rows.clone(memory_format=torch.contiguous_format) for rows in (readers, writers))
    half = 1
    while half < padded:
        readers, writers = readers.view(-1, 2, half * x, f), writers.view(-1, 2, half * y, f)
        first, second = decay.reshape(-1, 2, 1, f).unbind(1)
        met = torch.bmm(readers[:, 1], writers[:, 0].mT).view(n, -1, half * x, half, y)
        _blocks(products, met.shape[1])[:, half * x :, :, :half] = met.permute(0, 2, 4, 3, 1)
        readers, writers = _decayed_half(readers, 1, first), _decayed_half(writers, 0, second)
        decay, half = first * second, 2 * half
    readers, writers = (rows.reshape(n, -1, f) for rows in (readers, writers))
    return products[:, : t * x, :, :t], readers[:, : t * x], writers[:, : t * y], decay.reshape(n, 1, f)


def _decayed_half(rows: Tensor, half: int, decay: Tensor) -> Tensor:
    """rows [., 2, m, f], one of whose halves decays; in place where no gradient needs what was there."""
    if not torch.is_grad_enabled():
        rows[:, half].mul_(decay)
        return rows
    halves = [rows[:, 0], rows[:, 1]]
    halves[half] = halves[half] * decay
    return torch.stack(halves, dim=1)


def _blocks(products: Tensor, count: int) -> Tensor:
    """The `count` equal blocks on the diagonal of products [n, rows, y, t]: a view [n, ., y, ., count]."""
    n, rows, y, t = products.shape
    return products.view(n, count, rows // count, y, count, t // count).diagonal(dim1=1, dim2=4)


def _read(products: Tensor, readers: Tensor, writers: Tensor, total: Tensor, v: Tensor, state: Tensor):
    o = torch.bmm(products[:, :, 0], v).baddbmm_(readers, state)
    return o, torch.bmm(writers.mT, v).addcmul_(total.mT, state)


def _after_piece(q, k, v, log_decay, state):
    decay = log_decay.exp()
    own = (q * k).sum(-1)[..., None, None]
    return _read(*decayed_products((q * decay)[:, :, None], k[:, :, None], decay, own), v, state)


def _before_piece(q, k, v, log_decay, state, bonus):
    own = (q * bonus * k).sum(-1)[..., None, None]
    return _read(*decayed_products(q[:, :, None], k[:, :, None], log_decay.exp(), own), v, state)


def _after_step(q, k, v, log_decay, state):
    state = log_decay.exp().mT * state + k.mT * v
    return q @ state, state


def _before_step(q, k, v, log_decay, state, bonus):
    written = k.mT * v
    return q @ (state + bonus.mT * written), log_decay.exp().mT * state + written


AFTER = {"piece": _after_piece, "step": _after_step}
BEFORE = {"piece": _before_piece, "step": _before_step}
