"""What recurrences share: the state, three forms as one fold over pieces of the text, the layout check."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from swalib.linear import _fla

FORMS = ("parallel", "chunked", "recurrent")
BROADCAST = ("log_decay", "beta")  # gates, which may be the same for all of an axis: size 1 there


class How(NamedTuple):
    """How a recurrence is computed: its form, the tokens of a chunk (fla has its own), and by what, "torch"
    or "fla" (see `swalib.linear._fla`)."""

    form: str = "chunked"
    chunk_tokens: int = 64
    impl: str = "torch"


class State(NamedTuple):
    """What a recurrence remembers, in fp32 (fp64 where its inputs are).

    S: [b, h, f, d_v], what the keys have written; z: [b, h, f], the sum of the keys, where outputs are
    normalised, else None.
    """

    S: Tensor
    z: Tensor | None = None


def check_form(form: str, chunk_tokens: int) -> None:
    """
    Raises:
        ValueError: `form` names none, or a chunk would hold no token.
    """
    if form not in FORMS:
        raise ValueError(f"form must be one of {list(FORMS)}, got {form!r}")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")


def check_shapes(name: str, state: State | None, **given: tuple[Tensor, str]) -> None:
    """Whether all arguments have the axes they are documented with, each axis of one size throughout.

    Args:
        given: argument -> (tensor, its axes); the first sets the sizes. Those in `BROADCAST` may have size 1.

    Raises:
        ValueError: they have not.
    """
    if state is not None:
        given["state.S"] = (state.S, "b h f d_v")
        if state.z is not None:
            given["state.z"] = (state.z, "b h f")
    sizes: dict[str, int] = {}
    fit = True
    for label, (tensor, axes) in given.items():
        names = axes.split()
        fit &= tensor.ndim == len(names)
        for axis, size in zip(names, tensor.shape, strict=False):
            fit &= sizes.setdefault(axis, size) == size or (size == 1 and label in BROADCAST)
    if not fit:
        takes = ", ".join(f"{label} [{axes.replace(' ', ', ')}]" for label, (_, axes) in given.items())
        got = ", ".join(str(tuple(tensor.shape)) for tensor, _ in given.values())
        raise ValueError(f"{name} takes {takes}; got {got}")


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """fp64 if any of `tensors` is, else fp32: what states are kept and recurrences computed in."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def run(
    advance: dict[str, Callable[..., tuple[Tensor, Tensor]]],
    kernel: _fla.Kernel,
    tokens: tuple[Tensor, ...],
    state: Tensor | None,
    scale: float,
    how: How,
    **constants: Tensor,
) -> tuple[Tensor, Tensor]:
    """The recurrence over all tokens: o [b, h, t, d_v] and the last S [b, h, f, d_v], in `compute_dtype`.

    Args:
        advance: "piece", some tokens at once, and "step", exactly one token as the recurrence is written:
            (q [n, t, f], k, v, gates..., S [n, f, d_v]) -> (o [n, t, d_v], S), with n = b·h. The parallel
            form is one piece, the chunked form several, the recurrent form steps.
        kernel: the same in flash-linear-attention.
        tokens: q [b, h, t, f], k [b, h, t, f], v [b, h, t, d_v], then gates [b, h, t] or [b, h, t, f].
        scale: factor on q.
        constants: what else the kernel takes; `advance` knows it.
    """
    form, chunk_tokens, impl = how
    check_form(form, chunk_tokens)
    _fla.check_impl(impl)
    (b, h, t, f), d_v = tokens[0].shape, tokens[2].shape[-1]
    dtype = compute_dtype(*tokens[:3])
    state = tokens[0].new_zeros(b, h, f, d_v, dtype=dtype) if state is None else state.to(dtype)
    if not t:
        return tokens[2].to(dtype), state
    if impl == "fla":
        return _fla.run(kernel, tokens, state, scale, form, **constants)
    q, *others = (_flat(x.to(dtype), (b, h, t)) for x in tokens)
    q = q if scale == 1 else q * scale
    size = {"parallel": t, "chunked": chunk_tokens, "recurrent": 1}[form]
    move = advance["step" if form == "recurrent" else "piece"]
    last, outputs = state.flatten(0, 1), []
    with torch.autocast(q.device.type, enabled=False):  # it would keep the state in half precision
        for piece in zip(*(x.split(size, dim=1) for x in (q, *others)), strict=True):
            o, last = move(*piece, last)
            outputs.append(o)
    o = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return o.unflatten(0, (b, h)), last.unflatten(0, (b, h))


def _flat(x: Tensor, sizes: tuple[int, int, int]) -> Tensor:
    """[b, h, t, ...], size 1 standing for any, as [b·h, t, ...]; a gate a head gets a last axis of size 1."""
    x = x[..., None] if x.ndim == 3 else x
    return x.expand(*sizes, -1).flatten(0, 1)


def inert(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """`tensors` with zeros at pads: a token whose k (and v, beta, kappa) and log_decay are 0 moves no state.

    Zero q as well if pads may hold NaN, or if their outputs are to be 0.

    Args:
        mask: bool [b, t], True where there is a token.
        tensors: [b, h, t] or [b, h, t, ...]; axes of size 1 are expanded.

    Returns:
        One tensor for each.

    Raises:
        ValueError: a tensor is not one value or more for each token of the mask.
    """
    return tuple(_without_pads(mask, x) for x in tensors)


def _without_pads(mask: Tensor, x: Tensor) -> Tensor:
    b, t = mask.shape
    if x.ndim < 3 or x.shape[0] not in (1, b) or x.shape[2] not in (1, t):
        raise ValueError(f"inert takes tensors [{b}, h, {t}, ...] with this mask, got {tuple(x.shape)}")
    here = mask.to(x.device).view(b, 1, t, *[1] * (x.ndim - 3))
    return torch.where(here, x, x.new_zeros(()))
