"""flash-linear-attention's kernels for the recurrences (impl="fla"): which is called, and with what.

Its tensors are [b, t, h, ...]; its states, [b, h, f, d_v] in fp32, are ours. q, k and v go in the dtype of v,
gates in fp32, and the scale is always passed: its defaults have changed. It has no parallel form, and gates
must be finite, where ours take -inf.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

IMPLS = ("torch", "fla")
Named = dict[str, Tensor]


class Kernel(NamedTuple):
    """A recurrence in flash-linear-attention.

    Args:
        name: of its module in fla.ops, and after `chunk_` and `fused_recurrent_` of its functions.
        tokens: theirs by name, from ours in the order in which `swalib.linear._forms.run` has them.
        gates: which of them stay in fp32; in the recurrent function some have another name.
        options: what else both functions take.
        halves: whether the chunked function takes half precision only.
    """

    name: str
    tokens: Callable[..., Named]
    gates: tuple[str, ...] = ()
    recurrent_names: dict[str, str] = {}  # noqa: RUF012
    options: dict[str, bool] = {}  # noqa: RUF012
    halves: bool = False


def _called(*names: str) -> Callable[..., Named]:
    return lambda *tokens: dict(zip(names, tokens, strict=True))


def _rwkv7(r, k, v, log_decay, kappa, a) -> Named:
    return {"r": r, "w": log_decay, "k": k, "v": v, "a": -kappa, "b": kappa * a}


PLAIN = Kernel("linear_attn", _called("q", "k", "v"), options={"normalize": False})
SCALAR = Kernel("simple_gla", _called("q", "k", "v", "g"), ("g",))
DIAGONAL = Kernel("gla", _called("q", "k", "v", "g"), ("g",), {"g": "gk"})
BEFORE = Kernel("rwkv6", _called("r", "k", "v", "w"), ("w",))
DELTA = Kernel("delta_rule", _called("q", "k", "v", "beta"), ("beta",), halves=True)
GATED_DELTA = Kernel("gated_delta_rule", _called("q", "k", "v", "beta", "g"), ("beta", "g"))
RWKV7 = Kernel("rwkv7", _rwkv7, ("w",))


def check_impl(impl: str) -> None:
    """
    Raises:
        ValueError: it is neither "torch" nor "fla".
    """
    if impl not in IMPLS:
        raise ValueError(f"a mixer's impl must be one of {list(IMPLS)}, got {impl!r}")


def check_installed() -> None:
    """
    Raises:
        ImportError: flash-linear-attention, or what it needs, is not installed.
    """
    missing = [name for name in ("fla", "einops", "triton") if find_spec(name) is None]
    if missing:
        raise ImportError(
            f'impl="fla" needs flash-linear-attention, and there is no {", ".join(missing)}: '
            'pip install fla-core einops triton, or impl="torch"'
        )


@cache
def _function(module: str, name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    check_installed()
    return getattr(import_module(f"fla.ops.{module}"), name)


def _check_device(v: Tensor) -> None:
    if v.device.type == "cpu":
        raise RuntimeError(
            'impl="fla" runs on a GPU and these tensors lie on the CPU: move the model, or impl="torch"'
        )


def _check_taken(kernel: Kernel, v: Tensor, form: str, recurrent: bool) -> None:
    if form == "parallel":
        raise ValueError('flash-linear-attention has no parallel form: form="chunked", or impl="torch"')
    whole = () if kernel.halves and not recurrent else (torch.float32,)
    if v.dtype not in (torch.bfloat16, torch.float16, *whole):
        raise ValueError(
            f"flash-linear-attention's {kernel.name} takes bfloat16, float16{' or float32' * len(whole)}, "
            f'got {v.dtype}: cast, or impl="torch"'
        )


def run(
    kernel: Kernel, tokens: tuple[Tensor, ...], state: Tensor, scale: float, form: str, **constants: Tensor
) -> tuple[Tensor, Tensor]:
    """As `swalib.linear._forms.run`, which calls it: o [b, h, t, d_v] in v's dtype, and the last S in fp32.

    A single token goes through the recurrent function where nothing asks for gradients.

    Args:
        constants: tensors that are the same for all tokens (RWKV-6's bonus u [h, f]).

    Raises:
        ImportError: flash-linear-attention is not installed.
        RuntimeError: the tensors lie on the CPU.
        ValueError: the parallel form, or a dtype that the kernel does not take.
    """
    v = tokens[2]
    recurrent = form == "recurrent" or (v.shape[2] == 1 and not torch.is_grad_enabled())
    _check_taken(kernel, v, form, recurrent)
    _check_device(v)
    sizes = v.shape[:3]
    named = {
        name: x.to(torch.float32 if name in kernel.gates else v.dtype)
        .expand(*sizes, *x.shape[3:])
        .transpose(1, 2)
        .contiguous()
        for name, x in kernel.tokens(*tokens).items()
    }
    if recurrent:
        named = {kernel.recurrent_names.get(name, name): x for name, x in named.items()}
    function = _function(kernel.name, f"{'fused_recurrent' if recurrent else 'chunk'}_{kernel.name}")
    options = {**kernel.options, "scale": scale, "output_final_state": True}
    o, last = function(**named, **constants, **options, initial_state=state.float().contiguous())
    return o.transpose(1, 2), last
