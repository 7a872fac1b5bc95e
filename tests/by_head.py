"""An oracle for specs that give each head, or each layer and head, its own: query by query, head by head.

Nothing here imports the library's masks, cache, positions or attention; a spec is read field by field.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import torch
from architectures import Exact, attentions
from oracle import Truth, ids, model, turn
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from swalib.spec import SWA, Full, PerHead, PerLayer, Spec

HEADS, GROUPS = 4, 2
NATIVE = {"gemma3": (7, None, 7), "mistral-local": (23, 23, 23)}


class Head(NamedTuple):
    """What a head sees: sinks at these positions, so many recents, nothing `reach` or more behind."""

    sinks: Sequence[int] = ()
    recents: float = float("inf")
    reach: float = float("inf")
    in_cache: bool = False
    logit: float | str | None = None

    def sees(self, i: int, j: int) -> bool:
        return j <= i and i - j < self.reach and (j in self.sinks or i - j < self.recents)

    def keys(self, i: int) -> list[int]:
        return [j for j in range(i + 1) if self.sees(i, j)]

    def mask(self, length: int) -> Tensor:
        """bool [length, length], cell by cell."""
        return torch.tensor([[self.sees(i, j) for j in range(length)] for i in range(length)])


def head(spec: SWA | Full, native: int | None = None) -> Head:
    """One head under `spec` in a layer that was trained with a local window, or without."""
    if isinstance(spec, Full):
        return Head(recents=native or float("inf"))
    sinks = range(spec.sinks) if spec.sink_positions is None else spec.sink_positions
    reaches = [spec.reach, native if spec.local == "intersect" else None]
    reach = min(r for r in (*reaches, float("inf")) if r is not None)
    return Head(tuple(sinks), spec.window - spec.sinks, reach, spec.positions == "cache", spec.sink_logit)


def heads(name: str, spec: Spec) -> list[list[Head]]:
    """Of each layer; a local layer beside global ones keeps its own window unless the spec intersects."""
    native = NATIVE.get(name, (None, None, None))
    given = list(spec.layers) if isinstance(spec, PerLayer) else [spec] * 3
    rows = []
    for own, of_layer in zip(native, given, strict=True):
        each = of_layer.heads if isinstance(of_layer, PerHead) else [of_layer] * HEADS
        intersects = any(isinstance(s, SWA) and s.local == "intersect" for s in each)
        if own and None in native and not intersects and not isinstance(spec, PerLayer):
            each = [Full()] * HEADS
        rows.append([head(s, own) for s in each])
    return rows


def attention(q: Tensor, k: Tensor, v: Tensor, rule: Head, scale: float, logit=None, turned=None) -> Tensor:
    """One head, q [b, t, d], k and v [b, t, ·] -> [b, t, d_v]. Each row's keys are a list, its own last;
    `turned(x, places)` rotates what came unrotated: to places in that list, or in the text."""
    lists = [rule.keys(i) for i in range(q.shape[1])]
    most, logit = max(map(len, lists)), logit if rule.logit == "learned" else rule.logit
    held = torch.tensor([[-1] * (most - len(row)) + row for row in lists])
    keys, query = k[:, held], q
    if turned:
        places = [range(len(row)) if rule.in_cache else row for row in lists]
        places = torch.tensor([[0] * (most - len(row)) + list(row) for row in places])
        query, keys = turned(q, places[:, -1:]), turned(keys, places[..., None])
    scores = (torch.einsum("bid,bind->bin", query, keys) * scale).masked_fill(held < 0, -torch.inf)
    if logit is not None:
        column = torch.as_tensor(logit, dtype=q.dtype).expand(*scores.shape[:2], 1)
        scores = torch.cat([scores, column], -1)
    return torch.einsum("bin,bind->bid", scores.softmax(-1)[..., :most], v[:, held])


def _by_head(module, query, key, value, _mask, scaling=None, **_):
    rules, logits, frequencies = module.oracle
    turned = None if frequencies is None else lambda x, places: turn(x, places, frequencies)
    outputs = [
        attention(
            query[:, h], key[:, h // GROUPS], value[:, h // GROUPS], rule, scaling,
            0.0 if logits is None else logits[h], turned,
        )
        for h, rule in enumerate(rules)
    ]  # fmt: skip
    return torch.stack(outputs, 2), None


AttentionInterface.register("oracle_by_head", _by_head)


@cache
def plain(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """The unmodified model in `dtype`, with this module's attention."""
    own = copy.deepcopy(model(name)).to(dtype)
    own.set_attn_implementation("oracle_by_head")
    return own


def _frequencies(own: PreTrainedModel, index: int) -> Tensor:
    kind = f"{own.config.layer_types[index]}_" if own.config.model_type == "gemma3_text" else ""
    return getattr(own.model.rotary_emb, f"{kind}inv_freq")


def compute(name: str, spec: Spec, rows: Tensor, dtype=torch.float64, logits=None, **arguments) -> Tensor:
    """Logits [b, t, vocabulary] of unpadded rows. `logits`: learned sink logits, one [h] for each layer."""
    own, rules = plain(name, dtype), heads(name, spec)
    in_cache = any(rule.in_cache for layer in rules for rule in layer)
    for index, module in enumerate(attentions(own)):
        own_logits = None if logits is None else logits[index]
        module.oracle = rules[index], own_logits, _frequencies(own, index) if in_cache else None
    if in_cache:
        arguments["position_ids"] = torch.zeros_like(rows)
    with Exact() if dtype == torch.float64 else nullcontext():
        return own(rows, use_cache=False, **arguments).logits


@cache
@torch.no_grad()
def truth(name: str, spec: Spec, length: int, batch: int = 1) -> Truth:
    """Of `ids(batch, length)`. A right fp32 computation strays from the logits by less than the bound."""
    exact, rough = (compute(name, spec, ids(batch, length), d) for d in (torch.float64, torch.float32))
    return Truth(exact, 4 * float((rough - exact).abs().max()))


def learned(student: PreTrainedModel) -> list[nn.Parameter]:
    """A student's sink logits, layer by layer."""
    return [p for n, p in student.named_parameters() if n.endswith("sink_logits")]
