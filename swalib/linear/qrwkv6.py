"""QRWKV6, RAD-RWKV6 of RADLADS (2505.03005): RWKV-6's decay and token shift, attention's projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from swalib.linear.mixer import MixerConfig, MixerState, Tokens
from swalib.linear.recurrences import State, balanced_keys, diagonal_decay, inert
from swalib.linear.rwkv6 import (
    DataDependentShift,
    Rwkv,
    fill,
    low_rank,
    normed_by_head,
    start_orthogonal,
    wide,
)

GATES = ("full", "low_rank", "none")


@dataclass(frozen=True)
class QRWKV6Config(MixerConfig):
    """The released configuration's settings, under its names in brackets.

    Args:
        token_shift: mix each token with the one before [use_tokenshift].
        rope: rotate q and k [use_pos_emb]. Channels that RoPE turns into each other decay on their own, so
            that not only distances matter but positions too: a text must start at 0.
        balance: write k∘(1 - w) for k [balance_state].
        group_norm: norm each head of the output, eps 1e-5·head_dim [groupnorm_att].
        gate: [gate_rank_type] "full" (1): sigmoid(x_g W_g); "low_rank" (2): sigmoid(x_g G1) G2; "none" (0).
        shift_rank, decay_rank, gate_rank: of low-rank maps [lora_rank_tokenshift, _decay, _gate]; None for
            the released sizes, next to 1.8·hidden^0.5 (the gate: 0.6·hidden^0.8).
    """

    method: ClassVar[str] = "qrwkv6"
    token_shift: bool = True
    rope: bool = False
    balance: bool = True
    group_norm: bool = False
    gate: str = "full"
    shift_rank: int | None = None
    decay_rank: int | None = None
    gate_rank: int | None = None

    def __post_init__(self) -> None:
        check_gate(self.gate)


def check_gate(gate: str) -> None:
    """
    Raises:
        ValueError: it names no gate.
    """
    if gate not in GATES:
        raise ValueError(f"gate must be one of {list(GATES)}, got {gate!r}")


class RadGate(Rwkv):
    """The gate and the norm that RAD-RWKV6 and RAD-RWKV7 may have, under the released parameters' names."""

    def add_gate(self, rank: int | None) -> None:
        """What the config asks for."""
        c = self.sizes.hidden_size
        if self.config.gate == "full":
            self.gate = nn.Linear(c, self.width, bias=False)
        if self.config.gate == "low_rank":
            rank = rank or low_rank(c, 0.8, 0.6)
            self.g1, self.g2 = self.new(c, rank), self.new(rank, self.width)
        if self.config.group_norm:
            self.ln_x = nn.GroupNorm(self.sizes.heads, self.width, eps=1e-5 * self.sizes.head_dim)

    def start_gate(self) -> None:
        """Full: 0.5 everywhere, for any token. Low-rank: the same for any token, small."""
        if self.config.gate == "full":
            nn.init.zeros_(self.gate.weight)
        if self.config.gate == "low_rank":
            nn.init.zeros_(self.g1)
            start_orthogonal(self.g2)

    def gated(self, o: Tensor, x: Tensor) -> Tensor:
        """o [b, t, h·d] by the gate of x, in x's dtype."""
        if self.config.gate == "full":
            o = o * torch.sigmoid(self.gate(x))
        if self.config.gate == "low_rank":
            o = o * (torch.sigmoid(x @ self.g1) @ self.g2)
        return o.to(x.dtype)


class QRWKV6(DataDependentShift, RadGate):
    """QRWKV6 / RAD-RWKV6 (RADLADS, 2505.03005; recursal/RADLADS-paper, `TMix_qwen2rwkv6`).

        q, k, v = x_r W_q, x_k W_k, x_v W_v        log w = max(-exp(time_decay + tanh(x_w A) B), -5)
        S_t = diag(w_t) S_{t-1} + (k_t∘(1 - w_t))^T v_t        o_t = d^(-1/2) q_t S_t
        y = (o∘sigmoid(x_g W_g)) W_o

    As GLA, not as RWKV-6: output after the update, no bonus, no norm; what decays is written ("balance"), so
    the state stays in the values' range. kv heads are repeated for the queries that share them. x_c is the
    token shift of `DataDependentShift`, W1's slices in the order r, k, v, w, g. Parameters have the released
    names. The paper's equations scale by d^(-1/2) twice, the code once, by the GLA kernel's default; so here.
    A later version of the code that calls another kernel scales by hand: the same.

    State: "S" [b, h, d, d], keys by values, fp32; with token_shift "last" [b, hidden], the row's last real
    token, in x's dtype.

    Released faults, not here: the training code returns the state it was given, and knows no pads, so that a
    row's first token after some is mixed with the last of them.

    `init_from` copies q, k, v and o, with biases, and Qwen3's norms of q and k. New: the token shift, which
    starts as none (maa_c 0, maa_x 1, W1 0); the decay, from slow to fast over the channels; the gate, 0.5.
    """

    Config = QRWKV6Config
    order = "rkvwg"

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        rank = low_rank(sizes.hidden_size, 0.5, 1.8)
        if config.token_shift:
            self.add_shift(config.shift_rank or rank)
        self.add_decay(config.decay_rank or rank)
        self.add_gate(config.gate_rank)
        self.start(sizes.layer + 1)

    def start(self, layers: int) -> None:
        """As `Rwkv.start`."""
        if self.config.token_shift:
            for name in f"x{self.order}":
                fill(getattr(self, f"time_maa_{name}"), float(name == "x"))
            nn.init.zeros_(self.time_maa_w1)
            nn.init.uniform_(self.time_maa_w2, -0.01, 0.01)
        self.start_decay(self.depth(layers)[0])
        self.start_gate()

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        to, kept = dict.fromkeys(self.order, x), {}
        if self.config.token_shift:
            to, kept["last"] = self.shifted(x, tokens, state)
        q, k, v = self.projected(to["r"], to["k"], to["v"])
        if self.config.rope:
            q, k = tokens.rotate(q), tokens.rotate(k)
        k, v = self.per_query_head(k), self.per_query_head(v)
        log_decay = self.log_decay(to["w"]).clamp(min=-5)
        if self.config.balance:
            k = balanced_keys(k, log_decay)
        k, v, log_decay = inert(tokens.real, k, v, log_decay)
        scale, before = self.sizes.head_dim**-0.5, None if state is None else State(state["S"])
        o, after = diagonal_decay(
            wide(q), k, v, log_decay, scale=scale, state=before, form=form, impl=self.impl
        )
        o = self.merged(o)
        if self.config.group_norm:
            o = normed_by_head(self.ln_x, o)
        return self.o_proj(self.gated(o, to["g"])), {"S": after.S, **kept}
