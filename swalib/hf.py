"""A spec on a transformers model: `with applied(model, SWA(64, 4)) as student: student.generate(**inputs)`.

The student is a second model object that shares every tensor with its teacher and differs in its attention, its config
and the cache it makes. The teacher is never touched, so it can run beside its students, and there is nothing to undo.
Attention and mask are registered under names of our own through transformers' public interfaces; nothing is patched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import MethodType

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.generation import GenerationMode

from swalib.attention import check_impl, reference, sdpa
from swalib.cache import SinkCache
from swalib.positions import Rope
from swalib.spec import SWA, Full, PerLayer, Spec
from swalib.step import Step, left_padding

FAMILIES = ("llama", "qwen2", "mistral", "gemma3_text")


@dataclass(frozen=True)
class LayerAttention:
    """What a student's attention module carries: its spec, and its rotation where q and k arrive unrotated."""

    spec: SWA | Full
    rope: Rope | None


@dataclass(frozen=True)
class Student:
    """What a student's decoder carries: the spec it was made with, that of each layer, and whether RoPE is ours."""

    spec: Spec
    layers: tuple[SWA | Full, ...]
    unrotated: bool


# ---------------------------------------------------------------------------------------------- making a student


def layer_specs(model: PreTrainedModel, spec: Spec) -> tuple[SWA | Full, ...]:
    """The spec of each decoder layer of `model` under `spec`.

    A layer trained with its own local window keeps it where the model also has global layers (Gemma3: SWA goes to the
    global ones only, since a wider mask on a layer with a local RoPE breaks it). Where every layer is local (Mistral
    v0.1), SWA replaces the mask, but never shows more recents than the model was trained with. `PerLayer` is taken as
    it stands, but `Full()` always means the layer's own mask.

    Raises:
        ValueError: `PerLayer` has not one entry per layer, or asks more recents of a local layer than it was trained on.
    """
    config = model.config.get_text_config(decoder=True)
    local = _local_windows(config)
    if isinstance(spec, PerLayer):
        if len(spec.layers) != len(local):
            raise ValueError(
                f"PerLayer has {len(spec.layers)} specs, but the model has {len(local)} decoder layers"
            )
        chosen = spec.layers
    else:
        keeps_local = any(local) and not all(local)
        chosen = [Full() if native and keeps_local else spec for native in local]
    return tuple(_within_native(layer, native) for layer, native in zip(chosen, local, strict=True))


def _within_native(layer: SWA | Full, native: int | None) -> SWA | Full:
    if native is None:
        return layer
    if isinstance(layer, Full):
        return SWA(native, 0)
    if layer.recents > native:
        raise ValueError(
            f"{layer} shows {layer.recents} recents to a layer trained with a local window of {native}"
        )
    return layer


def _local_windows(config) -> list[int | None]:
    """Each layer's native window in tokens (its own key counted), None for a global layer."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or [None] * config.num_hidden_layers
    if config.model_type == "mistral":
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in types]


def under(model: PreTrainedModel, spec: Spec, impl: str = "sdpa") -> PreTrainedModel:
    """A student of `model` under `spec`: a new model object on the same parameters; `model` stays as it is.

    Args:
        model: a transformers causal LM of one of `FAMILIES` (or a student, which is then given the new spec).
        impl: how attention is computed, see `swalib.attention.attend`. "reference" also gives attention weights.

    Raises:
        TypeError: `spec` is not a spec, or `model` is not a transformers causal LM.
        ValueError: the family or its configuration isn't supported, or the spec doesn't fit the model.
    """
    check_impl(impl)
    if not isinstance(spec, Full | SWA | PerLayer):
        raise TypeError(f"a spec is Full(), SWA(window, sinks) or PerLayer(...), got {spec!r}")
    _check_supported(model)
    layers = layer_specs(model, spec)
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    student = copy.deepcopy(model, shared)
    decoder = student.base_model
    unrotated = any(isinstance(layer, SWA) and layer.positions == "cache" for layer in layers)
    if not hasattr(decoder, "_swa"):
        decoder.register_forward_pre_hook(_before_forward, with_kwargs=True)
    decoder._swa = Student(spec, layers, unrotated)
    for layer, attention in zip(layers, attention_modules(student), strict=True):
        rope = Rope(decoder.rotary_emb, *_rope_layer_type(attention)) if unrotated else None
        attention._swa = LayerAttention(layer, rope)
    student.config._attn_implementation = decoder.config._attn_implementation = f"swa_{impl}"
    student._prepare_cache_for_generation = MethodType(_prepare_cache_for_generation, student)
    return student


def _check_supported(model: PreTrainedModel) -> None:
    if not isinstance(model, PreTrainedModel) or model.get_output_embeddings() is None:
        raise TypeError(f"SWA goes on a transformers causal LM, got {type(model).__name__}")
    config = model.config
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"SWA is proven here on {', '.join(FAMILIES)}; this model is of type {config.model_type!r}"
        )
    if getattr(config, "use_bidirectional_attention", False):
        raise ValueError("this model attends in both directions; SWA(w, s) is causal")
    if getattr(config, "attn_logit_softcapping", None):
        raise ValueError(
            "this model caps its attention logits (attn_logit_softcapping), which is not supported"
        )


def attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The self-attention module of each decoder layer, first layer first."""
    return [layer.self_attn for layer in model.base_model.layers]


