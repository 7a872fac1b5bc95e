"""An independent oracle of the core: nothing here imports its masks, cache, positions or attention.

Two constructions that share no idea with the library or with each other:
`literal` reads a model's weights and runs it token by token, evicting keys from a list;
`eager` runs the unmodified transformers model under an additive mask filled in by a double loop.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from swalib.models import tiny
from swalib.spec import Full, PerLayer, Spec

# Plain names for what the tests run on; gemma3's local layers (window 7) must keep their own mask.
MODELS = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-local": ("mistral", {"sliding_window": 23}),
    "gemma3": ("gemma3", {}),
}


class Layer(NamedTuple):
    """One layer's keys: at most `window` in all, `sinks` of them leading; window None for full attention."""

    window: int | None
    sinks: int = 0
    in_cache: bool = False


@cache
def model(name: str, seed: int = 0) -> PreTrainedModel:
    family, settings = MODELS[name]
    return tiny(family, seed, **settings)


def ids(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


def double_loop(length: int, window: int | None, sinks: int = 0) -> Tensor:
    """bool [length, length] of eq. 2, cell by cell."""
    window = length if window is None else window
    cells = [[j <= i and (j < sinks or i - j < window - sinks) for j in range(length)] for i in range(length)]
    return torch.tensor(cells, dtype=torch.bool)


def layers(teacher: PreTrainedModel, spec: Spec) -> list[Layer]:
    """What each layer must see under `spec`: local layers beside global ones keep their own window."""
    config = teacher.config
    native = [config.sliding_window if config.model_type == "mistral" else None] * config.num_hidden_layers
    if config.model_type == "gemma3_text":
        native = [config.sliding_window if t == "sliding_attention" else None for t in config.layer_types]
    given = list(spec.layers) if isinstance(spec, PerLayer) else [spec] * len(native)
    if config.model_type == "gemma3_text" and not isinstance(spec, PerLayer):
        given = [Full() if n else s for n, s in zip(native, given, strict=True)]
    return [
        Layer(n) if isinstance(s, Full) else Layer(s.window, s.sinks, s.positions == "cache")
        for n, s in zip(native, given, strict=True)
    ]


# ------------------------------------------------------------------------- token by token, from the weights


def _norm(x: Tensor, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
    x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return x * (1 + weight) if plus_one else x * weight


def turn(x: Tensor, position: int | Tensor, frequencies: Tensor) -> Tensor:
    """x [..., d] as d/2 complex numbers (x_m, x_{m+d/2}), each multiplied by exp(i·position·frequency)."""
    half = x.shape[-1] // 2
    angle = position * frequencies.to(x.dtype)
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], dim=-1)


def _frequencies(teacher: PreTrainedModel, index: int) -> Tensor:
    rotary = teacher.model.rotary_emb
    if teacher.config.model_type == "gemma3_text":
        return getattr(rotary, f"{teacher.config.layer_types[index]}_inv_freq")
    return rotary.inv_freq


def _evicting_attention(
    q: Tensor, k: Tensor, v: Tensor, layer: Layer, frequencies: Tensor, scale: float
) -> Tensor:
    """StreamingLLM to the letter: q [b, t, h, d], k and v [b, t, h_kv, d], unrotated -> [b, t, h, d]."""
    cached, outputs, groups = [], [], q.shape[2] // k.shape[2]
    for i in range(q.shape[1]):
        cached.append(i)
        if layer.window is not None and len(cached) > layer.window:
            del cached[layer.sinks]
        places = list(range(len(cached))) if layer.in_cache else cached
        keys = turn(k[:, cached], torch.tensor(places)[:, None, None], frequencies).repeat_interleave(
            groups, 2
        )
        query = turn(q[:, i], places[-1], frequencies)
        weights = (torch.einsum("bhd,bnhd->bhn", query, keys) * scale).softmax(-1)
        outputs.append(torch.einsum("bhn,bnhd->bhd", weights, v[:, cached].repeat_interleave(groups, 2)))
    return torch.stack(outputs, dim=1)


