"""What does a token cost on paper? State and FLOPs at every stand of the sliders."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from swalib.figures import rows as shape
from swalib.figures.show import Figure
from swalib.figures.systems_parts import FIELDS, context_axis, control, curves, data_of, distinct, key, line

_MEMORY_ALT = (
    "Lines of state memory against context. Full attention grows with every token; SWA grows until its "
    "window is full and stays; linear attention is flat; LoLCATs is its window and its state. A dotted line "
    "marks w*, where full attention's line crosses linear attention's: the window whose keys and values take "
    "the same bytes. Markers are bytes that were allocated."
)
_FLOPS_ALT = (
    "Lines of FLOPs against context. For a decoded token full attention's grow in proportion to the context, "
    "those of SWA, linear attention and LoLCATs are flat; for a whole prompt full attention's grow with the "
    "square and the others in proportion. Counted with the rest of the model, the lines lie together until "
    "contexts are long."
)
_KEPT = {
    "full": ("group", "dtype"),
    "swa": ("window", "group", "dtype"),
    "hedgehog": ("features", "state_dtype"),
    "lolcats": ("features", "group", "dtype", "state_dtype"),
}
_STATE = ("features", "group", "dtype", "state_dtype")


def systems_memory(
    grid: pd.DataFrame,
    *,
    caption: str,
    rows: pd.DataFrame | None = None,
    batches: Sequence[int] = (1, 16, 256),
) -> Figure:
    """State memory against context, by formula, and what was allocated where that was measured.

    Args:
        grid: as `swalib.systems.grids.memory` returns it.
        rows: decode rows of `swalib.systems.table.measure`, of one width, whose state_bytes are drawn on top.
        batches: of the slider.

    Raises:
        ValueError: a column is missing.
    """
    shape.need(grid, "method window features group dtype state_dtype context_tokens bytes equal_window")
    values = curves(grid.assign(value=grid["bytes"] / 1e6), _KEPT)
    y = [value for curve in values.values() for value in curve["y"]]
    lines = [line(name, fields, "formula") for name, fields in _KEPT.items()]
    if rows is not None:
        values |= _allocated(rows)
        lines += [_marker(name) for name in _KEPT]
    return Figure(
        id="systems-memory",
        kind="systems-lines",
        title="What does a sequence keep in memory?",
        data=data_of(
            _memory_controls(grid, batches),
            lines,
            values,
            context_axis(grid["context_tokens"]),
            {"title": "state (MB, log scale)", "unit": "MB", "values": [min(y), max(y) * max(batches)]},
            tells=f"At {int(grid['context_tokens'].max()):,} tokens",
            scale="batch",
            marks={"fields": list(_STATE), "values": _equal_windows(grid)},
        ),
        alt=_MEMORY_ALT,
        caption=caption,
    )


def _memory_controls(grid: pd.DataFrame, batches: Sequence[int]) -> list[dict]:
    names = ("window", "features", "group", "dtype", "state_dtype")
    lists = {name: distinct(grid[name]) for name in names}
    lists |= {name: sorted(lists[name]) for name in ("dtype", "state_dtype")}  # float16 before float32
    return [
        control("window", "", lists["window"], 64),
        control("sinks", "", [0, 1, 4, 16], 4),
        control("features", "features F", lists["features"], 128, lambda n: f"F = {n}"),
        control("group", "query heads", lists["group"], 1, lambda n: f"{n} to a KV head"),
        control("batch", "batch", list(batches), 1, lambda n: f"{n} sequence{'s' * (n > 1)}"),
        control("dtype", "keys and values in", lists["dtype"], lists["dtype"][0], kind="select"),
        control("state_dtype", "states in", lists["state_dtype"], lists["state_dtype"][-1], kind="select"),
    ]


def _equal_windows(grid: pd.DataFrame) -> dict[str, dict]:
    linear = grid[grid["method"] == "hedgehog"].drop_duplicates(list(_STATE))
    return {
        key("mark", row.features, row.group, row.dtype, row.state_dtype): {
            "x": row.equal_window,
            "label": f"w* = {row.equal_window:,.0f}",
        }
        for row in linear.itertuples()
    }


def _allocated(rows: pd.DataFrame) -> dict[str, dict]:
    """Measured state bytes in MB, under the settings that they were measured at: a KV head for each query
    head, batch 1, states in fp32, LoLCATs at its narrowest window."""
    found = rows[(rows["task"] == "decode") & (rows["batch"] == 1) & rows["fits"]]
    narrowest = found.loc[found["method"] == "lolcats", "window"].min()
    found = found[(found["method"] != "lolcats") | (found["window"] == narrowest)]
    table = found.assign(value=found["state_bytes"] / 1e6, group=1, state_dtype="float32")
    return curves(table, {name: _measured_at(name) for name in _KEPT}, prefix="allocated-")


def _measured_at(name: str) -> tuple[str, ...]:
    return (*FIELDS[name], "group", "dtype", "state_dtype", "batch")


def _marker(name: str) -> dict:
    """Markers without a name of their own: they lie on the line of the formula."""
    looks = {"name": f"allocated-{name}", "dash": "dot", "named": False, "tell": False, "unscaled": True}
    return {**line(name, _measured_at(name), "measured"), **looks}


def systems_flops(grid: pd.DataFrame, *, caption: str) -> Figure:
    """FLOPs of a token or of a prompt against context, by formula (the paper's Figure 4).

    Args:
        grid: as `swalib.systems.grids.flops` returns it.

    Raises:
        ValueError: a column is missing.
    """
    shape.need(grid, "method window features context_tokens task attention all")
    labels = ["method", "window", "features", "context_tokens", "task"]
    long = grid.melt(labels, ["attention", "all"], "part", "flops")
    fields = {name: (*own, "task", "part") for name, own in FIELDS.items()}
    values = curves(long.assign(value=long["flops"] / 1e6), fields)
    y = [value for curve in values.values() for value in curve["y"] if value]
    tasks = {"decode": "the last token's step", "prefill": "the whole prompt"}
    counted = {"attention": "attention alone", "all": "the whole model"}
    controls = [
        control("window", "", distinct(grid["window"]), 64),
        control("features", "features F", distinct(grid["features"]), 128, lambda n: f"F = {n}"),
        control("task", "of", list(tasks), "decode", tasks.get, "select"),
        control("part", "counted", list(counted), "attention", counted.get, "select"),
    ]
    return Figure(
        id="systems-flops",
        kind="systems-lines",
        title="How much is computed?",
        data=data_of(
            controls,
            [line(name, own, "formula") for name, own in fields.items()],
            values,
            context_axis(grid["context_tokens"]),
            {"title": "MFLOP (log scale)", "unit": "MFLOP", "values": [min(y), max(y)]},
            tells=f"At {int(grid['context_tokens'].max()):,} tokens",
            fixed={"sinks": 4},
        ),
        alt=_FLOPS_ALT,
        caption=caption,
    )
