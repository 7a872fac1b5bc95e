"""One pure function a figure: measured rows (or plain settings) in, a `Figure` that shows itself out."""

from swalib.figures.claims import claim_calculator
from swalib.figures.linear import effective_masks, feature_maps, linear_state, recall
from swalib.figures.live import panel
from swalib.figures.method import cache_slots, conventions, kv_calculator, mask_explorer, reach
from swalib.figures.show import Figure
from swalib.figures.sinks import (
    attention_mass,
    collapse,
    heatmap,
    perplexity_by_window,
    positions,
    prefill,
    sink_kinds,
)
from swalib.figures.streams import stream
from swalib.figures.tables import printed_table

__all__ = [
    "Figure",
    "attention_mass",
    "cache_slots",
    "claim_calculator",
    "collapse",
    "conventions",
    "effective_masks",
    "feature_maps",
    "heatmap",
    "kv_calculator",
    "linear_state",
    "mask_explorer",
    "panel",
    "perplexity_by_window",
    "positions",
    "prefill",
    "printed_table",
    "reach",
    "recall",
    "sink_kinds",
    "stream",
]
