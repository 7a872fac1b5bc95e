"""What do BABILong's items say? Both scores, invalid answers, and what guessing would score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from swalib import reported
from swalib.evals import babilong
from swalib.evals.babi import PLACES, TASKS
from swalib.evals.babilong_items import Baselines, official, substring
from swalib.evals.resampling import Interval, wilson
from swalib.results import MissingResult
from swalib.spec import SWA, Full

MEASURES = ("official", "substring", "gap", "invalid")  # the gap: substring − official
MEANS = {"qa1-4": TASKS[:4], "qa1-5": TASKS}
UNKNOWN = "not measured yet"
PRINTED_ITEMS = 100
"""Items of a cell of Table 6 if the paper asked BABILong's published sets of 100; it does not say."""

# Of the 1,000 questions of each original test file (bAbI tasks 1-20, v1.2, English); tests recompute them.
GUESSING = {
    "qa1": Baselines(1 / 6, 1 / 6, 0.187),
    "qa2": Baselines(1 / 6, 1 / 6, 0.187),
    "qa3": Baselines(1 / 6, 1 / 5, 0.215),
    "qa4": Baselines(1 / 6, 1 / 5, 0.177),
    "qa5": Baselines(1 / 7, 0.30575, 0.189),
}


# ---- What guessing scores, and how sure a share is.


def guessing(task: str) -> Baselines:
    """The baselines of a task, or the means of a mean's.

    Raises:
        ValueError: no such task or mean.
    """
    if task not in (*TASKS, *MEANS):
        raise ValueError(f"no task or mean is called {task!r}: choose from {', '.join((*TASKS, *MEANS))}.")
    own = [GUESSING[one] for one in MEANS.get(task, (task,))]
    return Baselines(
        *(float(np.mean(column)) for column in zip(*(vars(one).values() for one in own), strict=True))
    )


def best_guess(task: str) -> float:
    """The highest of the three baselines: what a score must clear to say something."""
    return max(vars(guessing(task)).values())


# ---- The printed layer.


def printed() -> pd.DataFrame:
    """Table 6 and its means, as fractions: method, task, context, value, low, high.

    Intervals hold if every cell has PRINTED_ITEMS items: the paper does not say how many it has.
    """
    rows = reported.printed(6)
    wide = rows.assign(task=rows["task"].str.removeprefix("babilong_")).pivot(
        index=["method", "context"], columns="task", values="value"
    )
    found = []
    for (method, context), cells in wide.iterrows():
        for task in (*TASKS, *MEANS):
            own = MEANS.get(task, (task,))
            share = float(cells[list(own)].mean()) / 100
            about = {"method": method, "task": task, "context": context}
            found.append(about | wilson(share, PRINTED_ITEMS * len(own))._asdict())
    return pd.DataFrame(found)


# ---- The measured layer.


def gather(
    mode: str,
    models: Sequence[str],
    specs: Sequence[SWA],
    tasks: Sequence[str],
    context_tokens: Sequence[int],
    limit: int,
    **settings: object,
) -> pd.DataFrame:
    """Items of full attention and of every spec as `babilong.measure` returns them, gaps left out.

    The first model is measured or has stored rows; of the others, what is stored.

    Raises:
        MissingResult: in mode "stored", nothing is stored for the first model.
    """
    asked = ([Full(), *specs], tasks, context_tokens, limit)
    frames = [babilong.measure(mode, models[0], *asked, gaps=True, **settings)]
    for model in models[1:]:
        try:
            frames.append(babilong.measure("stored", model, *asked, gaps=True, **settings))
        except MissingResult:
            continue
    return pd.concat(frames, ignore_index=True)


def summarise(items: pd.DataFrame) -> pd.DataFrame:
    """Scores by model, spec, task (and mean of tasks) and length; the gap is what only the substring counts.

    Args:
        items: rows of `babilong.measure`.

    Returns:
        model, window, sinks (missing: full attention), task, context_tokens, n, measure (one of MEASURES),
        value, low, high (fractions, 95 % intervals over items), signal: whether full attention's official
        score clears every baseline there with its whole interval; missing where full attention is.

    Raises:
        ValueError: there are no items.
    """
    if items.empty:
        raise ValueError("there are no items of BABILong: measure them first.")
    keys = ["model", "window", "sinks", "context_tokens"]
    found = []
    for values, part in items.groupby(keys, sort=False, dropna=False):
        by_task = {task: _shares(one) for task, one in part.groupby("task")}
        about = dict(zip(keys, values, strict=True))
        found += [about | row for row in _scores(by_task)]
    rows = pd.DataFrame(found)
    own = rows[rows["window"].isna() & (rows["measure"] == "official")]
    clear = own.assign(
        signal=[low > best_guess(task) for low, task in zip(own["low"], own["task"], strict=True)]
    )
    where = ["model", "task", "context_tokens"]
    return rows.merge(clear[[*where, "signal"]], "left", on=where)


def _shares(part: pd.DataFrame) -> dict[str, float]:
    right, found = part["official"].astype(bool), part["substring"].astype(bool)
    gap = (found & ~right).mean()  # what scores officially holds the answer
    shares = {"official": right.mean(), "substring": found.mean(), "gap": gap}
    return {**shares, "invalid": part["invalid"].astype(bool).mean(), "n": len(part)}


