"""Is the mask really applied? `assert_applied` shows it on the model at hand, layer by layer."""

from __future__ import annotations

import inspect
from itertools import product

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from swalib.cache import SinkCache
from swalib.families import attention_modules, decoder
from swalib.hf import check_supported, layer_specs
from swalib.linear.mixer import Mixer
from swalib.sink_layer import SinkLayer
from swalib.spec import SWA, Full, MixerConfig, PerHead, Spec
from swalib.step import Step


class NotApplied(AssertionError):
    """A layer attends to other keys than its spec shows."""


@torch.no_grad()
def assert_applied(model: PreTrainedModel, spec: Spec) -> None:
    """Prove that every layer of `model` attends as `spec` says, in prefill and in decode.

    A text of random tokens, just long enough for the window to slide, is run through the model; then each
    layer's attention is run alone on the hidden states it met. Changing keys that the last query must not see
    has to leave its output equal to the last bit; changing the window's oldest key, or the last sink, has to
    move it; and a cached decode step has to give what the prefill gave. Where heads differ (`PerHead`), the
    keys that none of them sees are the hidden ones.

    Args:
        model: a student (`with applied(model, spec) as student: assert_applied(student, spec)`), or any.
        spec: what it is claimed to be under.

    Raises:
        NotApplied: it is not; the message names the layer, the key and the phase.
    """
    specs = layer_specs(model, spec)
    if not any(isinstance(layer, MixerConfig) for layer in specs):
        check_supported(model)
    for layer in dict.fromkeys(specs):
        shown = layer.envelope if isinstance(layer, PerHead) else layer
        members = [index for index, other in enumerate(specs) if other == layer]
        if isinstance(shown, SWA):  # layers under one spec need texts of one length: they share the forwards
            _check_layers(model, shown, members)
        if isinstance(layer, PerHead):
            for index in members:
                _check_heads(model, layer, index)
    for index, (claimed, attention) in enumerate(zip(specs, attention_modules(model), strict=True)):
        if isinstance(attention, Mixer):
            carried = attention.config
        else:
            carried = attention._swa.spec if hasattr(attention, "_swa") else Full()
        if carried != claimed:  # full attention, or positions of the other kind, under a window as wide
            raise NotApplied(f"layer {index} attends under {carried}, not {claimed}")


def _check_layers(model: PreTrainedModel, spec: SWA, members: list[int]) -> None:
    length = spec.window + max(spec.sink_positions or [spec.sinks]) + 3
    prefill = _captured(model, members, length, None)
    cache = _fresh_cache(model)
    _captured(model, members, length - 1, cache)
    decode = _captured(model, members, 1, cache)
    visible, hidden = _edges(length, spec)
    for index in members:
        where = f"layer {index} under {spec}"
        hidden_states = prefill[index].pop("hidden_states")
        decode[index].pop("hidden_states")
        for factor in (0, -1):  # a change of a key of tiny weight may be lost in rounding: then try another
            changes = [[], *([key] for key in visible), hidden]
            variants = [_changed(hidden_states, keys, factor) for keys in changes]
            attention = attention_modules(model)[index]
            given = prefill[index], decode[index]
            outputs = {  # one by one: rows of a batch may lie, and so be rounded, differently in memory
                "prefill": torch.cat([attention(variant, **given[0])[0] for variant in variants]),
                "decode": torch.cat([_decoded(model, attention, variant, *given) for variant in variants]),
            }
            _require_blind(outputs, visible, hidden, where)
            missed = _missed(outputs, visible)
            if missed is None:
                break
        else:
            raise NotApplied(f"{where}: {missed}")
        _require_agreement(outputs, where, attention)


def _check_heads(model: PreTrainedModel, spec: PerHead, index: int) -> None:
    """Each head alone, on random queries, keys and values: the sign of a kv head's value shows in the outputs
    of exactly those of its heads and queries that see the key."""
    attention, envelope = attention_modules(model)[index], spec.envelope
    if not hasattr(attention, "_swa"):
        raise NotApplied(f"layer {index} has full attention, not {spec}")
    windowed = [head for head in spec.heads if isinstance(head, SWA)]
    length = max((head.window + head.sinks for head in windowed), default=1) + 3
    config = model.config.get_text_config()
    generator = torch.Generator().manual_seed(length)
    h, h_kv = len(spec.heads), getattr(config, "num_key_value_heads", None) or len(spec.heads)
    d = getattr(config, "head_dim", None) or config.hidden_size // h
    q, k, v = (torch.randn(1, n, length, d, generator=generator).to(model.device) for n in (h, h_kv, h_kv))
    interface = AttentionInterface()[config._attn_implementation]

    def outputs(v: Tensor) -> Tensor:
        """o [t + 1, h, d]: of a prefill of all tokens, then of the last one again, decoded."""
        whole = interface(attention, q, k, v, Step(0, length))[0][0]
        layer = DynamicLayer() if isinstance(envelope, Full) else SinkLayer(envelope)
        layer.update(k[:, :, :-1], v[:, :, :-1])
        last = layer.update(k[:, :, -1:], v[:, :, -1:])
        return torch.cat([whole, interface(attention, q[:, :, -1:], *last, Step(length - 1, 1))[0][0]])

    query = [*range(length), length - 1]
    edges = {key for head in windowed for edge in _edges(length, head) for key in (*edge[:1], *edge[-1:])}
    before = outputs(v)
    for key, kv in product(sorted(edges | {0}), range(h_kv)):
        flipped = v.clone()
        flipped[:, kv, key] *= -1
        moved = (outputs(flipped) != before).any(-1)
        for head, own in enumerate(spec.heads):
            of_group = head // (h // h_kv) == kv
            if moved[:, head].tolist() != [of_group and _sees(i, key, own) for i in query]:
                raise NotApplied(f"layer {index}, head {head}: key {key} isn't seen as {own} says")


