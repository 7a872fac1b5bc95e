"""A teacher with linear mixers in place of attention: `convert(teacher, LolcatsConfig())`."""

from __future__ import annotations

from operator import attrgetter

from transformers import PreTrainedModel

from swalib import families
from swalib.attention import check_impl
from swalib.hf import check_supported, clone, equip, layer_specs
from swalib.linear import mixer_class
from swalib.spec import MixerConfig, PerLayer


def convert(
    teacher: PreTrainedModel,
    method: MixerConfig | PerLayer,
    impl: str = "sdpa",
    share: bool | None = None,
    linear_impl: str = "torch",
) -> PreTrainedModel:
    """A student of `teacher` whose attention has made way for a linear mixer, initialised as its method says.

    It is a student like any other: it makes its own cache, of constant size where every layer has a mixer,
    takes padded batches, chunks and beams, and saves with `save_pretrained`. It is as good as its training:
    straight from here it is a start, not a language model.

    Args:
        teacher: a causal LM of the Llama, Qwen2, Qwen3, Mistral, Phi or Gemma families; it stays as it is.
        method: a mixer's config, for all layers; or `PerLayer`, where `Full()` and `SWA` keep a layer's
            attention.
        impl: how the attention that is kept is computed.
        share: whether what the method does not replace stays the teacher's own parameters. Default: as the
            method trains it, shared where all but the mixers is frozen, copied where training changes it.
        linear_impl: by what the mixers' recurrences are computed, "torch" or "fla" (flash-linear-attention's
            kernels, on a GPU); a student's mixers can be switched later, by `mixer.use`.

    Raises:
        ImportError: `linear_impl` is "fla", which is not installed.
        TypeError: `method` is neither, or `teacher` is no causal LM.
        ValueError: an attention whose layout is not known, sizes that the method cannot take, `PerLayer`
            without one entry per layer, or a method that "fla" has no kernel for.
    """
    if not isinstance(method, MixerConfig | PerLayer):
        raise TypeError(f"convert takes a linear mixer's config, or PerLayer of some, got {method!r}")
    check_impl(impl)
    check_supported(teacher)
    layers = layer_specs(teacher, method)
    mixers = [layer for layer in layers if isinstance(layer, MixerConfig)]
    if not mixers:
        raise ValueError(f"{method} has no linear mixer: use swalib.under(model, spec)")
    if share is None:
        share = all(mixer_class(layer.method).shares for layer in mixers)
    student = clone(teacher, share)
    place = families.family(student).attention
    blocks = attrgetter(families.family(student).layers)(families.decoder(student))
    for index, (layer, block) in enumerate(zip(layers, blocks, strict=True)):
        if isinstance(layer, MixerConfig):
            mixer = mixer_class(layer.method).init_from(getattr(block, place), layer, index)
            mixer.use(linear_impl)
            setattr(block, place, mixer)
    return equip(student, method, layers, impl)