def _rope_layer_type(attention: nn.Module) -> tuple[str, ...]:
    return (attention.layer_type,) if attention.config.model_type == "gemma3_text" else ()


@contextmanager
def applied(model: PreTrainedModel, spec: Spec, impl: str = "sdpa") -> Iterator[PreTrainedModel]:
    """`model` under `spec` for the length of a block: `with applied(model, SWA(64, 4)) as student: ...`.

    The model itself is untouched, inside the block and after it, and may be used beside its student. Several students of
    one teacher, nested blocks and threads are independent of each other.

    Raises:
        RuntimeError: at the end of a block that ran the model and never its student: the results of such a block are
            those of full attention.
        TypeError, ValueError: as `under`.
    """
    student = under(model, spec, impl)
    ran: set[str] = set()
    hooks = [
        one.base_model.register_forward_pre_hook(lambda *_, who=who: ran.add(who))
        for one, who in ((model, "teacher"), (student, "student"))
    ]
    try:
        yield student
    finally:
        for hook in hooks:
            hook.remove()
    if ran == {"teacher"}:
        raise RuntimeError(
            f"this block ran the model, which keeps full attention, and never its student: "
            f"write `with applied(model, {spec}) as student:` and run `student`"
        )


# ---------------------------------------------------------------------------------------- inside a student's forward

_FORWARD_NAMES = ("input_ids", "attention_mask", "position_ids", "cache", "inputs_embeds", "use_cache")


