"""An oracle for any architecture: the unmodified transformers model in fp64, its masks filled cell by cell.

Nothing of it imports the library's masks, cache, positions, families or attention; only `check`, at the end,
runs a student. For in-cache positions the model runs with every position at zero, and an attention of our own
turns each row's keys to places in a list.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import NamedTuple

import torch
from oracle import Truth, error, ids, in_chunks
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, PreTrainedModel

from swalib import applied
from swalib.spec import SWA, Full, Spec
from swalib.tiny import tiny


class Architecture(NamedTuple):
    """A tiny model, and what is known of it without asking the library.

    `native`: each layer's own window. `pairs`: which dimensions RoPE turns together ("half", "neighbours"),
    None for learned positions. `nope`: layers without any position.
    """

    family: str
    settings: dict = {}  # noqa: RUF012
    native: Sequence[int | None] = (None, None, None)
    pairs: str | None = "half"
    nope: Sequence[int] = ()


_LAST_TWO_LOCAL = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}

ARCHITECTURES = {
    "llama": Architecture("llama"),
    "llama3": Architecture("llama3"),
    "mistral": Architecture("mistral"),
    "mistral-local": Architecture("mistral", {"sliding_window": 11}, (11, 11, 11)),
    "mixtral": Architecture("mixtral"),
    "mixtral-local": Architecture("mixtral", {"sliding_window": 11}, (11, 11, 11)),
    "qwen2": Architecture("qwen2"),
    "qwen2-mixed": Architecture("qwen2", _LAST_TWO_LOCAL, (None, 7, 7)),
    "qwen2_moe": Architecture("qwen2_moe"),
    "qwen2_moe-mixed": Architecture("qwen2_moe", _LAST_TWO_LOCAL | {"max_window_layers": 3}, (7, None, 7)),
    "qwen3": Architecture("qwen3"),
    "qwen3-mixed": Architecture("qwen3", _LAST_TWO_LOCAL, (None, 7, 7)),
    "qwen3_moe": Architecture("qwen3_moe"),
    "qwen3_moe-local": Architecture(
        "qwen3_moe", {"use_sliding_window": True, "sliding_window": 11}, (11, 11, 11)
    ),
    "phi": Architecture("phi"),
    "phi3": Architecture("phi3"),
    "phi3-local": Architecture("phi3", {"sliding_window": 11}, (11, 11, 11)),
    "phi3-longrope": Architecture("phi3-longrope"),
    "gemma": Architecture("gemma"),
    "gemma2": Architecture("gemma2", {}, (7, None, 7)),
    "gemma3": Architecture("gemma3", {}, (7, None, 7)),
    "gpt_neox": Architecture("gpt_neox"),
    "gptj": Architecture("gptj", pairs="neighbours"),
    "olmo2": Architecture("olmo2"),
    "olmo3": Architecture("olmo3", {}, (7, None, 7)),
    "stablelm": Architecture("stablelm"),
    "granite": Architecture("granite"),
    "smollm3": Architecture("smollm3", nope=(1,)),
    "smollm3-mixed": Architecture(
        "smollm3", {"use_sliding_window": True, "sliding_window": 7}, (None, 7, None), nope=(1,)
    ),
    "gpt2": Architecture("gpt2", pairs=None),
    "gpt2-scaled": Architecture("gpt2", {"scale_attn_by_inverse_layer_idx": True}, pairs=None),
    "opt": Architecture("opt", pairs=None),
    "gpt_oss": Architecture("gpt_oss", {}, (7, None, 7)),
}


def build(name: str) -> PreTrainedModel:
    return tiny(ARCHITECTURES[name].family, **ARCHITECTURES[name].settings)


model = cache(build)


class Layer(NamedTuple):
    """What one layer must see: at most `window` keys, `sinks` of them leading, none `native` or more back."""

    window: int | None = None
    sinks: int = 0
    native: int | None = None
    in_cache: bool = False

    def sees(self, i: int, j: int) -> bool:
        if j > i or (self.native is not None and i - j >= self.native):
            return False
        return self.window is None or j < self.sinks or i - j < self.window - self.sinks


def layers(name: str, spec: SWA | Full) -> list[Layer]:
    """Local layers keep their own window beside global ones; where all are local, SWA stands in its place."""
    native = ARCHITECTURES[name].native
    if isinstance(spec, Full):
        return [Layer(native=n) for n in native]
    swa = Layer(spec.window, spec.sinks, in_cache=spec.positions == "cache")
    if spec.local == "intersect":
        return [swa._replace(native=n) for n in native]
    return [Layer(native=n) if n and None in native else swa for n in native]


# --------------------------------------------------------------------------------- fp64, and nothing but fp64


class Exact(TorchFunctionMode):
    """Whatever a model insists on computing in fp32 (norms, softmax, RoPE's angles) is computed in fp64."""

    def __enter__(self):
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *exception):
        torch.set_default_dtype(torch.float32)
        return super().__exit__(*exception)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def wider(x):
            return torch.float64 if x is torch.float32 else x

        func = Tensor.double if func is Tensor.float else func
        out = func(*map(wider, args), **{name: wider(x) for name, x in (kwargs or {}).items()})
        assert not (isinstance(out, Tensor) and out.dtype == torch.float32), f"{func} rounded to fp32"
        return out


