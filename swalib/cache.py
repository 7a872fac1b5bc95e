"""The sink cache: a layer's s sinks and latest w - s tokens, in w slots allocated once that never move."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from swalib.linear.mixer import MixerLayer
from swalib.masks import is_sink
from swalib.slots import live_slots, slot_of
from swalib.spec import SWA, Full, LayerSpec, MixerConfig, PerHead


class SinkLayer(CacheLayerMixin):
    """One layer's w slots: keys and values [b, h_kv, window, d], zero until written."""

    is_compileable = False
    is_croppable = False
    is_sliding = (
        False  # its sinks make it unlike transformers' sliding layers, whose mask sizes must not be assumed
    )

    def __init__(self, spec: SWA) -> None:
        super().__init__()
        self.spec = spec
        self.seen_tokens = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the slots, once, with the batch, heads, dtype and device of the first keys and values."""
        b, h_kv = key_states.shape[:2]
        self.keys = key_states.new_zeros(b, h_kv, self.spec.window, key_states.shape[-1])
        self.values = value_states.new_zeros(b, h_kv, self.spec.window, value_states.shape[-1])
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, left_padding: Tensor | None = None, **_
    ) -> tuple[Tensor, Tensor]:
        """Take in t new tokens and give back every key and value that one of them may see.

        Args:
            key_states [b, h_kv, t, d], value_states [b, h_kv, t, d_v].
            left_padding: integers [b], leading pads of each row, or None for none.

        Returns:
            One token: the live slots, the token's own among them; no copy, except under autograd. More: the
            slots as they were before, then the new tokens.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._check(key_states)
        if self.keys.is_inference() and not torch.is_inference_mode_enabled():
            self.keys, self.values = self.keys.clone(), self.values.clone()  # begun under inference_mode()
        t, live = key_states.shape[-2], self.live_slots
        if t == 1:
            self._write(key_states, value_states, left_padding)
            keys, values = self.keys[:, :, : self.live_slots], self.values[:, :, : self.live_slots]
            if key_states.requires_grad:  # what was written in place carries no gradient
                own = self._own_slot(left_padding)
                keys, values = torch.where(own, key_states, keys), torch.where(own, value_states, values)
            return keys, values
        if live:
            keys = torch.cat([self.keys[:, :, :live], key_states], dim=-2)
            values = torch.cat([self.values[:, :, :live], value_states], dim=-2)
        else:
            keys, values = key_states, value_states
        self._write(key_states, value_states, left_padding)
        return keys, values

    def _check(self, key_states: Tensor) -> None:
        b, h_kv, _, d = self.keys.shape
        if (key_states.shape[0], key_states.shape[1], key_states.shape[3]) != (b, h_kv, d):
            raise ValueError(
                f"this cache holds {b} rows of {h_kv} key heads of {d}, and was given keys "
                f"{tuple(key_states.shape)} [b, h_kv, t, d]: it belongs to another model or batch"
            )
        if (key_states.device, key_states.dtype) != (self.device, self.dtype):
            raise ValueError(
                f"this cache was begun in {self.dtype} on {self.device}, but the keys now come in "
                f"{key_states.dtype} on {key_states.device}: begin a new cache after moving a model"
            )

    @torch.no_grad()
    def _write(self, key_states: Tensor, value_states: Tensor, left_padding: Tensor | None) -> None:
        start, t = self.seen_tokens, key_states.shape[-2]
        self.seen_tokens = start + t
        if left_padding is None and t == 1:  # every decode step passes here: no tensors for one number
            slot = self._slot(start)
            self.keys[:, :, slot] = key_states[:, :, 0]
            self.values[:, :, slot] = value_states[:, :, 0]
            return
        if t == 1:
            row = (left_padding <= start).nonzero()[:, 0]
            slot = slot_of(start - left_padding[row], self.spec).to(self.keys.device)
            row = row.to(self.keys.device)
            self.keys[row, :, slot] = key_states[row, :, 0]
            self.values[row, :, slot] = value_states[row, :, 0]
            return
        rows = [(slice(None), 0)]
        if left_padding is not None:
            rows = [(slice(row, row + 1), int(padding)) for row, padding in enumerate(left_padding)]
        for row, padding in rows:
            position = torch.arange(start - padding, start - padding + t)
            recent = position > position[-1] - self.spec.recents
            stays = (position >= 0) & (is_sink(position, self.spec) | recent)
            column = stays.nonzero()[:, 0]
            slot = slot_of(position[column], self.spec).to(self.keys.device)
            column = column.to(self.keys.device)
            self.keys[row].index_copy_(2, slot, key_states[row][:, :, column])
            self.values[row].index_copy_(2, slot, value_states[row][:, :, column])

    def _slot(self, position: int) -> int:
        """`slot_of` for one number."""
        spec = self.spec
        chosen = range(spec.sinks) if spec.sink_positions is None else spec.sink_positions
        return (
            chosen.index(position)
            if position in chosen
            else spec.sinks + (position - spec.sinks) % spec.recents
        )

    def _own_slot(self, left_padding: Tensor | None) -> Tensor:
        """Where the newest token was written, bool [1 or b, 1, live slots, 1]."""
        padding = torch.zeros(1, dtype=torch.long) if left_padding is None else left_padding
        newest = self.seen_tokens - 1 - padding[:, None]
        own = (torch.arange(self.live_slots) == slot_of(newest, self.spec)) & (newest >= 0)
        return own[:, None, :, None].to(self.keys.device)

    @property
    def live_slots(self) -> int:
        """Leading slots in use by the longest row."""
        return live_slots(self.seen_tokens, self.spec)

    def get_seq_length(self) -> int:
        """Tokens seen, evicted ones included: the text position of the next token."""
        return self.seen_tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys returned by the next `update`, 0)."""
        if query_length == 1:
            return live_slots(self.seen_tokens + 1, self.spec), 0
        return self.live_slots + query_length, 0

    def get_max_length(self) -> int:
        """-1: a text of any length passes through."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Refused: the tokens that cropping would bring back are gone."""
        raise RuntimeError(
            "a sink cache can't be rolled back, since evicted tokens are gone: assisted decoding and other "
            "methods that crop the cache need the teacher's own cache"
        )

    def reset(self) -> None:
        """Forget every token, keep the memory."""
        super().reset()
        self.seen_tokens = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row r becomes what row beam_idx[r] was."""
        if self.is_initialized:
            self._select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, in order."""
        if self.is_initialized:
            self._select(torch.arange(self.keys.shape[0]).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices`."""
        if self.is_initialized:
            self._select(indices)

    def _select(self, rows: Tensor) -> None:
        rows = rows.to(self.keys.device)
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the slots; constant from the first update on."""
        if not self.is_initialized:
            return 0
        return self.keys.untyped_storage().nbytes() + self.values.untyped_storage().nbytes()


def _joined(layers: Sequence[CacheLayerMixin], seen: int) -> CacheLayerMixin:
    """One layer of the rows of `layers`, the longest of which has seen `seen` tokens."""
    joined = copy.copy(layers[0])
    if isinstance(joined, MixerLayer):
        joined.state = {name: torch.cat([layer.state[name] for layer in layers]) for name in joined.state}
    else:
        # Slots go by a row's own positions; a growing layer's columns end where the longest row's do.
        short = [0 if isinstance(layer, SinkLayer) else seen - layer.get_seq_length() for layer in layers]
        for name in ("keys", "values"):
            rows = [F.pad(getattr(layer, name), (0, 0, n, 0)) for layer, n in zip(layers, short, strict=True)]
            setattr(joined, name, torch.cat(rows))
    if not isinstance(joined, DynamicLayer):
        joined.seen_tokens = seen
    return joined


def _cache_layer(spec: LayerSpec | MixerConfig) -> CacheLayerMixin:
    if isinstance(spec, MixerConfig):
        return MixerLayer()
    kept = spec.envelope if isinstance(spec, PerHead) else spec
    return DynamicLayer() if isinstance(kept, Full) else SinkLayer(kept)


class SinkCache(Cache):
    """A transformers cache: sink layers where a layer's spec is `SWA`, growing ones where it is `Full`, a
    state where its attention has made way for a linear mixer. Each layer has slots for its own window; one
    whose heads differ (`PerHead`), for what any of them sees.

    Args:
        specs: one spec per decoder layer, as `swalib.layer_specs(model, spec)` gives them. A student makes
            its own cache; build one by hand only to keep it over several calls.
    """

    def __init__(self, specs: Sequence[LayerSpec | MixerConfig]) -> None:
        super().__init__(layers=[_cache_layer(spec) for spec in specs])
        self.specs = tuple(specs)
        self.left_padding: Tensor | None = None
        self._weights: int | None = None
        self._opened_for: int | None = None

    def open(self, model: nn.Module, total: int) -> None:
        """Let a student's forward use the cache, up to `total` tokens; tie it to the weights of the first
        model that does so. A teacher's students share theirs.

        Raises:
            ValueError: another model has used it.
        """
        self._opened_for = total
        weights = model.get_input_embeddings().weight.data_ptr()
        if self._weights not in (None, weights) and self.get_seq_length():
            raise ValueError("this cache holds the keys of another model, or of this one before it was moved")
        self._weights = weights

    @torch.compiler.disable
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_, **__
    ) -> tuple[Tensor, Tensor]:
        """As `SinkLayer.update`, for one layer."""
        layer = self.layers[layer_idx]
        if isinstance(layer, SinkLayer):
            return layer.update(key_states, value_states, self.left_padding)
        return layer.update(key_states, value_states)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """As `SinkLayer.get_mask_sizes`; every model asks this before its layers run.

        Raises:
            ValueError: a model that is not this cache's student is about to use it.
        """
        if self._opened_for != self.get_seq_length() + query_length:
            raise ValueError(
                "a sink cache serves a student alone: a model that attends to all keys can't do without the "
                "evicted ones"
            )
        return super().get_mask_sizes(query_length, layer_idx)

    def fork(self, rows: Tensor) -> SinkCache:
        """A second cache whose row i is row rows[i] of this one, which stays as it is."""
        fork = copy.copy(self)
        fork.layers = [copy.copy(layer) for layer in self.layers]
        fork.batch_select_indices(rows)  # makes new tensors
        return fork

    @classmethod
    def joined(cls, caches: Sequence[SinkCache]) -> SinkCache:
        """One cache of the rows of `caches`, in their order, as if each had been padded on the left to the
        longest; the caches stay as they are.

        Raises:
            ValueError: no cache, specs that differ, padded rows, or empty caches beside others.
        """
        if len({c.specs for c in caches}) != 1 or any(c.left_padding is not None for c in caches):
            raise ValueError("caches can be joined if they have the same specs and no padded rows")
        seen = [c.get_seq_length() for c in caches]
        if max(seen) == 0:
            return cls(caches[0].specs)
        if min(seen) == 0:
            raise ValueError("an empty cache can't be joined to one that has seen tokens")
        joined = copy.copy(caches[0])
        joined.layers = [
            _joined(layers, max(seen)) for layers in zip(*(c.layers for c in caches), strict=True)
        ]
        if min(seen) < max(seen):
            rows = [torch.full((c._rows,), max(seen) - n) for c, n in zip(caches, seen, strict=True)]
            joined.left_padding = torch.cat(rows)
        return joined

    @property
    def _rows(self) -> int:
        first = self.layers[0]
        held = next(iter(first.state.values())) if isinstance(first, MixerLayer) else first.keys
        return held.shape[0]

    @property
    def allocated_bytes(self) -> int:
        """Bytes of keys, values and states in all layers."""
        growing = [
            x for layer in self.layers if type(layer) is DynamicLayer for x in (layer.keys, layer.values)
        ]
        constant = [layer.allocated_bytes for layer in self.layers if type(layer) is not DynamicLayer]
        return sum(constant) + sum(x.untyped_storage().nbytes() for x in growing if x is not None)

    def crop(self, tokens_to_remove: int) -> None:
        """Refused, before any layer is touched, if a layer forgets."""
        for layer in self.layers:
            if not layer.is_croppable:
                layer.crop(tokens_to_remove)
        super().crop(tokens_to_remove)

    def reset(self) -> None:
        """Forget every token and the padding, keep the memory."""
        super().reset()
        self.left_padding = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row r becomes what row beam_idx[r] was."""
        super().reorder_cache(beam_idx)
        if self.left_padding is not None:
            self.left_padding = self.left_padding[beam_idx.to(self.left_padding.device)]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, in order."""
        super().batch_repeat_interleave(repeats)
        if self.left_padding is not None:
            self.left_padding = self.left_padding.repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices`."""
        super().batch_select_indices(indices)
        if self.left_padding is not None:
            self.left_padding = self.left_padding[indices.to(self.left_padding.device)]
