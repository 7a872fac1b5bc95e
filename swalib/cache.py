"""The sink cache: in every layer what its spec lets a later token see, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from swalib.linear.mixer import MixerLayer
from swalib.sink_layer import SinkLayer
from swalib.spec import Full, LayerSpec, MixerConfig, PerHead


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
