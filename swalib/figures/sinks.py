"""What happens when the first tokens leave the window? Figures over measured rows: tidy DataFrame in, `Figure` out.

In every table a row without a `window` (NaN or None) is full attention; any other row is SWA(window, sinks). A missing
value (NaN) is a cell not measured yet. Losses are nats per token, `stderr` is the standard error of its value, and
intervals drawn are the usual 95 % ones, 1.96 standard errors to each side.
"""

import pandas as pd

from swalib.figures.show import Figure

_Z95 = 1.96


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

    `curves` has the columns model, task, window, sinks, position (bin centre, tokens) and loss (mean over the bin). All
    curves of one model and text share their positions. `window` and `sinks` are where the sliders start.
    """
    _need(curves, "model task window sinks position loss")
    sources = [_with_curves(source, group) for source, group in _sources(curves)]
    data = {"sources": sources, **_sliders(curves, window, sinks)}
    alt = f"Line chart of loss per token against position in the text, {_names(sources)}: full attention, SWA without sinks and SWA with the chosen number of sinks, for the chosen window."
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
    """Perplexity over (w, s) on a log colour scale; a cell not measured yet is hatched and names its `command`.

    `rows` has the columns model, task, window, sinks, ppl, n, stderr and, where a ppl is missing, command.
    """
    data = _grid(rows, window, sinks)
    alt = f"Heat map of perplexity by window and number of sinks, {_names(data['sources'])}; full attention: {_full_values(data)}."
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
    """Perplexity against w for full attention, SWA(w, 0) and SWA(w, s), with intervals; columns as for `heatmap`."""
    data = _grid(rows, window, sinks)
    alt = f"Line chart of perplexity against window, {_names(data['sources'])}: SWA without sinks, SWA with the chosen number of sinks, and full attention ({_full_values(data)}) as a level line."
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
    """Perplexity by w under text and under cache positions; columns as for `heatmap`, and positions."""
    _need(rows, "model task window sinks positions ppl n stderr")
    sources = [
        {
            **source,
            "full": _full(source, group),
            "kinds": {str(kind): _cells(part) for kind, part in _slid(group).groupby("positions")},
        }
        for source, group in _sources(rows)
    ]
    data = {"sources": sources, **_sliders(rows, window, sinks)}
    alt = f"Dot chart of perplexity against window, {_names(sources)}: text and cache positions side by side, with intervals; full attention: {_full_values(data)}."
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
    """Loss after the prompt for masked prefill, dense prefill then evict, and full attention, over a small table.

    `rows` has the columns model, task, variant ("full", "masked", "dense"), window, sinks, position (tokens after the
    prompt) and loss; `perplexities` has model, task, variant, window, sinks, ppl, n and stderr.
    """
    _need(rows, "model task variant window sinks position loss")
    _need(perplexities, "model task variant window sinks ppl n stderr")
    known = {"full", "masked", "dense"}
    if unknown := set(rows["variant"]) - known:
        raise ValueError(f"variant must be one of {sorted(known)}, not {sorted(unknown)}.")
    table = {_curve_key(row): _cell(row) for row in perplexities.to_dict("records")}
    sources = [{**source, "curves": _variants(group, table)} for source, group in _sources(rows)]
    data = {"sources": sources, **_sliders(rows, window, sinks)}
    alt = f"Line chart of loss per token after the prompt, {_names(sources)}: masked prefill, dense prefill then evict, and full attention; a table under it holds their perplexities."
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

    `rows` has the columns model, layer, head, sinks_counted, mass in [0, 1] and uniform, the mass that attention spread
    evenly over the visible tokens would put there.
    """
    _need(rows, "model layer head sinks_counted mass uniform")
    sources = [_masses(str(model), group) for model, group in rows.groupby("model", sort=False)]
    values = sorted(int(value) for value in rows["sinks_counted"].unique())
    data = {
        "sources": sources,
        "counted": values,
        "initial": {"counted": counted if counted in values else values[0]},
    }
    alt = f"Heat map of the share of attention on the first tokens by layer and head, {_names(sources)}."
    return Figure(id=id, kind="attention-mass", title=title, data=data, alt=alt, caption=caption)


def _grid(rows: pd.DataFrame, window: int, sinks: int) -> dict:
    _need(rows, "model task window sinks ppl n stderr")
    sources = [
        {**source, "full": _full(source, group), "cells": _cells(_slid(group))}
        for source, group in _sources(rows)
    ]
    return {"sources": sources, **_sliders(rows, window, sinks)}


def _need(rows: pd.DataFrame, columns: str) -> None:
    if missing := [column for column in columns.split() if column not in rows.columns]:
        raise ValueError(
            f"the table lacks the column(s) {', '.join(missing)}; it has {', '.join(map(str, rows.columns))}."
        )
    if rows.empty:
        raise ValueError("the table has no rows: measure them first.")


