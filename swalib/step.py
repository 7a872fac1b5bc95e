"""One forward as attention sees it: which tokens are queries, which columns are keys, where each stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from swalib.attention import IMPLEMENTATIONS, check_impl
from swalib.attention.scoring import Scoring, by_head
from swalib.cache import SinkCache
from swalib.slots import live_slots, slot_positions
from swalib.spec import SWA, Full, LayerSpec, PerHead


def left_padding(attention_mask: Tensor) -> Tensor:
    """Leading pads of each row, integers [b] on the CPU, of a padding mask [b, t] (1 or True: a token, 0 or
    False: a pad); t for a row without a token so far.

    Raises:
        ValueError: the mask isn't [b, t] of zeros and ones, or a row's tokens have a gap between them.
    """
    if not isinstance(attention_mask, Tensor):
        raise ValueError("one padding mask [batch, tokens] is wanted, not a mask for each kind of layer")
    if attention_mask.ndim != 2:
        raise ValueError(
            "a student takes a padding mask [batch, tokens]; got one of shape "
            f"{tuple(attention_mask.shape)}, and a mask of queries × keys would contradict its own"
        )
    tokens = attention_mask.cpu().bool()
    if not torch.equal(tokens.to(attention_mask.dtype), attention_mask.cpu()):
        raise ValueError("a padding mask holds 1 for a token and 0 for a pad, and this one other values too")
    starts = (tokens[:, 1:] & ~tokens[:, :-1]).sum(1) + tokens[:, 0]
    if bool((starts > 1).any()):
        raise ValueError(
            "the padding mask has a hole: pads may stand before or after a row's tokens, not among them"
        )
    return (tokens.cumsum(1) == 0).sum(1)


def checked_padding(
    attention_mask: Tensor | None, cache: SinkCache | None, rows: int, total: int
) -> Tensor | None:
    """The left padding of each of `rows` rows, [b], or None where no row has any padding.

    Args:
        attention_mask: of all `total` tokens so far, those in the cache included, or None for no padding.

    Raises:
        ValueError: the mask covers other tokens, lacks a token in a row, or contradicts what the cache holds.
    """
    start = 0 if cache is None else cache.get_seq_length()
    before = cache.left_padding if start else None
    if attention_mask is None:
        if before is not None:
            raise ValueError(
                "this cache holds padded rows: pass the attention_mask of all tokens so far with each call"
            )
        return None
    padding = left_padding(attention_mask)
    if attention_mask.shape != (rows, total):
        raise ValueError(
            f"the attention_mask covers {attention_mask.shape[1]} tokens of {attention_mask.shape[0]} rows, "
            f"but there are {total} so far, of {rows}"
        )
    if cache is None and bool((padding == total).any()):
        raise ValueError("a row of the padding mask holds no token")
    known = torch.zeros_like(padding) if before is None else before
    if known.shape != padding.shape:
        raise ValueError(f"this cache holds {len(known)} rows, and the attention_mask {rows}")
    if start and bool(((padding != known) & (known < start)).any()):  # pads alone may be followed by pads
        raise ValueError("the left padding of a row changed since this cache was begun")
    return None if before is None and bool(attention_mask.all()) else padding


@dataclass
class Step:
    """A forward over `length` tokens after `start` earlier ones; each layer gets it in place of a mask.

    Args:
        start, length: tokens, pads included.
        padding: left pads, integers [b], or None where no row has any padding.
        tokens: the padding mask [b, start + length], or None.
        shared: what the layers of this forward hand to later ones, by name.
    """

    start: int
    length: int
    padding: Tensor | None = None
    tokens: Tensor | None = None
    shared: dict[str, Tensor] = field(default_factory=dict)
    _plans: dict = field(default_factory=dict)

    @classmethod
    def masked(
        cls, start: int, length: int, attention_mask: Tensor | None, shared: dict | None = None
    ) -> Step:
        """A step under a padding mask [b, start + length] that `checked_padding` has accepted, or None."""
        shared = {} if shared is None else shared
        if attention_mask is None or bool(attention_mask.all()):
            return cls(start, length, shared=shared)
        tokens = attention_mask.cpu().bool()
        return cls(start, length, left_padding(tokens), tokens, shared)

    @property
    def shape(self) -> tuple[int, int]:
        """What code that inspects a mask's shape is told: (start + length, length). No mask is formed."""
        return self.start + self.length, self.length

    @property
    def q_pos(self) -> Tensor:
        """Text positions of the queries, [t] or [b, t]; -1 or less for a pad before a row's first token."""
        position = torch.arange(self.start, self.start + self.length)
        return position if self.padding is None else position - self.padding[:, None]

    @property
    def positions(self) -> Tensor:
        """Text positions of the tokens of this forward, [1 or b, t]; -1 for a pad on either side."""
        position = self._raw(self.start, self.start + self.length)
        return position if position.ndim == 2 else position[None]

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

    def attend(
        self, spec: LayerSpec, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, impl: str
    ) -> tuple[Tensor, ...]:
        """Attention of a layer under `spec`, whose k and v are all that its cache gave.

        Returns:
            (o [b, h, t, d_v],); impl="reference" adds the weights [b, h, t, n] and log-sum-exp [b, h, t].

        Raises:
            RuntimeError: `impl` does not run on q's device.
            ValueError: it does not take the dtype, the spec or something else asked of it.
        """
        if not self._plans:
            check_impl(impl, q.device)
        kept, columns = spec.envelope if isinstance(spec, PerHead) else spec, k.shape[-2]

        def attention(spec, q, k, v, scoring):
            plan = self.plan(impl, spec, kept, columns)
            return IMPLEMENTATIONS[impl].run(plan, q, k, v, spec, scoring)

        return by_head(spec, q, k, v, scoring, attention)

    def plan(self, impl: str, spec: SWA | Full, kept: SWA | Full, columns: int) -> Any:
        """What `impl` makes of the positions for heads under `spec`, given what a cache under `kept` keeps;
        once per forward."""
        key = (impl, spec, kept, columns)
        if key not in self._plans:
            k_pos = self.k_pos(kept, columns)
            self._plans[key] = IMPLEMENTATIONS[impl].plan(spec, self.q_pos, k_pos)
        return self._plans[key]
