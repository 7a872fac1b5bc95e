"""What takes an attention's place: a mixer, its config, what it is told of the tokens, and its cache layer.

A mixer is a function with its state in the open: `y, state = mixer.mix(x, tokens, state)`. The state is a
flat dict of tensors whose first axis is the batch, of a size that does not depend on the length of the text.
`forward` is the same for a transformers decoder layer, with the state in a cache.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers.cache_utils import CacheLayerMixin

from swalib.linear._fla import check_impl, check_installed
from swalib.linear.projections import Projections, Sizes, projections
from swalib.positions import Rotation, rotate
from swalib.spec import MixerConfig

MixerState = dict[str, Tensor]


@dataclass(frozen=True)
class Tokens:
    """What a mixer is told of the tokens it is given, beside their hidden states.

    Args:
        position: integers [b, t], each token's place among its row's own tokens (from 0 for the text's first,
            however the text is cut into calls); negative for a pad. On the device of the hidden states.
        rotate: RoPE at the tokens' positions, x [b, h, t, d] to the same; the identity where there is none.
        shared: what the layers of one forward hand to later ones (RWKV-7's first values), by name.
    """

    position: Tensor
    rotate: Callable[[Tensor], Tensor] = lambda x: x
    shared: dict[str, Tensor] = field(default_factory=dict)

    @property
    def real(self) -> Tensor:
        """bool [b, t]: where there is a token, not a pad."""
        return self.position >= 0


class Mixer(nn.Module, ABC):
    """Base of all mixers: the four projections of the attention it replaces, the way in and out of a model.

    Attributes:
        Config: the method's config class.
        shares: whether q, k, v and o stay the teacher's own parameters (methods that freeze them, or train
            low-rank updates), or start as copies of them.
        kernels: whether flash-linear-attention has one for the recurrence.
        impl: by what that is computed, "torch" or "fla"; see `use`.
    """

    Config: ClassVar[type[MixerConfig]]
    shares: ClassVar[bool] = False
    kernels: ClassVar[bool] = True
    impl: str = "torch"

    def __init__(self, config: MixerConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        hidden, d = sizes.hidden_size, sizes.head_dim
        self.q_proj = nn.Linear(hidden, sizes.heads * d, bias=sizes.qkv_bias)
        self.k_proj = nn.Linear(hidden, sizes.kv_heads * d, bias=sizes.qkv_bias)
        self.v_proj = nn.Linear(hidden, sizes.kv_heads * d, bias=sizes.qkv_bias)
        self.o_proj = nn.Linear(sizes.heads * d, hidden, bias=sizes.o_bias)
        self.rotation: Rotation | None = None

    @classmethod
    def init_from(cls, attention: nn.Module, config: MixerConfig | None = None, layer: int = 0) -> Mixer:
        """The mixer that starts out from a teacher's attention.

        Raises:
            ValueError: an attention of unknown layout, or sizes that the method cannot take.
        """
        source = projections(attention)
        mixer = cls(cls.Config() if config is None else config, source.sizes(layer))
        mixer.to(source.q.weight.device, source.q.weight.dtype)
        mixer.take(source)
        return mixer.train(attention.training)

    def take(self, source: Projections) -> None:
        """Start from a teacher's weights. A method that has other parts extends this."""
        for name in "qkvo":
            linear = getattr(source, name)
            setattr(self, f"{name}_proj", linear if self.shares else copy.deepcopy(linear))
        for name in ("q_norm", "k_norm"):  # Qwen3's, Gemma 3's
            norm = getattr(source, name)
            if norm is not None:
                setattr(self, name, norm if self.shares else copy.deepcopy(norm))
        self.rotation = source.rotation

    def use(self, impl: str) -> None:
        """Have the recurrence computed by "torch", or by "fla", flash-linear-attention's kernels on a GPU.

        Raises:
            ValueError: there is no such impl, or no kernel for this method.
            ImportError: flash-linear-attention is not installed.
        """
        check_impl(impl)
        if impl == "fla" and not self.kernels:
            raise ValueError(
                f"flash-linear-attention has no kernel for {self.config.method}, whose window and linear "
                'part have one denominator: impl="torch"'
            )
        if impl == "fla":
            check_installed()
        self.impl = impl

    @abstractmethod
    def mix(
        self, x: Tensor, tokens: Tokens, state: MixerState | None = None, form: str = "chunked"
    ) -> tuple[Tensor, MixerState]:
        """Mix tokens that follow those in `state`.

        Args:
            x: hidden states [b, t, hidden_size].
            state: what the tokens before left behind, or None for none.
            form: how the recurrence is computed, see `swalib.linear.recurrences`.

        Returns:
            Hidden states [b, t, hidden_size] in x's dtype (of no account at pads, but finite), and the state
            after the last token. Any split of a text into calls gives what one call gives.
        """

    def forward(self, hidden_states: Tensor, position_embeddings=None, attention_mask=None, **kwargs):
        """In a decoder layer of a student made by `swalib.convert`: (y, None)."""
        step, cache = attention_mask, kwargs.get("cache")
        tokens = Tokens(
            step.positions.to(hidden_states.device).expand(hidden_states.shape[0], -1),
            self._rotate(position_embeddings),
            step.shared,
        )
        if cache is None:
            return self.mix(hidden_states, tokens)[0], None
        layer = cache.layers[self.sizes.layer]
        y, state = self.mix(hidden_states, tokens, layer.state)
        layer.keep(state, hidden_states.shape[1])
        return y, None

    def _rotate(self, position_embeddings) -> Callable[[Tensor], Tensor]:
        if self.rotation is None or position_embeddings is None:
            return lambda x: x
        cos, sin = (table[:, None] for table in self.rotation.tables(position_embeddings))
        return lambda x: rotate(x, cos, sin, self.rotation.interleaved).to(x.dtype)

    # What most methods begin with.

    def heads_of(self, projected: Tensor) -> Tensor:
        """[b, t, n·d] as [b, n, t, d]."""
        return projected.unflatten(-1, (-1, self.sizes.head_dim)).transpose(1, 2)

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [b, h, t, d], k and v [b, h_kv, t, d] of hidden states, unrotated, normed if the teacher does."""
        q, k, v = (self.heads_of(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def per_query_head(self, x: Tensor) -> Tensor:
        """kv heads [b, h_kv, ...] repeated, in place, for the query heads that share them: [b, h, ...]."""
        return x.repeat_interleave(self.sizes.heads // self.sizes.kv_heads, dim=1)

    def merged(self, o: Tensor) -> Tensor:
        """[b, h, t, d] as [b, t, h·d], what `o_proj` takes."""
        return o.transpose(1, 2).flatten(2)


class MixerLayer(CacheLayerMixin):
    """A transformers cache layer that holds a mixer's state, whatever that is."""

    is_compileable = False
    is_croppable = False
    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.state: MixerState | None = None
        self.seen_tokens = 0

    def keep(self, state: MixerState, new_tokens: int) -> None:
        """The state after `new_tokens` more."""
        self.state, self.seen_tokens, self.is_initialized = state, self.seen_tokens + new_tokens, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the mixer makes its own state."""

    def update(self, *_, **__) -> tuple[Tensor, Tensor]:
        """Refused: this layer's module is a mixer, not an attention.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "this cache layer holds a mixer's state; it belongs to a student made by convert()"
        )

    def get_seq_length(self) -> int:
        """Tokens seen."""
        return self.seen_tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(tokens after the next call, 0)."""
        return self.seen_tokens + query_length, 0

    def get_max_length(self) -> int:
        """-1: a text of any length passes through."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Refused: a recurrent state can't be unrolled.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "a recurrent state can't be rolled back: assisted decoding and other methods that crop the cache "
            "need the teacher's own cache"
        )

    def reset(self) -> None:
        """Forget every token."""
        self.state, self.seen_tokens, self.is_initialized = None, 0, False

    def _select(self, rows: Tensor) -> None:
        if self.state is not None:
            self.state = {n: x.index_select(0, rows.to(x.device)) for n, x in self.state.items()}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row r becomes what row beam_idx[r] was."""
        self._select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, in order."""
        if self.state is not None:
            rows = next(iter(self.state.values())).shape[0]
            self._select(torch.arange(rows).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices`."""
        self._select(indices)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the state."""
        storages = [x.untyped_storage() for x in (self.state or {}).values()]  # of views, one for several
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
