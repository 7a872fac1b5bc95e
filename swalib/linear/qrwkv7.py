"""QRWKV7, RAD-RWKV7 of RADLADS (2505.03005): RWKV-7's recurrence, attention's projections and RoPE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from swalib.linear.mixer import MixerConfig, MixerState, Tokens
from swalib.linear.qrwkv6 import RadGate, check_gate
from swalib.linear.recurrences import State, inert, rwkv7
from swalib.linear.rwkv6 import fill, low_rank, normed_by_head, ramp, wide
from swalib.linear.rwkv7 import Rwkv7Parts


@dataclass(frozen=True)
class QRWKV7Config(MixerConfig):
    """The released configuration's settings, under its names in brackets.

    Args:
        rope: rotate r and k [use_pos_emb].
        balance: write k∘(1 - w + a) for k, and remove along k itself; else as RWKV-7, with k_k and k_a
            [balance_state].
        group_norm: norm each head of the output, eps 1e-5·head_dim, in place of the scale [groupnorm_att].
        gate: [gate_rank_type] "low_rank" (2): sigmoid(x G1) G2; "full" (1): sigmoid(x W_g); "none" (0).
        decay_rank, rate_rank, value_rank, gate_rank: of low-rank maps [lora_rank_decay, _iclr,
            _value_residual_mix, _gate]; None for the released sizes, next to 1.8, 1.8 and 1.3 times
            hidden^0.5 and 0.6·hidden^0.8.
    """

    method: ClassVar[str] = "qrwkv7"
    rope: bool = True
    balance: bool = True
    group_norm: bool = False
    gate: str = "low_rank"
    decay_rank: int | None = None
    rate_rank: int | None = None
    value_rank: int | None = None
    gate_rank: int | None = None

    def __post_init__(self) -> None:
        check_gate(self.gate)


def slow_to_fast(width: int, depth: float) -> Tensor:
    """Where RAD-RWKV7's and ARWKV's w0 start, the more of it slow the deeper the layer (0 to 1)."""
    return -7 + 5 * ramp(width) ** (0.85 + depth**0.5) + 0.5


class QRWKV7(Rwkv7Parts, RadGate):
    """QRWKV7 / RAD-RWKV7 (RADLADS, 2505.03005; recursal/RADLADS-paper, `TMix_qwen2rwkv7`).

        r, k, v = x W_q, x W_k, x W_v, r and k after RoPE; k, v repeated for the queries that share them
        log w = -e^(-1/2) sigmoid(w0 + tanh(x W1) W2)        a = sigmoid(a0 + x A1 A2)
        kappa = k / |k| in each head        k~ = k∘(1 - w + a)
        layers > 0: v <- v + (v_first - v)∘sigmoid(v0 + x V1 V2)
        S_t = diag(w_t) S_{t-1} - (a_t∘kappa_t)^T (kappa_t S_{t-1}) + k~_t^T v_t        o_t = d^(-1/2) r_t S_t
        y = (o∘(sigmoid(x G1) G2)) W_o

    As RWKV-7 without token shift, bonus and norm: what decays (1 - w) and what is removed (a) is written.
    Channels that RoPE turns into each other decay on their own, so that not only distances matter but
    positions too: a text must start at 0. Parameters have the released names; those that the released layers
    hold and don't use are not here: v0, v1, v2 in layer 0, r_k everywhere, k_k and k_a with balance.

    State: "S" [b, h, d, d], keys by values (the transpose of the released), fp32. Within a forward, layer 0
    hands its values on to later layers as shared["v_first"], [b, h, t, d], after the repetition of kv heads;
    they raise a ValueError if it is missing.

    Released differences: with balance off, the port to transformers for Qwen3 still removes along k and
    writes k (here: k_k = 1, k_a = 0). The scale is applied by hand after a kernel whose own default was 1;
    fla changed its default to d^(-1/2) in 2025, so that with a newer fla the released code scales twice.

    `init_from` copies q, k, v and o, with biases, and Qwen3's norms of q and k. New: the decay, from slow to
    fast over the channels; a 0.5; v with 0.73 of v_first (v0 = 1); the gate, the same for any token and
    small; k_k 0.85, k_a 1.
    """

    Config = QRWKV7Config

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        rank = low_rank(sizes.hidden_size, 0.5, 1.8)
        self.add_low_rank("w", config.decay_rank or rank)
        self.add_low_rank("a", config.rate_rank or rank)
        if sizes.layer > 0:
            self.add_low_rank("v", config.value_rank or low_rank(sizes.hidden_size, 0.5, 1.3))
        if not config.balance:
            self.k_k, self.k_a = self.new(1, 1, self.width), self.new(1, 1, self.width)
        self.add_gate(config.gate_rank)
        self.start(sizes.layer + 1)

    def start(self, layers: int) -> None:
        """As `Rwkv.start`."""
        self.start_low_rank("w", slow_to_fast(self.width, self.depth(layers)[0]))
        self.start_low_rank("a", 0.0)
        if self.sizes.layer > 0:
            self.start_low_rank("v", 1.0)
        if not self.config.balance:
            fill(self.k_k, 0.85)
            fill(self.k_a, 1.0)
        self.start_gate()

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        r, k, v = self.projected(x, x, x)
        if self.config.rope:
            r, k = tokens.rotate(r), tokens.rotate(k)
        k, v = self.per_query_head(k), self.per_query_head(v)
        v, a, log_decay = self.with_first_values(v, x, tokens.shared), self.rate(x), self.log_decay(x)
        if self.config.balance:
            kappa, k = F.normalize(wide(k), dim=-1), k * (a - log_decay.expm1())
        else:
            kappa, k = self.removal_and_written_keys(k, a)
        log_decay, k, v, kappa = inert(tokens.real, log_decay, k, v, kappa)
        before = None if state is None else State(state["S"])
        o, after = rwkv7(wide(r), log_decay, k, v, kappa, a, state=before, form=form, impl=self.impl)
        o = self.merged(o)
        o = normed_by_head(self.ln_x, o) if self.config.group_norm else o * self.sizes.head_dim**-0.5
        return self.o_proj(self.gated(o, x)), {"S": after.S}