def _scores(by_task: dict[str, dict[str, float]]) -> Iterator[dict]:
    """Every task, and the means whose tasks are all there."""
    groups = {**{task: (task,) for task in by_task}, **MEANS}
    for name, tasks in groups.items():
        if not set(tasks) <= set(by_task):
            continue
        counts = [by_task[task]["n"] for task in tasks]
        worth = len(tasks) ** 2 / sum(1 / n for n in counts)  # items of one sample as sure as this mean
        for measure in MEASURES:
            share = float(np.mean([by_task[task][measure] for task in tasks]))
            yield {"task": name, "n": sum(counts), "measure": measure, **wilson(share, worth)._asdict()}


class Verdict(NamedTuple):
    """What both scorers say of one output."""

    output: str
    official: bool
    substring: bool


def verdicts() -> list[Verdict]:
    """Both scorers on outputs to "Where is Mary?" (qa1), whose answer is "garden"."""
    outputs = (
        "The most recent location of Mary is garden.",
        f"The most recent location of Mary is {', '.join(PLACES)}.",
        "Mary is in the office. Before that she was in the garden.",
        "Mary is outside.",
    )
    asked = ("qa1", "Where is Mary?", "garden")
    return [Verdict(text, official(*asked, text), substring(asked[-1], text)) for text in outputs]


# ---- In words.


def command(model: str) -> str:
    """What measures the cells of a model; [w] and [s] stand for the sliders' values."""
    return f"swa measure babilong -p model {model} -p windows '[w]' -p sinks '[s]'"


def printed_words() -> dict[str, str | float]:
    """What a text says of Tables 4 and 6, by name.

    `four_M_C`: the cell of Table 4 of method M (its first three letters) at context C; `ratio_C`: SWA's over
    LoLCATs'. `mean_M_C`: the mean of qa1 to qa4, its interval under PRINTED_ITEMS; `guess_low`, `guess_high`:
    what guessing scores on it. `majority_qa3`, `majority_qa5`, `informed_qa5`. All in percent.
    """
    four = reported.printed(4).set_index(["method", "context"])["value"]
    told: dict[str, str | float] = {f"four_{m[:3]}_{c}": float(v) for (m, c), v in four.items()}
    for context in four.loc["SWA"].index:
        told[f"ratio_{context}"] = float(four["SWA", context] / four["LoLCATs", context])
    rows = printed().query("task == 'qa1-4'")
    for row in rows.itertuples():
        told[f"mean_{row.method[:3]}_{row.context}"] = in_percent(Interval(row.value, row.low, row.high))
    shares = vars(guessing("qa1-4")).values()
    told |= {"guess_low": 100 * min(shares), "guess_high": 100 * max(shares)}
    told |= {f"majority_{task}": 100 * GUESSING[task].majority for task in ("qa3", "qa5")}
    return told | {"informed_qa5": 100 * GUESSING["qa5"].informed}


def number(
    rows: pd.DataFrame, model: str, task: str, context_tokens: int, measure: str, spec: SWA | Full
) -> Interval:
    """One number of `summarise`; all NaN where it is not measured."""
    asked = {"model": model, "task": task, "context_tokens": context_tokens, "measure": measure}
    found = _under(rows, spec)
    for name, value in asked.items():
        found = found[found[name] == value]
    if found.empty:
        return Interval(np.nan, np.nan, np.nan)
    return Interval(*(float(value) for value in found.iloc[0][["value", "low", "high"]]))


def _under(rows: pd.DataFrame, spec: SWA | Full) -> pd.DataFrame:
    if isinstance(spec, Full):
        return rows[rows["window"].isna()]
    return rows[rows["window"].eq(spec.window).fillna(False) & rows["sinks"].eq(spec.sinks).fillna(False)]


def in_percent(found: Interval) -> str:
    """A fraction with its interval, in percent."""
    if np.isnan(found.value):
        return UNKNOWN
    value, low, high = (100 * one + 1e-9 for one in found)  # ties round up, as on the page
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"


def words(rows: pd.DataFrame, model: str, spec: SWA) -> dict[str, str]:
    """What a text says of one model and spec, by name, or "not measured yet".

    `context`: the longest with items of both (tokens); there, over qa1 to qa4, `full_M` and `swa_M` for each
    measure M. `cells`: tasks at lengths, under full attention; `clear`, `clear_n`: those in which it clears
    every baseline; `items`: the least of one. `most_gap`: the widest gap of a task, and where.
    """
    own = rows[rows["model"] == model]
    lengths = [set(_under(own, one).query("task == 'qa1-4'")["context_tokens"]) for one in (Full(), spec)]
    context = max(set.intersection(*lengths), default=0)
    told = {"context": f"{context:,}" if context else UNKNOWN}
    for measure in MEASURES:
        for who, one in (("full", Full()), ("swa", spec)):
            told[f"{who}_{measure}"] = in_percent(number(own, model, "qa1-4", context, measure, one))
    cells = _under(own, Full())
    cells = cells[(cells["measure"] == "official") & cells["task"].isin(TASKS)]
    clear = [f"{row.task} at {row.context_tokens:,}" for row in cells.itertuples() if row.signal]
    told |= {"clear": ", ".join(clear) or "none", "clear_n": str(len(clear)), "cells": str(len(cells))}
    told["items"] = str(cells["n"].min()) if len(cells) else UNKNOWN
    return told | {"most_gap": _widest(own)}


def _widest(own: pd.DataFrame) -> str:
    gaps = own[(own["measure"] == "gap") & own["task"].isin(TASKS)]
    if gaps.empty:
        return UNKNOWN
    row = gaps.loc[gaps["value"].idxmax()]
    who = "full attention" if pd.isna(row["window"]) else f"SWA({row['window']:.0f}, {row['sinks']:.0f})"
    return f"{100 * row['value']:.0f} points ({who}, {row['task']} at {row['context_tokens']:,} tokens)"
