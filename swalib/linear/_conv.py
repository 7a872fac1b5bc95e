"""The short causal convolution before the recurrence of Mamba-2 and its kin, with its state in the open."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from swalib.linear.mixer import Mixer, MixerConfig, MixerState, Tokens
from swalib.linear.projections import Projections, Sizes


class CausalConv(nn.Conv1d):
    """A depthwise convolution over a text's real tokens, whose state is its last inputs.

        y_i = bias + sum_j weight[:, taps - 1 - j] x_{i-j},  0 <= j < taps;  x = 0 before the first token

    A pad is skipped, wherever it stands: it is no token's past, and the state after it is the state before.
    weight [channels, 1, taps] and bias [channels] are laid out, and drawn, as nn.Conv1d's, so released
    weights load as they are. State: [b, taps - 1, channels] in the inputs' dtype, oldest first, whatever the
    length of the text (released code keeps [b, channels, taps], whose oldest input nothing reads).

    Raises:
        ValueError: fewer than one tap.
    """

    def __init__(self, channels: int, taps: int = 4, bias: bool = True) -> None:
        if taps < 1:
            raise ValueError(f"a convolution has at least one tap, got {taps}")
        super().__init__(channels, channels, taps, groups=channels, bias=bias)

    @torch.no_grad()
    def be_identity(self) -> None:
        """y = x."""
        self.weight.zero_()[..., -1] = 1
        if self.bias is not None:
            self.bias.zero_()

    def forward(self, x: Tensor, real: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """
        Args:
            x: [b, t, channels].
            real: bool [b, t], False at pads.
            before: the state that earlier tokens left, None for none.

        Returns:
            y [b, t, channels], finite but of no account at pads, and the state after the last token.
        """
        past = self.kernel_size[0] - 1
        before = x.new_zeros(x.shape[0], past, x.shape[2]) if before is None else before.to(x.dtype)
        real_first = (~real).long().argsort(dim=1, stable=True)
        inputs = torch.cat([before, x.take_along_dim(real_first[..., None], dim=1)], dim=1)
        seen = real.cumsum(1)
        y = super().forward(inputs.mT).mT.take_along_dim((seen - 1).clamp(min=0)[..., None], dim=1)
        last = seen[:, -1:] + torch.arange(past, device=x.device)
        return y, inputs.take_along_dim(last[..., None], dim=1)


class ConvMixer(Mixer):
    """Mixers whose q, k and v (C, B and x in Mamba's words) pass one short convolution.

    Attributes:
        taken: which of q, k, v and o are the teacher's; the others have sizes of their own and start new.
        conv1d: over the channels of v, k and q, in Mamba-2's order x, B, C; None for no convolution.
    """

    taken: str = "qkvo"

    def __init__(self, config: MixerConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.conv1d: CausalConv | None = None

    def take(self, source: Projections) -> None:
        """As `Mixer.take`, for `taken` alone; the norms of a projection go with it."""
        new = {f"{name}_proj": getattr(self, f"{name}_proj") for name in "qkvo" if name not in self.taken}
        super().take(source)
        for name, linear in new.items():
            setattr(self, name, linear)
        for name in ("q_norm", "k_norm"):
            if name[0] not in self.taken and hasattr(self, name):
                delattr(self, name)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of hidden states, [b, t, channels] each, normed if the teacher does."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if hasattr(self, "q_norm"):
            q = self.merged(self.q_norm(self.heads_of(q)))
            k = self.merged(self.k_norm(self.heads_of(k)))
        return q, k, v

    def convolved(
        self, x: Tensor, tokens: Tokens, state: MixerState | None
    ) -> tuple[Sequence[Tensor], MixerState]:
        """q, k, v after the convolution, [b, t, channels] each, and its state: {"conv": ...}, {} without."""
        q, k, v = self.projected(x)
        if self.conv1d is None:
            return (q, k, v), {}
        before = None if state is None else state["conv"]
        y, after = self.conv1d(torch.cat([v, k, q], dim=-1), tokens.real, before)
        v, k, q = y.split([v.shape[-1], k.shape[-1], q.shape[-1]], dim=-1)
        return (q, k, v), {"conv": after}


def by_head(x: Tensor, heads: int, of: int) -> Tensor:
    """[b, t, heads·n] as [b, of, t, n], each head repeated, in place, for the `of / heads` that share it."""
    x = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    return x if of == heads else x.repeat_interleave(of // heads, dim=1)
