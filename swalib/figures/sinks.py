"""What happens when the first tokens leave the window? Figures over measured rows.

In every table a row without a `window` (NaN or None) is full attention; any other row is SWA(window, sinks).
A missing value (NaN) is a cell not measured yet. Losses are nats per token, `stderr` is the standard error of
its value, and the intervals drawn are the usual 95 % ones, 1.96 standard errors to each side. `window` and
`sinks` among the arguments are where the sliders start. The caption states the conclusion, so whoever holds
the rows writes it.

All of them raise ValueError for a table that lacks a column, a row of full attention, or says one thing
twice.
"""

import pandas as pd

from swalib.figures import rows as shape
from swalib.figures.show import Figure

_GRID = "model task window sinks ppl n stderr"
_VARIANTS = {"full", "masked", "dense"}


def collapse(
    curves: pd.DataFrame,
    *,
    caption: str,
    id: str = "collapse",
    title: str = "What happens to the loss once the window starts to slide?",
    window: int = 64,
    sinks: int = 4,
) -> Figure:
    """Loss along a text for full attention, SWA(w, 0) and SWA(w, s); sliders for w and s.

    `curves` has the columns model, task, window, sinks, position (bin centre, tokens) and loss (mean over the
    bin). All curves of one model and text share their positions.
    """
    shape.need(curves, "model task window sinks position loss")
    sources = [shape.curves(source, group) for source, group in shape.by_source(curves)]
    data = {"sources": sources, **shape.sliders(curves, window, sinks)}
    alt = (
        f"Line chart of loss per token against position in the text, {_names(sources)}: full attention, SWA "
        "without sinks and SWA with the chosen number of sinks, for the chosen window."
    )
    return Figure(id=id, kind="collapse", title=title, data=data, alt=alt, caption=caption)


def heatmap(
    rows: pd.DataFrame,
    *,
    caption: str,
    id: str = "perplexity-map",
    title: str = "How many sinks, how wide a window?",
    window: int = 64,
    sinks: int = 4,
) -> Figure:
    """Perplexity over (w, s) on a log colour scale; a cell not measured yet is hatched and names its command.

    `rows` has the columns model, task, window, sinks, ppl, n, stderr and, where a ppl is missing, command.
    """
    data = _grid(rows, window, sinks)
    alt = f"Heat map of perplexity by window and number of sinks. Full attention: {_full_values(data)}."
    return Figure(id=id, kind="heatmap", title=title, data=data, alt=alt, caption=caption)


def perplexity_by_window(
    rows: pd.DataFrame,
    *,
    caption: str,
    id: str = "perplexity-by-window",
    title: str = "What does a window cost, without sinks and with?",
    window: int = 64,
    sinks: int = 4,
) -> Figure:
    """Perplexity against w for full attention, SWA(w, 0) and SWA(w, s); `rows` as for `heatmap`."""
    data = _grid(rows, window, sinks)
    alt = (
        "Line chart of perplexity against window: SWA without sinks, SWA with the number of sinks chosen, "
        f"and full attention as a level line ({_full_values(data)})."
    )
    return Figure(id=id, kind="perplexity-by-window", title=title, data=data, alt=alt, caption=caption)


def positions(
    rows: pd.DataFrame,
    *,
    caption: str,
    id: str = "positions",
    title: str = "Do text or cache positions matter?",
    window: int = 64,
    sinks: int = 4,
) -> Figure:
    """Perplexity by w under text and under cache positions, with intervals.

    `rows` has the columns of `heatmap`, and positions ("text" or "cache"; of no meaning for full attention).
    """
    shape.need(rows, _GRID + " positions")
    if unknown := set(shape.slid(rows)["positions"]) - {"text", "cache"}:
        raise ValueError(f"positions must be 'text' or 'cache', not {', '.join(map(repr, unknown))}.")
    sources = [
        {**source, "full": shape.full(source, group), "kinds": _kinds(group)}
        for source, group in shape.by_source(rows)
    ]
    data = {"sources": sources, **shape.sliders(rows, window, sinks)}
    alt = (
        "Dot chart of perplexity against window, text and cache positions side by side with intervals. Full "
        f"attention: {_full_values(data)}."
    )
    return Figure(id=id, kind="positions", title=title, data=data, alt=alt, caption=caption)


