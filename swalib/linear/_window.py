"""A softmax window whose keys are carried along a text: the exact half of the hybrid methods.

A text is read piece by piece. Between pieces a fixed number of slots holds the newest keys and the sinks, so
time is linear in the text and memory does not depend on it. Keys are told apart by position, not by column,
so pads may lie anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from swalib.linear._forms import check_form, compute_dtype, inert
from swalib.masks import visible
from swalib.spec import SWA

CHUNK = 64


class Held(NamedTuple):
    """Keys k [b, h_kv, n, d] and values v [b, h_kv, n, d_v] with their positions [b, n], int64: -1 in a slot
    that holds none, whose k and v are 0."""

    k: Tensor
    v: Tensor
    position: Tensor

    @classmethod
    def given(cls, k: Tensor, v: Tensor, position: Tensor) -> Held:
        """New keys; `position` is negative at pads."""
        return cls(*inert(position >= 0, k, v), position.clamp(min=-1).long())

    @classmethod
    def empty(cls, like: Held, slots: int) -> Held:
        """No keys, in `slots` slots for keys such as those in `like`."""
        k, v = (x.new_zeros(*x.shape[:2], slots, x.shape[3]) for x in (like.k, like.v))
        return cls(k, v, like.position.new_full((k.shape[0], slots), -1))

    def span(self, piece: slice) -> Held:
        return Held(self.k[:, :, piece], self.v[:, :, piece], self.position[:, piece])

    def joined(self, newer: Held) -> Held:
        k, v = (torch.cat(pair, dim=2) for pair in ((self.k, newer.k), (self.v, newer.v)))
        return Held(k, v, torch.cat([self.position, newer.position], dim=1))

    def parted(self, slots: int, sinks: int = 0) -> tuple[Held, Held]:
        """(what no longer fits, what `slots` slots keep: the sinks, at the end, and the newest keys)."""
        sink = (self.position >= 0) & (self.position < sinks)
        rank = self.position.masked_fill(sink, torch.iinfo(torch.long).max)
        order = rank.argsort(dim=1, stable=True)
        cut = order.shape[1] - slots
        return self._at(order[:, :cut]), self._at(order[:, cut:])

    def _at(self, column: Tensor) -> Held:
        def pick(x: Tensor) -> Tensor:
            return x.gather(2, column[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))

        return Held(pick(self.k), pick(self.v), self.position.gather(1, column))


def pieces(t: int, form: str) -> Iterator[slice]:
    """The columns read at once: all, `CHUNK`, or one."""
    check_form(form, CHUNK)
    size = {"parallel": max(t, 1), "chunked": CHUNK, "recurrent": 1}[form]
    for start in range(0, max(t, 1), size):
        yield slice(start, min(start + size, t))


def scores(q: Tensor, k: Tensor, seen: Tensor, scale: float, softcap: float | None = None) -> Tensor:
    """scale·q·k, capped, where `seen` [b, c, n], else -inf: [b, h, c, n]. q: [b, h, c, d], k: [b, h, n, d].
    The cap is softcap·tanh(score/softcap), None for none."""
    score = scale * (q @ k.mT)
    score = score if softcap is None else softcap * torch.tanh(score / softcap)
    return score.masked_fill(~seen[:, None], -torch.inf)


def window_attention(
    q: Tensor,
    new: Held,
    window: int,
    *,
    scale: float,
    softcap: float | None = None,
    held: Held | None = None,
    form: str = "chunked",
) -> tuple[Tensor, Held]:
    """Softmax attention over the newest `window` keys, the own one counted: SWA(window, 0), in fp32.

    Args:
        q: [b, h, t, d], rotated; `new`: the same tokens' keys, rotated, and values.
        scale, softcap: as for `scores`.
        held: what the tokens before left behind, in window - 1 slots; None is nothing.

    Returns:
        o [b, h, t, d_v] in q's dtype, 0 at pads, and what is held after the last token.
    """
    dtype, groups = compute_dtype(q, new.k, new.v), q.shape[1] // new.k.shape[1]
    held = Held.empty(new, window - 1) if held is None else held
    outputs = []
    for piece in pieces(q.shape[2], form):
        keys = held.joined(new.span(piece))
        seen = visible(new.position[:, piece, None], keys.position[:, None], SWA(window, 0))
        k, v = (x.to(dtype).repeat_interleave(groups, dim=1) for x in (keys.k, keys.v))
        with torch.autocast(q.device.type, enabled=False):
            logits = scores(q[:, :, piece].to(dtype), k, seen, scale, softcap)
            nothing = ~seen.any(-1)[:, None, :, None]
            outputs.append(logits.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0) @ v)
        _, held = keys.parted(window - 1)
    return torch.cat(outputs, dim=2).to(q.dtype), held
