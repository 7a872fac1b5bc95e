"""What do the six short tasks show of a window, and does it bind? Figures over scored items.

The tables are those of `swalib.evals.short_summary`; nothing is computed here. A spec without a row is "not
measured yet"; a recovery that is NaN has "no signal". Scores and intervals are fractions in the tables and
percent on the page. `window` and `sinks` among the arguments are where the sliders start, as `task`, `shots`
and `measure` say what is shown first. The caption states the conclusion.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from swalib.figures import rows as shape
from swalib.figures.show import Figure
from swalib.reported import LABELS

_TASKS = {
    **LABELS,
    "average6": "six tasks, averaged as in the paper",
    "signal_average": "tasks with a signal, averaged",
    "all_items": "six tasks, all items",
}
_MEASURES = {
    "score": "score",
    "recovery": "recovery (student / full attention)",
    "recovery_above_chance": "recovery above chance",
    "agreement": "agreement with full attention's choice",
}


def short_scores(
    teachers: pd.DataFrame,
    rows: pd.DataFrame,
    perplexities: pd.DataFrame,
    *,
    caption: str,
    command: Callable[[str], str],
    id: str = "short-scores",
    title: str = "How much is left on the six tasks?",
    window: int = 64,
    sinks: int = 4,
    task: str = "average6",
    shots: int = 5,
    measure: str = "score",
) -> Figure:
    """Score, recovery or agreement against w, and under it perplexity on a text, on the same axis of w.

    Args:
        teachers, rows: of `swalib.evals.short_summary.summarise`.
        perplexities: rows of `swalib.evals.perplexity.grid`, of one text; models may be missing.
        command: from a model to what measures a cell of it, with [shots], [w] and [s] for the cell's own.

    Raises:
        ValueError: a column is missing, a row says one thing twice, or no spec is measured by either table.
    """
    shape.need(teachers, "model task shots n score low high signal chance majority letter_bias tasks")
    shape.need(perplexities, "model task window sinks ppl stderr n")
    cells = _cells(rows)
    sources = [_source(row, cells) for row in teachers.to_dict("records")]
    ppl = {model: _perplexity(model, part) for model, part in perplexities.groupby("model", sort=False)}
    specs = pd.concat([rows[["window", "sinks"]], shape.slid(perplexities)[["window", "sinks"]]])
    first = {**_start(sources, task, shots), "measure": measure}
    data = {
        **shape.sliders(specs, window, sinks),
        **_choices(sources, {model: command(model) for model in dict.fromkeys(teachers["model"])}),
        "sources": sources,
        "perplexities": ppl,
        "text": str(perplexities["task"].iloc[0]),
        "spans": _spans(rows),
        "measures": [{"id": name, "label": label} for name, label in _MEASURES.items()],
    }
    data["initial"] |= first
    alt = (
        "Two line charts over the window w. Above, the chosen measure on the chosen task with intervals: SWA "
        "without sinks, SWA with the chosen number of them, full attention, and chance as a dotted line. "
        f"Below, perplexity on {data['text']}. Full attention scores {_scores(sources, first)}."
    )
    return Figure(id=id, kind="short-scores", title=title, data=data, alt=alt, caption=caption)


def short_lengths(
    lengths: pd.DataFrame,
    bound: pd.DataFrame,
    apart: pd.DataFrame,
    *,
    caption: str,
    command: Callable[[str], str],
    id: str = "short-lengths",
    title: str = "Does the window bind?",
    window: int = 64,
    sinks: int = 4,
    task: str = "all_items",
    shots: int = 0,
) -> Figure:
    """How long the items are beside w, and the scores of those that are longer and of those that fit.

    Args:
        lengths, bound, apart: as the functions of `swalib.evals.short_summary` of these names return them.
        command: as for `short_scores`.

    Raises:
        ValueError: a column is missing, or a row says one thing twice.
    """
    shape.need(lengths, "model task shots low high items")
    shape.need(bound, "model task shots window n bound share")
    sources = [
        _histogram(key, part, bound, apart)
        for key, part in lengths.groupby(["model", "task", "shots"], sort=False)
    ]
    sinks_of = pd.concat([apart["sinks"], pd.Series([sinks])]).unique()
    specs = pd.DataFrame({"window": bound["window"].unique()}).merge(
        pd.DataFrame({"sinks": sinks_of}), "cross"
    )
    data = {
        **shape.sliders(specs, window, sinks),
        **_choices(sources, {model: command(model) for model in dict.fromkeys(lengths["model"])}),
        "sources": sources,
        "top": int(lengths["high"].max()),
    }
    data["initial"] |= _start(sources, task, shots)
    told = ", ".join(
        f"{_TASKS.get(s['task'], s['task'])} with {s['shots']} examples {s['bound'][str(start)]['share']:.0%}"
        for s in sources
        if s["model"] == sources[0]["model"] and (start := data["initial"]["window"])
    )
    alt = (
        "Histogram of items by the number of tokens that attend, those longer than the window in colour; a "
        f"table under it scores both parts. Longer than w = {data['initial']['window']}: {told}."
    )
    return Figure(id=id, kind="short-lengths", title=title, data=data, alt=alt, caption=caption)


def _choices(sources: list[dict], commands: dict[str, str]) -> dict:
    """The values of the selectors in the order of the table."""
    tasks = [name for name in _TASKS if name in {source["task"] for source in sources}]
    return {
        "models": list(commands),
        "commands": commands,
        "tasks": [{"id": name, "label": _TASKS[name]} for name in tasks],
        "shots": sorted({source["shots"] for source in sources}),
    }


def _start(sources: list[dict], task: str, shots: int) -> dict:
    """Where the selectors start: as asked, or at the table's first where it has no such row."""
    model = sources[0]["model"]
    own = [one for one in sources if one["model"] == model]
    counts = [one["shots"] for one in own]
    shots = shots if shots in counts else counts[0]
    tasks = [one["task"] for one in own if one["shots"] == shots]
    return {"model": model, "task": task if task in tasks else tasks[0], "shots": shots}


