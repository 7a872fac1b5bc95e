"""SWA(w, s) for Hugging Face models: sliding-window attention with sinks, exactly, and what it does."""

from swalib.cache import SinkCache
from swalib.canary import assert_applied
from swalib.hf import applied, layer_specs, under
from swalib.prefill import prefill
from swalib.spec import SWA, Full, PerLayer

__version__ = "0.1.0"
__all__ = [
    "SWA",
    "Full",
    "PerLayer",
    "SinkCache",
    "applied",
    "assert_applied",
    "layer_specs",
    "prefill",
    "under",
]
