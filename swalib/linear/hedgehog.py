"""Hedgehog (2402.04347): linear attention that learns to mimic the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from swalib.linear.feature_maps import Hedgehog as HedgehogMap
from swalib.linear.feature_maps import feature_map
from swalib.linear.mixer import Mixer, MixerConfig, MixerState, Tokens
from swalib.linear.projections import Projections, Sizes
from swalib.linear.recurrences import State, inert, linear_attention


@dataclass(frozen=True)
class HedgehogConfig(MixerConfig):
    """
    Args:
        width: columns of W, half the features; None: half of head_dim.
        activation: of the feature map, "softmax" or "exp".
        eps: added to the denominator.
    """

    method: ClassVar[str] = "hedgehog"
    width: int | None = None
    activation: str = "softmax"
    eps: float = 1e-12


def map_pair(sizes: Sizes, width: int | None, activation: str) -> tuple[HedgehogMap, HedgehogMap]:
    """The maps of queries and of keys, with a W for each *query* head; the second starts as a copy."""
    q, k = (
        feature_map("hedgehog", sizes.heads, sizes.head_dim, width=width, activation=activation)
        for _ in range(2)
    )
    k.load_state_dict(q.state_dict())
    return q, k


class Hedgehog(Mixer):
    """Hedgehog (2402.04347; as the same group released it in HazyResearch/lolcats, `linear_attention.py`):

        o_i = sum_{j <= i} phi(q_i)·phi(k_j) v_j / ( sum_{j <= i} phi(q_i)·phi(k_j) + 1e-12 )
        phi(x) = [softmax(xW), softmax(-xW)], q and k rotated, k and v repeated for the query heads first

    State: S [b, h, f, d] and z [b, h, f], fp32, f = 2·width.

    Released, and not here: the denominator is rounded to the model's dtype unless `fp32_attention` is set;
    decoding drops the 1e-12; a prompt read in two calls forgets the first; states are kept in the model's
    dtype. Where one W serves q and k (`tie_qk_kernels`), load it into both maps.
    """

    Config = HedgehogConfig
    shares = True

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        self.phi_q, self.phi_k = map_pair(sizes, config.width, config.activation)

    def take(self, source: Projections) -> None:
        """Projections and norms of q and k: the teacher's own, as they stay frozen but for low-rank updates.
        New: W of `phi_q`, uniform within sqrt(6/(d·width)), and of `phi_k`, a copy of it."""
        super().take(source)

    def heads(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `mix`, but the heads' outputs before `o_proj`, [b, h, t, d], which stage 1 compares."""
        q, k, v = self.qkv(x)
        return self.attend(tokens.rotate(q), tokens.rotate(k), v, tokens.real, state, form)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, state: MixerState | None = None, form="chunked"
    ) -> tuple[Tensor, MixerState]:
        """Each head's output from rotated q [b, h, t, d] and k, v [b, h_kv, t, ...]; `real`: bool [b, t]."""
        k, v = self.per_query_head(k), self.per_query_head(v)
        phi_k, v = inert(real, self.phi_k(k), v)
        before = None if state is None else State(state["S"], state["z"])
        o, after = linear_attention(
            self.phi_q(q),
            phi_k,
            v,
            normalised=True,
            eps=self.config.eps,
            state=before,
            form=form,
            impl=self.impl,
        )
        return o, {"S": after.S.contiguous(), "z": after.z.contiguous()}

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        o, state = self.heads(x, tokens, state, form)
        return self.o_proj(self.merged(o)), state
