"""One pure function a figure: measured rows (or plain settings) in, a `Figure` that shows itself out."""

from swalib.figures.babilong import babilong_facts, babilong_measured, babilong_printed
from swalib.figures.claims import claim_calculator
from swalib.figures.generation import continuations
from swalib.figures.influence import influence_by_distance, needle_reach
from swalib.figures.linear import effective_masks, feature_maps, linear_state, recall
from swalib.figures.live import panel
from swalib.figures.method import cache_slots, conventions, kv_calculator, mask_explorer, reach
from swalib.figures.needles import needle_scores
from swalib.figures.needles_depths import needle_depths
from swalib.figures.needles_lengths import needle_beyond, needle_lengths
from swalib.figures.needles_printed import needle_null, needle_ratios
from swalib.figures.short import short_lengths, short_scores
from swalib.figures.short_variants import short_variants
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
from swalib.figures.systems import systems_flops, systems_memory
from swalib.figures.systems_measured import systems_batch, systems_launches, systems_roofline, systems_speed
from swalib.figures.tables import printed_table

__all__ = [
    "Figure",
    "attention_mass",
    "babilong_facts",
    "babilong_measured",
    "babilong_printed",
    "cache_slots",
    "claim_calculator",
    "collapse",
    "continuations",
    "conventions",
    "effective_masks",
    "feature_maps",
    "heatmap",
    "influence_by_distance",
    "kv_calculator",
    "linear_state",
    "mask_explorer",
    "needle_beyond",
    "needle_depths",
    "needle_lengths",
    "needle_null",
    "needle_ratios",
    "needle_reach",
    "needle_scores",
    "panel",
    "perplexity_by_window",
    "positions",
    "prefill",
    "printed_table",
    "reach",
    "recall",
    "short_lengths",
    "short_scores",
    "short_variants",
    "sink_kinds",
    "stream",
    "systems_batch",
    "systems_flops",
    "systems_launches",
    "systems_memory",
    "systems_roofline",
    "systems_speed",
]
