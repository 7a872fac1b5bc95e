"""DiJiang (2403.19928): linear attention over a cosine transform of queries and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swalib.linear._forms import compute_dtype
from swalib.linear.feature_maps import feature_map
from swalib.linear.mixer import Mixer, MixerConfig, MixerState, Tokens
from swalib.linear.projections import Projections
from swalib.linear.recurrences import State, inert, linear_attention, scalar_decay


@dataclass(frozen=True)
class DiJiangConfig(MixerConfig):
    """
    Args:
        version: of the feature map, see `swalib.linear.feature_maps.DiJiang`: "paper", D exp(T C x), or
            "released", softmax(x P), which published checkpoints need. They differ in the map alone.
        factor_positions: longest text, in tokens, for which the decay is a pair of trainable factors, as
            released with 2048. None: gamma^(i-j), for any length.
        eps: of the norm.

    Raises:
        ValueError: factor_positions below 1.
    """

    method: ClassVar[str] = "dijiang"
    version: str = "paper"
    factor_positions: int | None = None
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.factor_positions is not None and self.factor_positions < 1:
            raise ValueError(f"factor_positions must be at least 1, got {self.factor_positions}")


def log_decays(heads: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """log gamma_h, gamma = 1 - exp(linspace(ln 1/32, ln 1/512, heads)): [heads]."""
    distance = torch.linspace(-math.log(32), -math.log(512), heads, dtype=dtype, device=device)
    return torch.log1p(-distance.exp())


class DiJiang(Mixer):
    """DiJiang (2403.19928; YuchuanTian/DiJiang, `modeling_gpt_neox_dijiang.py`):

        o_i = sum_{j <= i} gamma^(i-j) phi(q_i)·phi(k_j) v_j        phi after RoPE, which may be partial
        y = W_o( silu(x W_G) · GroupNorm(o) )

    No denominator, no 1/sqrt(d). The paper's phi is unbounded, and overflows where q or k is large in its
    frequencies; the released one is not. The norm is affine, its head_dim groups each `heads` neighbouring
    channels of the merged vector: they cut across heads, as the released GroupNorm(head_size, hidden) does.

    With `factor_positions` gamma^(i-j) is `row`[h, i]·`column`[h, j], both parameters, initially gamma^i and
    gamma^-j. A text can then be no longer than they are; and they leave the range of fp16 at about 350.

    State: S [b, h, f, d], fp32: sum_j gamma^(i-j) phi(k_j)^T v_j after token i, or, with factors, sum_j
    column_j phi(k_j)^T v_j.

    Released, and not here: decoding with a cache takes the first row of mask and factors for every token,
    which thus sees the text's first key alone; pads are attended to.
    """

    Config = DiJiangConfig

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        width = sizes.heads * sizes.head_dim
        self.phi = feature_map("dijiang", sizes.heads, sizes.head_dim, version=config.version)
        self.gate_proj = nn.Linear(sizes.hidden_size, width, bias=False)
        nn.init.xavier_uniform_(self.gate_proj.weight, gain=2**-2.5)
        self.norm = nn.GroupNorm(sizes.head_dim, width, eps=config.eps)
        if config.factor_positions is not None:
            exponent = torch.arange(config.factor_positions) * log_decays(sizes.heads, torch.float64)[:, None]
            self.row = nn.Parameter(exponent.exp().float())
            self.column = nn.Parameter((-exponent).exp().float())

    def take(self, source: Projections) -> None:
        """Projections and norms of q and k: copies, all of which are trained. New: the feature map's frozen
        frequencies, drawn; in the paper's version its D, ones; W_G (`gate_proj`), Xavier-uniform with gain
        2^-2.5; the norm, the identity's; the factors, if any, powers of gamma."""
        super().take(source)

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`.

        Raises:
            ValueError: the text is longer than `factor_positions`.
        """
        q, k, v = self.qkv(x)
        q, k, v = inert(tokens.real, q, self.per_query_head(k), self.per_query_head(v))
        phi_q, phi_k = self.phi(tokens.rotate(q)), self.phi(tokens.rotate(k))
        before = None if state is None else State(state["S"])
        decayed = self._by_gamma if self.config.factor_positions is None else self._by_factors
        o, after = decayed(phi_q, phi_k, v, tokens, before, form)
        o = self.norm(self.merged(o).flatten(0, 1)).unflatten(0, x.shape[:2])
        return self.o_proj(F.silu(self.gate_proj(x)) * o), {"S": after.S}

    def _by_gamma(self, q, k, v, tokens: Tokens, before: State | None, form: str) -> tuple[Tensor, State]:
        log_decay = log_decays(self.sizes.heads, compute_dtype(q), q.device)[None, :, None]
        return scalar_decay(q, k, v, *inert(tokens.real, log_decay), state=before, form=form, impl=self.impl)

    def _by_factors(self, q, k, v, tokens: Tokens, before: State | None, form: str) -> tuple[Tensor, State]:
        longest = int(tokens.position.max()) + 1
        if longest > self.config.factor_positions:
            raise ValueError(
                f"this mixer has decay factors for {self.config.factor_positions} tokens, and this text "
                f"reaches {longest}: factor_positions=None has no such limit"
            )
        dtype, at = compute_dtype(q), tokens.position.clamp(min=0)
        row, column = (table.to(dtype)[:, at].transpose(0, 1)[..., None] for table in (self.row, self.column))
        o, after = linear_attention(
            q.to(dtype) * row, k.to(dtype) * column, v, state=before, form=form, impl=self.impl
        )
        return o.to(q.dtype), after
