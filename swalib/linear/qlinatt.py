"""QLinAtt, the plainest baseline of RADLADS (2505.03005): attention without its softmax, then a norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from swalib.linear.mixer import Mixer, MixerConfig, MixerState, Tokens
from swalib.linear.recurrences import State, inert, linear_attention


@dataclass(frozen=True)
class QLinAttConfig(MixerConfig):
    """eps: of the norm."""

    method: ClassVar[str] = "qlinatt"
    eps: float = 1e-5


class QLinAtt(Mixer):
    """QLinAtt (RADLADS, 2505.03005, its linear attention baseline):

        o = LayerNorm_head( (RoPE(q) RoPE(k)^T, causal) v )        y = o W_o

    No feature map, no scale, no gate, no denominator. The norm is over each head's dimensions, its affine
    shared by the heads; the paper gives neither its eps nor that, which are choices made here. No code was
    released for it. State: S [b, h, d, d], fp32.
    """

    Config = QLinAttConfig

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        self.norm = nn.LayerNorm(sizes.head_dim, eps=config.eps)

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        q, k, v = self.qkv(x)
        q, k = tokens.rotate(q), tokens.rotate(k)
        k, v = inert(tokens.real, self.per_query_head(k), self.per_query_head(v))
        before = None if state is None else State(state["S"])
        o, after = linear_attention(q, k, v, state=before, form=form, impl=self.impl)
        o = F.layer_norm(o, o.shape[-1:], self.norm.weight, self.norm.bias, self.config.eps)
        return self.o_proj(self.merged(o)), {"S": after.S}