def _block(p: dict[str, Tensor], x: Tensor, config, layer: Layer, frequencies: Tensor) -> Tensor:
    gemma = config.model_type == "gemma3_text"

    def norm(x, name):
        return _norm(x, p[f"{name}.weight"], config.rms_norm_eps, gemma)

    def project(x, name):
        return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)

    h = norm(x, "input_layernorm")
    q, k, v = (project(h, f"self_attn.{n}_proj").unflatten(-1, (-1, config.head_dim)) for n in "qkv")
    if gemma:
        q, k = norm(q, "self_attn.q_norm"), norm(k, "self_attn.k_norm")
    scale = (config.query_pre_attn_scalar if gemma else config.head_dim) ** -0.5
    o = _evicting_attention(q, k, v, layer, frequencies, scale).flatten(2)
    o = project(o, "self_attn.o_proj")
    x = x + (norm(o, "post_attention_layernorm") if gemma else o)
    h = norm(x, "pre_feedforward_layernorm" if gemma else "post_attention_layernorm")
    gate = project(h, "mlp.gate_proj")
    h = project(
        (F.gelu(gate, approximate="tanh") if gemma else F.silu(gate)) * project(h, "mlp.up_proj"),
        "mlp.down_proj",
    )
    return x + (norm(h, "post_feedforward_layernorm") if gemma else h)


@torch.no_grad()
def literal(teacher: PreTrainedModel, rows: Tensor, spec: Spec, dtype: torch.dtype = torch.float64) -> Tensor:
    """Logits [b, t, vocabulary] of unpadded rows [b, t]."""
    config = teacher.config
    weights = {name: tensor.to(dtype) for name, tensor in teacher.state_dict().items()}
    x = weights["model.embed_tokens.weight"][rows]
    if config.model_type == "gemma3_text":
        x = x * math.sqrt(config.hidden_size)
    for index, layer in enumerate(layers(teacher, spec)):
        prefix = f"model.layers.{index}."
        own = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        x = _block(own, x, config, layer, _frequencies(teacher, index))
    x = _norm(x, weights["model.norm.weight"], config.rms_norm_eps, config.model_type == "gemma3_text")
    return x @ weights["lm_head.weight"].T


# ------------------------------------------------------------- the unmodified model under a mask of our own


@contextmanager
def masked(teacher: PreTrainedModel, spec: Spec, length: int) -> Iterator[PreTrainedModel]:
    """A plain eager copy of `teacher`, every layer of which is given the double loop's mask."""
    plain = copy.deepcopy(teacher)
    plain.set_attn_implementation("eager")
    dtype = plain.dtype
    for layer, block in zip(layers(teacher, spec), plain.model.layers, strict=True):
        bias = torch.zeros(1, 1, length, length, dtype=dtype)
        bias[:, :, ~double_loop(length, layer.window, layer.sinks)] = -torch.inf

        def give(_module, args, kwargs, bias=bias):
            return args, kwargs | {"attention_mask": bias}

        block.self_attn.register_forward_pre_hook(give, with_kwargs=True)
    yield plain


def eager(teacher: PreTrainedModel, rows: Tensor, spec: Spec) -> Tensor:
    """Logits [b, t, vocabulary] in the model's own dtype; text positions only."""
    with masked(teacher, spec, rows.shape[1]) as plain, torch.no_grad():
        return plain(rows, use_cache=False).logits


# ------------------------------------------------------------------------------------------------- how near


class Truth(NamedTuple):
    """Exact logits [b, t, vocabulary], and how far an independent fp32 computation of them strays."""

    logits: Tensor
    bound: float


@cache
def truth(name: str, spec: Spec, batch: int, length: int, seed: int = 0) -> Truth:
    """Of `model(name)` on `ids(batch, length, seed)`. A right fp32 result lies within `bound` of `logits`."""
    teacher, rows = model(name), ids(batch, length, seed)
    exact = literal(teacher, rows, spec)
    in_cache = any(layer.in_cache for layer in layers(teacher, spec))
    rough = literal(teacher, rows, spec, torch.float32) if in_cache else eager(teacher, rows, spec)
    return Truth(exact, 4 * float((rough - exact).abs().max()))


def error(got: Tensor, exact: Tensor) -> float:
    assert got.shape == exact.shape
    assert bool(torch.isfinite(got).all())
    return float((got.double() - exact.double()).abs().max())


def in_chunks(
    student: PreTrainedModel, tokens: Tensor, sizes: Sequence[int], cache=None, mask=None
) -> Tensor:
    """Logits of `tokens` [b, t] given to a student in pieces of these sizes, of which the last repeats."""
    pieces, start, sizes = [], 0, list(sizes)
    while start < tokens.shape[1]:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        piece = tokens[:, start : start + size]
        start += piece.shape[1]
        seen = None if mask is None else mask[:, :start]
        out = student(piece, attention_mask=seen, cache=cache, use_cache=True)
        cache = out.cache
        pieces.append(out.logits)
    return torch.cat(pieces, dim=1)


def bloom() -> PreTrainedModel:
    """A causal LM of a family that SWA can't go on: ALiBi biases instead of positions."""
    sizes = {"n_layer": 1, "hidden_size": 8, "n_head": 2, "vocab_size": 11}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("bloom", **sizes))
