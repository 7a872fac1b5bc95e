"""Where the tokens of a sink cache are kept.

The token at text position p lives in slot p if it is a sink, else in slot s + (p - s) mod (w - s): writing a
token *is* evicting the one that left the window. The order of slots does not matter to attention, which is
told each slot's position. Sinks at chosen positions (`SWA.sink_positions`) have the first slots too, in their
order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swalib.masks import is_sink
from swalib.spec import SWA


def slot_of(position: Tensor, spec: SWA) -> Tensor:
    """The slot in which the token at a text position (>= 0) is kept."""
    ring = spec.sinks + (position - spec.sinks) % spec.recents
    if spec.sink_positions is None:
        return torch.where(position < spec.sinks, position, ring)
    chosen = torch.tensor(spec.sink_positions, dtype=position.dtype, device=position.device)
    return torch.where(is_sink(position, spec), torch.searchsorted(chosen, position), ring)


def slot_positions(seen_tokens: Tensor, spec: SWA, slots: int) -> Tensor:
    """Text position of the token in each of the first `slots` slots, or -1 where a slot is empty.

    Args:
        seen_tokens: integers [...], tokens that a row has been given so far.

    Returns:
        integers [..., slots].
    """
    slot = torch.arange(slots, device=seen_tokens.device)
    newest = seen_tokens[..., None] - 1
    ring = newest - (newest - slot) % spec.recents
    if spec.sink_positions is None:
        position = torch.where(slot < spec.sinks, slot, ring)
        empty = torch.where(slot < spec.sinks, slot > newest, ring < spec.sinks)
    else:
        chosen = torch.tensor(spec.sink_positions + (0,) * spec.recents, device=slot.device)[:slots]
        position = torch.where(slot < spec.sinks, chosen, ring)
        empty = torch.where(slot < spec.sinks, chosen > newest, (ring < 0) | is_sink(ring, spec))
    return position.masked_fill(empty, -1)


def live_slots(seen_tokens: int, spec: SWA) -> int:
    """Leading slots that may be in use after so many tokens of the longest row: min(seen tokens, window)."""
    if spec.sink_positions is not None and seen_tokens:  # the sinks' slots wait for their tokens
        return spec.window
    return min(seen_tokens, spec.window)
