"""Is the mask really applied? `assert_applied` shows it on the model at hand, layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swalib.cache import SinkCache
from swalib.hf import attention_modules, check_supported, layer_specs
from swalib.spec import SWA, Full, Spec


class NotApplied(AssertionError):
    """A layer attends to other keys than its spec shows."""


@torch.no_grad()
def assert_applied(model: PreTrainedModel, spec: Spec) -> None:
    """Prove that every layer of `model` attends as `spec` says, in prefill and in decode.

    A text of random tokens, just long enough for the window to slide, is run through the model; then each
    layer's attention is run alone on the hidden states it met. Changing keys that the last query must not see
    has to leave its output equal to the last bit; changing the window's oldest key, or the last sink, has to
    move it; and a cached decode step has to give what the prefill gave.

    Args:
        model: a student (`with applied(model, spec) as student: assert_applied(student, spec)`), or any.
        spec: what it is claimed to be under.

    Raises:
        NotApplied: it is not; the message names the layer, the key and the phase.
    """
    check_supported(model)
    specs = layer_specs(model, spec)
    for layer in dict.fromkeys(specs):
        if isinstance(layer, SWA):  # layers under one spec need texts of one length: they share the forwards
            members = [index for index, other in enumerate(specs) if other == layer]
            _check_layers(model, layer, members)
    for index, (claimed, attention) in enumerate(zip(specs, attention_modules(model), strict=True)):
        carried = attention._swa.spec if hasattr(attention, "_swa") else Full()
        if carried != claimed:  # full attention, or positions of the other kind, under a window as wide
            raise NotApplied(f"layer {index} attends under {carried}, not {claimed}")


def _check_layers(model: PreTrainedModel, spec: SWA, members: list[int]) -> None:
    length = spec.window + spec.sinks + 3
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
            variants = torch.cat(
                [hidden_states]
                + [_changed(hidden_states, [key], factor) for key in visible]
                + [_changed(hidden_states, hidden, factor)]
            )
            attention = attention_modules(model)[index]
            outputs = {
                "prefill": attention(variants, cache=None, **prefill[index])[0],
                "decode": _decoded(model, attention, variants, prefill[index], decode[index]),
            }
            _require_blind(outputs, visible, hidden, where)
            missed = _missed(outputs, visible)
            if missed is None:
                break
        else:
            raise NotApplied(f"{where}: {missed}")
        _require_agreement(outputs, where)


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


def _require_agreement(outputs: dict[str, Tensor], where: str) -> None:
    """A decode step gives what the prefill gave, but for rounding."""
    last, decoded = outputs["prefill"][:, -1], outputs["decode"][:, -1]
    bound = 64 * torch.finfo(last.dtype).eps * float(last.abs().max())
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
    hidden = list(range(spec.sinks, query - spec.recents + 1))
    visible = [query - spec.recents + 1]
    return ([spec.sinks - 1, *visible] if spec.sinks else visible), hidden


def _captured(
    model: PreTrainedModel, members: list[int], length: int, cache: SinkCache | None
) -> dict[int, dict]:
    """What a real forward passes to each attention module by keyword, its mask and positions among them."""
    calls: dict[int, dict] = {}
    wanted = ("hidden_states", "position_embeddings", "attention_mask", "position_ids")

    def record(index: int):
        def hook(_module, _args, kwargs):
            calls[index] = {name: kwargs[name] for name in wanted if name in kwargs}

        return hook

    modules = attention_modules(model)
    hooks = [modules[i].register_forward_pre_hook(record(i), with_kwargs=True) for i in members]
    try:
        generator = torch.Generator().manual_seed(length)
        ids = torch.randint(model.config.get_text_config().vocab_size, (1, length), generator=generator)
        arguments = {"use_cache": False} if cache is None else {"cache": cache}
        model.base_model(input_ids=ids.to(model.device), **arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _fresh_cache(model: PreTrainedModel) -> SinkCache:
    student = getattr(model.base_model, "_swa", None)
    if student is None:
        raise NotApplied(
            "this model is no student: nothing but its own attention is applied; use `applied(model, spec)`"
        )
    return SinkCache(student.layers)


def _changed(hidden_states: Tensor, keys: list[int], factor: float) -> Tensor:
    changed = hidden_states.clone()
    changed[:, keys] *= factor
    return changed


def _decoded(model, attention, variants: Tensor, prefill: dict, decode: dict) -> Tensor:
    """The last row's output when the earlier ones come from the cache."""
    cache = _fresh_cache(model)
    head = {"cache": cache, **prefill, "attention_mask": _shorter(prefill["attention_mask"])}
    if "position_embeddings" in head:
        head["position_embeddings"] = tuple(table[:, :-1] for table in head["position_embeddings"])
    attention(variants[:, :-1], **head)
    return attention(variants[:, -1:], **{**decode, "cache": cache})[0]


def _shorter(step):
    return type(step)(step.start, step.length - 1) if hasattr(step, "start") else step
