"""Mamba in the Llama: Mamba-2 that starts from an attention's own projections."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swalib.linear._conv import CausalConv, ConvMixer, by_head
from swalib.linear._forms import compute_dtype
from swalib.linear.mixer import MixerConfig, MixerState, Tokens
from swalib.linear.recurrences import State, inert, scalar_decay

NORMS = ("after_gate", "before_gate", "none")


@dataclass(frozen=True)
class MambaInLlamaConfig(MixerConfig):
    """Mamba in the Llama's settings.

    Args:
        conv_taps: of the convolution.
        repeat_before_conv: x and B are repeated for the query heads before the convolution, which then has
            taps for each; not after it.
        norm: of each head's outputs, "after_gate", "before_gate" or "none".
        eps: of the norm.

    Raises:
        ValueError: an unknown norm.
    """

    method: ClassVar[str] = "mamba_in_llama"
    conv_taps: int = 4
    repeat_before_conv: bool = False
    norm: str = "after_gate"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise ValueError(f"norm must be one of {list(NORMS)}, got {self.norm!r}")


class MambaInLlama(ConvMixer):
    """Mamba in the Llama (2408.15237; jxiw/MambaInLlama, its Mamba-2):

        x, B = silu(conv(W_V u, W_K u)) at kv width, then repeated; C = silu(conv(W_Q u)); no RoPE
        dt = softplus(W_dt u + dt_bias)          A = -exp(A_log)             one of each a head
        S_t = exp(A dt_t) S_{t-1} + B_t^T (dt_t x_t)         y_t = C_t S_t + D x_t
        out = W_o( RMSNorm_head( y · silu(W_z u) ) · norm_weight )

    The convolution is causal, depthwise, with bias. q_proj is W_C, k_proj W_B, v_proj W_x.

    State: S [b, h, d, d], fp32, [B's axis, x's axis] (released: transposed); conv [b, conv_taps - 1, channels
    of x, B, C].

    Start (`init_from`): W_C, W_B, W_x and W_o copy W_Q, W_K, W_V and W_O, biases and the teacher's norms of q
    and k along. New, as released: W_z, W_dt and the convolution drawn as any linear layer and convolution,
    dt_bias such that softplus of it is log-uniform in [0.001, 0.1], exp(A_log) uniform in [1, 16], D and
    norm_weight 1.

    Released code decodes with `repeat_before_conv` as if it were off and fails, and so does its convolution
    where causal_conv1d is not installed; here both work. Its D per channel and bounds on dt are not offered.
    """

    Config = MambaInLlamaConfig

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        inner, heads = sizes.heads * sizes.head_dim, sizes.heads
        self.kv_heads = heads if config.repeat_before_conv else sizes.kv_heads
        self.z_proj = nn.Linear(sizes.hidden_size, inner, bias=False)
        self.dt_proj = nn.Linear(sizes.hidden_size, heads, bias=False)
        self.dt_bias = nn.Parameter(dt_bias_start(heads))
        self.A_log = nn.Parameter(a_log_start(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm_weight = None if config.norm == "none" else nn.Parameter(torch.ones(inner))
        self.conv1d = CausalConv(inner + 2 * self.kv_heads * sizes.head_dim, config.conv_taps)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `ConvMixer.projected`, k and v repeated if that comes before the convolution."""
        q, k, v = super().projected(x)
        if self.config.repeat_before_conv:
            k, v = (self.merged(by_head(z, self.sizes.kv_heads, self.kv_heads)) for z in (k, v))
        return q, k, v

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        (c, b, v), kept = self.convolved(x, tokens, state)
        heads, kv_heads = self.sizes.heads, self.kv_heads
        c, b, v = by_head(F.silu(c), heads, heads), *(by_head(F.silu(z), kv_heads, heads) for z in (b, v))
        dt, log_decay = step_and_decay(self.dt_proj(x), self.dt_bias, self.A_log)
        b, log_decay, written = inert(tokens.real, b, log_decay, dt[..., None] * v)
        before = None if state is None else State(state["S"])
        y, after = scalar_decay(c, b, written, log_decay, state=before, form=form, impl=self.impl)
        y = self._gated(y + self.D[:, None, None] * v, by_head(self.z_proj(x), heads, heads))
        return self.o_proj(self.merged(y)), {"S": after.S, **kept}

    def _gated(self, y: Tensor, z: Tensor) -> Tensor:
        """y [b, h, t, d] gated by z and normed, in the order of the config."""
        dtype, gate = y.dtype, F.silu(z.to(compute_dtype(z)))
        y = y.to(gate.dtype)
        if self.config.norm == "none":
            return (y * gate).to(dtype)
        y = y * gate if self.config.norm == "after_gate" else y
        weight = self.norm_weight.to(gate.dtype).view(-1, 1, y.shape[-1])
        y = F.rms_norm(y, y.shape[-1:], eps=self.config.eps) * weight
        y = y * gate if self.config.norm == "before_gate" else y
        return y.to(dtype)


def step_and_decay(raw: Tensor, dt_bias: Tensor, a_log: Tensor) -> tuple[Tensor, Tensor]:
    """Mamba-2's dt = softplus(raw + dt_bias) and log decay -exp(A_log) dt: raw [b, t, h], both [b, h, t]."""
    dtype = compute_dtype(raw)
    dt = F.softplus(raw.to(dtype) + dt_bias.to(dtype))
    return dt.mT, (-a_log.to(dtype).exp() * dt).mT


def dt_bias_start(heads: int, low: float = 1e-3, high: float = 1e-1) -> Tensor:
    """[heads] whose softplus is log-uniform in [low, high], as Mamba-2 starts."""
    dt = torch.exp(torch.rand(heads) * math.log(high / low) + math.log(low))
    return dt + torch.log(-torch.expm1(-dt))


def a_log_start(heads: int, low: float = 1.0, high: float = 16.0) -> Tensor:
    """[heads], logs of numbers uniform in [low, high]; of at least 1e-4, so that none is infinite."""
    return torch.empty(heads).uniform_(low, high).clamp(min=1e-4).log()
