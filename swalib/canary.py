"""Is the mask really applied? `assert_applied` shows it on the model at hand, layer by layer, before anything is measured."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swalib.cache import SinkCache
from swalib.hf import applied, attention_modules, layer_specs
from swalib.spec import SWA, Full, Spec


class NotApplied(AssertionError):
    """A layer attends to other keys than its spec shows."""


@torch.no_grad()
def assert_applied(model: PreTrainedModel, spec: Spec) -> None:
    """Prove that every layer of `model` attends as `spec` says, in prefill and in decode.

    Each layer's attention is run alone on random hidden states, just long enough for its window to slide. Changing a key
    that the last query must not see has to leave its output equal to the last bit; changing one on the edge of the
    window, or a sink, has to move it; and a cached decode step has to give what the prefill gave.

    Args:
        model: a student (`with applied(model, spec) as student: assert_applied(student, spec)`), or any model.
        spec: what it is claimed to be under.

    Raises:
        NotApplied: it is not; the message names the layer, the key and the phase.
    """
    specs = layer_specs(model, spec)
    for layer in dict.fromkeys(
        specs
    ):  # layers under one spec share one length, hence one pair of captured calls
        if isinstance(layer, SWA):
            members = [index for index, other in enumerate(specs) if other == layer]
            _check_layers(model, layer, members)


def _check_layers(model: PreTrainedModel, spec: SWA, members: list[int]) -> None:
    length = spec.window + spec.sinks + 3
    prefill = _captured(model, members, length, None)
    cache = _fresh_cache(model)
    _captured(model, members, length - 1, cache)
    decode = _captured(model, members, 1, cache)
    visible, hidden = _edges(length, spec)
    for index in members:
        attention = attention_modules(model)[index]
        hidden_states = _probe(attention, length)
        variants = torch.cat([hidden_states, *(_changed(hidden_states, [j]) for j in visible)])
        variants = torch.cat([variants, _changed(hidden_states, hidden)])
        outputs = {
            "prefill": attention(variants, cache=None, **prefill[index])[0][:, -1],
            "decode": _decoded(model, attention, variants, prefill[index], decode[index]),
        }
        for phase, rows in outputs.items():
            _compare(rows, visible, hidden, f"layer {index} in {phase} under {spec}")
        _compare_phases(outputs["prefill"], outputs["decode"], f"layer {index} under {spec}")


def _edges(length: int, spec: SWA) -> tuple[list[int], list[int]]:
    """(keys that must each move the last query: the sinks' last and the window's oldest; all that must not)."""
    query = length - 1
    hidden = list(range(spec.sinks, query - spec.recents + 1))
    visible = [query - spec.recents + 1]
    return ([spec.sinks - 1, *visible] if spec.sinks else visible), hidden


def _captured(
    model: PreTrainedModel, members: list[int], length: int, cache: SinkCache | None
) -> dict[int, dict]:
    """The keyword arguments that a real forward passes to each attention module, its mask and positions among them."""
    calls: dict[int, dict] = {}
    wanted = ("position_embeddings", "attention_mask", "position_ids")

    def record(index: int):
        def hook(_module, _args, kwargs):
            calls[index] = {name: kwargs[name] for name in wanted if name in kwargs}

        return hook

    modules = attention_modules(model)
    hooks = [modules[i].register_forward_pre_hook(record(i), with_kwargs=True) for i in members]
    try:
        ids = torch.arange(length, device=model.device)[None] % model.config.get_text_config().vocab_size
        arguments = {"use_cache": False} if cache is None else {"cache": cache}
        model.base_model(input_ids=ids, **arguments)
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


def _probe(attention: torch.nn.Module, length: int) -> Tensor:
    weight = attention.q_proj.weight
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1, length, weight.shape[1], generator=generator)
    return noise.to(weight.device, weight.dtype)


def _changed(hidden_states: Tensor, keys: list[int]) -> Tensor:
    changed = hidden_states.clone()
    changed[:, keys] = -changed[:, keys]
    return changed


def _decoded(model, attention, variants: Tensor, prefill: dict, decode: dict) -> Tensor:
    """The last row's output when the earlier ones come from the cache."""
    cache = _fresh_cache(model)
    head = {"cache": cache, **prefill, "attention_mask": _shorter(prefill["attention_mask"])}
    if "position_embeddings" in head:
        head["position_embeddings"] = tuple(table[:, :-1] for table in head["position_embeddings"])
    attention(variants[:, :-1], **head)
    return attention(variants[:, -1:], **{**decode, "cache": cache})[0][:, -1]


def _shorter(step):
    return type(step)(step.start, step.length - 1) if hasattr(step, "start") else step


def _compare(rows: Tensor, visible: list[int], hidden: list[int], where: str) -> None:
    baseline, *moved, unmoved = rows
    for key, row in zip(visible, moved, strict=True):
        if torch.equal(row, baseline):
            raise NotApplied(
                f"{where}: key {key} should be visible to the last query, but changing it changes nothing"
            )
    if not torch.equal(unmoved, baseline):
        raise NotApplied(
            f"{where}: keys {hidden[0]} to {hidden[-1]} lie outside the window, but changing them changes the output"
        )


def _compare_phases(prefill: Tensor, decode: Tensor, where: str) -> None:
    bound = 64 * torch.finfo(prefill.dtype).eps * float(prefill.abs().max())
    worst = float((prefill - decode).abs().max())
    if not worst <= bound:
        raise NotApplied(
            f"{where}: decode and prefill differ by {worst:.3g}, more than rounding ({bound:.3g})"
        )