@cache
def _copy(name: str, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    plain = build(name).to(dtype)
    plain.set_attn_implementation(attention)
    return plain


def attentions(plain: PreTrainedModel) -> list[nn.Module]:
    found = [module for module in plain.modules() if type(module).__name__.endswith("Attention")]
    assert len(found) == plain.config.num_hidden_layers
    return found


@contextmanager
def _hooked(plain: PreTrainedModel, masks: Sequence[Tensor]) -> Iterator[None]:
    """Each layer's attention is given its own of `masks`, however its block passes one."""

    def hook(mask):
        def give(module, args, kwargs):
            call = inspect.signature(module.forward).bind(*args, **kwargs)
            assert "attention_mask" in call.signature.parameters
            call.arguments["attention_mask"] = mask
            return call.args, call.kwargs

        return give

    handles = [
        module.register_forward_pre_hook(hook(mask), with_kwargs=True)
        for module, mask in zip(attentions(plain), masks, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def additive(layer: Layer, length: int, dtype: torch.dtype) -> Tensor:
    """0 where seen, -inf elsewhere, [1, 1, length, length], by a double loop."""
    cells = [[0.0 if layer.sees(i, j) else -torch.inf for j in range(length)] for i in range(length)]
    return torch.tensor(cells, dtype=dtype)[None, None]


@torch.no_grad()
def compute(
    name: str, spec: SWA | Full, rows: Tensor, dtype: torch.dtype = torch.float64, change=None
) -> Tensor:
    """Logits [b, t, vocabulary] of unpadded rows; `change(copy)` may alter the model first."""
    length, rules = rows.shape[1], layers(name, spec)
    in_cache = any(layer.in_cache for layer in rules)
    plain = _copy(name, dtype, "eager_in_cache" if in_cache else "eager")
    if change:
        plain = copy.deepcopy(plain)
        change(plain)
    with Exact() if dtype == torch.float64 else nullcontext():
        if in_cache:
            for index, (module, layer) in enumerate(zip(attentions(plain), rules, strict=True)):
                module.oracle = layer, _frequencies(name, plain, index), ARCHITECTURES[name].pairs
            return plain(rows, position_ids=torch.zeros_like(rows), use_cache=False).logits
        with _hooked(plain, [additive(layer, length, dtype) for layer in rules]):
            return plain(rows, use_cache=False).logits


L = 29  # more than three of the windows that the tests use


@cache
def truth(name: str, spec: Spec, length: int = L, batch: int = 1) -> Truth:
    """Of `ids(batch, length)`. A right fp32 computation strays from the logits by less than the bound."""
    exact = compute(name, spec, ids(batch, length))
    rough = compute(name, spec, ids(batch, length), torch.float32)
    return Truth(exact, 4 * float((rough - exact).abs().max()))


# --------------------------------------------------------------------------------------- in-cache positions


def _frequencies(name: str, plain: PreTrainedModel, index: int) -> Tensor | None:
    """Angle per position of each pair of dimensions in layer `index`, scaled as the model's config says."""
    rotary = plain.base_model.rotary_emb
    if index in ARCHITECTURES[name].nope:
        return None
    if name == "gptj":
        width = plain.config.rotary_dim
        return 10000.0 ** -(torch.arange(0, width, 2, dtype=plain.dtype) / width)
    kind = (getattr(plain.config, "layer_types", None) or [None] * (index + 1))[index]
    own = getattr(rotary, f"{kind}_original_inv_freq", None)
    return rotary.original_inv_freq if own is None else own


def turn(x: Tensor, places: Tensor, frequencies: Tensor | None, pairs: str) -> Tensor:
    """x [..., d] at `places` [...]: its pairs of dimensions as complex numbers, each times exp(i·angle)."""
    if frequencies is None:
        return x
    width = 2 * frequencies.shape[0]
    a, b = (x[..., :width:2], x[..., 1:width:2]) if pairs == "neighbours" else x[..., :width].chunk(2, -1)
    angle = places[..., None] * frequencies.to(x.dtype)
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    apart = torch.cat([z.real, z.imag], -1)
    turned = torch.stack([z.real, z.imag], -1).flatten(-2) if pairs == "neighbours" else apart
    return torch.cat([turned, x[..., width:]], -1)


def _eager_in_cache(module, query, key, value, mask, scaling=None, softcap=None, s_aux=None, **_):
    """Each row's cache is a list of the keys it sees, the query's own last: they stand at 0, 1, ... in it
    (or, in a layer that keeps text positions, where they stand in the text), and are turned for that row."""
    layer, frequencies, pairs = module.oracle
    groups, length = query.shape[1] // key.shape[1], query.shape[2]
    lists = [[j for j in range(i + 1) if layer.sees(i, j)] for i in range(length)]
    places = [list(range(len(row))) if layer.in_cache else row for row in lists]
    most = max(map(len, lists))
    held = torch.tensor([[-1] * (most - len(row)) + row for row in lists])
    places = torch.tensor([[0] * (most - len(row)) + row for row in places])
    keys = turn(key.repeat_interleave(groups, 1)[:, :, held], places, frequencies, pairs)
    q = turn(query, places[:, -1], frequencies, pairs)
    scores = torch.einsum("bhid,bhind->bhin", q, keys) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores if softcap is None else (scores / softcap).tanh() * softcap
    scores = scores.masked_fill(held < 0, -torch.inf)
    if s_aux is not None:
        sink = s_aux.to(scores.dtype)[None, :, None, None].expand(len(scores), -1, length, 1)
        scores = torch.cat([scores, sink], -1)
    weights = scores.softmax(-1)[..., :most]
    values = value.repeat_interleave(groups, 1)[:, :, held]
    return torch.einsum("bhin,bhind->bihd", weights, values).contiguous(), None


AttentionInterface.register("eager_in_cache", _eager_in_cache)


# -------------------------------------------------------------------------------- a student against the truth


def check(name: str, spec: Spec, sizes: Sequence[int], length: int = L, impl: str = "sdpa") -> None:
    """Logits of a student, given `ids(1, length)` in pieces of these sizes; whole, without a cache."""
    exact = truth(name, spec, length)
    with applied(model(name), spec, impl) as student, torch.no_grad():
        if list(sizes) == [length]:
            got = student(ids(1, length), use_cache=False).logits
        else:
            got = in_chunks(student, ids(1, length), sizes)
    far = error(got, exact.logits)
    assert far <= exact.bound, (
        f"{name} under {spec} in pieces of {sizes} strays {far:.2g} > {exact.bound:.2g}"
    )


def check_rows(name: str, spec: Spec, pads: Sequence[int], length: int = L) -> None:
    """Rows behind `pads` left pads, whole and in pieces, against each row alone."""
    rows = ids(len(pads), length)
    alone = [compute(name, spec, row[None, : length - pad])[0] for row, pad in zip(rows, pads, strict=True)]
    tokens = [torch.cat([torch.full((p,), 7), row[: length - p]]) for row, p in zip(rows, pads, strict=True)]
    tokens, mask = torch.stack(tokens), (torch.arange(length) >= torch.tensor(pads)[:, None]).long()
    with applied(model(name), spec) as student, torch.no_grad():
        whole = student(tokens, attention_mask=mask, use_cache=False).logits
        pieces = in_chunks(student, tokens, [length // 2, 1, 5], mask=mask)
    for got in (whole, pieces):
        far = max(error(row[pad:], exact) for row, pad, exact in zip(got, pads, alone, strict=True))
        assert far <= truth(name, spec, length).bound, f"a padded row of {name} under {spec} strays {far:.2g}"
