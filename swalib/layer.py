"""SWA(w, s) as a plain layer, for models of one's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from swalib.attention import check_impl
from swalib.attention.scoring import Scoring, sink_logits
from swalib.cache import SinkCache
from swalib.positions import Rope
from swalib.spec import SWA, LayerSpec
from swalib.step import Step, checked_padding


class RotaryEmbedding(nn.Module):
    """RoPE tables: angles position · theta^(-2m/d) for the pairs m < d/2 of a head of d dimensions."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self.register_buffer("inv_freq", theta**-exponent, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin), fp32 [b, t, d], of integer positions [b, t]."""
        angle = positions[..., None].float() * self.inv_freq.float()
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos(), angle.sin()


class SWAttention(nn.Module):
    """Causal self-attention under a spec, with or without its projections.

        layer = SWAttention(SWA(64, 4), hidden_size=256, heads=4)
        y = layer(x)                                  # x, y: [b, t, 256], any t
        cache = layer.new_cache()                     # 64 slots, whatever is streamed through it
        y = torch.cat([layer(chunk, cache=cache) for chunk in x.split(100, dim=1)], dim=1)   # the same
        o = SWAttention(SWA(64, 4))(q, k, v)          # q: [b, h, t, d]; k, v: [b, h_kv, t, d]

    Args:
        spec: `SWA`, `Full`, or one of them for each head (`PerHead`).
        hidden_size: features of the hidden states; None for a layer that is given q, k and v.
        heads, kv_heads: query heads, and key heads (default: as many).
        head_dim: default hidden_size / heads.
        rope_theta: base of the rotation of q and k, or None for none. A layer that is given q, k and v
            takes `head_dim` too if it is to rotate them.
        bias: whether the projections have one.
        impl: how attention is computed, see `swalib.attention.attend`.

    Raises:
        ValueError: sizes that do not fit together; positions="cache" without a rotation.
    """

    def __init__(
        self,
        spec: LayerSpec,
        hidden_size: int | None = None,
        heads: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        rope_theta: float | None = None,
        bias: bool = False,
        impl: str = "sdpa",
    ) -> None:
        super().__init__()
        if not isinstance(spec, LayerSpec):
            raise TypeError(f"a layer's spec is Full(), SWA(window, sinks) or PerHead(...), got {spec!r}")
        self.spec, self.impl = spec, check_impl(impl)
        self.hidden_size = hidden_size
        if hidden_size is not None:
            head_dim, kv_heads = self._project(hidden_size, heads, kv_heads, head_dim, bias)
        self._in_cache = _any(spec, "positions", "cache")
        if rope_theta is None and self._in_cache:
            raise ValueError('positions="cache" turns keys anew at every step: give the layer a rope_theta')
        if rope_theta is not None and (head_dim is None or head_dim % 2):
            raise ValueError(f"rope_theta rotates pairs of dimensions: give an even head_dim, not {head_dim}")
        self.rotary_emb = None if rope_theta is None else RotaryEmbedding(head_dim, rope_theta)
        if _any(spec, "sink_logit", "learned"):
            if heads is None:
                raise ValueError('sink_logit="learned" is a parameter for each head: give heads')
            self.sink_logits = nn.Parameter(torch.zeros(heads))

    def _project(self, hidden_size, heads, kv_heads, head_dim, bias) -> tuple[int, int]:
        kv_heads = heads if kv_heads is None else kv_heads
        if not heads or heads % kv_heads or (head_dim is None and hidden_size % heads):
            raise ValueError(
                f"heads must be a multiple of kv_heads, and divide hidden_size unless head_dim is given; got "
                f"hidden_size={hidden_size}, heads={heads}, kv_heads={kv_heads}"
            )
        self.head_dim = hidden_size // heads if head_dim is None else head_dim
        self.q_proj = nn.Linear(hidden_size, heads * self.head_dim, bias)
        self.k_proj = nn.Linear(hidden_size, kv_heads * self.head_dim, bias)
        self.v_proj = nn.Linear(hidden_size, kv_heads * self.head_dim, bias)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden_size, bias)
        return self.head_dim, kv_heads

    def new_cache(self) -> SinkCache:
        """An empty cache for this layer; give it to each call in turn."""
        return SinkCache((self.spec,))

    def forward(
        self, *inputs: Tensor, cache: SinkCache | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Attend from the given tokens to those before them, cached ones included.

        Args:
            inputs: hidden states [b, t, hidden_size]; or, for a layer without projections, q [b, h, t, d],
                k [b, h_kv, t, d] and v [b, h_kv, t, d_v], not rotated yet if the layer has a `rope_theta`.
            attention_mask: padding mask [b, tokens so far], 1 for a token, or None for no padding.

        Returns:
            Hidden states [b, t, hidden_size]; or o [b, h, t, d_v].

        Raises:
            TypeError: other inputs than the layer takes.
            ValueError: the padding mask has a hole or another length; the cache is another layer's.
        """
        if len(inputs) != (1 if self.hidden_size is not None else 3):
            wanted = "q, k and v" if self.hidden_size is None else "hidden states"
            raise TypeError(f"this layer takes {wanted}, got {len(inputs)} tensors")
        if self.hidden_size is None:
            return self._attend(*inputs, cache, attention_mask)
        (x,) = inputs
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(self._attend(q, k, v, cache, attention_mask).transpose(1, 2).flatten(2))

    def _attend(self, q, k, v, cache: SinkCache | None, attention_mask: Tensor | None) -> Tensor:
        step = self._step(q.shape[0], q.shape[-2], cache, attention_mask)
        rope = Rope(self.rotary_emb) if self.rotary_emb is not None else None
        if rope is not None and not self._in_cache:
            position = torch.arange(step.start, step.start + step.length)
            q, k, rope = rope(q, position), rope(k, position), None
        if cache is not None:
            k, v = cache.update(k, v, 0)
        logits = sink_logits(self.spec, q.shape[1], getattr(self, "sink_logits", None), q)
        scoring = Scoring(q.shape[-1] ** -0.5, rope, None, logits)
        return step.attend(self.spec, q, k, v, scoring, self.impl)[0]

    def _step(self, rows: int, length: int, cache: SinkCache | None, attention_mask: Tensor | None) -> Step:
        if cache is not None and cache.specs != (self.spec,):
            raise ValueError(f"this cache was made for other specs than this layer's {self.spec}")
        start = cache.get_seq_length() if cache is not None else 0
        padding = checked_padding(attention_mask, cache, rows, start + length)
        if cache is not None:
            cache.left_padding = padding
        return Step.masked(start, length, attention_mask)


def _any(spec: LayerSpec, field: str, value: str) -> bool:
    heads = getattr(spec, "heads", (spec,))
    return any(isinstance(head, SWA) and getattr(head, field) == value for head in heads)
