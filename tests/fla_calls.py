"""flash-linear-attention's naive references, and these in its kernels' places, for the CPU."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

_FOLDER = importlib.util.find_spec("fla")
OPS = Path(_FOLDER.submodule_search_locations[0]) / "ops" if _FOLDER else None
MISSING = OPS is None or importlib.util.find_spec("einops") is None
needs_fla = pytest.mark.skipif(MISSING, reason="needs flash-linear-attention: pip install fla-core einops")


def naive(path: str, name: str) -> Callable:
    """A function of one of fla's files, which is loaded alone: the package wants triton."""
    spec = importlib.util.spec_from_file_location(f"fla_{path.replace('/', '_')[:-3]}", OPS / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def turned(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """[b, t, h, ...] as [b, h, t, ...], or back."""
    return [x.transpose(1, 2) for x in tensors]


def gla(q, k, v, gk, scale, initial_state, output_final_state):
    """As its kernel; the reference scales by d^(-1/2), unasked."""
    function = naive("gla/naive.py", "naive_recurrent_gla")
    return function(q * (scale * q.shape[-1] ** 0.5), k, v, gk, initial_state, output_final_state)


def rwkv6(r, k, v, w, u, **options):
    """As its kernel; the reference has the heads first."""
    function = naive("rwkv6/recurrent_naive.py", "naive_recurrent_rwkv6")
    o, state = function(*turned(r, k, v, w), u, **options)
    return o.transpose(1, 2), state


def delta_rule(q, k, v, beta, scale, initial_state, output_final_state):
    """As its kernel; the reference has the heads first and scales unasked."""
    function = naive("delta_rule/naive.py", "delta_rule_recurrence")
    q, k, v, beta = turned(q * (scale * q.shape[-1] ** 0.5), k, v, beta)
    o, state = function(q, k, v, beta, initial_state, output_final_state)
    return o.transpose(1, 2), state


def rwkv7(r, w, k, v, a, b, scale, initial_state, output_final_state):
    """As its kernel, by the generalised delta rule's reference; heads first, scaled unasked."""
    function = naive("generalized_delta_rule/dplr/naive.py", "dplr_recurrence")
    r, k, v, a, b, w = turned(r * (scale * r.shape[-1] ** 0.5), k, v, a, b, w)
    o, state = function(r, k, v, a, b, w, initial_state, output_final_state)
    return o.transpose(1, 2), state


NAIVE: dict[str, Callable[[], Callable]] = {
    "linear_attn": lambda: naive("linear_attn/naive.py", "naive_recurrent_linear_attn"),
    "simple_gla": lambda: naive("simple_gla/naive.py", "naive_recurrent_simple_gla"),
    "gla": lambda: gla,
    "rwkv6": lambda: rwkv6,
    "delta_rule": lambda: delta_rule,
    "gated_delta_rule": lambda: naive("gated_delta_rule/naive.py", "naive_recurrent_gated_delta_rule"),
    "rwkv7": lambda: rwkv7,
}


def stand_in(module: str, name: str) -> Callable:
    """What `swalib.linear._fla._function` finds, on a CPU: the naive reference, called as the kernel is. A
    tensor that is not contiguous, which kernels misread, or an argument that they have not, is an error."""
    known = kernel_arguments(module, name)

    def call(**given):
        assert given.keys() <= known, f"{name} has no {given.keys() - known}"
        for label, x in given.items():
            assert not isinstance(x, torch.Tensor) or x.is_contiguous(), label
        assert given["initial_state"].dtype == torch.float32
        if module == "gla":  # whose two functions call the gate by two names
            given["gk"] = given.pop("g" if name.startswith("chunk_") else "gk")
        return NAIVE[module]()(**given)

    return call


def kernel_arguments(module: str, name: str) -> set[str]:
    """Names of the arguments of fla's own function, read in its source."""
    file = OPS / module / ("chunk.py" if name.startswith("chunk_") else "fused_recurrent.py")
    functions = {node.name: node for node in ast.parse(file.read_text()).body if hasattr(node, "args")}
    return {argument.arg for argument in functions[name].args.args}