def _sees(i: int, j: int, spec: SWA | Full) -> bool:
    if isinstance(spec, Full):
        return j <= i
    reach = i + 1 if spec.reach is None else spec.reach
    return j <= i and i - j < reach and (j < spec.sinks or i - j < spec.recents)


def _require_blind(outputs: dict[str, Tensor], visible: list[int], hidden: list[int], where: str) -> None:
    """No query may notice a change of keys after it, nor the last query one of the hidden keys."""
    baseline, *moved, _ = outputs["prefill"]
    for key, rows in zip(visible, moved, strict=True):
        if not torch.equal(rows[:key], baseline[:key]):
            raise NotApplied(f"{where}: in prefill, key {key} is seen by queries before it")
    for phase, rows in outputs.items():
        if not torch.equal(rows[-1, -1], rows[0, -1]):
            raise NotApplied(
                f"{where}: in {phase}, keys {hidden[0]} to {hidden[-1]} lie outside what the last query may "
                "see, but changing them changes the output"
            )


def _require_agreement(outputs: dict[str, Tensor], where: str, attention: nn.Module) -> None:
    """A decode step gives what the prefill gave, but for rounding; tables of angles are in fp32 at best."""
    last, decoded = outputs["prefill"][:, -1], outputs["decode"][:, -1]
    rotated_anew = attention._swa.rope is not None
    dtype = torch.float32 if rotated_anew and last.dtype == torch.float64 else last.dtype
    bound = 64 * torch.finfo(dtype).eps * float(last.abs().max())
    worst = float((last - decoded).abs().max())
    if not worst <= bound:
        raise NotApplied(f"{where}: decode and prefill differ by {worst:.3g}, not by rounding ({bound:.3g})")


def _missed(outputs: dict[str, Tensor], visible: list[int]) -> str | None:
    """Which key the last query should have noticed and did not."""
    for phase, (baseline, *moved, _) in outputs.items():
        for key, rows in zip(visible, moved, strict=True):
            if torch.equal(rows[-1], baseline[-1]):
                should = "should be visible to the last query, but changing it changes nothing"
                return f"in {phase}, key {key} {should}"
    return None


def _edges(length: int, spec: SWA) -> tuple[list[int], list[int]]:
    """(keys that must each move the last query: the last sink, the window's oldest; all that must not)."""
    query = length - 1
    reach = length if spec.reach is None else spec.reach
    oldest = query - min(spec.recents, reach) + 1
    sinks = range(spec.sinks) if spec.sink_positions is None else spec.sink_positions
    sinks = [key for key in sinks if query - key < reach and key < oldest]
    return [*sinks[-1:], oldest], [key for key in range(oldest) if key not in sinks]


def _captured(
    model: PreTrainedModel, members: list[int], length: int, cache: SinkCache | None
) -> dict[int, dict]:
    """What a real forward passes to each attention module, by name; the cache left out."""
    calls: dict[int, dict] = {}

    def record(index: int):
        def hook(module, args, kwargs):
            names = inspect.signature(module.forward).parameters
            given = dict(zip(names, args, strict=False)) | kwargs
            calls[index] = {name: given[name] for name in names if name in given and name not in _CACHE_NAMES}

        return hook

    modules = attention_modules(model)
    hooks = [modules[i].register_forward_pre_hook(record(i), with_kwargs=True) for i in members]
    try:
        generator = torch.Generator().manual_seed(length)
        ids = torch.randint(model.config.get_text_config().vocab_size, (1, length), generator=generator)
        arguments = {"use_cache": False} if cache is None else {"cache": cache}
        decoder(model)(input_ids=ids.to(model.device), **arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


_CACHE_NAMES = ("cache", "layer_past")


def _cache_name(attention: nn.Module) -> str:
    """What an attention module calls its cache."""
    names = inspect.signature(attention.forward).parameters
    return next(name for name in _CACHE_NAMES if name in names)


def _fresh_cache(model: PreTrainedModel) -> SinkCache:
    student = getattr(decoder(model), "_swa", None)
    if student is None:
        raise NotApplied(
            "this model is no student: nothing but its own attention is applied; use `applied(model, spec)`"
        )
    return SinkCache(student.layers)


def _changed(hidden_states: Tensor, keys: list[int], factor: float) -> Tensor:
    changed = hidden_states.clone()
    changed[:, keys] *= factor
    return changed


def _decoded(model, attention, hidden_states: Tensor, prefill: dict, decode: dict) -> Tensor:
    """The last row's output when the earlier ones come from the cache."""
    cache = {_cache_name(attention): _fresh_cache(model)}
    attention(hidden_states[:, :-1], **{name: _shorter(value) for name, value in prefill.items()}, **cache)
    return attention(hidden_states[:, -1:], **decode, **cache)[0]


def _shorter(value):
    """What a module is given for all tokens, for all but the last."""
    if hasattr(value, "start"):
        return type(value)(value.start, value.length - 1)
    if isinstance(value, tuple):
        return tuple(table[:, :-1] for table in value)
    return value[:, :-1] if isinstance(value, Tensor) else value