def prefill(
    rows: pd.DataFrame,
    perplexities: pd.DataFrame,
    *,
    caption: str,
    id: str = "prefill",
    title: str = "Is a prompt read with full attention still SWA?",
    window: int = 64,
    sinks: int = 4,
) -> Figure:
    """Loss after the prompt for masked prefill, dense prefill then evict, and full attention, over a table.

    `rows` has the columns model, task, variant ("full", "masked", "dense"), window, sinks, position (tokens
    after the prompt) and loss; `perplexities` has model, task, variant, window, sinks, ppl, n and stderr.
    Full attention may stand once without a window, or once for every window.
    """
    shape.need(rows, "model task variant window sinks position loss")
    shape.need(perplexities, _GRID + " variant")
    if unknown := set(rows["variant"]) - _VARIANTS:
        raise ValueError(f"variant must be one of {sorted(_VARIANTS)}, not {sorted(unknown)}.")
    table = {shape.variant_key(row): shape.cell(row) for row in perplexities.to_dict("records")}
    sources = [{**source, "curves": shape.variants(group, table)} for source, group in shape.by_source(rows)]
    data = {"sources": sources, **shape.sliders(rows, window, sinks)}
    alt = (
        f"Line chart of loss per token after the prompt, {_names(sources)}: masked prefill, dense prefill "
        "then evict, and full attention; a table under it holds their perplexities."
    )
    return Figure(id=id, kind="prefill", title=title, data=data, alt=alt, caption=caption)


def attention_mass(
    rows: pd.DataFrame,
    *,
    caption: str,
    id: str = "attention-mass",
    title: str = "How much attention goes to the first tokens?",
    counted: int = 4,
) -> Figure:
    """Share of attention on the first tokens, layer by head; a slider sets how many first tokens are counted.

    `rows` has the columns model, layer, head, sinks_counted, mass in [0, 1] and uniform, the mass that
    attention spread evenly over the visible tokens would put there. `counted` is where the slider starts.
    """
    shape.need(rows, "model layer head sinks_counted mass uniform")
    sources = [shape.masses(str(model), group) for model, group in rows.groupby("model", sort=False)]
    values = sorted(int(value) for value in rows["sinks_counted"].unique())
    start = {"counted": counted if counted in values else values[0]}
    data = {"sources": sources, "counted": values, "initial": start}
    alt = f"Heat map of the share of attention on the first tokens by layer and head, {_names(sources)}."
    return Figure(id=id, kind="attention-mass", title=title, data=data, alt=alt, caption=caption)


def sink_kinds(
    rows: pd.DataFrame,
    *,
    caption: str,
    id: str = "sink-kinds",
    title: str = "What makes a token a sink?",
    window: int = 64,
) -> Figure:
    """Perplexity by what is kept in sight besides the latest tokens, against full attention's.

    `rows` has the columns model, task, kind, label (the kind in words), window, sinks, positions (of chosen
    sinks, or ""), ppl, stderr and n; rows that share model, task, window and kind are dots on one line. The
    lines stand in the order of the table. There is a slider for the window, and none for sinks.
    """
    shape.need(rows, _GRID + " kind label positions")
    if rows["ppl"].isna().any():
        raise ValueError("a kind of sink without a ppl can't be drawn: measure it first.")
    sources = []
    for source, group in shape.by_source(rows):
        by_window = {str(int(w)): _lines(part) for w, part in shape.slid(group).groupby("window")}
        sources.append({**source, "full": shape.full(source, group), "kinds": by_window})
    sliders = shape.sliders(rows, window, 0)
    window = sliders["initial"]["window"]
    data = {"sources": sources, "windows": sliders["windows"], "initial": {"window": window}}
    values = "; ".join(f"{line['label']} {_span(line)}" for line in sources[0]["kinds"][str(window)])
    alt = (
        "Dot chart of perplexity on a log axis by what is kept in sight besides the latest tokens. "
        f"{sources[0]['label']}, w = {window}: {values}. Full attention: {_full_values(data)}."
    )
    return Figure(id=id, kind="sink-kinds", title=title, data=data, alt=alt, caption=caption)


def _grid(rows: pd.DataFrame, window: int, sinks: int) -> dict:
    shape.need(rows, _GRID)
    sources = [
        {**source, "full": shape.full(source, group), "cells": shape.cells(group)}
        for source, group in shape.by_source(rows)
    ]
    return {"sources": sources, **shape.sliders(rows, window, sinks)}


def _kinds(group: pd.DataFrame) -> dict:
    return {str(kind): shape.cells(part) for kind, part in shape.slid(group).groupby("positions")}


def _names(sources: list[dict]) -> str:
    return "; ".join(source["label"] for source in sources)


def _full_values(data: dict) -> str:
    return "; ".join(f"{source['label']} {source['full']['ppl']:.3g}" for source in data["sources"])


def _lines(rows: pd.DataFrame) -> list[dict]:
    lines = []
    for kind, part in rows.groupby("kind", sort=False):
        dots = [{**shape.cell(row), "positions": row["positions"]} for row in part.to_dict("records")]
        about = {"kind": kind, "label": part["label"].iloc[0], "sinks": int(part["sinks"].iloc[0])}
        lines.append({**about, "dots": dots})
    return lines


def _span(line: dict) -> str:
    values = [dot["ppl"] for dot in line["dots"]]
    return f"{min(values):.3g}" + (f" to {max(values):.3g}" if len(values) > 1 else "")
