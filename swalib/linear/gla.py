"""Gated linear attention: a state that forgets each channel of the keys at a rate of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from swalib.linear._conv import CausalConv, ConvMixer, by_head
from swalib.linear._forms import compute_dtype
from swalib.linear.mixer import MixerConfig, MixerState, Tokens
from swalib.linear.recurrences import State, diagonal_decay, inert


@dataclass(frozen=True)
class GLAConfig(MixerConfig):
    """GLA's settings.

    Args:
        gate_rank: of the low-rank map that gives the forget gate.
        gate_divisor: of the gate's logarithm.
        min_log_decay: the gate's logarithm is at least this; None for no bound.
        output_gate: whether outputs are gated.
        expand_v: a value head's size over a key head's; other than 1 the values can't be the teacher's.
        conv_taps: of a convolution, without bias and with silu, of q, k and v; 0 for none.
        eps: of the norm.
    """

    method: ClassVar[str] = "gla"
    gate_rank: int = 16
    gate_divisor: float = 16.0
    min_log_decay: float | None = None
    output_gate: bool = True
    expand_v: float = 1.0
    conv_taps: int = 0
    eps: float = 1e-5


class GLA(ConvMixer):
    """Gated linear attention (GLA, 2312.06635; fla-org/flash-linear-attention, fla/layers/gla.py):

        log alpha = logsigmoid(W_2 W_1 x + b) / 16        a channel of each key head, shared as keys are
        S_t = diag(alpha_t) S_{t-1} + k_t^T v_t         o_t = q_t S_t / sqrt(d)
        y = W_o( RMSNorm_head(o) · silu(W_g x) )        the norm's weight shared by the heads

    No RoPE, no feature map, no denominator; k, v and alpha are repeated for the query heads that share them.

    State: S [b, h, d, d·expand_v], fp32; with a convolution conv [b, conv_taps - 1, channels of v, k, q].

    Start (`init_from`): q, k, v and o stay the teacher's own, with its norms of q and k (2312.06635 trains
    from scratch; its student in this comparison is trained as LoLCATs', which freezes them and then adds
    low-rank updates). New, as released: W_1, W_2, b, W_g and the convolution drawn as any linear layer and
    convolution, the norm's weight 1. With expand_v other than 1 v and o are new too.

    Released feature maps and output activations other than swish are not offered.

    Raises:
        ValueError: expand_v gives value heads that are not of a whole size.
    """

    Config = GLAConfig
    shares = True

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        hidden, d_v = sizes.hidden_size, value_size(sizes.head_dim, config.expand_v)
        if d_v != sizes.head_dim:
            self.taken = "qk"
            self.v_proj = nn.Linear(hidden, sizes.kv_heads * d_v, bias=sizes.qkv_bias)
            self.o_proj = nn.Linear(sizes.heads * d_v, hidden, bias=sizes.o_bias)
        key_width = sizes.kv_heads * sizes.head_dim
        self.gate = nn.Sequential(
            nn.Linear(hidden, config.gate_rank, bias=False), nn.Linear(config.gate_rank, key_width)
        )
        self.g_proj = nn.Linear(hidden, sizes.heads * d_v, bias=False) if config.output_gate else None
        self.norm = nn.RMSNorm(d_v, eps=config.eps)
        if config.conv_taps:
            channels = sizes.heads * sizes.head_dim + key_width + sizes.kv_heads * d_v
            self.conv1d = CausalConv(channels, config.conv_taps, bias=False)

    def log_decay(self, x: Tensor) -> Tensor:
        """Logarithm of the forget gate, [b, t, h_kv·d], in fp32 (fp64)."""
        raw = self.gate(x)
        log_decay = F.logsigmoid(raw.to(compute_dtype(raw))) / self.config.gate_divisor
        bound = self.config.min_log_decay
        return log_decay if bound is None else log_decay.clamp(min=bound)

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        heads, kv_heads = self.sizes.heads, self.sizes.kv_heads
        (q, k, v), kept = self.convolved(x, tokens, state)
        if self.conv1d is not None:
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        q = by_head(q, heads, heads)
        k, v, log_decay = (by_head(z, kv_heads, heads) for z in (k, v, self.log_decay(x)))
        k, v, log_decay = inert(tokens.real, k, v, log_decay)
        before, scale = None if state is None else State(state["S"]), self.sizes.head_dim**-0.5
        o, after = diagonal_decay(q, k, v, log_decay, scale=scale, state=before, form=form, impl=self.impl)
        o = self.norm(o.to(self.norm.weight.dtype))
        if self.g_proj is not None:
            o = o * F.silu(by_head(self.g_proj(x), heads, heads))
        return self.o_proj(self.merged(o)), {"S": after.S, **kept}


def value_size(head_dim: int, expand_v: float) -> int:
    """head_dim · expand_v.

    Raises:
        ValueError: that is no whole, positive number.
    """
    size = round(head_dim * expand_v)
    if size < 1 or abs(size - head_dim * expand_v) > 1e-5 * size:
        raise ValueError(f"expand_v {expand_v} gives value heads of {head_dim * expand_v}, no whole size")
    return size
