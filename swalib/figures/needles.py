"""Does a student find needles past its window? Figures over S-NIAH's measured items.

The tables are those of `swalib.evals.niah_summary` and `niah_printed`; shares are percent on the page. What
has no row is "not measured yet", with the command; where full attention finds nothing there is "no signal".
`task`, `window` and `sinks` among the arguments are where the controls start. The caption states the
conclusion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from swalib.figures import needles_parts as parts
from swalib.figures import rows as shape
from swalib.figures.needles_parts import (
    COLUMNS,
    FOUND,
    MEASURES,
    POSITIONS,
    TASKS,
    coloured,
    key,
    line,
    part,
    said,
    tokens,
)
from swalib.figures.show import Figure


def needle_scores(
    scores: pd.DataFrame,
    *,
    caption: str,
    command: Callable[..., str],
    lengths: Sequence[int] = (),
    id: str = "needle-scores",
    title: str = "How much is found as the text grows?",
    task: str = "s_niah_1",
    window: int = 256,
    sinks: int = 4,
) -> Figure:
    """Needles found, or the answer's log-likelihood, against length: full attention, SWA, the window alone.

    Args:
        scores: as `swalib.evals.niah_summary.scores` returns them.
        command: from task, model, positions, window, sinks and the lengths that are missing to what measures
            them.
        lengths: those that the axis shows, besides the measured ones.

    Raises:
        ValueError: a column is missing, or no spec is among the rows.
    """
    shape.need(scores, f"{COLUMNS} signal")
    grid = parts.Grid(scores, task, window, sinks)
    lengths = sorted({int(n) for n in [*scores["context_tokens"], *lengths]})
    absent, says = _spoken(scores, grid, lengths, command)
    values, notes = _measured(scores) | absent, {}
    for one in grid.every("task", "model"):
        if note := _silence(scores, *one):
            notes[key("note", *one)] = note
    data = {
        "initial": grid.initial,
        "lines": _lines(),
        "values": values,
        "x": parts.contexts(lengths),
        "y": part("measure", {key("y", measure): _axis(scores, measure) for measure in MEASURES}),
        "says": part("measure task model positions window sinks", says),
        "note": part("task model", notes),
    }
    data = parts.controls(data, **grid.options)
    alt = (
        "Line chart of needles found, or of the answer's log-likelihood, against length: full attention, SWA "
        f"with sinks and without, and the window alone, with 95 % intervals. {_told(scores)}."
    )
    return Figure(id=id, kind="needle-lines", title=title, data=data, alt=alt, caption=caption)


def _lines() -> list[dict]:
    spec, swa = "measure task model window sinks", "measure task model positions window sinks"
    null = ("chance", "computed", spec)
    return [
        line("full", "full attention", "full", "full", "measured", "measure task model"),
        line("bare", "SWA, no sinks", "s = 0", "no_sinks", "measured", "measure task model positions window"),
        line("swa", "SWA with sinks", "SWA", "sinks", "measured", swa),
        line("question", "window alone", "window", *null),
        line("answer", "window alone", "window", *null, dash="4px 3px", unnamed=True),
        line("absent", "not measured yet", "", "chance", "absent", swa),
    ]


def _spoken(
    scores: pd.DataFrame, grid: parts.Grid, lengths: list[int], command: Callable[..., str]
) -> tuple[dict, dict]:
    """Crosses for what is not measured, and the sentence of every spec and measure."""
    absent, says = {}, {}
    for one in grid.every("task", "model", "positions", "window", "sinks"):
        own = parts.own(scores, *one)
        missing = [n for n in lengths if n not in set(own["context_tokens"])]
        for measure in MEASURES:
            place = (measure, *one)
            if missing:
                told = [f"{tokens(n)}: not measured yet" for n in missing]
                floor = [_span(scores, measure)[0]] * len(missing)
                absent[key("absent", *place)] = {"x": missing, "y": floor, "hover": told}
            says[key("says", *place)] = _words(scores, own, measure, missing, command, *one)
    return absent, says


def _measured(scores: pd.DataFrame) -> dict:
    values = {}
    keyed = scores.groupby(["task", "model", "positions", "window", "sinks"], sort=False, dropna=False)
    for (task, model, positions, w, s), own in keyed:
        own = own.sort_values("context_tokens")
        for measure in MEASURES:
            if pd.isna(w):
                values[key("full", measure, task, model)] = _points(own, measure, "full attention")
                continue
            place, spec = (measure, task, model), f"SWA({int(w)}, {int(s)})"
            name = key("swa", *place, positions, w, s) if s else key("bare", *place, positions, w)
            values[name] = _points(own, measure, spec)
            if measure == "found" and (positions == "text" or key("question", *place, w, s) not in values):
                values |= {key(where, *place, w, s): _null(own, where) for where in ("question", "answer")}
    return values


def _points(own: pd.DataFrame, measure: str, spec: str) -> dict:
    scale = 100 if measure == "found" else 1
    ends = {"y": measure, "low": f"{measure}_low", "high": f"{measure}_high"}
    hover = []
    for row in own.to_dict("records"):
        copied = ", full attention by definition" if row["defined"] else ""
        hover.append(
            f"{spec}{copied}, {tokens(row['context_tokens'])}<br>{parts.value(row, measure)}, n = {row['n']}"
        )
    drawn = {name: [shape.rounded(scale * x) for x in own[column]] for name, column in ends.items()}
    return {"x": [int(n) for n in own["context_tokens"]], **drawn, "hover": hover}


def _null(own: pd.DataFrame, where: str) -> dict:
    shares = own[f"null_from_{where}"]
    told = f"wholly inside the window, counted from the {where}"
    pairs = list(zip(own["context_tokens"], shares, strict=True))
    return {
        "x": [int(n) for n, _ in pairs],
        "y": [parts.pct(share) for _, share in pairs],
        "hover": [f"{told}<br>{tokens(n)}: {said(share)} of the same items" for n, share in pairs],
    }


def _span(scores: pd.DataFrame, measure: str) -> list[float]:
    if measure == "found":
        return FOUND["span"]
    return [1.06 * float(scores["loglikelihood_low"].min(skipna=True)), 0.15]


def _axis(scores: pd.DataFrame, measure: str) -> dict:
    if measure == "found":
        return FOUND
    title = "log-likelihood of the answer (nats a token)"
    return {"title": title, "short": "nats a token", "span": _span(scores, measure)}


def _words(
    scores: pd.DataFrame,
    own: pd.DataFrame,
    measure: str,
    missing: list,
    command: Callable[..., str],
    *one: object,
) -> list:
    task, model, positions, w, s = one
    full = scores[(scores["task"] == task) & (scores["model"] == model) & scores["window"].isna()]
    spec, method = f"SWA({w}, {s})", "sinks" if s else "no_sinks"
    told = [f"{TASKS[task]}, {spec}, {POSITIONS[positions]}: "]
    if own.empty:
        return [*told, "not measured yet: ", {"code": command(*one, missing)}]
    last = own.to_dict("records")[-1]
    told += [
        f"at {tokens(last['context_tokens'])} ",
        coloured(method, parts.value(last, measure)),
        f", n = {last['n']}",
    ]
    beside = full[full["context_tokens"] == last["context_tokens"]].to_dict("records")
    for row in beside:
        told += ["; full attention ", coloured("full", parts.value(row, measure))]
    if not beside:
        told.append("; full attention not measured there yet")
    elif not last["signal"]:
        told.append("; full attention finds nothing there: no signal")
    if missing:
        told += [
            f". At {', '.join(map(tokens, missing))} not measured yet: ",
            {"code": command(*one, missing)},
        ]
        return told
    return [*told, "."]


def _silence(scores: pd.DataFrame, task: str, model: str) -> str | None:
    full = scores[(scores["task"] == task) & (scores["model"] == model) & scores["window"].isna()]
    silent = [tokens(n) for n in sorted(full.loc[~full["signal"].astype(bool), "context_tokens"])]
    return f"no signal at {', '.join(silent)}:<br>full attention finds nothing" if silent else None


def _told(scores: pd.DataFrame) -> str:
    full = scores[scores["window"].isna()]
    return "Full attention: " + "; ".join(
        f"{TASKS[row['task']]} at {tokens(row['context_tokens'])} {said(row['found'], 0)} (n = {row['n']})"
        for row in full.to_dict("records")
    )
