"""One pure function a figure: measured rows (or plain settings) in, a `Figure` that shows itself out."""

from swalib.figures.show import Figure
from swalib.figures.sinks import attention_mass, collapse, heatmap, perplexity_by_window, positions, prefill

__all__ = ["Figure", "attention_mass", "collapse", "heatmap", "perplexity_by_window", "positions", "prefill"]
