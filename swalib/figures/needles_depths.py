"""Where in the text are needles found? Heat maps over depth and length, beside what the window shows.

Tables, gaps and arguments as in `swalib.figures.needles`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from swalib.figures import needles_parts as parts
from swalib.figures import rows as shape
from swalib.figures.needles_parts import COLUMNS, POSITIONS, TASKS, coloured, key, part, tokens
from swalib.figures.show import Figure


def needle_depths(
    depths: pd.DataFrame,
    null: pd.DataFrame,
    *,
    caption: str,
    command: Callable[..., str],
    lengths: Sequence[int] = (),
    id: str = "needle-depths",
    title: str = "Where are needles found?",
    task: str = "s_niah_1",
    window: int = 256,
    sinks: int = 4,
) -> Figure:
    """Needles found by depth and length under full attention and SWA; what one window shows is outlined.

    Args:
        depths: as `swalib.evals.niah_summary.by_depth` returns them.
        null: as `swalib.evals.niah_printed.null` returns it, of some of the models; others get no
            outline.
        command: from task, model, positions, window, sinks and the lengths that are missing to what measures
            them.
        lengths: those that are shown, besides the measured ones.

    Raises:
        ValueError: a column is missing, or no spec is among the rows.
    """
    shape.need(depths, f"{COLUMNS} step")
    shape.need(null, "model task context_tokens short_haystacks window sinks edge_from_question")
    grid, bins = parts.Grid(depths, task, window, sinks), int(depths["step"].max()) + 1
    lengths = sorted({int(n) for n in [*depths["context_tokens"], *lengths]})
    every = grid.every("task", "model", "positions", "window", "sinks")
    says = {key("says", *one): _words(depths, lengths, command, *one) for one in every}
    fields = ["measure", "task", "model"]
    data = {
        "initial": grid.initial,
        "lengths": lengths,
        "bins": bins,
        "cells": _maps(depths, lengths, bins),
        "fields": {"full": fields, "swa": [*fields, "positions", "window", "sinks"]},
        "edges": part("model task window sinks", _edges(null, lengths)),
        "panels": ["full attention", "SWA"],
        "scales": _scales(depths),
        "says": part("task model positions window sinks", says),
    }
    data = parts.controls(data, **grid.options)
    alt = (
        "Two heat maps of needles found, by depth and length: full attention and SWA. What the window of the "
        f"last token before the question shows is outlined. {_told(depths)}."
    )
    return Figure(id=id, kind="needle-depths", title=title, data=data, alt=alt, caption=caption)


def _maps(depths: pd.DataFrame, lengths: list[int], bins: int) -> dict:
    cells = {}
    keyed = depths.groupby(["task", "model", "positions", "window", "sinks"], sort=False, dropna=False)
    for (task, model, positions, w, s), own in keyed:
        for measure in parts.MEASURES:
            place = (measure, task, model)
            name = key("full", *place) if pd.isna(w) else key("swa", *place, positions, w, s)
            cells[name] = _map(own, measure, lengths, bins)
    return cells


def _map(own: pd.DataFrame, measure: str, lengths: list[int], bins: int) -> dict:
    rows = {(row["step"], row["context_tokens"]): row for row in own.to_dict("records")}
    known = {length for _, length in rows}
    found = {"z": [], "text": [], "hover": []}
    for step in range(bins):
        line = [rows.get((step, length)) for length in lengths]
        found["z"].append([None if row is None else _shown(row, measure) for row in line])
        found["text"].append(["" if row is None else _text(row, measure) for row in line])
        found["hover"].append(
            [
                _hover(row, measure, step, length, bins, length in known)
                for row, length in zip(line, lengths, strict=True)
            ]
        )
    return found


def _shown(row: dict, measure: str) -> float | None:
    return shape.rounded(100 * row["found"] if measure == "found" else row["loglikelihood"])


def _text(row: dict, measure: str) -> str:
    return f"{100 * row['found']:.0f}" if measure == "found" else f"{row['loglikelihood']:.1f}"


def _hover(row: dict | None, measure: str, step: int, length: int, bins: int, known: bool) -> str:
    where = f"{tokens(length)}, depth {step / bins:g} to {(step + 1) / bins:g}"
    if row is None:
        return f"{where}<br>{'no needle there' if known else 'not measured yet'}"
    copied = "<br>full attention by definition" if row["defined"] and not pd.isna(row["window"]) else ""
    return f"{where}<br>{parts.value(row, measure)}, n = {row['n']}{copied}"


def _edges(null: pd.DataFrame, lengths: list[int]) -> dict:
    edges = {}
    filled = null[~null["short_haystacks"].astype(bool)]
    for about, own in filled.groupby(["model", "task", "window", "sinks"], sort=False):
        edge = own.set_index("context_tokens")["edge_from_question"]
        edges[key("edges", *about)] = [shape.rounded(edge.get(n, float("nan"))) for n in lengths]
    return edges


def _scales(depths: pd.DataFrame) -> dict:
    low = float(depths["loglikelihood"].min())
    return {
        "found": {"low": 0, "high": 100, "title": "needles found, %", "ticks": {"dtick": 25}},
        "loglikelihood": {"low": shape.rounded(low), "high": 0, "title": "nats a token", "ticks": {}},
    }


def _words(depths: pd.DataFrame, lengths: list[int], command: Callable[..., str], *one: object) -> list:
    task, _, positions, w, s = one
    own = parts.own(depths, *one)
    head = f"{TASKS[task]}, SWA({w}, {s}), {POSITIONS[positions]}: "
    missing = [n for n in lengths if n not in set(own["context_tokens"])]
    gap = ["not measured yet: ", {"code": command(*one, missing)}] if missing else []
    if own.empty:
        return [head, *gap]
    longer, method = own[~own["defined"].astype(bool)], "sinks" if s else "no_sinks"
    if longer.empty:
        told = ["no length above w is measured; up to w, SWA is full attention. "]
    else:
        inside, outside = (
            coloured(method, f"{longer[side].sum()} of {longer[f'{side}_n'].sum()}")
            for side in ("inside", "outside")
        )
        told = ["of the needles that its window shows, it finds ", inside, ", of the others ", outside, ". "]
    gap = [f"At {', '.join(tokens(n) for n in missing)} {gap[0]}", gap[1]] if gap else []
    return [head, *told, *gap]


def _told(depths: pd.DataFrame) -> str:
    told = []
    for task, own in depths[~depths["defined"].astype(bool) & depths["window"].notna()].groupby(
        "task", sort=False
    ):
        inside, outside = (f"{own[side].sum()} of {own[f'{side}_n'].sum()}" for side in ("inside", "outside"))
        told.append(f"{TASKS[task]}: all windows, {inside} needles inside, {outside} outside")
    return "; ".join(told) or "No length above a window is measured yet"
