"""Inside a student's forward: which cache it gets, what stands in for its mask, and how its layers attend.

What would silently be another function than SWA(w, s) is refused here, before anything is computed.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.generation import GenerationMode

from swalib.attention import reference, sdpa
from swalib.attention.scoring import Scoring, by_head, sink_logits
from swalib.cache import SinkCache
from swalib.families import RopeSwitch
from swalib.positions import RopeFunction
from swalib.spec import LayerSpec, PerHead, Spec
from swalib.step import Step, left_padding


@dataclass(frozen=True)
class LayerAttention:
    """What a student's attention module carries: its spec, and its rotation if q, k arrive unrotated."""

    spec: LayerSpec
    rope: RopeFunction | None


@dataclass(frozen=True)
class Student:
    """What a student's decoder carries.

    Args:
        spec: what was asked for; layers: what that means for each layer.
        unrotated: whether q and k come unrotated, to be turned by each layer's attention.
        longest_text: tokens for which there are positions, or None.
        rope_switch: where the angles of all tokens change, or None.
        learned_positions: whether positions are added to the embeddings.
    """

    spec: Spec
    layers: tuple[LayerSpec, ...]
    unrotated: bool = False
    longest_text: int | None = None
    rope_switch: RopeSwitch | None = None
    learned_positions: bool = False


