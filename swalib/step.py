"""One forward as attention sees it: which tokens are queries, which columns are keys, where each stands."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from swalib.attention import sdpa
from swalib.slots import live_slots, slot_positions
from swalib.spec import SWA, Full


def left_padding(attention_mask: Tensor) -> Tensor:
    """Leading pads of each row, integers [b] on the CPU, of a padding mask [b, t] (1 or True: a token).

    Raises:
        ValueError: the mask isn't [b, t], a row has no token, or a row's tokens have a gap between them.
    """
    if attention_mask.ndim != 2:
        raise ValueError(
            "a student takes a padding mask [batch, tokens]; got one of shape "
            f"{tuple(attention_mask.shape)}, and a mask of queries × keys would contradict its own"
        )
    tokens = attention_mask.cpu().bool()
    if not bool(tokens.any(1).all()):
        raise ValueError("a row of the padding mask holds no token")
    starts = (tokens[:, 1:] & ~tokens[:, :-1]).sum(1) + tokens[:, 0]
    if bool((starts > 1).any()):
        raise ValueError(
            "the padding mask has a hole: pads may stand before or after a row's tokens, not among them"
        )
    return (tokens.cumsum(1) == 0).sum(1)


@dataclass
class Step:
    """A forward over `length` tokens after `start` earlier ones; each layer gets it in place of a mask.

    Args:
        start, length: tokens, pads included.
        padding: left pads, integers [b], or None where no row has any padding.
        tokens: the padding mask [b, start + length], or None.
    """

    start: int
    length: int
    padding: Tensor | None = None
    tokens: Tensor | None = None
    _plans: dict = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """What code that inspects a mask's shape is told: (start + length, length). No mask is formed."""
        return self.start + self.length, self.length

    @property
    def q_pos(self) -> Tensor:
        """Text positions of the queries, [t] or [b, t]; -1 or less for a pad before a row's first token."""
        position = torch.arange(self.start, self.start + self.length)
        return position if self.padding is None else position - self.padding[:, None]

    def k_pos(self, spec: SWA | Full, columns: int) -> Tensor:
        """Text positions of the key columns given to a layer whose cache is under `spec`, [n] or [b, n]; -1
        for none.

        Raises:
            RuntimeError: that many columns can't be the keys of this forward (a cache of another kind or
                spec).
        """
        total = self.start + self.length
        if columns == total and (isinstance(spec, Full) or self.start == 0):
            return self._raw(0, total)
        if isinstance(spec, SWA):
            live = live_slots(self.start, spec)
            if self.length == 1 and columns == live_slots(total, spec):
                return self._slots(total, spec, columns)
            if columns == live + self.length:
                return torch.cat([self._slots(self.start, spec, live), self._raw(self.start, total)], dim=-1)
        raise RuntimeError(
            f"attention under {spec} got {columns} keys for {self.length} queries after {self.start} tokens: "
            "the cache is not this student's; let the student make its own"
        )

    def _raw(self, first: int, last: int) -> Tensor:
        position = torch.arange(first, last)
        if self.padding is None:
            return position
        position = position - self.padding[:, None]
        return position.masked_fill(~self.tokens[:, first:last], -1)

    def _slots(self, seen: int, spec: SWA, slots: int) -> Tensor:
        tokens = torch.tensor(seen) if self.padding is None else seen - self.padding
        return slot_positions(tokens, spec, slots)

    def plan(self, spec: SWA | Full, kept: SWA | Full, columns: int) -> list[sdpa.Tile]:
        """The tiles for heads under `spec`, given what a cache under `kept` keeps; once per forward."""
        key = (spec, kept, columns)
        if key not in self._plans:
            self._plans[key] = sdpa.plan(spec, self.q_pos, self.k_pos(kept, columns))
        return self._plans[key]
