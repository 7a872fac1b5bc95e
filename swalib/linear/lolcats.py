"""LoLCATs (2410.10254): a softmax window, and Hedgehog's linear attention beyond it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from swalib.linear._forms import compute_dtype
from swalib.linear._window import Held, pieces, scores
from swalib.linear.hedgehog import map_pair
from swalib.linear.mixer import Mixer, MixerConfig, MixerState, Tokens
from swalib.linear.projections import Projections
from swalib.masks import visible
from swalib.spec import SWA, Full

Near = Callable[[Tensor, Tensor], Tensor]  # positions of queries [b, c], of keys [b, n] -> bool [b, c, n]


@dataclass(frozen=True)
class LoLCATsConfig(MixerConfig):
    """
    Args:
        window: keys in the softmax part, the own one and the sinks counted; with `terraced`, tokens a block.
        sinks: first tokens of a row that stay in the softmax part; 0 as published.
        terraced: the prompt's window is its block and the one before, as the released default `tk` has it.
        width: columns of W, half the features; None: half of head_dim.
        activation: of the feature map, "softmax" or "exp".
        window_factor: initial a, in (0, 1).
        affine: the linear part's factor is 1 - a (a released switch), else 1.

    Raises:
        ValueError: a window, sinks or factor out of range, or sinks with terraces, which have none.
    """

    method: ClassVar[str] = "lolcats"
    window: int = 64
    sinks: int = 0
    terraced: bool = False
    width: int | None = None
    activation: str = "softmax"
    window_factor: float = 0.1
    affine: bool = False

    def __post_init__(self) -> None:
        SWA(self.window, self.sinks)
        if self.terraced and self.sinks:
            raise ValueError(f"a terraced window has no sinks, got sinks={self.sinks}")
        if not 0 < self.window_factor < 1:
            raise ValueError(f"window_factor must lie in (0, 1), got {self.window_factor}")


class LoLCATs(Mixer):
    """LoLCATs (2410.10254; HazyResearch/lolcats, `linear_window_attention_{sw,tk}.py`), with q, k rotated:

        o_i =  sum_{j in W_i} a·exp(s_ij - c_i) v_j + sum_{j not in W_i} phi(q_i)·phi(k_j) v_j
               -------------------------------------------------------------------------------   (j <= i)
               sum_{j in W_i} a·exp(s_ij - c_i)     + sum_{j not in W_i} phi(q_i)·phi(k_j)

        s_ij = scale·q_i·k_j,  c_i = max over W_i of s_ij,  a = sigmoid(window_logit) of the head
        phi(x) = [softmax(xW), softmax(-xW)], a W for each query head, another for k

    W_i is what SWA(window, sinks) shows. All sums are in fp32. `scale` is the teacher's, 1/sqrt(d) for most;
    where the teacher caps its scores (Gemma 2), so is s_ij.

    State: S [b, h, f, d] and z [b, h, f], fp32, of the keys that have left the window; k and v
    [b, h_kv, window-1, d] in the model's dtype and position [b, window-1], int64, of those in it. S and z
    alone are a prior linear state: every row reads it, and nothing lies in the window.

    **Terraced** (`tk`): W_i is the token's block and the one before, window+1 .. 2·window keys, and blocks
    align to the *end* of the text, so that what a token sees changes as the text grows. Hence, as released:
    the call that brings a row's first token is its prompt, terraced up to that call's end, and every later
    token sees the plain window. A prompt that is split, or decoded, is thus another function than one read
    at once; what follows the prompt may be split at will. The state after it is that of the plain window.

    Released, and not here: `tk` counts every key twice, by softmax and linearly, where a text is no longer
    than its window; its decoding evicts a key too early after such a prompt; states are kept in the model's
    dtype; pads are attended to; a text read in chunks keeps no window between them.
    """

    Config = LoLCATsConfig
    shares = True
    kernels = False

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        self.phi_q, self.phi_k = map_pair(sizes, config.width, config.activation)
        logit = math.log(config.window_factor) - math.log1p(-config.window_factor)
        self.window_logit = nn.Parameter(torch.full((sizes.heads,), logit))
        self.scale, self.softcap = sizes.head_dim**-0.5, None

    def take(self, source: Projections) -> None:
        """Projections, norms of q and k, the factor on q·k and its cap: the teacher's own; the projections
        stay frozen but for low-rank updates. New: W of `phi_q`, uniform within sqrt(6/(d·width)); W of
        `phi_k`, a copy of it; `window_logit`, from `window_factor`."""
        super().take(source)
        self.scale, self.softcap = source.scale, source.softcap

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        o, state = self.heads(x, tokens, state, form)
        return self.o_proj(self.merged(o)), state

    def heads(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `mix`, but the heads' outputs before `o_proj`, [b, h, t, d], which stage 1 compares."""
        q, k, v = self.qkv(x)
        return self.attend(tokens.rotate(q), tokens.rotate(k), v, tokens.position, state, form)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        position: Tensor,
        state: MixerState | None = None,
        form="chunked",
    ) -> tuple[Tensor, MixerState]:
        """Each head's output from rotated q [b, h, t, d] and k, v [b, h_kv, t, ...] at `position` [b, t]."""
        new, slots = Held.given(k, v, position), self.config.window - 1
        held, linear = self._resumed(state, new)
        near = self._near(new.position)
        terraced = near is not None
        if terraced:  # the prompt's window reaches back a block further
            spare = Held.empty(new, self.config.window)
            held, slots = spare.joined(held), slots + self.config.window
        outputs = []
        for piece in pieces(q.shape[2], form):
            keys = held.joined(new.span(piece))
            left, held = keys.parted(slots, self.config.sinks)
            # Whatever a query of this piece sees linearly has left a plain window by the piece's end.
            far = keys if terraced else left
            where = new.position[:, piece]
            outputs.append(self._piece(q[:, :, piece], where, keys, far, linear, near or self._plain))
            linear = self._with(linear, left)
        left, held = held.parted(self.config.window - 1, self.config.sinks)
        linear = self._with(linear, left)
        after = {"S": linear[..., :-1].contiguous(), "z": linear[..., -1].contiguous()}
        return torch.cat(outputs, dim=2).to(q.dtype), after | held._asdict()

    def _resumed(self, state: MixerState | None, new: Held) -> tuple[Held, Tensor]:
        """What the window holds; S with z as its last column, as a value that is always 1 would write it."""
        b, h, f, d_v = new.k.shape[0], self.sizes.heads, self.phi_k.features, new.v.shape[-1]
        dtype = compute_dtype(new.k, new.v)
        if state is None:
            return Held.empty(new, self.config.window - 1), new.k.new_zeros(b, h, f, d_v + 1, dtype=dtype)
        linear = torch.cat([state["S"], state["z"][..., None]], dim=-1).to(dtype)
        if "k" not in state:
            return Held.empty(new, self.config.window - 1), linear
        return Held(state["k"], state["v"], state["position"]), linear

    def _plain(self, query: Tensor, key: Tensor) -> Tensor:
        return visible(query[:, :, None], key[:, None], SWA(self.config.window, self.config.sinks))

    def _near(self, position: Tensor) -> Near | None:
        """The window of a call in which some row's text begins, terraced for those rows; None for others."""
        prompt = (position == 0).any(1)
        if not self.config.terraced or not bool(prompt.any()):
            return None
        window = self.config.window
        offset = (-(position.amax(1, keepdim=True) + 1)) % window

        def near(query: Tensor, key: Tensor) -> Tensor:
            blocks = (query + offset)[:, :, None] // window - (key + offset)[:, None] // window
            terrace = visible(query[:, :, None], key[:, None], Full()) & (blocks <= 1)
            return torch.where(prompt[:, None, None], terrace, self._plain(query, key))

        return near

    def _piece(self, q: Tensor, where: Tensor, keys: Held, far: Held, linear: Tensor, near: Near) -> Tensor:
        """Outputs of the queries q at `where`: softmax over those of `keys` that are near, linear over those
        of `far` that are not, and over all that `linear` has taken in."""
        dtype = linear.dtype
        phi_q, phi_k = self.phi_q(q).to(dtype), self.phi_k(self.per_query_head(far.k)).to(dtype)
        beyond = visible(where[:, :, None], far.position[:, None], Full()) & ~near(where, far.position)
        factor = self.window_logit.to(dtype).sigmoid()[:, None, None]
        with torch.autocast(q.device.type, enabled=False):
            k = self.per_query_head(keys.k).to(dtype)
            logits = scores(q.to(dtype), k, near(where, keys.position), self.scale, self.softcap)
            top = logits.amax(-1, keepdim=True).clamp(min=torch.finfo(dtype).min)
            both = (phi_q @ phi_k.mT).masked_fill(~beyond[:, None], 0) @ self._counted(far.v, dtype)
            both = (both + phi_q @ linear) * (1 - factor if self.config.affine else 1)
            both = both + factor * ((logits - top).exp() @ self._counted(keys.v, dtype))
        weight = both[..., -1:]
        return both[..., :-1] / weight.masked_fill(weight == 0, 1)

    def _with(self, linear: Tensor, left: Held) -> Tensor:
        """`linear` after the keys that have left the window are written."""
        phi_k = self.phi_k(self.per_query_head(left.k)).to(linear.dtype)
        phi_k = phi_k.masked_fill((left.position < 0)[:, None, :, None], 0)
        with torch.autocast(linear.device.type, enabled=False):
            return linear + phi_k.mT @ self._counted(left.v, linear.dtype)

    def _counted(self, v: Tensor, dtype: torch.dtype) -> Tensor:
        """Values for each query head, with a last column of ones: [b, h, n, d_v + 1]."""
        v = self.per_query_head(v).to(dtype)
        return torch.cat([v, v.new_ones(*v.shape[:-1], 1)], dim=-1)