def before_forward(decoder: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Give the decoder a sink cache if it wants one; refuse what would silently be another function."""
    if args:
        names = list(inspect.signature(decoder.forward).parameters)
        kwargs = dict(zip(names, args, strict=False)) | kwargs
    if "past_key_values" in kwargs:  # the name used before transformers 5.24
        kwargs["cache"] = kwargs.pop("past_key_values")
    use_cache = kwargs.get("use_cache")
    use_cache = decoder.config.use_cache if use_cache is None else use_cache
    cache = kwargs.get("cache")
    if cache is None and use_cache:
        cache = kwargs["cache"] = SinkCache(decoder._swa.layers)
    start = 0
    if cache is not None:
        _check_cache(cache, decoder)
        start = cache.get_seq_length()
    tokens = kwargs.get("input_ids") if kwargs.get("inputs_embeds") is None else kwargs["inputs_embeds"]
    total = start + tokens.shape[1]
    _check_length(decoder._swa, start, total)
    if kwargs.get("output_attentions") and decoder.config._attn_implementation != "swa_reference":
        raise ValueError(
            'only impl="reference" forms attention weights: applied(model, spec, impl="reference")'
        )
    _check_positions(kwargs.get("position_ids"), kwargs.get("attention_mask"))
    padding = _note_padding(kwargs.get("attention_mask"), cache, total)
    if decoder._swa.learned_positions and padding is not None and kwargs.get("position_ids") is None:
        position = torch.arange(start, total) - padding[:, None]
        kwargs["position_ids"] = position.clamp(min=0).to(tokens.device)
    if decoder._swa.unrotated:
        kwargs["position_ids"] = torch.zeros(1, tokens.shape[1], dtype=torch.long, device=tokens.device)
    return (), kwargs


def _check_length(swa: Student, start: int, total: int) -> None:
    if swa.longest_text is not None and total > swa.longest_text:
        raise ValueError(
            f"this model has positions for {swa.longest_text} tokens, and this text reaches {total}: SWA "
            "hides keys, but can't extend a table of positions"
        )
    if swa.rope_switch is not None and swa.rope_switch.crossed(start, total):
        raise ValueError(
            f"this model's RoPE turns every token otherwise once a text passes {swa.rope_switch.tokens} "
            f'tokens, and the cache holds keys turned for {start}: use positions="cache", or read the text '
            "anew in one forward"
        )


def _check_cache(cache, decoder: nn.Module) -> None:
    swa = decoder._swa
    if not isinstance(cache, SinkCache):
        raise TypeError(
            f"a student under {swa.spec} was given a {type(cache).__name__}, which keeps or evicts other "
            "keys than SWA shows: leave the cache out, or pass SinkCache(layer_specs(student, spec))"
        )
    if cache.specs != swa.layers:
        raise ValueError(f"this SinkCache was made for other specs than this student's {swa.spec}")
    cache.claim(decoder)


def _check_positions(position_ids: Tensor | None, attention_mask: Tensor | None) -> None:
    padded = isinstance(attention_mask, Tensor) and not bool(attention_mask.all())
    if position_ids is None or padded or position_ids.shape[-1] < 2:
        return
    if bool((position_ids.diff(dim=-1) != 1).any()):
        raise ValueError(
            "position_ids that jump or restart (packed rows) are not supported: pass one text per row"
        )


def _note_padding(attention_mask: Tensor | None, cache: SinkCache | None, total: int) -> Tensor | None:
    """The left padding of each row if there is any; it is kept in the cache, and must not change there."""
    if attention_mask is None:
        if cache is not None and cache.left_padding is not None:
            raise ValueError(
                "this cache holds padded rows: pass the attention_mask of all tokens so far with each call"
            )
        return None
    if not isinstance(attention_mask, Tensor):
        raise ValueError(
            "a student takes one padding mask [batch, tokens], not a mask for each kind of layer"
        )
    padded = attention_mask.ndim != 2 or not bool(attention_mask.all())
    padding = left_padding(attention_mask) if padded else torch.zeros(len(attention_mask), dtype=torch.long)
    if attention_mask.shape[1] != total:
        raise ValueError(
            f"the attention_mask covers {attention_mask.shape[1]} tokens, but there are {total} so far"
        )
    if cache is None:
        return padding if padded else None
    if cache.left_padding is None and cache.get_seq_length() == 0 and padded:
        cache.left_padding = padding
    elif not torch.equal(
        padding, cache.left_padding if cache.left_padding is not None else torch.zeros_like(padding)
    ):
        raise ValueError("the left padding of a row changed since this cache was begun")
    return cache.left_padding


def prepare_cache_for_generation(student, generation_config, model_kwargs, generation_mode, *_, **__) -> None:
    """What `generate` calls to make a cache, on this student alone."""
    if generation_mode == GenerationMode.ASSISTED_GENERATION or generation_config.is_assistant:
        raise ValueError(
            "assisted decoding rolls the cache back, which a sink cache can't: evicted tokens are gone"
        )
    if generation_config.cache_implementation is not None:
        raise ValueError(
            f"cache_implementation={generation_config.cache_implementation!r} would replace the sink cache: "
            "leave it out"
        )
    if model_kwargs.get("cache") is None and generation_config.use_cache:
        model_kwargs["cache"] = SinkCache(student.base_model._swa.layers)


def _step(q_length, q_offset=0, attention_mask=None, **_) -> Step:
    """What stands in for a mask: the positions from which each layer makes its own."""
    padded = attention_mask is not None and not bool(attention_mask.all())
    tokens = attention_mask.cpu().bool() if padded else None
    return Step(int(q_offset), q_length, left_padding(tokens) if padded else None, tokens)


_REFUSED = ("position_bias", "head_mask")


def _attention(impl: str, module, q, k, v, step, dropout, scaling, kwargs) -> tuple[Tensor, Tensor | None]:
    if not isinstance(step, Step) or not hasattr(module, "_swa"):
        raise RuntimeError(
            "this attention runs only in a student made by swalib, without a mask of queries × keys: "
            "use applied()"
        )
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise ValueError(f"this model passes {name!r} to its attention, which {impl} does not take")
    spec, columns = module._swa.spec, k.shape[-2]
    kept = spec.envelope if isinstance(spec, PerHead) else spec
    own = kwargs.get("s_aux") if kwargs.get("s_aux") is not None else getattr(module, "sink_logits", None)
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    logits = sink_logits(spec, q.shape[1], own, q)
    scoring = Scoring(scale, module._swa.rope, kwargs.get("softcap"), logits, dropout)

    def attention(spec, q, k, v, scoring):
        if impl == "sdpa":
            return (sdpa.run(step.plan(spec, kept, columns), q, k, v, spec, scoring),)
        k_pos = step.k_pos(kept, columns)
        return reference.attend_with_weights(q, k, v, spec, step.q_pos, k_pos, scoring)

    o, *rest = by_head(spec, q, k, v, scoring, attention)
    return o.transpose(1, 2), rest[0] if rest else None


def _sdpa(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    return _attention("sdpa", module, query, key, value, attention_mask, dropout, scaling, kwargs)


def _reference(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    return _attention("reference", module, query, key, value, attention_mask, dropout, scaling, kwargs)


for _name, _function in (("swa_sdpa", _sdpa), ("swa_reference", _reference)):
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, _step)
