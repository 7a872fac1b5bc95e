"""One layer of the sink cache: its s sinks and latest w - s tokens, in w slots that never move."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from swalib.masks import is_sink
from swalib.slots import live_slots, slot_of
from swalib.spec import SWA


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
