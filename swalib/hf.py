"""A spec on a transformers model: `with applied(model, SWA(64, 4)) as student: student.generate(**inputs)`.

The student is a second model object that shares every tensor with its teacher and differs in its attention,
its config and the cache it makes. The teacher is never touched, so it can run beside its students, and there
is nothing to undo. Attention and mask are registered under names of our own through transformers' public
interfaces; nothing is patched.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from swalib import families
from swalib.attention import check_impl
from swalib.attention.sdpa import tile_length
from swalib.families import FAMILIES, attention_modules
from swalib.linear.mixer import Mixer
from swalib.positions import Rope, RopeFunction, no_rope
from swalib.saved import SINK_LOGITS, save_pretrained
from swalib.spec import SWA, Full, LayerSpec, MixerConfig, PerHead, PerLayer, Spec
from swalib.student import LayerAttention, Student, before_forward, prepare_cache_for_generation


def layer_specs(model: PreTrainedModel, spec: Spec | MixerConfig) -> tuple[LayerSpec | MixerConfig, ...]:
    """The spec of each decoder layer of `model` under `spec`.

    A layer trained with its own local window keeps it where the model has global layers too (Gemma, gpt-oss):
    SWA goes to the global ones only, since a wider mask on a layer with a local RoPE breaks it. Where every
    layer is local (Mistral v0.1), SWA replaces the mask, but never shows more recents than the model was
    trained with. `SWA(..., local="intersect")` shows local layers what both masks show instead. `PerLayer` is
    taken as it stands, but `Full()` always means the layer's own mask. A linear mixer's config means all
    layers, local ones too.

    Raises:
        TypeError: `spec` is not a spec.
        ValueError: `PerLayer` has not one entry per layer, `PerHead` not one per query head, or a local layer
            is asked for more recents than it was trained on.
    """
    if not isinstance(spec, Spec | MixerConfig):
        raise TypeError(f"a spec is Full(), SWA(window, sinks), PerHead(...) or PerLayer(...), got {spec!r}")
    config = model.config.get_text_config(decoder=True)
    local = families.local_windows(config)
    if isinstance(spec, PerLayer):
        if len(spec.layers) != len(local):
            raise ValueError(
                f"PerLayer has {len(spec.layers)} specs, but the model has {len(local)} decoder layers"
            )
        chosen = spec.layers
    else:
        keeps_local = any(local) and not all(local) and not _replaces_local(spec)
        chosen = [Full() if native and keeps_local else spec for native in local]
    for layer in chosen:
        if isinstance(layer, PerHead) and len(layer.heads) != config.num_attention_heads:
            raise ValueError(
                f"PerHead has {len(layer.heads)} specs, but a layer has {config.num_attention_heads} heads"
            )
    return tuple(_within_native(layer, native) for layer, native in zip(chosen, local, strict=True))


def _replaces_local(spec: LayerSpec | MixerConfig) -> bool:
    if isinstance(spec, MixerConfig):
        return True
    return any(getattr(head, "local", "keep") == "intersect" for head in getattr(spec, "heads", (spec,)))


def _within_native(layer: LayerSpec | MixerConfig, native: int | None) -> LayerSpec | MixerConfig:
    if native is None or isinstance(layer, MixerConfig):
        return layer
    if isinstance(layer, PerHead):
        return PerHead(tuple(_within_native(head, native) for head in layer.heads))
    if isinstance(layer, Full):
        return SWA(native, 0)
    if layer.local == "intersect":
        return replace(layer, reach=min(native, layer.reach or native))
    if layer.recents > native:
        raise ValueError(
            f"{layer} shows {layer.recents} recents to a layer trained with a local window of {native}: "
            'narrow it, or use local="intersect"'
        )
    return layer


def under(model: PreTrainedModel, spec: Spec, impl: str = "sdpa") -> PreTrainedModel:
    """A student of `model` under `spec`: a new model object on the same parameters; `model` stays as it is.

    Args:
        model: a transformers causal LM of one of `swalib.families.FAMILIES` (or a student, which is then
            given the new spec).
        impl: how attention is computed, see `swalib.attention.attend`. "reference" also gives attention
            weights.

    Raises:
        TypeError: `spec` is not a spec, or `model` is not a transformers causal LM.
        ValueError: the family or its configuration isn't supported, or the spec doesn't fit the model.
        RuntimeError: `impl` runs on no device here; `swalib.attention.available` says what is missing.
    """
    check_impl(impl)
    check_supported(model)
    layers = layer_specs(model, spec)
    if any(isinstance(layer, MixerConfig) for layer in layers):
        raise TypeError(f"{spec} puts linear mixers in place of attention: use swalib.convert(model, method)")
    return equip(clone(model), spec, layers, impl)


def clone(model: PreTrainedModel, share: bool = True) -> PreTrainedModel:
    """A second model object, on the same parameters or on copies of them; blocks that watch `model` don't
    watch it."""
    shared = {id(parameter): parameter for parameter in model.parameters()} if share else {}
    copied = copy.deepcopy(model, shared)
    if any(inspect.isfunction(vars(module).get("forward")) for module in copied.modules()):
        raise ValueError(
            "a module's forward was replaced by a function, which would run the model and not its student: "
            "put the spec on first, then compile or wrap the student"
        )
    hooks = families.decoder(copied)._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if isinstance(hook, _Witness)]:
        del hooks[key]
    return copied


def equip(
    student: PreTrainedModel, spec: Spec | MixerConfig, layers: tuple[LayerSpec | MixerConfig, ...], impl: str
) -> PreTrainedModel:
    """Make a clone a student: its hooks, its attention and mask under our names, the cache it makes."""
    decoder = families.decoder(student)
    if not hasattr(decoder, "_swa"):
        decoder.register_forward_pre_hook(before_forward, with_kwargs=True)
    swa = decoder._swa = _student(student, spec, layers)
    for index, (layer, attention) in enumerate(zip(layers, attention_modules(student), strict=True)):
        if not isinstance(layer, MixerConfig):
            attention._swa = LayerAttention(
                layer, _rope(student, index, attention) if swa.unrotated else None
            )
            _set_sink_logits(attention, layer, student)
    student.config._attn_implementation = decoder.config._attn_implementation = f"swa_{impl}"
    student._prepare_cache_for_generation = partial(prepare_cache_for_generation, student)
    student.save_pretrained = partial(save_pretrained, student)
    return student


def _heads(layers: tuple[LayerSpec, ...]) -> list[SWA | Full]:
    return [head for layer in layers for head in getattr(layer, "heads", (layer,))]


def _student(model: PreTrainedModel, spec: Spec, layers: tuple[LayerSpec, ...]) -> Student:
    """What the decoder has to know.

    Raises:
        ValueError: positions="cache" on a model that has no rotation, or not one for these windows.
    """
    in_cache = [isinstance(head, SWA) and head.positions == "cache" for head in _heads(layers)]
    kind, longest, switch = families.family(model), families.longest_text(model), families.rope_switch(model)
    if not any(in_cache):
        return Student(spec, layers, False, longest, switch)
    if kind.rotation is None:
        raise ValueError(
            f'positions="cache" turns keys anew, and {model.config.model_type} adds its positions to the '
            'embeddings: use positions="text"'
        )
    horizon = min(limit for limit in (longest, switch and switch.tokens, float("inf")) if limit is not None)
    widest = max(layer.window for layer in _heads(layers) if isinstance(layer, SWA))
    if widest + tile_length(SWA(widest, 0)) > horizon:
        raise ValueError(
            f'positions="cache" needs a window well below the {horizon} tokens this RoPE is made for'
        )
    if switch is not None and not all(in_cache):
        raise ValueError(
            'a RoPE that depends on the length of the text takes positions="cache" in all layers or in none'
        )
    return Student(spec, layers, True, None if all(in_cache) else longest)


def _rope(model: PreTrainedModel, index: int, attention: nn.Module) -> RopeFunction:
    if not getattr(attention, "use_rope", True):  # SmolLM3's layers without rotation
        return no_rope
    rotary_emb = families.decoder(model).rotary_emb
    by_type = hasattr(rotary_emb, "layer_types")  # Gemma3, OLMo3: local and global layers turn differently
    layer_type = model.config.layer_types[index] if by_type else None
    return Rope(rotary_emb, families.family(model).rotation, layer_type)


def _set_sink_logits(attention: nn.Module, layer: LayerSpec, teacher: PreTrainedModel) -> None:
    """Give a layer its learned sink logits, which start at 0; a model with some of its own keeps those."""
    wanted = {head.sink_logit for head in _heads((layer,)) if isinstance(head, SWA)} - {None}
    if wanted and getattr(attention, "sinks", None) is not None:
        raise ValueError("this model has sink logits of its own, which stay: leave sink_logit out")
    if "learned" not in wanted:
        if hasattr(attention, SINK_LOGITS):  # of the student that `teacher` is
            delattr(attention, SINK_LOGITS)
    elif not hasattr(attention, SINK_LOGITS):
        like = next(attention.parameters())
        heads = teacher.config.num_attention_heads
        start = torch.zeros(heads, dtype=like.dtype, device=like.device)
        attention.register_parameter(SINK_LOGITS, nn.Parameter(start))


def check_supported(model: PreTrainedModel) -> None:
    """Raise TypeError unless `model` is a causal LM, ValueError unless SWA is proven on its kind and all its
    layers have attention."""
    if not isinstance(model, PreTrainedModel) or model.get_output_embeddings() is None:
        raise TypeError(f"SWA goes on a transformers causal LM, got {type(model).__name__}")
    config = model.config
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"SWA is proven here on {', '.join(sorted(FAMILIES))}; this model's type is {config.model_type!r}"
        )
    if any(isinstance(module, Mixer) for module in attention_modules(model)):
        raise ValueError("layers of this student have linear mixers: put the spec on its teacher")
    if getattr(config, "use_bidirectional_attention", False):
        raise ValueError("this model attends in both directions; SWA(w, s) is causal")


class _Witness:
    """A forward hook that only notes whether its module ever ran."""

    called = False

    def __call__(self, *_) -> None:
        self.called = True


@contextmanager
def applied(model: PreTrainedModel, spec: Spec, impl: str = "sdpa") -> Iterator[PreTrainedModel]:
    """`model` under `spec` for the length of a block: `with applied(model, SWA(64, 4)) as student: ...`.

    The model itself is untouched, inside the block and after it, and may be used beside its student. Several
    students of one teacher, nested blocks and threads are independent of each other.

    Raises:
        RuntimeError: at the end of a block that ran the model and never its student: the results of such a
            block are those of full attention.
        TypeError, ValueError: as `under`.
    """
    student = under(model, spec, impl)
    teacher_ran, student_ran = _Witness(), _Witness()
    hooks = [
        families.decoder(model).register_forward_pre_hook(teacher_ran),
        families.decoder(student).register_forward_pre_hook(student_ran),
    ]
    try:
        yield student
    finally:
        for hook in hooks:
            hook.remove()
    if teacher_ran.called and not student_ran.called:
        raise RuntimeError(
            f"this block ran the model, which keeps full attention, and never its student: "
            f"write `with applied(model, {spec}) as student:` and run `student`"
        )
