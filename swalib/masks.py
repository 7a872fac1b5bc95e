"""Which keys a query sees: the one predicate, the mask made from it, other systems' conventions."""

from __future__ import annotations

import torch
from torch import Tensor

from swalib.spec import SWA, Full, PerHead


def visible(q_pos: Tensor, k_pos: Tensor, spec: SWA | Full) -> Tensor:
    """Which key positions each query position sees (arXiv 2608.28444, eq. 2).

    Args:
        q_pos, k_pos: integer text positions, broadcast against each other. Negative means "no token here"
            (padding, an empty slot): such a key is seen by none.

    Returns:
        bool, the broadcast shape.
    """
    causal = (k_pos >= 0) & (k_pos <= q_pos)
    if isinstance(spec, Full):
        return causal
    seen = causal & (is_sink(k_pos, spec) | (q_pos - k_pos < spec.recents))
    return seen if spec.reach is None else seen & (q_pos - k_pos < spec.reach)


def is_sink(position: Tensor, spec: SWA) -> Tensor:
    """Which text positions (>= 0) hold a sink: the first ones, or the chosen ones; bool, same shape."""
    if spec.sink_positions is None:
        return position < spec.sinks
    return torch.isin(position, torch.tensor(spec.sink_positions, device=position.device))


def mask(length: int, spec: SWA | Full | PerHead) -> Tensor:
    """The whole mask, bool [length, length]: row i, column j is True iff query i sees key j.

    `PerHead` gives a mask for each head, [h, length, length].
    """
    if isinstance(spec, PerHead):
        return torch.stack([mask(length, head) for head in spec.heads])
    position = torch.arange(length)
    return visible(position[:, None], position[None, :], spec)


def terraced(length: int, block: int) -> Tensor:
    """LoLCATs' default window (2410.10254, `tk`), bool [length, length]: own block and the one before.

    Blocks of `block` tokens align to the *end* of the text, so a row sees block+1 .. 2*block keys once two
    blocks lie behind it. No SWA(w, s) equals it, which is why it is a mask here and not an adapter.
    """
    offset = -length % block
    index = (torch.arange(length) + offset) // block
    return mask(length, Full()) & (index[:, None] - index[None, :] <= 1)


# Adapters: the SWA that shows the same keys as another system's numbers. Nothing else in swalib knows their
# meanings.


def from_sliding_window(sliding_window: int) -> SWA:
    """transformers' `sliding_window`, flash-linear-attention: keys in all, the own one counted, no sinks."""
    return SWA(sliding_window, 0)


def from_flash_attention(left: int) -> SWA:
    """FlashAttention's `window_size=(left, 0)`, attention-gym: keys *behind* the query, its own extra."""
    return SWA(left + 1, 0)


def from_streaming_llm(start_size: int, recent_size: int, evict: str = "after") -> SWA:
    """StreamingLLM and `attention_sinks`: `start_size` sinks beside `recent_size` cached recents.

    Args:
        evict: "after" each forward (the evaluation script): the query's own key comes on top of the full
            cache. "before" it (the chat script): room is made first, so the own key counts among the recents.

    Raises:
        ValueError: `evict` is neither.
    """
    if evict not in ("after", "before"):
        raise ValueError(f'evict must be "after" or "before", got {evict!r}')
    return SWA(start_size + recent_size + (evict == "after"), start_size)


def from_swaa(window: int, sinks: int) -> SWA:
    """SWAA (2512.10411) and several reimplementations: the window stands *beside* the sinks."""
    return SWA(window + sinks, sinks)
