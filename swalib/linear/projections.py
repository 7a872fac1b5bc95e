"""A teacher's attention, read as four projections: what every method starts from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from swalib.positions import HALVES, Rotation

_OUT = ("o_proj", "dense", "out_proj")  # Llama and most; Phi; OPT-like names


@dataclass(frozen=True)
class Sizes:
    """Sizes of an attention: hidden_size; heads and kv_heads of head_dim; whether q, k, v and o have biases;
    the index of its layer."""

    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    o_bias: bool = False
    layer: int = 0


@dataclass(frozen=True)
class Projections:
    """q, k, v, o: linear layers; q_norm, k_norm: norms over the head, or None; how q and k are rotated, or
    None for not at all; the factor on q·k; where scores are capped (Gemma 2), softcap·tanh(score/softcap)."""

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear
    head_dim: int
    q_norm: nn.Module | None = None
    k_norm: nn.Module | None = None
    rotation: Rotation | None = HALVES
    scale: float = 1.0
    softcap: float | None = None

    def sizes(self, layer: int = 0) -> Sizes:
        """What a mixer needs to know of them."""
        return Sizes(
            self.q.in_features,
            self.q.out_features // self.head_dim,
            self.k.out_features // self.head_dim,
            self.head_dim,
            self.q.bias is not None,
            self.o.bias is not None,
            layer,
        )


def projections(attention: nn.Module) -> Projections:
    """The projections of an attention of the Llama, Qwen2, Qwen3, Mistral, Phi, Phi-3 or Gemma families (and
    of any that names its parts as they do). Phi-3's one matrix for q, k and v comes apart as copies.

    Raises:
        ValueError: its parts are named otherwise.
    """
    head_dim = getattr(attention, "head_dim", None)
    out = next((getattr(attention, name) for name in _OUT if hasattr(attention, name)), None)
    if hasattr(attention, "qkv_proj"):
        parts = _apart(attention.qkv_proj, out.in_features, head_dim)
    else:
        parts = tuple(getattr(attention, f"{name}_proj", None) for name in "qkv")
    if head_dim is None or out is None or not all(isinstance(part, nn.Linear) for part in parts):
        raise ValueError(
            f"{type(attention).__name__} is no attention of a known layout: q_proj, k_proj, v_proj (or "
            "qkv_proj) and o_proj, with a head_dim"
        )
    norms = (getattr(attention, "q_norm", None), getattr(attention, "k_norm", None))
    rotation = HALVES if getattr(attention, "use_rope", True) else None
    scale = getattr(attention, "scaling", head_dim**-0.5)
    softcap = getattr(attention, "attn_logit_softcapping", None)
    return Projections(*parts, out, head_dim, *norms, rotation, scale, softcap)


def _apart(fused: nn.Linear, query_width: int, head_dim: int) -> tuple[nn.Linear, ...]:
    key_width = (fused.out_features - query_width) // 2
    widths = (query_width, key_width, key_width)
    parts = []
    for width, weight in zip(widths, fused.weight.split(widths), strict=True):
        linear = nn.Linear(fused.in_features, width, bias=False, device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            linear.weight.copy_(weight)
        parts.append(linear)
    return tuple(parts)
