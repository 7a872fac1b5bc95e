"""What does a token cost on a machine? Speed, batches, the roofline, and the cost of launches."""

from __future__ import annotations

import pandas as pd

from swalib.figures import rows as shape
from swalib.figures.show import Figure
from swalib.figures.systems_parts import (
    FIELDS,
    LABELS,
    LOOKS,
    context_axis,
    control,
    curves,
    data_of,
    distinct,
    line,
)


def systems_speed(rows: pd.DataFrame, *, caption: str) -> Figure:
    """Measured tokens a second against context, decode at batch 1 and prefill.

    Args:
        rows: as `swalib.systems.table.measure` returns them, of one width D.

    Raises:
        ValueError: a column is missing, more than one width, or a method without a colour.
    """
    alone = _timed(rows)
    alone = alone[alone["batch"] == 1]
    return _speeds(
        alone.assign(x=alone["context_tokens"]),
        id="systems-speed",
        title="How many tokens a second?",
        x=context_axis(alone["context_tokens"]),
        tells="At the longest context",
        caption=caption,
        alt=(
            "Lines of tokens a second against context, with quartiles, measured. Full attention slows down "
            "with the context; SWA, linear attention, LoLCATs and the other mixers stay level, LoLCATs below "
            "the others."
        ),
    )


def systems_batch(rows: pd.DataFrame, *, caption: str) -> Figure:
    """Measured tokens a second against the batch, decode at one context; what did not fit is missing.

    Args and errors as in `systems_speed`.
    """
    decoded = _timed(rows)
    decoded = decoded[decoded["task"] == "decode"]
    kind = ["machine", "method", "window", "features", "context_tokens"]
    decoded = decoded[decoded.groupby(kind, dropna=False)["batch"].transform("nunique") > 1]
    sizes = distinct(decoded["batch"])
    axis = {
        "title": "batch (sequences)",
        "ticks": [[n, str(n)] for n in sizes],
        "span": [sizes[0], sizes[-1]],
    }
    return _speeds(
        decoded.assign(x=decoded["batch"]),
        id="systems-batch",
        title="How many tokens a second in a batch?",
        x=axis,
        tells="In the largest batch that fits",
        caption=caption,
        alt=(
            f"Lines of tokens a second against batch sizes {sizes[0]} to {sizes[-1]} at "
            f"{int(decoded['context_tokens'].iloc[0]):,} tokens, measured: SWA and linear attention gain "
            "from a batch, full attention hardly; its line ends where its keys no longer fit in memory."
        ),
    )


def _timed(rows: pd.DataFrame) -> pd.DataFrame:
    shape.need(
        rows, "label method window sinks features task context_tokens batch hardware dtype speed fits hidden"
    )
    if rows["hidden"].nunique() > 1:
        raise ValueError("these rows are of several widths D: choose one before drawing")
    if unknown := sorted(set(rows["method"]) - set(LOOKS)):
        raise ValueError(f"no colour is known for {unknown[0]!r}: choose from {', '.join(LOOKS)}")
    graph = rows["graph"].map({True: ", CUDA graph", False: ""})
    named = rows.assign(machine=rows["hardware"] + ", " + rows["dtype"] + graph, value=rows["speed"])
    return named[named["fits"]]


def _speeds(rows: pd.DataFrame, *, x: dict, tells: str, **words: str) -> Figure:
    names = [name for name in LOOKS if name in set(rows["method"])]
    fields = {name: (*FIELDS.get(name, ()), *_HYBRID.get(name, ()), "task", "machine") for name in names}
    rows = rows.assign(hybrid_window=rows["window"])
    per_token = rows["batch"].where(rows["task"] == "decode", rows["context_tokens"] * rows["batch"])
    rows = rows.assign(
        low=1000 * per_token / rows["step_high_ms"], high=1000 * per_token / rows["step_low_ms"]
    )
    labels = rows.drop_duplicates("method").set_index("method")["label"]
    own = {**LABELS, "lolcats": "LoLCATs({h}), F = {f}", **{n: labels[n] for n in names if n not in LABELS}}
    tasks = {"decode": "decode, a token at a time", "prefill": "prefill, a prompt at once"}
    hybrids = distinct(rows.loc[rows["method"] == "lolcats", "window"])
    controls = [
        control("window", "", distinct(rows.loc[rows["method"] == "swa", "window"]), 64),
        control("features", "features F", distinct(rows["features"]), 128, lambda n: f"F = {n}"),
        control("hybrid_window", "LoLCATs' window", hybrids, hybrids[0], lambda n: f"w = {n}"),
        control("task", "shown", distinct(rows["task"]), "decode", tasks.get, "select"),
        control("machine", "measured on", distinct(rows["machine"]), rows["machine"].iloc[0], str, "select"),
    ]
    lines = [{**line(name, fields[name], "measured"), "label": own[name]} for name in names]
    sinks = int(rows.loc[rows["method"] == "swa", "sinks"].iloc[0])
    y = {"title": "tokens a second (log scale)", "unit": "tokens/s"}
    y["values"] = [float(rows["low"].min()), float(rows["high"].max())]
    data = data_of(
        controls, lines, curves(rows, fields, "low", "high"), x, y, tells=tells, fixed={"sinks": sinks}
    )
    return Figure(kind="systems-lines", data=data, **words)