def _about(row: dict) -> dict:
    return {"model": row["model"], "task": row["task"], "shots": int(row["shots"])}


def _source(row: dict, cells: dict) -> dict:
    names = ("score", "low", "high", "chance", "majority", "letter_bias")
    numbers = {name: _percent(row[name]) for name in names}
    about = {**_about(row), "n": int(row["n"]), "signal": bool(row["signal"]), **numbers}
    about["tasks"] = [LABELS[task] for task in row["tasks"]]
    return {**about, "cells": cells.get(tuple(_about(row).values()), {})}


def _cells(rows: pd.DataFrame) -> dict[tuple, dict]:
    shape_of = "model task shots window sinks n measure value low high"
    if missing := set(shape_of.split()) - set(rows.columns):
        raise ValueError(f"the table of specs lacks the column(s) {', '.join(sorted(missing))}.")
    found: dict[tuple, dict] = {}
    for row in rows.to_dict("records"):
        cell = found.setdefault(tuple(_about(row).values()), {}).setdefault(
            shape.key(row["window"], row["sinks"]), {"n": int(row["n"])}
        )
        if row["measure"] in cell:
            raise ValueError(f"more than one row for {row['measure']} of {row['model']}, {row['task']}.")
        cell[row["measure"]] = [_percent(row[name]) for name in ("value", "low", "high")]
    return found


def _percent(value: float) -> float | None:
    """Percent; None for a number that is missing or not finite."""
    return None if pd.isna(value) or abs(value) == float("inf") else shape.rounded(100 * value)


def _spans(rows: pd.DataFrame) -> dict[str, list[float]]:
    """What the axis of each measure spans, in percent, whatever is chosen: 0 to 100 or more."""
    spans = {}
    for measure in _MEASURES:
        values = rows.loc[rows["measure"] == measure, ["value", "low", "high"]].to_numpy(float).ravel()
        shown = [100 * x for x in values if abs(x) <= 2]
        spans[measure] = [min([0.0, *shown]), max([100.0, *shown])]
    return spans


def _perplexity(model: str, part: pd.DataFrame) -> dict:
    source = {"label": model}
    return {"full": shape.full(source, part), "cells": shape.cells(part)}


def _scores(sources: list[dict], first: dict) -> str:
    told = [s for s in sources if (s["model"], s["shots"]) == (first["model"], first["shots"])]
    return "; ".join(f"{_TASKS[s['task']]} {s['score']:.3g} % (n = {s['n']})" for s in told or sources[:1])


def _histogram(key: tuple, part: pd.DataFrame, bound: pd.DataFrame, apart: pd.DataFrame) -> dict:
    model, task, shots = key

    def own(table: pd.DataFrame) -> list[dict]:
        same = (table["model"] == model) & (table["task"] == task) & (table["shots"] == shots)
        return table[same].to_dict("records")

    kept = part[part["items"].cumsum() > 0]
    parts: dict[str, dict] = {}
    for row in own(apart):
        side = "longer" if row["longer"] else "fits"
        numbers = {n: _percent(row[n]) for n in ("teacher", "student", "difference", "low", "high")}
        parts.setdefault(shape.key(row["window"], row["sinks"]), {})[side] = {"n": int(row["n"]), **numbers}
    return {
        **_about({"model": model, "task": task, "shots": shots}),
        "bins": [[int(one) for one in row] for row in kept[["low", "high", "items"]].to_numpy()],
        "bound": {
            str(int(row["window"])): {"n": int(row["n"]), "bound": int(row["bound"]), "share": row["share"]}
            for row in own(bound)
        },
        "parts": parts,
    }
