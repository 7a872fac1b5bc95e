"""Gated DeltaNet: a state that forgets, and replaces what a key recalls rather than adding to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from swalib.linear._conv import CausalConv, ConvMixer, by_head
from swalib.linear._forms import compute_dtype
from swalib.linear.gla import value_size
from swalib.linear.mamba_in_llama import a_log_start, dt_bias_start, step_and_decay
from swalib.linear.mixer import MixerConfig, MixerState, Tokens
from swalib.linear.recurrences import State, delta_rule, inert


@dataclass(frozen=True)
class GatedDeltaNetConfig(MixerConfig):
    """Gated DeltaNet's settings.

    Args:
        conv_taps: of the convolution of q, k and v; 0 for none (silu stays).
        conv_bias: whether it has one.
        negative_eigenvalues: beta in (0, 2), not (0, 1) (2411.12537): a key may flip what it recalls.
        output_gate: whether outputs are gated.
        expand_v: a value head's size over a key head's (2 in models trained from scratch); other than 1 the
            values can't be the teacher's.
        v_heads: heads of the values where they are more than those of q (a multiple), whose q and k they then
            share; the values can't be the teacher's. None: as many as the teacher's.
        eps: of the norm.
    """

    method: ClassVar[str] = "gated_deltanet"
    conv_taps: int = 4
    conv_bias: bool = False
    negative_eigenvalues: bool = False
    output_gate: bool = True
    expand_v: float = 1.0
    v_heads: int | None = None
    eps: float = 1e-5


class GatedDeltaNet(ConvMixer):
    """Gated DeltaNet (2412.06464; fla-org/flash-linear-attention, fla/layers/gated_deltanet.py):

        q, k, v = silu(conv(W x))        causal, depthwise; k, v at kv width, then repeated; no RoPE
        q, k ← q / |q|, k / |k|          |q| = sqrt(q·q + 1e-6)
        g = -exp(A_log) softplus(W_a x + dt_bias)            beta = sigmoid(W_b x)           one a head
        S = exp(g_t) S_{t-1}        S_t = S + k_t^T beta_t (v_t - k_t S)        o_t = q_t S_t / sqrt(d)
        y = W_o( RMSNorm_head(o) · silu(W_g x) )             the norm's weight shared by the heads

    State: S [b, h, d, d·expand_v], fp32, h the larger of the heads of q and v; conv [b, conv_taps - 1,
    channels of v, k, q] (released: one of [b, channels, conv_taps] for each of q, k, v).

    Start (`init_from`): q, k, v and o stay the teacher's own, with its norms of q and k before the
    convolution (2412.06464 trains from scratch; its student in this comparison is trained as LoLCATs',
    which freezes them and then adds low-rank updates). New, as released: W_a, W_b, W_g and the convolution
    drawn as any linear layer and convolution, dt_bias such that softplus of it is log-uniform in
    [0.001, 0.1], exp(A_log) uniform in [0, 16], the norm's weight 1. With expand_v or v_heads v and o are new
    too.

    Raises:
        ValueError: expand_v gives value heads that are not of a whole size, or v_heads is no multiple of the
            heads of q.
    """

    Config = GatedDeltaNetConfig
    shares = True

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        hidden, d_v = sizes.hidden_size, value_size(sizes.head_dim, config.expand_v)
        self.v_heads = sizes.kv_heads if config.v_heads is None else config.v_heads
        self.heads = sizes.heads if config.v_heads is None else config.v_heads  # of the state
        if self.heads < 1 or self.heads % sizes.heads:
            raise ValueError(f"{self.heads} value heads are no multiple of {sizes.heads} heads")
        if (self.v_heads, d_v) != (sizes.kv_heads, sizes.head_dim):
            self.taken = "qk"
            self.v_proj = nn.Linear(hidden, self.v_heads * d_v, bias=sizes.qkv_bias)
            self.o_proj = nn.Linear(self.heads * d_v, hidden, bias=sizes.o_bias)
        self.a_proj = nn.Linear(hidden, self.heads, bias=False)
        self.b_proj = nn.Linear(hidden, self.heads, bias=False)
        self.A_log = nn.Parameter(a_log_start(self.heads, low=0.0))
        self.dt_bias = nn.Parameter(dt_bias_start(self.heads))
        self.g_proj = nn.Linear(hidden, self.heads * d_v, bias=False) if config.output_gate else None
        self.norm = nn.RMSNorm(d_v, eps=config.eps)
        if config.conv_taps:
            channels = (sizes.heads + sizes.kv_heads) * sizes.head_dim + self.v_heads * d_v
            self.conv1d = CausalConv(channels, config.conv_taps, bias=config.conv_bias)

    def beta(self, x: Tensor) -> Tensor:
        """What share of the recalled value is replaced, [b, h, t], in fp32 (fp64)."""
        raw = self.b_proj(x)
        beta = raw.to(compute_dtype(raw)).sigmoid().mT
        return 2 * beta if self.config.negative_eigenvalues else beta

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        parts, kept = self.convolved(x, tokens, state)
        heads = (self.sizes.heads, self.sizes.kv_heads, self.v_heads)
        q, k, v = (by_head(F.silu(z), n, self.heads) for z, n in zip(parts, heads, strict=True))
        _, log_decay = step_and_decay(self.a_proj(x), self.dt_bias, self.A_log)
        k, v, beta, log_decay = inert(tokens.real, unit(k), v, self.beta(x), log_decay)
        before, scale = None if state is None else State(state["S"]), self.sizes.head_dim**-0.5
        o, after = delta_rule(
            unit(q), k, v, beta, log_decay, scale=scale, state=before, form=form, impl=self.impl
        )
        o = self.norm(o.to(self.norm.weight.dtype))
        if self.g_proj is not None:
            o = o * F.silu(by_head(self.g_proj(x), self.heads, self.heads))
        return self.o_proj(self.merged(o)), {"S": after.S, **kept}


def unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(x·x + eps) over the last axis, in fp32 (fp64)."""
    x = x.to(compute_dtype(x))
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()
