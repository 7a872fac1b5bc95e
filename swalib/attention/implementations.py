"""The implementations of attention by name, and which of them run here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swalib.attention import flash, flex, reference, sdpa, triton


class Implementation(NamedTuple):
    """plan(spec, q_pos, k_pos): what depends on positions alone, made once for all layers of a forward;
    run(plan, q, k, v, spec, scoring): (o, ...), shapes as in `attend`; missing(device): why not there, or
    None."""

    plan: Callable[..., Any]
    run: Callable[..., tuple[Tensor, ...]]
    missing: Callable[[str], str | None]


def _anywhere(device: str) -> None:
    """Plain torch runs wherever torch does."""


IMPLEMENTATIONS = {
    "reference": Implementation(reference.plan, reference.run, _anywhere),
    "sdpa": Implementation(sdpa.plan, sdpa.run, _anywhere),
    "flex": Implementation(flex.plan, flex.run, flex.missing),
    "flash": Implementation(flash.plan, flash.run, flash.missing),
    "triton": Implementation(triton.plan, triton.run, triton.missing),
}


def check_impl(impl: str, device: str | torch.device | None = None) -> str:
    """`impl`, if it names an implementation that runs on `device`, or on some device here where that is None.

    Raises:
        ValueError: it names none; nothing else is tried in its place.
        RuntimeError: it does not run there: what is missing, and how to get it.
    """
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl must be one of {sorted(IMPLEMENTATIONS)}, got {impl!r}")
    devices = [torch.device(device).type] if device is not None else ["cpu", "cuda"]
    reasons = [IMPLEMENTATIONS[impl].missing(each) for each in devices]
    if None not in reasons:
        raise RuntimeError(f'impl="{impl}" does not run here: {reasons[0]}')
    return impl


def available(device: str | torch.device | None = None) -> dict[str, str | None]:
    """For each implementation None if it runs on `device`, else one sentence: what is missing and how to get
    it.

    Args:
        device: "cpu", "cuda", ...; default: CUDA if there is one, else the CPU.
    """
    default = "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.device(device or default).type
    return {name: implementation.missing(kind) for name, implementation in IMPLEMENTATIONS.items()}