def _before_forward(decoder: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Give the decoder a sink cache if it wants one, and refuse what would silently be another function than SWA."""
    kwargs = dict(zip(_FORWARD_NAMES, args, strict=False)) | kwargs
    if "past_key_values" in kwargs:  # the name used before transformers 5.24
        kwargs["cache"] = kwargs.pop("past_key_values")
    use_cache = kwargs.get("use_cache")
    use_cache = decoder.config.use_cache if use_cache is None else use_cache
    cache = kwargs.get("cache")
    if cache is None and use_cache:
        cache = kwargs["cache"] = SinkCache(decoder._swa.layers)
    start = 0
    if cache is not None:
        _check_cache(cache, decoder._swa)
        start = cache.get_seq_length()
    tokens = kwargs.get("input_ids") if kwargs.get("inputs_embeds") is None else kwargs["inputs_embeds"]
    _check_positions(kwargs.get("position_ids"), kwargs.get("attention_mask"))
    _note_padding(kwargs.get("attention_mask"), cache, start + tokens.shape[1])
    if decoder._swa.unrotated:
        kwargs["position_ids"] = torch.zeros(1, tokens.shape[1], dtype=torch.long, device=tokens.device)
    return (), kwargs


def _check_cache(cache, swa: Student) -> None:
    if not isinstance(cache, SinkCache):
        raise TypeError(
            f"a student under {swa.spec} was given a {type(cache).__name__}, which keeps or evicts other keys than SWA "
            "shows: leave the cache out, or pass SinkCache(layer_specs(student, spec))"
        )
    if cache.specs != swa.layers:
        raise ValueError(f"this SinkCache was made for other specs than this student's {swa.spec}")


def _check_positions(position_ids: Tensor | None, attention_mask: Tensor | None) -> None:
    if position_ids is None or attention_mask is not None or position_ids.shape[-1] < 2:
        return
    if bool((position_ids.diff(dim=-1) != 1).any()):
        raise ValueError(
            "position_ids that jump or restart (packed rows) are not supported: pass one text per row"
        )


def _note_padding(attention_mask: Tensor | None, cache: SinkCache | None, total: int) -> None:
    if attention_mask is None:
        if cache is not None and cache.left_padding is not None:
            raise ValueError(
                "this cache holds padded rows: pass the attention_mask of all tokens so far with each call"
            )
        return
    padding = left_padding(attention_mask)
    if attention_mask.shape[1] != total:
        raise ValueError(
            f"the attention_mask covers {attention_mask.shape[1]} tokens, but there are {total} so far"
        )
    if cache is None:
        return
    if cache.left_padding is None and cache.get_seq_length() == 0 and bool(padding.any()):
        cache.left_padding = padding
    elif not torch.equal(
        padding, cache.left_padding if cache.left_padding is not None else torch.zeros_like(padding)
    ):
        raise ValueError("the left padding of a row changed since this cache was begun")


def _prepare_cache_for_generation(
    student, generation_config, model_kwargs, generation_mode, *_, **__
) -> None:
    """What `generate` calls to make a cache, on this student alone."""
    if generation_mode == GenerationMode.ASSISTED_GENERATION or generation_config.is_assistant:
        raise ValueError(
            "assisted decoding rolls the cache back, which a sink cache can't: evicted tokens are gone"
        )
    if generation_config.cache_implementation is not None:
        raise ValueError(
            f"cache_implementation={generation_config.cache_implementation!r} would replace the sink cache: leave it out"
        )
    if model_kwargs.get("cache") is None and generation_config.use_cache:
        model_kwargs["cache"] = SinkCache(student.base_model._swa.layers)


def _step(q_length, q_offset=0, attention_mask=None, **_) -> Step:
    """What stands in for a mask (registered with transformers): the positions from which each layer makes its own."""
    padded = attention_mask is not None and not bool(attention_mask.all())
    tokens = attention_mask.cpu().bool() if padded else None
    return Step(int(q_offset), q_length, left_padding(tokens) if padded else None, tokens)


_REFUSED = ("softcap", "s_aux", "position_bias", "head_mask")


def _attention(impl: str, module, q, k, v, step, dropout, scaling, kwargs) -> tuple[Tensor, Tensor | None]:
    if not isinstance(step, Step) or not hasattr(module, "_swa"):
        raise RuntimeError(
            "this attention runs only in a student made by swalib, without a mask of queries × keys: use applied()"
        )
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise ValueError(f"this model passes {name!r} to its attention, which {impl} does not take")
    spec, rope = module._swa.spec, module._swa.rope
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    if impl == "sdpa":
        o, weights = sdpa.run(step.plan(spec, k.shape[-2]), q, k, v, spec, scale, rope, dropout), None
    else:
        o, weights, _ = reference.attend_with_weights(
            q, k, v, spec, step.q_pos, step.k_pos(spec, k.shape[-2]), scale, rope
        )
    return o.transpose(1, 2), weights


def _sdpa(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    return _attention("sdpa", module, query, key, value, attention_mask, dropout, scaling, kwargs)


def _reference(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    if dropout:
        raise ValueError('impl="reference" has no attention dropout: call student.eval() or use impl="sdpa"')
    return _attention("reference", module, query, key, value, attention_mask, dropout, scaling, kwargs)


for _name, _function in (("swa_sdpa", _sdpa), ("swa_reference", _reference)):
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, _step)
