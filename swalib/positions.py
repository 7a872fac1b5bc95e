"""Where a token stands when key and query are rotated: RoPE, and StreamingLLM's in-cache positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swalib.spec import SWA


@dataclass(frozen=True)
class Rotation:
    """How a family lays out RoPE: which dimensions form a pair, and what its tables look like.

    Args:
        duplicated: cos and sin have a column for each dimension, the second half a copy of the first; else
            one for each pair.
        interleaved: neighbouring dimensions form a pair (GPT-J); else m and m + r/2 (Llama).
        sin_first: the model's rotary module returns (sin, cos).
    """

    duplicated: bool = True
    interleaved: bool = False
    sin_first: bool = False

    def tables(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """(cos, sin), one column for each pair, of what the model's rotary module returned."""
        cos, sin = reversed(pair) if self.sin_first else pair
        width = cos.shape[-1] // 2 if self.duplicated else cos.shape[-1]
        return cos[..., :width], sin[..., :width]


HALVES = Rotation()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """RoPE; dimensions beyond the first r pass through (partial rotation).

    Args:
        x: [b, h, t, d]; cos, sin: [1 or b, 1, t, r/2] with r <= d.
        interleaved: pairs are neighbouring dimensions; else m and m + r/2.
    """
    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    pair = first * cos - second * sin, second * cos + first * sin
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


class Rope:
    """A model's own rotation, by integer position.

    The model runs with every position 0, so that its queries and keys arrive unrotated (times its constant
    attention scaling, if any); this turns them to the positions asked for. Only small relative positions are
    ever asked for, so no large angle is formed, however long the text.
    """

    def __init__(
        self, rotary_emb: nn.Module, rotation: Rotation = HALVES, layer_type: str | None = None
    ) -> None:
        self._rotary_emb = rotary_emb
        self._rotation = rotation
        self._layer_type = (layer_type,) if layer_type else ()

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [b, h, t, d] turned to `positions`, integers [t] or [b, t]; the result has x's dtype."""
        cos, sin = self._tables(positions.to(x.device))
        return rotate(x.to(cos.dtype), cos, sin, self._rotation.interleaved).to(x.dtype)

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        positions = positions if positions.ndim == 2 else positions[None]
        with_zero = torch.cat([positions.new_zeros(positions.shape[0], 1), positions], dim=1)
        like = torch.empty(0, dtype=torch.float32, device=positions.device)
        cos, sin = self._rotation.tables(self._rotary_emb(like, with_zero.abs(), *self._layer_type))
        sin = sin * with_zero.sign()[..., None]  # GPT-J's table has no row for a negative position
        scaling = cos[:, :1]  # cos(0) = 1, so position 0 shows the scaling that q and k already carry
        return (cos[:, 1:] / scaling)[:, None], (sin[:, 1:] / scaling)[:, None]


def no_rope(x: Tensor, positions: Tensor) -> Tensor:
    """The rotation of a layer without one (NoPE)."""
    return x


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
