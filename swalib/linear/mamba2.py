"""MOHAWK's mixer (Phi-Mamba, Llamba): Mamba-2 without its step size, one state space to an attention head."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swalib.linear._conv import CausalConv, ConvMixer, by_head
from swalib.linear._forms import compute_dtype
from swalib.linear._scalar import decays
from swalib.linear.mixer import MixerConfig, MixerState, Tokens
from swalib.linear.projections import Projections
from swalib.linear.recurrences import State, inert, scalar_decay

GATE_ONE = 1.278464542761  # silu of it is 1
ACTIVATIONS = {"identity": lambda x: x, "silu": F.silu}


@dataclass(frozen=True)
class MohawkConfig(MixerConfig):
    """MOHAWK's settings.

    Args:
        state_size: of B and C, a head; None is the teacher's head size (Phi-Mamba: 64, Phi-1.5's).
        qk_heads: heads of B and C, each shared by heads / qk_heads heads of x; None is one for each.
        conv_taps: of the convolution.
        activation: after the convolution, "identity" or "silu".

    Raises:
        ValueError: an unknown activation.
    """

    method: ClassVar[str] = "mohawk"
    state_size: int | None = None
    qk_heads: int | None = None
    conv_taps: int = 4
    activation: str = "identity"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {list(ACTIVATIONS)}, got {self.activation!r}")


class Mohawk(ConvMixer):
    """Phi-Mamba's discrete Mamba-2 (MOHAWK, 2408.10189; goombalab/phi-mamba, later goombalab/mohawk):

        x, B, C = conv(W_x u, W_B u, W_C u)                  causal, depthwise, with bias; no RoPE
        S_t = sigmoid(-a_t) S_{t-1} + B_t^T x_t              a = W_a u, one a head; no step size
        y_t = (C_t S_t + D x_t) · silu(W_z u_t + z_bias)     D one a head
        out = W_o y

    and so, before the gate, y = M x with M_ij = C_i·B_j prod_{j<l<=i} sigmoid(-a_l) + D [i=j], which is
    `materialised` and which stage 1 compares with the teacher's attention weights. q_proj is W_C, k_proj
    W_B, v_proj W_x.

    State: S [b, h, state_size, d], fp32; conv [b, conv_taps - 1, channels of x, B, C].

    Start (`init_from`): W_x and W_o copy W_V and W_O, W_C and W_B copy W_Q and W_K if they have their sizes
    (and are new if not), shared kv heads repeated for their query heads, biases and the teacher's norms of q
    and k along; this is the later repository's transfer (which repeats rows where it should repeat heads; the
    first copied no attention weight). New, as released: W_z = 0 and z_bias such that the gate is 1, the
    convolution the identity, D = 1, W_a drawn as any linear layer.

    Released code computes S by a kernel that takes x / softplus(a), not finite where softplus(a) underflows;
    here nothing is divided. Its layers have no biases but the convolution's and z_bias; those copied here
    are 0 for its checkpoints.

    Raises:
        ValueError: qk_heads does not divide the heads.
    """

    Config = MohawkConfig

    def __init__(self, config, sizes) -> None:
        super().__init__(config, sizes)
        hidden, inner, bias = sizes.hidden_size, sizes.heads * sizes.head_dim, sizes.qkv_bias
        self.state_size = sizes.head_dim if config.state_size is None else config.state_size
        self.qk_heads = sizes.heads if config.qk_heads is None else config.qk_heads
        if self.qk_heads < 1 or sizes.heads % self.qk_heads:
            raise ValueError(f"{self.qk_heads} heads of B and C do not divide {sizes.heads} heads")
        alike = (self.qk_heads, self.state_size) == (sizes.heads, sizes.head_dim)
        self.taken = "qkvo" if alike else "vo"
        width = self.qk_heads * self.state_size
        self.q_proj = nn.Linear(hidden, width, bias=bias)
        self.k_proj = nn.Linear(hidden, width, bias=bias)
        self.v_proj = nn.Linear(hidden, inner, bias=bias)
        self.a_proj = nn.Linear(hidden, sizes.heads, bias=False)
        self.z_proj = nn.Linear(hidden, inner, bias=False)
        nn.init.zeros_(self.z_proj.weight)
        self.z_bias = nn.Parameter(torch.full((inner,), GATE_ONE))
        self.D = nn.Parameter(torch.ones(sizes.heads))
        self.conv1d = CausalConv(inner + 2 * width, config.conv_taps)
        self.conv1d.be_identity()

    def take(self, source: Projections) -> None:
        """As the class says under Start."""
        super().take(replace(source, k=self._repeated(source.k), v=self._repeated(source.v)))

    @torch.no_grad()
    def _repeated(self, linear: nn.Linear) -> nn.Linear:
        kv_heads, groups = self.sizes.kv_heads, self.sizes.heads // self.sizes.kv_heads
        repeated = copy.deepcopy(linear)
        for name, rows in linear.named_parameters():
            rows = rows.unflatten(0, (kv_heads, -1)).repeat_interleave(groups, dim=0).flatten(0, 1)
            setattr(repeated, name, nn.Parameter(rows))
        repeated.out_features *= groups
        return repeated

    def _inputs(self, u: Tensor, tokens: Tokens, state: MixerState | None):
        """C, B, x and log decay, [b, h, t, ...], and the convolution's state."""
        parts, kept = self.convolved(u, tokens, state)
        heads = (self.qk_heads, self.qk_heads, self.sizes.heads)
        active = ACTIVATIONS[self.config.activation]
        parts = [by_head(active(z), n, self.sizes.heads) for z, n in zip(parts, heads, strict=True)]
        a = self.a_proj(u)
        log_decay = F.logsigmoid(-a.to(compute_dtype(a))).mT
        return *parts, log_decay, kept

    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """As `Mixer.mix`."""
        c, b, v, log_decay, kept = self._inputs(x, tokens, state)
        b, v, log_decay = inert(tokens.real, b, v, log_decay)
        before = None if state is None else State(state["S"])
        y, after = scalar_decay(c, b, v, log_decay, state=before, form=form, impl=self.impl)
        y = self.merged(y + self.D[:, None, None] * v)
        return self.o_proj(y * F.silu(self.z_proj(x) + self.z_bias)), {"S": after.S, **kept}

    def materialised(self, x: Tensor, tokens: Tokens | None = None) -> Tensor:
        """M, the matrix that mixes each head's values: y = M x before the gate, of a text from its start.

        Args:
            x: hidden states [b, t, hidden_size].
            tokens: which of them are pads, whose rows and columns are 0; None for no pads.

        Returns:
            [b, h, t, t], in fp32 (fp64 for fp64 inputs).
        """
        if tokens is None:
            tokens = Tokens(torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1))
        c, b, _, log_decay, _ = self._inputs(x, tokens, None)
        c, b, log_decay = inert(tokens.real, c, b, log_decay)
        dtype = log_decay.dtype
        between = decays(log_decay.flatten(0, 1)[..., None])[0].unflatten(0, c.shape[:2])
        skip = self.D.to(dtype)[:, None] * tokens.real[:, None]
        return c.to(dtype) @ b.to(dtype).mT * between + torch.diag_embed(skip)


@dataclass(frozen=True)
class LlambaConfig(MohawkConfig):
    """Llamba's settings: as MOHAWK's, with a state of 64 whatever the teacher's head size."""

    method: ClassVar[str] = "llamba"
    state_size: int | None = 64


class Llamba(Mohawk):
    """Llamba (2502.14458; cartesia-ai/edge): MOHAWK's mixer, as `Mohawk`, for Llama-3.x.

    Every query head gets a B, C and x of its own, with a state of 64: where the teacher's head size is 64
    (1B) all of its weights are copied, where it is 128 (3B, 8B) W_B and W_C start new. State as `Mohawk`'s.
    """

    Config = LlambaConfig
