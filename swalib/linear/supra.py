"""SUPRA (2405.06640): linear attention with a fixed decay and a norm in the softmax's place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from swalib.linear.feature_maps import feature_map
from swalib.linear.mixer import Mixer, MixerConfig, MixerState, Tokens
from swalib.linear.projections import Projections
from swalib.linear.recurrences import State, inert, scalar_decay

DECAYS = ("slopes", "retnet", "none")


@dataclass(frozen=True)
class SUPRAConfig(MixerConfig):
    """
    Args:
        decay: gamma of head h of H, from 0. "slopes": exp(-2^(-8(h+1)/H)), the released linear
            configurations'; "retnet": 1 - 2^(-5-h), a released switch; "none": 1, without `use_decay`.
        eps: of the norm.

    Raises:
        ValueError: no decay has this name.
    """

    method: ClassVar[str] = "supra"
    decay: str = "slopes"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise ValueError(f"decay must be one of {list(DECAYS)}, got {self.decay!r}")


def log_decays(decay: str, heads: int, like: Tensor) -> Tensor:
    """log gamma of each head, [heads], in fp32 (fp64 if `like` is), on its device."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    head = torch.arange(heads, dtype=dtype, device=like.device)
    if decay == "slopes":
        return -torch.exp2(-8 * (head + 1) / heads)
    return torch.log1p(-torch.exp2(-5 - head)) if decay == "retnet" else torch.zeros_like(head)


class SUPRA(Mixer):
    """SUPRA (2405.06640; TRI-ML/linear_open_lm, `open_lm/model.py`):

        phi(x) = RoPE(relu(W x + b)), W over the concatenated heads
        o_i = norm( sum_{j <= i} gamma^(i-j) phi(q_i)·phi(k_j)/sqrt(d) v_j )        y = o W_o

    The norm is of each head and token, over d, without affine (the paper's GroupNorm); there is no
    denominator. One W serves q and k if they have as many heads, else each has its own, that of k over the
    kv heads, which are repeated after it.

    State: S [b, h, d, d], fp32, after the last token. The released code hands over gamma·S, and keeps it in
    the model's dtype. Its slopes fail for a number of heads that is no power of 2, where the formula doesn't;
    its recurrent form takes no account of pads. Its switches `apply_qk_norm` (a LayerNorm of phi(q) and
    phi(k)) and `decay_start` are not offered.
    """

    Config = SUPRAConfig

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        self.phi_q = feature_map("supra", sizes.heads, sizes.head_dim)
        same = sizes.heads == sizes.kv_heads
        self.phi_k = self.phi_q if same else feature_map("supra", sizes.kv_heads, sizes.head_dim)

    def take(self, source: Projections) -> None:
        """Projections and norms of q and k: copies, all of which are trained. New: W and b of the feature
        maps, which start as any linear layer's do."""
        super().take(source)

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        q, k, v = self.qkv(x)
        phi_q, phi_k = self.phi_q(q, tokens.rotate), self.phi_k(k, tokens.rotate) * k.shape[-1] ** -0.5
        log_decay = log_decays(self.config.decay, self.sizes.heads, q)[None, :, None]
        phi_k, v, log_decay = inert(
            tokens.real, self.per_query_head(phi_k), self.per_query_head(v), log_decay
        )
        before = None if state is None else State(state["S"])
        o, after = scalar_decay(phi_q, phi_k, v, log_decay, state=before, form=form, impl=self.impl)
        o = F.layer_norm(o, o.shape[-1:], eps=self.config.eps)
        return self.o_proj(self.merged(o)), {"S": after.S}
