"""RWKV-7 (2503.14456): a generalised delta rule, and layer 0's values mixed into those of later layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swalib.linear.mixer import MixerConfig, MixerState, Tokens
from swalib.linear.recurrences import State, inert, rwkv7
from swalib.linear.rwkv6 import (
    Rwkv,
    fill,
    low_rank,
    normed_by_head,
    previous_tokens,
    ramp,
    start_orthogonal,
    wide,
)


class Rwkv7Parts(Rwkv):
    """What RWKV-7 and its descendants share, under the released parameters' names: low-rank maps x M1 M2,
    with an offset M0; decay and rate made of them; layer 0's values."""

    def add_low_rank(self, name: str, rank: int, offset: bool = True) -> None:
        """Parameters for the map `name`."""
        if offset:
            setattr(self, f"{name}0", self.new(1, 1, self.width))
        setattr(self, f"{name}1", self.new(self.sizes.hidden_size, rank))
        setattr(self, f"{name}2", self.new(rank, self.width))

    def start_low_rank(self, name: str, offset: Tensor | float | None = None) -> None:
        """Start the map `name` at its offset for any x, M1 being 0."""
        if offset is not None:
            fill(getattr(self, f"{name}0"), offset)
        nn.init.zeros_(getattr(self, f"{name}1"))
        start_orthogonal(getattr(self, f"{name}2"))

    def log_decay(self, x: Tensor) -> Tensor:
        """log w = -e^(-1/2) sigmoid(w0 + tanh(x W1) W2), [b, h, t, d], in fp32 or fp64."""
        low = torch.tanh(x @ self.w1) @ self.w2
        return -math.exp(-0.5) * torch.sigmoid(self.heads_of(wide(self.w0) + wide(low)))

    def rate(self, x: Tensor) -> Tensor:
        """a = sigmoid(a0 + x A1 A2), [b, h, t, d], the in-context learning rate."""
        return torch.sigmoid(self.heads_of(wide(self.a0) + wide(x @ self.a1 @ self.a2)))

    def with_first_values(self, v: Tensor, x: Tensor, shared: dict[str, Tensor]) -> Tensor:
        """Values [b, h, t, d] as this layer uses them, v + (v_first - v) sigmoid(v0 + x V1 V2).

        Layer 0 takes its own as they are, and hands them on as shared["v_first"].

        Raises:
            ValueError: a later layer finds none, or of another shape.
        """
        if self.sizes.layer == 0:
            shared["v_first"] = v
            return v
        first = shared.get("v_first")
        if first is None or first.shape != v.shape:
            found = "none" if first is None else tuple(first.shape)
            raise ValueError(
                f"layer {self.sizes.layer} mixes its values with those of layer 0, which must hand them on: "
                f'tokens.shared["v_first"] should be {tuple(v.shape)}, found {found}'
            )
        mixed = torch.sigmoid(self.heads_of(wide(self.v0) + wide(x @ self.v1 @ self.v2)))
        return v + (first.to(v.device) - v) * mixed

    def by_head(self, parameter: Tensor) -> Tensor:
        """[..., h·d] as [h, 1, d], against [b, h, t, d]; in fp32 or fp64."""
        return wide(parameter).view(self.sizes.heads, 1, self.sizes.head_dim)

    def removal_and_written_keys(self, k: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """kappa = k∘k_k, at norm 1 in each head, and k∘(1 + (a - 1)∘k_a)."""
        kappa = F.normalize(wide(k) * self.by_head(self.k_k), dim=-1)
        return kappa, k * (1 + (a - 1) * self.by_head(self.k_a))


@dataclass(frozen=True)
class RWKV7Config(MixerConfig):
    """decay_rank, rate_rank, value_rank, gate_rank: of the low-rank maps; None for RWKV-LM's, next to 2.5,
    2.5, 1.7 and 5 times hidden^0.5. eps: of the norm."""

    method: ClassVar[str] = "rwkv7"
    decay_rank: int | None = None
    rate_rank: int | None = None
    value_rank: int | None = None
    gate_rank: int | None = None
    eps: float = 64e-5


class RWKV7(Rwkv7Parts):
    """RWKV-7, "Goose" (2503.14456; BlinkDL/RWKV-LM, x070), in an attention's place.

        x_c = x + (prev - x)∘mu_c        r, k, v = x_r W_r, x_k W_k, x_v W_v
        log w = -e^(-1/2) sigmoid(w0 + tanh(x_w W1) W2)        a = sigmoid(a0 + x_a A1 A2)
        layers > 0: v <- v + (v_first - v)∘sigmoid(v0 + x_v V1 V2)
        kappa = k∘k_k / |k∘k_k| in each head        k~ = k∘(1 + (a - 1)∘k_a)
        S_t = diag(w_t) S_{t-1} - (a_t∘kappa_t)^T (kappa_t S_{t-1}) + k~_t^T v_t        o_t = r_t S_t
        y = ((GroupNorm_head(o) + (sum_d r∘k~∘r_k) v)∘(sigmoid(x_g G1) G2)) W_o

    No scale. Parameters have the released names (mu_c is x_c), but for receptance, key, value, output:
    q_proj, k_proj, v_proj, o_proj; layer 0 has none of v0, v1, v2, which exist there unused.

    State: "S" [b, h, d, d], keys by values (the transpose of the released), fp32; "last" [b, hidden], the
    row's last real token, in x's dtype. Within a forward, layer 0 hands its values on to later layers as
    shared["v_first"], [b, h, t, d], after the repetition of kv heads; they raise a ValueError if it is
    missing.

    Other code: fla's functions scaled by 1, and since a change in 2025 by d^(-1/2), unless told; fla's layer
    tells them 1. With grouped queries the kv heads are repeated, where RWKV-LM has as many of them as of
    queries. Biases and norms of q and k stay if the teacher has them.

    `init_from` copies q, k, v and o. All else is new and starts as in RWKV-LM.
    """

    Config = RWKV7Config
    shifts = "rwkvag"  # what has a mu of its own

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        c = sizes.hidden_size
        for name in self.shifts:
            setattr(self, f"x_{name}", self.new(1, 1, c))
        self.add_maps()
        self.k_k, self.k_a = self.new(1, 1, self.width), self.new(1, 1, self.width)
        self.r_k = self.new(sizes.heads, sizes.head_dim)
        self.add_norm()
        self.start(sizes.layer + 1)

    def add_maps(self) -> None:
        """The low-rank maps."""
        c, config = self.sizes.hidden_size, self.config
        self.add_low_rank("w", config.decay_rank or low_rank(c, 0.5, 2.5))
        self.add_low_rank("a", config.rate_rank or low_rank(c, 0.5, 2.5))
        if self.sizes.layer > 0:
            self.add_low_rank("v", config.value_rank or low_rank(c, 0.5, 1.7))
        self.add_low_rank("g", config.gate_rank or low_rank(c, 0.5, 5.0), offset=False)

    def add_norm(self) -> None:
        """The norm of the output."""
        self.ln_x = nn.GroupNorm(self.sizes.heads, self.width, eps=self.config.eps)

    def start(self, layers: int) -> None:
        """As `Rwkv.start`."""
        depth, above = self.depth(layers)
        channel = torch.arange(self.sizes.hidden_size) / self.sizes.hidden_size
        for name, power in zip(self.shifts, (0.2, 0.9, 0.7, 0.7, 0.9, 0.2), strict=True):
            fill(getattr(self, f"x_{name}"), 1 - channel ** (power * above))
        d = self.sizes.head_dim
        place = (torch.arange(self.width) % d - (d - 1) / 2) / max((d - 1) / 2, 0.5)
        zigzag, slope = place * place.abs(), ramp(self.width) - 0.5
        decay = -6 + 6 * ramp(self.width) ** (1 + depth**0.3)
        self.start_low_rank("w", decay + 0.5 + 2.5 * zigzag)
        self.start_low_rank("a", -0.19 + 0.3 * zigzag + 0.4 * slope)
        if self.sizes.layer > 0:
            self.start_low_rank("v", 0.73 - 0.4 * slope)
        self.start_low_rank("g")
        fill(self.k_k, 0.71 - 0.1 * slope)
        fill(self.k_a, 1.02)
        fill(self.r_k, -0.04)
        nn.init.constant_(self.ln_x.weight, ((self.sizes.layer + 1) / layers) ** 0.7)

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        previous, last = previous_tokens(x, tokens.real, None if state is None else state["last"])
        to = {name: x + (previous - x) * getattr(self, f"x_{name}") for name in self.shifts}
        r, k, v = self.projected(to["r"], to["k"], to["v"])
        r, k, v = wide(r), self.per_query_head(k), self.per_query_head(v)
        v, a = self.with_first_values(v, to["v"], tokens.shared), self.rate(to["a"])
        kappa, k = self.removal_and_written_keys(k, a)
        log_decay, k, v, kappa = inert(tokens.real, self.log_decay(to["w"]), k, v, kappa)
        before = None if state is None else State(state["S"])
        o, after = rwkv7(r, log_decay, k, v, kappa, a, state=before, form=form, impl=self.impl)
        bonus = (r * k * self.by_head(self.r_k)).sum(-1, keepdim=True) * v
        y = self.gated(self.normed(self.merged(o)) + self.merged(bonus), to)
        return self.o_proj(y.to(x.dtype)), {"S": after.S, "last": last}

    def normed(self, o: Tensor) -> Tensor:
        """o [b, t, h·d] after its norm."""
        return normed_by_head(self.ln_x, o)

    def gated(self, o: Tensor, to: dict[str, Tensor]) -> Tensor:
        """o [b, t, h·d] by its gate."""
        return o * (torch.sigmoid(to["g"] @ self.g1) @ self.g2)
