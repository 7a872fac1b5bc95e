"""ARWKV (2501.15570): RWKV-7's time mix in a Qwen2, one kv head for each query head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from swalib.linear.mixer import MixerConfig
from swalib.linear.projections import Projections
from swalib.linear.qrwkv7 import slow_to_fast
from swalib.linear.rwkv6 import fill
from swalib.linear.rwkv7 import RWKV7


@dataclass(frozen=True)
class ARWKVConfig(MixerConfig):
    """The released configurations' settings, under their names in brackets.

    Args:
        head_size: of the recurrence's heads [head_size]. None, the default here, for the teacher's; 64 in all
            released configurations whatever the teacher's, so that a head of 128 makes two.
        gate: multiply the output by gate_offset + sigmoid(x_g G1) G2 [wkv_has_gate].
        gate_offset: 1 in the training code (yynil/RWKVInside), 0 in its port to transformers.
        group_norm: norm each head of the output [wkv_has_group_norm].
        eps: of the norm.
        decay_rank, rate_rank, value_rank, gate_rank: of the low-rank maps.
    """

    method: ClassVar[str] = "arwkv"
    head_size: int | None = None
    gate: bool = False
    gate_offset: float = 1.0
    group_norm: bool = False
    eps: float = 64e-5
    decay_rank: int = 64
    rate_rank: int = 64
    value_rank: int = 32
    gate_rank: int = 128


class ARWKV(RWKV7):
    """ARWKV (2501.15570; yynil/RWKVInside, `RWKV_Tmix_x070`): `RWKV7` but for this.

        y = (o + (sum_d r∘k~∘r_k) v) W_o

    No GroupNorm and no gate, as in the released configurations; with them (`group_norm`, `gate`) they are
    RWKV-7's, but for the 1 added to the gate. No RoPE, no scale, and no grouped queries: one kv head for each
    query head. Parameters have the released names, but for receptance, key, value, output; v0, v1, v2 in
    layer 0 and, without a gate, x_g, g1, g2 exist in the released code unused and are not here.

    State and shared["v_first"] [b, h, t, d] as for `RWKV7`. The released training code hands v_first on
    detached, so that layer 0 does not learn from later layers' use of it; here it does.

    `init_from` copies q and o, and k and v once for each query head that shared them, with their biases and
    Qwen3's norms, which the released layers have not. All else is new and starts as released: the shift much
    like RWKV-7's; the decay from slow to fast over the channels; a 0.5; v with 0.73 of v_first (v0 = 1); k_k
    0.85, k_a 1; r_k 0, no bonus; the gate 1.
    """

    Config = ARWKVConfig

    def __init__(self, config, sizes) -> None:
        d = config.head_size or sizes.head_dim
        heads, rest = divmod(sizes.heads * sizes.head_dim, d)
        if rest:
            raise ValueError(f"{sizes.heads} heads of {sizes.head_dim} don't come apart into heads of {d}")
        super().__init__(config, replace(sizes, heads=heads, kv_heads=heads, head_dim=d))

    @property
    def shifts(self) -> str:
        """As `RWKV7.shifts`."""
        return "rwkvag" if self.config.gate else "rwkva"

    def add_maps(self) -> None:
        """As `RWKV7.add_maps`."""
        self.add_low_rank("w", self.config.decay_rank)
        self.add_low_rank("a", self.config.rate_rank)
        if self.sizes.layer > 0:
            self.add_low_rank("v", self.config.value_rank)
        if self.config.gate:
            self.add_low_rank("g", self.config.gate_rank, offset=False)

    def add_norm(self) -> None:
        """As `RWKV7.add_norm`."""
        if self.config.group_norm:
            super().add_norm()

    def take(self, source: Projections) -> None:
        """As `Mixer.take`, k and v once for each query head."""
        super().take(source)
        if source.q_norm is not None and source.head_dim != self.sizes.head_dim:
            raise ValueError(
                f"this teacher norms q and k by heads of {source.head_dim}, so head_size must be so"
            )
        theirs = source.sizes()
        for name, linear in (("k_proj", source.k), ("v_proj", source.v)):
            shared_by = theirs.heads // theirs.kv_heads
            setattr(self, name, _for_each_query_head(linear, theirs.head_dim, shared_by))

    def start(self, layers: int) -> None:
        """As `Rwkv.start`."""
        depth, above = self.depth(layers)
        channel = torch.arange(self.sizes.hidden_size) / self.sizes.hidden_size
        for name, power, less in zip("rwkva", (0.2, 0.9, 0.9, 0.4, 0.9), (0, 0, 0.4, 0.6, 0), strict=True):
            fill(getattr(self, f"x_{name}"), 1 - channel ** (power * above) - less * depth)
        self.start_low_rank("w", slow_to_fast(self.width, depth))
        self.start_low_rank("a", 0.0)
        if self.sizes.layer > 0:
            self.start_low_rank("v", 1.0)
        if self.config.gate:
            fill(self.x_g, 1.0)
            self.start_low_rank("g")
            nn.init.zeros_(self.g2)
        for parameter, value in ((self.k_k, 0.85), (self.k_a, 1.0), (self.r_k, 0.0)):
            fill(parameter, value)

    def normed(self, o: Tensor) -> Tensor:
        """As `RWKV7.normed`."""
        return super().normed(o) if self.config.group_norm else o

    def gated(self, o: Tensor, to: dict[str, Tensor]) -> Tensor:
        """As `RWKV7.gated`."""
        if not self.config.gate:
            return o
        return o * (self.config.gate_offset + torch.sigmoid(to["g"] @ self.g1) @ self.g2)


@torch.no_grad()
def _for_each_query_head(linear: nn.Linear, head_dim: int, times: int) -> nn.Linear:
    """Each head's rows `times` times over, in place."""

    def repeated(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, head_dim)).repeat_interleave(times, dim=0).flatten(0, 1)

    weight, bias = linear.weight, linear.bias
    copy = nn.Linear(
        linear.in_features, times * linear.out_features, bias is not None, weight.device, weight.dtype
    )
    copy.weight.copy_(repeated(weight))
    if bias is not None:
        copy.bias.copy_(repeated(bias))
    return copy
