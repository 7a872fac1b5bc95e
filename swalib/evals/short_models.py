"""Does a window cost other models as little? Tables of the six short tasks, a row for each model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from swalib.evals.recovery import CHANCE
from swalib.evals.resampling import DRAWS, Interval, interval
from swalib.evals.short_summary import AVERAGE6, UNKNOWN, Summary, in_percent, resampled
from swalib.reported import LABELS


def differences(
    items: pd.DataFrame,
    found: Summary,
    windows: Sequence[int],
    sinks: int,
    shots: int = 5,
    draws: int = DRAWS,
    seed: int = 0,
) -> pd.DataFrame:
    """Full attention's mean over the six tasks, and what each SWA(w, sinks) adds to it, model by model.

    Args:
        items, found: as `short_items.gather_all` returns them, and `short_summary.summarise` of them.

    Returns:
        As text, a row for each model that has all six tasks under full attention: model, items (a task),
        "full, %" and for each window "w = …", the difference in points, with 95 % intervals over items
        (paired, resampled within tasks). What is missing says "not measured yet".
    """
    named = {f"w = {w}": w for w in windows}
    rows = []
    for model in dict.fromkeys(items["model"]):
        own = items[(items["model"] == model) & (items["shots"] == shots)]
        full = own[own["window"].isna()]
        if set(full["task"]) != set(CHANCE):
            continue
        row = {"model": model, "items": f"{full.groupby('task').size().min()} a task"}
        row["full, %"] = _text(found.teacher(model, AVERAGE6, shots), ".1f")
        for name, w in named.items():
            row[name] = _text(_difference(own, w, sinks, draws, seed), "+.1f")
        rows.append(row)
    return pd.DataFrame(rows, columns=["model", "items", "full, %", *named])


def told_apart(
    items: pd.DataFrame,
    windows: Sequence[int],
    sinks: int,
    shots: int = 5,
    draws: int = DRAWS,
    seed: int = 0,
) -> str:
    """Which of these `differences` have an interval without 0, as text; "none" where the items tell none."""
    told = []
    for model in dict.fromkeys(items["model"]):
        own = items[(items["model"] == model) & (items["shots"] == shots)]
        by_window = {w: _difference(own, w, sinks, draws, seed) for w in windows}
        clear = [f"{_text(d, '+.1f')} at w = {w}" for w, d in by_window.items() if d.low > 0 or d.high < 0]
        if clear:
            told.append(f"{model}, {', '.join(clear)}")
    return "; ".join(told) or "none"


def kept(found: Summary, window: int, sinks: int, shots: int = 5) -> pd.DataFrame:
    """Recovery above chance under SWA(window, sinks), in percent, model by model and task by task.

    Returns:
        As text: model, and a column for each of the six tasks by its label, with 95 % intervals over items;
        "no signal" where full attention is at chance, "not measured yet" where a run is missing.
    """
    rows = []
    for model in dict.fromkeys(found.teachers["model"]):
        own = found.teachers[(found.teachers["model"] == model) & (found.teachers["shots"] == shots)]
        signal = dict(zip(own["task"], own["signal"].astype(bool), strict=True))
        row = {}
        for task in CHANCE:
            value = found.of(model, task, shots, window, sinks, "recovery_above_chance")
            row[LABELS[task]] = "no signal" if signal.get(task) is False else _text(value, ".0f")
        if signal:
            rows.append({"model": model, **row})
    return pd.DataFrame(rows, columns=["model", *(LABELS[task] for task in CHANCE)])


def sentence(found: Summary, task: str, window: int, sinks: int, shots: int = 5) -> str:
    """Full attention, SWA(window, sinks) and recovery on a task, for every model that has a signal there."""
    own = found.teachers[(found.teachers["task"] == task) & (found.teachers["shots"] == shots)]
    told = []
    for model in own.loc[own["signal"].astype(bool), "model"]:
        student = in_percent(found.of(model, task, shots, window, sinks, "score"))
        says = f"{model} scores {in_percent(found.teacher(model, task, shots))} with full attention"
        if student == UNKNOWN:
            told.append(f"{says}, under SWA({window}, {sinks}) {UNKNOWN}")
            continue
        plain, above = (
            in_percent(found.of(model, task, shots, window, sinks, measure))
            for measure in ("recovery", "recovery_above_chance")
        )
        told.append(f"{says}, {student} under SWA({window}, {sinks}): recovery {plain}, above chance {above}")
    return "; ".join(told) or "no model measured so far has a signal"


def _difference(own: pd.DataFrame, window: int, sinks: int, draws: int, seed: int) -> Interval:
    """SWA minus full attention, averaged over the six tasks of one model; all NaN where a task is missing."""
    student = own[((own["window"] == window) & (own["sinks"] == sinks)).fillna(False).astype(bool)]
    if set(student["task"]) != set(CHANCE):
        return Interval(np.nan, np.nan, np.nan)
    seen, drawn = resampled([one for _, one in student.groupby("task", sort=False)], draws, seed)
    return interval(seen[0] - seen[1], drawn[:, 0] - drawn[:, 1])


def _text(found: Interval, form: str) -> str:
    if np.isnan(found.value):
        return UNKNOWN
    value, low, high = (f"{100 * x:{form}}".replace("-", "−").replace("inf", "∞") for x in found)
    return f"{value} ({low}\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}{high})"
