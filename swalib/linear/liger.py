"""Liger-GLA (2503.01496): gated linear attention without a new parameter, beside a softmax window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from swalib.linear._forms import compute_dtype
from swalib.linear._window import Held, window_attention
from swalib.linear.feature_maps import feature_map
from swalib.linear.mixer import Mixer, MixerConfig, MixerState, Tokens
from swalib.linear.projections import Projections
from swalib.linear.recurrences import State, diagonal_decay, inert
from swalib.spec import SWA


@dataclass(frozen=True)
class LigerConfig(MixerConfig):
    """
    Args:
        window: keys in the softmax half, the own one counted. 65 is what the released code sees with its
            `sliding_window=64` on older transformers (4.52), which counts the keys *behind* the query.
        linear_share: weight of the gated half; the window has the rest.
        gate_divisor: of the gate's logarithm. The paper's table leaves it out (1), its code has 16.

    Raises:
        ValueError: window below 1, linear_share outside [0, 1], or gate_divisor not positive.
    """

    method: ClassVar[str] = "liger"
    window: int = 64
    linear_share: float = 0.5
    gate_divisor: float = 16.0

    def __post_init__(self) -> None:
        SWA(self.window, 0)
        if not 0 <= self.linear_share <= 1:
            raise ValueError(f"linear_share must lie in [0, 1], got {self.linear_share}")
        if not self.gate_divisor > 0:
            raise ValueError(f"gate_divisor must be positive, got {self.gate_divisor}")


class Liger(Mixer):
    """Liger-GLA (2503.01496; OpenSparseLLMs/Linearization, `modeling_liger_gla.py`):

        alpha_t = sigmoid(k_t)^(1/16)        S_t = Diag(alpha_t) S_{t-1} + softmax(k_t)^T v_t
        o_t = 0.5·softmax(q_t) S_t + 0.5·SWA(window, 0) of RoPE(q), RoPE(k), v        y = o W_o

    Gate and softmax, which is over the head's dimensions, take q and k as they are before RoPE. No
    denominator and no scale in the gated half; the window's scale and cap are the teacher's. The gate's
    "pooling" in the released code is an identity.

    State: S [b, h, d, d], fp32; k and v [b, h_kv, window-1, d] in the model's dtype, rotated, and position
    [b, window-1], int64. S alone is a prior state, with nothing in the window.

    Released, and not here: decoding keeps no keys, so that the window half of every generated token is its
    own v; left pads keep their keys in the window, with v = 0; the halves are rounded to bf16 before W_o.
    """

    Config = LigerConfig
    shares = True

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        self.phi_q = feature_map("softmax", sizes.heads, sizes.head_dim)
        self.phi_k = feature_map("softmax", sizes.kv_heads, sizes.head_dim)
        self.scale, self.softcap = sizes.head_dim**-0.5, None

    def take(self, source: Projections) -> None:
        """Everything is the teacher's own: projections, to which low-rank updates are trained, norms of q and
        k, and the factor on q·k and its cap (Gemma 2) in the window. Nothing is new."""
        super().take(source)
        self.scale, self.softcap = source.scale, source.softcap

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        q, k, v = self.qkv(x)
        held = Held(state["k"], state["v"], state["position"]) if state and "k" in state else None
        new = Held.given(tokens.rotate(k), v, tokens.position)
        near, held = window_attention(
            tokens.rotate(q),
            new,
            self.config.window,
            scale=self.scale,
            softcap=self.softcap,
            held=held,
            form=form,
        )
        before = None if state is None else State(state["S"])
        far, after = self._gated(q, k, v, tokens.real, before, form)
        share = self.config.linear_share
        o = (1 - share) * near + share * far
        return self.o_proj(self.merged(o)), {"S": after.S, **held._asdict()}

    def _gated(
        self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, before: State | None, form: str
    ) -> tuple[Tensor, State]:
        log_decay = F.logsigmoid(k.to(compute_dtype(k))) / self.config.gate_divisor
        kept = inert(real, self.phi_k(k), v, log_decay)
        kept = (self.per_query_head(x) for x in kept)
        return diagonal_decay(self.phi_q(q), *kept, state=before, form=form, impl=self.impl)