_HYBRID = {"lolcats": ("hybrid_window",)}


def systems_roofline(rows: pd.DataFrame, *, caption: str, context_tokens: int, features: int) -> Figure:
    """Measured time of a decode step beside the least that its machine allows.

    Args:
        rows: as `swalib.systems.grids.floors` returns them, of one width and machine, batch 1.
        context_tokens: where the slider starts; features: of the kinds that have them.

    Raises:
        ValueError: a column is missing, or more than one machine.
    """
    shape.need(rows, "label method features context_tokens step_ms floor_ms launch_ms hardware")
    if rows["hardware"].nunique() > 1:
        raise ValueError("these rows are of several machines: choose one before drawing")
    kept = rows[rows["features"].isna() | (rows["features"] == features)]
    kept = kept[kept["method"] != "full_growing"]
    values = {}
    for context, part in kept.groupby("context_tokens"):
        values[str(int(context))] = [_bar(row) for row in part.itertuples()]
    contexts = sorted(int(context) for context in values)
    start = context_tokens if context_tokens in contexts else contexts[-1]
    told = ", ".join(f"{bar['label']} {bar['floor_ms'] / bar['step_ms']:.0%}" for bar in values[str(start)])
    ticks = [1, 3, 10, 30, 100, 300, 1000, 3000]
    return Figure(
        id="systems-roofline",
        kind="systems-bars",
        title="What bounds a step?",
        data={
            "controls": [control("context", "context", contexts, start, lambda n: f"{n:,} tokens")],
            "fixed": {"context": start},
            "values": values,
            "least": float(kept[["launch_ms", "floor_ms"]].min().min()) / 1.5,
            "ticks": ticks,
        },
        alt=(
            "Bars of measured milliseconds a token, each with two marks: the least time by the bytes and "
            "FLOPs it needs at the machine's measured rates, and the least time of its operations one by "
            f"one. Share that the roofline explains at {start:,} tokens: {told}."
        ),
        caption=caption,
    )


def _bar(row) -> dict:
    method, _, short = LOOKS[row.method]
    window = "" if pd.isna(row.window) else f"({int(row.window)})"
    numbers = {name: shape.rounded(getattr(row, name)) for name in ("step_ms", "floor_ms", "launch_ms")}
    return {"label": row.label, "short": f"{short}{window}", "method": method, **numbers}


_BOUNDS = {
    "bytes_ms": {"label": "bytes at the measured rate", "short": "bytes", "dash": "dash"},
    "launch_ms": {"label": "operations at their least", "short": "operations", "dash": "dot"},
}
_LAUNCHES_ALT = (
    "Lines of milliseconds a token against the width of the model, the same operations at each. The measured "
    "lines are nearly level at small widths and rise with the bytes at large ones; dashed, the time of the "
    "bytes alone, dotted, of the operations alone."
)


def systems_launches(rows: pd.DataFrame, *, caption: str) -> Figure:
    """Measured time of a decode step against the model's width D, beside its two limits.

    Args:
        rows: as `swalib.systems.grids.floors` returns them, of several widths and one machine; SWA's limits
            are drawn.

    Raises:
        ValueError: a column is missing, or there is only one width.
    """
    shape.need(rows, "label method hidden step_ms bytes_ms launch_ms hardware")
    if rows["hidden"].nunique() < 2:
        raise ValueError("one width shows no growth: measure several")
    names = [name for name in ("swa", "hedgehog", "lolcats") if name in set(rows["method"])]
    quartiles = {"low": rows["step_low_ms"], "high": rows["step_high_ms"]}
    table = rows.assign(value=rows["step_ms"], x=rows["hidden"], **quartiles)
    labels = rows.drop_duplicates("method").set_index("method")["label"]
    lines = [{**line(name, (), "measured"), "label": labels[name]} for name in names]
    values = curves(table, dict.fromkeys(names, ()), "low", "high")
    for column, looks in _BOUNDS.items():
        part = rows[rows["method"] == "swa"].sort_values("hidden")
        values[column] = {
            "x": [int(x) for x in part["hidden"]],
            "y": [shape.rounded(y) for y in part[column]],
        }
        own = {"name": column, "method": "chance", "fields": [], "layer": "formula", "tell": False}
        lines.append({**looks, **own})
    widths = distinct(rows["hidden"])
    axis = {
        "title": "width D of the model",
        "ticks": [[n, f"{n:,}"] for n in widths],
        "span": [widths[0], widths[-1]],
    }
    y = [value for curve in values.values() for value in curve["y"]]
    return Figure(
        id="systems-launches",
        kind="systems-lines",
        title="Launches or bytes?",
        data=data_of(
            [],
            lines,
            values,
            axis,
            {"title": "ms a token (log scale)", "unit": "ms", "values": [min(y), max(y)]},
            tells=f"At D = {widths[-1]:,}",
            fixed={"window": 0, "sinks": 0, "features": 0},
        ),
        alt=f"From D = {widths[0]} to {widths[-1]}. {_LAUNCHES_ALT}",
        caption=caption,
    )
