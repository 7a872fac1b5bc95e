"""SWA(w, s) for Hugging Face models: sliding-window attention with sinks, exactly, and what it does."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swalib.cache import SinkCache
    from swalib.canary import assert_applied
    from swalib.convert import convert
    from swalib.hf import applied, layer_specs, under
    from swalib.layer import SWAttention
    from swalib.prefill import prefill
    from swalib.published import load_published
    from swalib.saved import from_pretrained
    from swalib.spec import SWA, Full, PerHead, PerLayer

__version__ = "0.1.0"
__all__ = [
    "SWA",
    "Full",
    "PerHead",
    "PerLayer",
    "SWAttention",
    "SinkCache",
    "applied",
    "assert_applied",
    "convert",
    "from_pretrained",
    "layer_specs",
    "load_published",
    "prefill",
    "under",
]

# Imported when first asked for: torch and transformers take seconds, which `swa check` should not.
_HOME = {
    **dict.fromkeys(("SWA", "Full", "PerHead", "PerLayer"), "spec"),
    **dict.fromkeys(("applied", "layer_specs", "under"), "hf"),
    "SWAttention": "layer",
    "SinkCache": "cache",
    "assert_applied": "canary",
    "convert": "convert",
    "from_pretrained": "saved",
    "load_published": "published",
    "prefill": "prefill",
}


class _Package(ModuleType):
    """Importing the module `swalib.convert` leaves `swalib.convert` the function, and so with the others."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in _HOME:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'swalib' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"swalib.{_HOME[name]}"), name)
    return value
