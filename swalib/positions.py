"""Where a token stands when key and query are rotated: RoPE, and StreamingLLM's in-cache positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from swalib.spec import SWA


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in the half-split layout of the Llama family; dimensions beyond cos's width pass through.

    Args:
        x: [b, h, t, d]; cos, sin: [1 or b, 1, t, r] with r <= d.
    """
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


class Rope:
    """A model's own rotation, by integer position.

    The model runs with every position 0, so that its queries and keys arrive unrotated (times its constant
    attention scaling, if any); this turns them to the positions asked for. Only small relative positions are
    ever asked for, so no large angle is formed, however long the text.
    """

    def __init__(self, rotary_emb: nn.Module, layer_type: str | None = None) -> None:
        self._rotary_emb = rotary_emb
        self._layer_type = (layer_type,) if layer_type else ()

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [b, h, t, d] turned to `positions`, integers [t] or [b, t]; the result has x's dtype."""
        cos, sin = self._tables(positions.to(x.device))
        return rotate(x.to(cos.dtype), cos, sin).to(x.dtype)

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        positions = positions if positions.ndim == 2 else positions[None]
        with_zero = torch.cat([positions.new_zeros(positions.shape[0], 1), positions], dim=1)
        like = torch.empty(0, dtype=torch.float32, device=positions.device)
        cos, sin = self._rotary_emb(like, with_zero, *self._layer_type)
        scaling = cos[:, :1]  # cos(0) = 1, so position 0 shows the scaling that q and k already carry
        return (cos[:, 1:] / scaling)[:, None], (sin[:, 1:] / scaling)[:, None]


RopeFunction = Callable[[Tensor, Tensor], Tensor]


def query_position(q_pos: Tensor, spec: SWA) -> Tensor:
    """In-cache position of queries at text positions `q_pos`: min(i, window - 1)."""
    return q_pos.clamp(max=spec.window - 1)


def key_position(k_pos: Tensor, q_pos: Tensor, spec: SWA) -> Tensor:
    """In-cache position of key j as query i sees it: j for a sink, else j - max(0, i - (window-1)).

    Args:
        k_pos, q_pos: text positions, broadcast against each other; the key must be visible to the query.
    """
    shift = (q_pos - (spec.window - 1)).clamp(min=0)
    return torch.where(k_pos < spec.sinks, k_pos, k_pos - shift)
