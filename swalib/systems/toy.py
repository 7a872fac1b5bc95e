"""What is timed: the paper's 4-layer model, random weights, attention of any kind, a cache already filled."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import transformers

import swalib
from swalib.cache import SinkCache
from swalib.linear.mixer import MixerLayer
from swalib.sink_layer import SinkLayer
from swalib.spec import MixerConfig
from swalib.systems.cost import Shape, dtype_bytes
from swalib.systems.kinds import Kind

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LONGEST_TOKENS = 1 << 20
BLOCK = 4096  # random keys, repeated where a cache holds more


def model_id(shape: Shape, seed: int = 0) -> str:
    """What identifies the weights that `model` makes."""
    sizes = json.dumps(asdict(shape), sort_keys=True)
    return f"seeded:toy:{seed}:{hashlib.sha256(sizes.encode()).hexdigest()[:16]}"


@lru_cache(maxsize=1)
def model(shape: Shape, dtype: str = "float32", device: str = "cpu", seed: int = 0) -> PreTrainedModel:
    """A seeded random Llama of this shape in eval mode; the last one made is kept. The global random state is
    left alone.

    Raises:
        ValueError: a dtype that `cost.dtype_bytes` does not know.
    """
    dtype_bytes(dtype)
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=LONGEST_TOKENS,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(config).to(device, getattr(torch, dtype)).eval()


def student(
    teacher: PreTrainedModel, kind: Kind, room_tokens: int, impl: str = "sdpa", seed: int = 0
) -> PreTrainedModel:
    """`teacher` with attention of this kind, on the teacher's own weights where the kind keeps them.

    Args:
        room_tokens: the longest text that full attention will have slots for.
        impl: how softmax attention is computed, see `swalib.attention.attend`; mixers have one way.
    """
    spec = kind.spec(room_tokens)
    if not isinstance(spec, MixerConfig):
        return swalib.under(teacher, spec, impl)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return swalib.convert(teacher, spec, impl)


@torch.inference_mode()
def filled_cache(student: PreTrainedModel, context_tokens: int, batch: int = 1, seed: int = 0) -> SinkCache:
    """A cache as it is after `context_tokens` tokens in each row: the same sizes, counts and positions, with
    random keys, values and states in place of those of a text. A step's time does not depend on them.

    Raises:
        ValueError: context_tokens below 1.
    """
    if context_tokens < 1:
        raise ValueError(f"a cache is filled with at least 1 token, got {context_tokens}")
    cache = SinkCache(swalib.layer_specs(student, student.model._swa.spec))
    generator = torch.Generator(student.device).manual_seed(seed)
    if any(isinstance(layer, MixerLayer) for layer in cache.layers):
        return _read(student, cache, context_tokens, batch, generator)
    config = student.config
    for layer in cache.layers:
        tokens = 1 if isinstance(layer, SinkLayer) else context_tokens
        sizes = (batch, config.num_key_value_heads, tokens, config.head_dim)
        keys, values = (
            torch.empty(sizes, dtype=student.dtype, device=student.device).normal_(generator=generator)
            for _ in range(2)
        )
        if isinstance(layer, SinkLayer):
            _fill(layer, keys, values, context_tokens, generator)
        else:
            layer.update(keys, values)
    return cache


def _fill(layer: SinkLayer, keys, values, context_tokens: int, generator: torch.Generator) -> None:
    layer.lazy_initialization(keys, values)
    layer.seen_tokens = context_tokens
    for slots in (layer.keys, layer.values):
        live = slots[:, :, : layer.live_slots]
        live[:, :, :BLOCK].normal_(generator=generator)
        for start in range(BLOCK, live.shape[2], BLOCK):  # drawing them all would take longer than the steps
            part = live[:, :, start : start + BLOCK]
            part.copy_(live[:, :, : part.shape[2]])


def _read(student, cache: SinkCache, context_tokens: int, batch: int, generator) -> SinkCache:
    """A mixer makes its own state: it reads enough random tokens to fill its window, in one row that all rows
    repeat, and what is counted from the text's beginning is moved on to where `context_tokens` would be."""
    widest = max(getattr(spec, "window", 1) for spec in cache.specs)
    read = min(context_tokens, widest + 1)
    ids = torch.randint(student.config.vocab_size, (1, read), generator=generator, device=student.device)
    student(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
    cache.batch_repeat_interleave(batch)
    for layer in cache.layers:
        layer.seen_tokens = context_tokens
        if "position" in layer.state:
            held = layer.state["position"]
            layer.state["position"] = torch.where(held >= 0, held + context_tokens - read, held)
    return cache