def _sources(rows: pd.DataFrame):
    for (model, task), group in rows.groupby(["model", "task"], sort=False):
        yield {"id": f"{model}|{task}", "label": f"{model}, {task}"}, group


def _slid(group: pd.DataFrame) -> pd.DataFrame:
    return group[group["window"].notna()]


def _key(window, sinks) -> str:
    return f"{int(window)},{int(sinks)}"


def _sliders(rows: pd.DataFrame, window: int, sinks: int) -> dict:
    slid = _slid(rows)
    windows, counts = (sorted(int(value) for value in slid[name].unique()) for name in ("window", "sinks"))
    if not windows:
        raise ValueError("the table has no row with a window, only full attention.")
    start = {
        "window": window if window in windows else windows[0],
        "sinks": sinks if sinks in counts else counts[-1],
    }
    return {"windows": windows, "sinks": counts, "initial": start}


def _rounded(value) -> float | None:
    """Five significant digits: more than any picture shows, and a page half the size."""
    return None if pd.isna(value) else float(f"{value:.5g}")


def _cell(row: dict) -> dict:
    cell = {"ppl": _rounded(row["ppl"]), "n": None if pd.isna(row["n"]) else int(row["n"])}
    if cell["ppl"] is None:
        return {**cell, "command": _command(row)}
    return {**cell, "half": _rounded(_Z95 * row["stderr"])}


def _command(row: dict) -> str:
    command = row.get("command")
    if not isinstance(command, str):
        raise ValueError(
            f"SWA({row['window']}, {row['sinks']}) has no ppl and no command that would measure it."
        )
    return command


def _once(pairs: list[tuple[str, object]]) -> dict:
    table = dict(pairs)
    if len(table) != len(pairs):
        twice = sorted({key for key, _ in pairs if sum(other == key for other, _ in pairs) > 1})
        raise ValueError(
            f"more than one row for (window, sinks) = {'; '.join(twice)}: choose one before drawing."
        )
    return table


def _cells(slid: pd.DataFrame) -> dict:
    return _once([(_key(row["window"], row["sinks"]), _cell(row)) for row in slid.to_dict("records")])


def _full_rows(source: dict, group: pd.DataFrame) -> pd.DataFrame:
    full = group[group["window"].isna()]
    if full.empty:
        raise ValueError(f"{source['label']} has no row for full attention (a row without a window).")
    return full


def _full(source: dict, group: pd.DataFrame) -> dict:
    full = _full_rows(source, group)
    if len(full) > 1:
        raise ValueError(
            f"{source['label']} has {len(full)} rows for full attention: choose one before drawing."
        )
    return _cell(full.to_dict("records")[0])


def _with_curves(source: dict, group: pd.DataFrame) -> dict:
    full = _full_rows(source, group).sort_values("position")
    x = full["position"].tolist()
    curves = {}
    for (window, sinks), curve in _slid(group).groupby(["window", "sinks"]):
        curve = curve.sort_values("position")
        if curve["position"].tolist() != x:
            raise ValueError(
                f"{source['label']}: SWA({window:g}, {sinks:g}) is not measured at full attention's positions."
            )
        curves[_key(window, sinks)] = [_rounded(loss) for loss in curve["loss"]]
    return {**source, "position": x, "full": [_rounded(loss) for loss in full["loss"]], "curves": curves}


def _curve_key(row: dict) -> tuple:
    key = None if row["variant"] == "full" else _key(row["window"], row["sinks"])
    return row["model"], row["task"], row["variant"], key


def _variants(group: pd.DataFrame, table: dict) -> list[dict]:
    curves = []
    for _, curve in group.groupby(["variant", "window", "sinks"], sort=False, dropna=False):
        curve = curve.sort_values("position")
        key = _curve_key(curve.iloc[0].to_dict())
        if key not in table:
            raise ValueError(
                f"no perplexity row for {key[2]} ({key[0]}, {key[1]}, (window, sinks) = {key[3]})."
            )
        loss = [_rounded(value) for value in curve["loss"]]
        curves.append(
            {
                "variant": key[2],
                "key": key[3],
                "position": curve["position"].tolist(),
                "loss": loss,
                **table[key],
            }
        )
    return curves


def _masses(model: str, group: pd.DataFrame) -> dict:
    mass, uniform = {}, {}
    for counted, part in group.groupby("sinks_counted"):
        table = part.pivot(index="layer", columns="head", values="mass")
        mass[str(int(counted))] = [[_rounded(value) for value in row] for row in table.to_numpy()]
        uniform[str(int(counted))] = _rounded(part["uniform"].mean())
    axes = {"layers": [int(layer) for layer in table.index], "heads": [int(head) for head in table.columns]}
    return {"id": model, "label": model, **axes, "mass": mass, "uniform": uniform}


def _names(sources: list[dict]) -> str:
    return "; ".join(source["label"] for source in sources)


def _full_values(data: dict) -> str:
    return "; ".join(f"{source['label']} {source['full']['ppl']:.3g}" for source in data["sources"])
