"""Which token can reach which query through l layers of SWA(w, s)? Exactly, without a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swalib import masks
from swalib.spec import SWA, Full, PerHead


def reachable(
    length: int, specs: Sequence[SWA | Full | PerHead], relays: bool = True, window_path: bool = False
) -> Tensor:
    """Which input token j can change the output of which query i, bool [length, length]: entry (i, j).

    The product of the layers' masks over "and" and "or": j reaches i if some path of visible keys leads from
    i down to j, one layer a step. A token reaches itself, through the residual stream.

    Args:
        specs: one for each layer, first layer first. `Full` sees all earlier tokens here, also where a
            model's own layer is local: what is reachable is then an upper bound.
        relays: whether a path may pass through a sink's position on its way to another token. (In a causal
            model such a path only ever leads to earlier tokens: with the first s tokens as sinks, to other
            sinks.)
        window_path: count only what a query sees as a recent, not as a sink.

    Raises:
        ValueError: no layers, or a length below 1.
    """
    if length < 1 or not specs:
        raise ValueError(f"nothing to reach: {length} tokens through {len(specs)} layers")
    reached = torch.eye(length, dtype=torch.bool)
    for layer, spec in enumerate(specs):
        step = _seen(length, spec, window_path)
        if layer and not relays:
            step &= ~_sinks(length, spec)[None, :] | torch.eye(length, dtype=torch.bool)
        reached = (step.float() @ reached.float()) > 0
    return reached


def _seen(length: int, spec: SWA | Full | PerHead, window_path: bool) -> Tensor:
    if isinstance(spec, PerHead):
        return torch.stack([_seen(length, head, window_path) for head in spec.heads]).any(0)
    seen = masks.mask(length, spec)
    if window_path and isinstance(spec, SWA):
        place = torch.arange(length)
        seen &= place[:, None] - place[None, :] < spec.recents
    return seen


def _sinks(length: int, spec: SWA | Full | PerHead) -> Tensor:
    """Which positions hold a sink of the spec; of any of its heads."""
    if isinstance(spec, PerHead):
        return torch.stack([_sinks(length, head) for head in spec.heads]).any(0)
    place = torch.arange(length)
    return masks.is_sink(place, spec) if isinstance(spec, SWA) else torch.zeros(length, dtype=torch.bool)


def window_reach(layers: int, spec: SWA) -> int:
    """Tokens that information travels back through the windows of `layers` layers: layers · (w − s − 1)."""
    return layers * (spec.recents - 1)


def layers_to_see(distance: int, spec: SWA) -> int | None:
    """The fewest layers through whose windows a token `distance` tokens back is seen, None if never."""
    if distance <= 0:
        return 0
    return None if spec.recents == 1 else -(-distance // (spec.recents - 1))
