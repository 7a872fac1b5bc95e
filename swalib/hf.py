"""A spec on a transformers model: `with applied(model, SWA(64, 4)) as student: student.generate(**inputs)`.

The student is a second model object that shares every tensor with its teacher and differs in its attention,
its config and the cache it makes. The teacher is never touched, so it can run beside its students, and there
is nothing to undo. Attention and mask are registered under names of our own through transformers' public
interfaces; nothing is patched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from types import MethodType

from torch import nn
from transformers import PreTrainedModel

from swalib.attention import check_impl
from swalib.positions import Rope
from swalib.spec import SWA, Full, PerLayer, Spec
from swalib.student import LayerAttention, Student, before_forward, prepare_cache_for_generation

FAMILIES = ("llama", "qwen2", "mistral", "gemma3_text")


def layer_specs(model: PreTrainedModel, spec: Spec) -> tuple[SWA | Full, ...]:
    """The spec of each decoder layer of `model` under `spec`.

    A layer trained with its own local window keeps it where the model also has global layers (Gemma3: SWA
    goes to the global ones only, since a wider mask on a layer with a local RoPE breaks it). Where every
    layer is local (Mistral v0.1), SWA replaces the mask, but never shows more recents than the model was
    trained with. `PerLayer` is taken as it stands, but `Full()` always means the layer's own mask.

    Raises:
        TypeError: `spec` is not a spec.
        ValueError: `PerLayer` has not one entry per layer, or asks more recents of a local layer than it was
            trained on.
    """
    if not isinstance(spec, Full | SWA | PerLayer):
        raise TypeError(f"a spec is Full(), SWA(window, sinks) or PerLayer(...), got {spec!r}")
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
        impl: how attention is computed, see `swalib.attention.attend`. "reference" also gives attention
            weights.

    Raises:
        TypeError: `spec` is not a spec, or `model` is not a transformers causal LM.
        ValueError: the family or its configuration isn't supported, or the spec doesn't fit the model.
    """
    check_impl(impl)
    check_supported(model)
    layers = layer_specs(model, spec)
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    student = copy.deepcopy(model, shared)
    decoder = student.base_model
    for key in [key for key, hook in decoder._forward_pre_hooks.items() if isinstance(hook, _Witness)]:
        del decoder._forward_pre_hooks[key]  # copied from a block that watches the model, not this student
    unrotated = any(isinstance(layer, SWA) and layer.positions == "cache" for layer in layers)
    if not hasattr(decoder, "_swa"):
        decoder.register_forward_pre_hook(before_forward, with_kwargs=True)
    decoder._swa = Student(spec, layers, unrotated)
    for layer, attention in zip(layers, attention_modules(student), strict=True):
        rope = Rope(decoder.rotary_emb, *_rope_layer_type(attention)) if unrotated else None
        attention._swa = LayerAttention(layer, rope)
    student.config._attn_implementation = decoder.config._attn_implementation = f"swa_{impl}"
    student._prepare_cache_for_generation = MethodType(prepare_cache_for_generation, student)
    return student


def check_supported(model: PreTrainedModel) -> None:
    """Raise TypeError unless `model` is a causal LM, ValueError unless SWA is proven on its kind."""
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
        model.base_model.register_forward_pre_hook(teacher_ran),
        student.base_model.register_forward_pre_hook(student_ran),
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
