"""Inside a student's forward: which cache it gets, what stands in for its mask, and how its layers attend.

What would silently be another function than SWA(w, s) is refused here, before anything is computed. A
compiled student runs these functions, and the cache, uncompiled between its compiled parts: what they do
depends on how far a text has come, which a compiler would take for a constant.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.generation import GenerationMode

from swalib.attention import IMPLEMENTATIONS
from swalib.attention.scoring import Scoring, sink_logits
from swalib.cache import SinkCache
from swalib.families import RopeSwitch, decoder
from swalib.positions import RopeFunction
from swalib.spec import LayerSpec, Spec
from swalib.step import Step, checked_padding


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
    """

    spec: Spec
    layers: tuple[LayerSpec, ...]
    unrotated: bool = False
    longest_text: int | None = None
    rope_switch: RopeSwitch | None = None


# What the layers of one forward hand to later ones; set when it begins, given to each Step that it makes.
_shared: ContextVar[dict] = ContextVar("shared")


@torch.compiler.disable
def before_forward(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Give the decoder a sink cache if it wants one; refuse what would silently be another function."""
    swa = module._swa
    _shared.set({})
    if args:
        kwargs = dict(zip(inspect.signature(module.forward).parameters, args, strict=False)) | kwargs
    if "past_key_values" in kwargs:  # the name used before transformers 5.24
        kwargs["cache"] = kwargs.pop("past_key_values")
    use_cache = kwargs.get("use_cache")
    use_cache = module.config.use_cache if use_cache is None else use_cache
    cache = kwargs.get("cache")
    if cache is None and use_cache:
        cache = kwargs["cache"] = SinkCache(swa.layers)
    if cache is not None:
        _check_cache(cache, swa)
    tokens = kwargs.get("input_ids") if kwargs.get("inputs_embeds") is None else kwargs["inputs_embeds"]
    start = 0 if cache is None else cache.get_seq_length()
    total = start + tokens.shape[1]
    if cache is not None:
        cache.open(module, total)
    _check_outputs(module, kwargs)
    mask = kwargs.get("attention_mask")
    padding = checked_padding(mask, cache, tokens.shape[0], total)
    _check_positions(kwargs.get("position_ids"), mask, padding, tokens.shape[0], start, total)
    _check_lengths(swa, _lengths(mask, start, total))
    if cache is not None:
        cache.left_padding = padding
    if padding is not None:  # a row's own first token stands at 0, whichever way they were counted
        position = (torch.arange(start, total) - padding[:, None]).clamp(min=0)
        last = mask.cpu().sum(1, keepdim=True) - 1  # pads after a row's tokens must not lengthen its text
        kwargs["position_ids"] = position.minimum(last.clamp(min=0)).to(tokens.device)
    if swa.unrotated:
        kwargs["position_ids"] = torch.zeros(1, tokens.shape[1], dtype=torch.long, device=tokens.device)
    return (), kwargs


_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")


def _check_outputs(module: nn.Module, kwargs: dict) -> None:
    implementation = module.config._attn_implementation
    if implementation.removeprefix("swa_") not in IMPLEMENTATIONS or not implementation.startswith("swa_"):
        raise ValueError(
            f"this student's attention was replaced by {implementation!r}, which attends to all keys: leave "
            "it, or choose one by under(student, spec, impl)"
        )
    if kwargs.get("output_attentions") and implementation != "swa_reference":
        raise ValueError(
            'only impl="reference" forms attention weights: applied(model, spec, impl="reference")'
        )
    if any(kwargs.get(name) is not None for name in _PACKED):
        raise ValueError(f"packed rows ({', '.join(_PACKED)}) are not supported: pass one text per row")


def _lengths(mask: Tensor | None, start: int, total: int) -> list[tuple[int, int]]:
    """(tokens before this forward, tokens after it) of each row, pads on either side left out."""
    if mask is None:
        return [(start, total)]
    tokens = mask.cpu().bool()
    return list(zip(tokens[:, :start].sum(1).tolist(), tokens.sum(1).tolist(), strict=True))


def _check_lengths(swa: Student, lengths: list[tuple[int, int]]) -> None:
    """There are positions for all tokens, and one rotation for those of all rows and of the cache."""
    longest, switch = max(after for _, after in lengths), swa.rope_switch
    if swa.longest_text is not None and longest > swa.longest_text:
        raise ValueError(
            f"this model has positions for {swa.longest_text} tokens, and this text reaches {longest}: SWA "
            "hides keys, but can't extend a table of positions"
        )
    if switch is not None and any(switch.crossed(before, after) for before, after in lengths):
        raise ValueError(
            f"this model's RoPE turns every token otherwise once a text passes {switch.tokens} tokens, and "
            'the cache holds keys turned for fewer: use positions="cache", or read the text in one forward'
        )
    if switch is not None and len({after > switch.tokens for _, after in lengths}) > 1:
        raise ValueError(
            f"this model's RoPE turns a text of more than {switch.tokens} tokens otherwise than a shorter "
            'one: use positions="cache", or batches whose rows all lie on one side of that'
        )


def _check_cache(cache, swa: Student) -> None:
    if not isinstance(cache, SinkCache):
        raise TypeError(
            f"a student under {swa.spec} was given a {type(cache).__name__}, which keeps or evicts other "
            "keys than SWA shows: leave the cache out, or pass SinkCache(layer_specs(student, spec))"
        )
    if len({layer.get_seq_length() for layer in cache.layers}) > 1:
        raise ValueError("a forward that failed has left this cache half-written: begin a new one")
    if cache.specs != swa.layers:
        raise ValueError(f"this SinkCache was made for other specs than this student's {swa.spec}")


def _check_positions(
    position_ids: Tensor | None,
    mask: Tensor | None,
    padding: Tensor | None,
    rows: int,
    start: int,
    total: int,
) -> None:
    """Every token stands at its column, or, in a padded row, at its place among the row's own tokens."""
    if position_ids is None:
        return
    if (
        position_ids.shape not in ((1, total - start), (rows, total - start))
        or position_ids.is_floating_point()
    ):
        raise ValueError(
            f"position_ids must be integers [{rows}, {total - start}], one for each token, got "
            f"{tuple(position_ids.shape)} of {position_ids.dtype}"
        )
    column, given = torch.arange(start, total), position_ids.cpu()
    pad = torch.zeros(1, 1, dtype=torch.bool) if mask is None else ~mask[:, start:].cpu().bool()
    shift = 0 if padding is None else padding[:, None]
    as_column, as_token = (((given == place) | pad).all(-1) for place in (column, column - shift))
    if not bool((as_column | as_token).all()):
        raise ValueError(
            "position_ids that jump or restart (packed rows) are not supported: pass one text per row, its "
            "tokens at positions that follow one another"
        )


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
        model_kwargs["cache"] = SinkCache(decoder(student)._swa.layers)


@torch.compiler.disable
def _step(q_length, q_offset=0, attention_mask=None, **_) -> Step:
    """What stands in for a mask: the positions from which each layer makes its own."""
    return Step.masked(int(q_offset), q_length, attention_mask, _shared.get())


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
    spec = module._swa.spec
    own = kwargs.get("s_aux") if kwargs.get("s_aux") is not None else getattr(module, "sink_logits", None)
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    logits = sink_logits(spec, q.shape[1], own, q)
    scoring = Scoring(scale, module._swa.rope, kwargs.get("softcap"), logits, dropout)
    o, *rest = step.attend(spec, q, k, v, scoring, impl)
    return o.transpose(1, 2), rest[0] if rest else None


def _registered(impl: str):
    """The attention function that transformers calls for `swa_<impl>`."""

    @torch.compiler.disable
    def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
        return _attention(impl, module, query, key, value, attention_mask, dropout, scaling, kwargs)

    return attention


for _impl in IMPLEMENTATIONS:
    AttentionInterface.register(f"swa_{_impl}", _registered(_impl))
    AttentionMaskInterface.register(f"swa_{_impl}", _step)
