"""RWKV-6 (2404.05892), and what all RWKV mixers share: the token before, and starts by a layer's depth."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swalib.linear._forms import compute_dtype
from swalib.linear.mixer import Mixer, MixerConfig, MixerState, Tokens
from swalib.linear.recurrences import State, diagonal_decay, inert


def previous_tokens(x: Tensor, real: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
    """For every column the row's real token before it, and the row's last one. Pads never count.

    Args:
        x: [b, t, c]; real: bool [b, t].
        last: [b, c], the last real token of the calls before; None, or a row that had none, is zero.

    Returns:
        [b, t, c] and [b, c], in x's dtype, a tensor of its own.
    """
    before = x.new_zeros(x.shape[0], 1, x.shape[2]) if last is None else last[:, None].to(x.dtype)
    seen = torch.cat([before, x], dim=1)
    here = torch.cat([real.new_ones(real.shape[0], 1), real], dim=1).to(x.device)
    column = torch.arange(seen.shape[1], device=x.device)
    newest = torch.where(here, column, 0).cummax(dim=1).values
    at = seen.gather(1, newest[..., None].expand(-1, -1, seen.shape[2]))
    return at[:, :-1], at[:, -1].clone()


def wide(x: Tensor) -> Tensor:
    """x in the dtype that recurrences compute in."""
    return x.to(compute_dtype(x))


def normed_by_head(norm: nn.GroupNorm, o: Tensor) -> Tensor:
    """o [b, t, h·d], each head of each token normed on its own, in o's dtype whatever the weights'."""
    rows, weight, bias = o.flatten(0, 1), norm.weight.to(o.dtype), norm.bias.to(o.dtype)
    return F.group_norm(rows, norm.num_groups, weight, bias, norm.eps).view_as(o)


def low_rank(width: int, exponent: float, factor: float) -> int:
    """The rank RWKV code takes for a width: width^exponent · factor, to a multiple of 32."""
    return max(1, round(width**exponent * factor / 32)) * 32


def ramp(width: int) -> Tensor:
    """n / (width - 1) for the n-th channel."""
    return torch.linspace(0, 1, width)


@torch.no_grad()
def fill(parameter: Tensor, values: Tensor | float) -> None:
    """Start a parameter from values, one for each entry of its last axis or of all."""
    values = torch.as_tensor(values, dtype=torch.float32)
    parameter.copy_(values.view(parameter.shape) if values.numel() == parameter.numel() else values)


def start_orthogonal(parameter: Tensor, scale: float = 0.1) -> None:
    """Orthogonal rows or columns, of norm `scale` times sqrt(rows / columns) where there are more rows."""
    rows, columns = parameter.shape
    fill(parameter, nn.init.orthogonal_(torch.empty(rows, columns), scale * max(1, rows / columns) ** 0.5))


class Rwkv(Mixer):
    """What the RWKV mixers share. New parts start by their layer's depth, so a subclass has `start`."""

    @classmethod
    def init_from(cls, attention: nn.Module, config: MixerConfig | None = None, layer: int = 0) -> Rwkv:
        """As `Mixer.init_from`; the number of layers is read from the attention's own config."""
        mixer = super().init_from(attention, config, layer)
        layers = getattr(getattr(attention, "config", None), "num_hidden_layers", layer + 1)
        mixer.start(layers)
        return mixer

    @abstractmethod
    def start(self, layers: int) -> None:
        """Start all that is new, in a model of so many layers."""

    def depth(self, layers: int) -> tuple[float, float]:
        """This layer's depth from 0 for the first to 1 for the last, and what of the layers is not below."""
        return self.sizes.layer / max(layers - 1, 1), 1 - self.sizes.layer / layers

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.sizes.heads * self.sizes.head_dim

    def new(self, *shape: int) -> nn.Parameter:
        """A parameter, zero until `start`."""
        return nn.Parameter(torch.zeros(*shape))

    def projected(self, r: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `Mixer.qkv`, of hidden states [b, t, c] of their own for each."""
        pairs = ((self.q_proj, r), (self.k_proj, k), (self.v_proj, v))
        r, k, v = (self.heads_of(project(x)) for project, x in pairs)
        return (self.q_norm(r), self.k_norm(k), v) if hasattr(self, "q_norm") else (r, k, v)


class DataDependentShift(Rwkv):
    """RWKV-6's token shift, "ddlerp", and its decay, under the released parameters' names.

    Between a token x and the one before, each of r, w, k, v, g at its own place, which depends on both:

        x_c = x + (prev - x)∘(maa_c + tanh((x + (prev - x)∘maa_x) W1)_c W2_c)
    """

    order: ClassVar[str]  # whose slices of W1 and W2 come first

    def add_shift(self, rank: int) -> None:
        """Its parameters."""
        c = self.sizes.hidden_size
        for name in f"x{self.order}":
            setattr(self, f"time_maa_{name}", self.new(1, 1, c))
        self.time_maa_w1 = self.new(c, len(self.order) * rank)
        self.time_maa_w2 = self.new(len(self.order), rank, c)

    def add_decay(self, rank: int) -> None:
        """The decay's parameters."""
        self.time_decay = self.new(1, 1, self.width)
        self.time_decay_w1 = self.new(self.sizes.hidden_size, rank)
        self.time_decay_w2 = self.new(rank, self.width)

    def shifted(
        self, x: Tensor, tokens: Tokens, state: MixerState | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """x_c by c, each [b, t, hidden], and the last token."""
        previous, last = previous_tokens(x, tokens.real, None if state is None else state["last"])
        delta = previous - x
        inner = torch.tanh((x + delta * self.time_maa_x) @ self.time_maa_w1)
        moves = torch.einsum("btnr,nrc->nbtc", inner.unflatten(-1, (len(self.order), -1)), self.time_maa_w2)
        places = (getattr(self, f"time_maa_{c}") + move for c, move in zip(self.order, moves, strict=True))
        return {c: x + delta * place for c, place in zip(self.order, places, strict=True)}, last

    def log_decay(self, x: Tensor) -> Tensor:
        """log w = -exp(time_decay + tanh(x W1) W2), [b, h, t, d], in fp32 or fp64."""
        low = torch.tanh(x @ self.time_decay_w1) @ self.time_decay_w2
        return -self.heads_of(wide(self.time_decay) + wide(low)).exp()

    def start_decay(self, depth: float) -> None:
        """From slow to fast over the channels, the more of them slow the deeper the layer; W1 is 0."""
        fill(self.time_decay, -6 + 5 * ramp(self.width) ** (0.7 + 1.3 * depth))
        nn.init.zeros_(self.time_decay_w1)
        nn.init.uniform_(self.time_decay_w2, -0.01, 0.01)


@dataclass(frozen=True)
class RWKV6Config(MixerConfig):
    """shift_rank, decay_rank: of the low-rank maps; None for RWKV-LM's, 32 and 64, doubled from a hidden
    size of 4096 on. eps: of the norm."""

    method: ClassVar[str] = "rwkv6"
    shift_rank: int | None = None
    decay_rank: int | None = None
    eps: float = 64e-5


class RWKV6(DataDependentShift):
    """RWKV-6, "Finch" (2404.05892; BlinkDL/RWKV-LM, x060), in an attention's place.

        r, k, v = x_r W_r, x_k W_k, x_v W_v        w = exp(-exp(time_decay + tanh(x_w W1) W2))
        o_t = r_t (S_{t-1} + diag(u) k_t^T v_t)        S_t = diag(w_t) S_{t-1} + k_t^T v_t
        y = (GroupNorm_head(o)∘silu(x_g W_g)) W_o

    The output comes before the update, the token's own key through the bonus u (`time_faaaa`); scale 1. x_c
    is the token shift of `DataDependentShift`, W1's slices in the order w, k, v, r, g. Parameters have the
    released names, but for receptance, key, value, output: q_proj, k_proj, v_proj, o_proj.

    State: "S" [b, h, d, d], keys by values, fp32; "last" [b, hidden], the row's last real token, in x's
    dtype.

    Other code: fla's layer slices in the order r, w, k, v, g, norms with eps 1e-5 and starts without a shift;
    its functions scale by d^(-1/2) unless told 1. With grouped queries the kv heads are repeated, where
    RWKV-LM has as many of them as of queries. Biases and norms of q and k stay if the teacher has them.

    `init_from` copies q, k, v and o. All else is new and starts as in RWKV-LM, the gate as PyTorch starts a
    linear layer.
    """

    Config = RWKV6Config
    order = "wkvrg"

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        double = 2 if sizes.hidden_size >= 4096 else 1
        self.add_shift(config.shift_rank or 32 * double)
        self.add_decay(config.decay_rank or 64 * double)
        self.time_faaaa = self.new(sizes.heads, sizes.head_dim)
        self.gate = nn.Linear(sizes.hidden_size, self.width, bias=False)
        self.ln_x = nn.GroupNorm(sizes.heads, self.width, eps=config.eps)
        self.start(sizes.layer + 1)

    def start(self, layers: int) -> None:
        """As `Rwkv.start`."""
        depth, above = self.depth(layers)
        channel = torch.arange(self.sizes.hidden_size) / self.sizes.hidden_size
        for name, power, less in zip("xwkvrg", (1, 1, 1, 1, 0.5, 0.5), (0, 0, 0, 0.3, 0, 0), strict=True):
            fill(getattr(self, f"time_maa_{name}"), 1 - channel ** (power * above) - less * depth)
        nn.init.zeros_(self.time_maa_w1)
        nn.init.uniform_(self.time_maa_w2, -0.01, 0.01)
        self.start_decay(depth)
        zigzag = ((torch.arange(self.width) + 1) % 3 - 1) * 0.1
        fill(self.time_faaaa, depth * (1 - ramp(self.width)) + zigzag)
        nn.init.constant_(self.ln_x.weight, ((self.sizes.layer + 1) / layers) ** 0.7)

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        to, last = self.shifted(x, tokens, state)
        r, k, v = self.projected(to["r"], to["k"], to["v"])
        keys = self.per_query_head(k), self.per_query_head(v), self.log_decay(to["w"])
        before = None if state is None else State(state["S"])
        o, after = diagonal_decay(
            wide(r),
            *inert(tokens.real, *keys),
            bonus=self.time_faaaa,
            output="before",
            state=before,
            form=form,
            impl=self.impl,
        )
        o = normed_by_head(self.ln_x, self.merged(o)) * F.silu(self.gate(to["g"]))
        return self.o_proj(o.to(x.dtype)), {"S": after.S, "last": last}
