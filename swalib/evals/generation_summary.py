"""What do students write, in numbers and words? Repetition, perplexity under the teacher, items solved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from swalib import results
from swalib.evals import generation
from swalib.evals.resampling import DRAWS, Interval, bootstrap, wilson
from swalib.results import MissingResult
from swalib.spec import SWA, Full

UNKNOWN, NO_SIGNAL = "not measured yet", "no signal"
_TASKS = {"gsm8k": "GSM8K", "humaneval": "HumanEval"}
_SPEC = ["model", "window", "sinks"]


# ---- continuations.


def gather(
    mode: str, model: str, others: Sequence[str], specs: Sequence[SWA | Full], **settings: object
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`generation.continuations` of `model`, in mode "stored" with gaps, and what is stored of the `others`.

    Raises:
        MissingResult: in mode "stored", full attention of `model` is not stored.
    """
    found = [generation.continuations(mode, model, specs, gaps=True, **settings)]
    for other in dict.fromkeys(others):
        try:
            if other != model:
                found.append(generation.continuations("stored", other, specs, gaps=True, **settings))
        except MissingResult:
            continue
    rows, curves = (pd.concat(part, ignore_index=True) for part in zip(*found, strict=True))
    return rows, curves


def binned(curves: pd.DataFrame, bin_tokens: int = 32) -> pd.DataFrame:
    """The teacher's perplexity by position, over bins of `bin_tokens`: model, window, sinks, position (the
    bin's middle, tokens written), ppl."""
    table = curves.assign(position=curves["position"] // bin_tokens * bin_tokens + (bin_tokens - 1) / 2)
    means = table.groupby([*_SPEC, "position"], sort=False, dropna=False)["loss"].mean().reset_index()
    return means.assign(ppl=np.exp(means["loss"])).drop(columns="loss")


def summary(rows: pd.DataFrame, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """A row for each model and spec, of rows as `gather` returns them, with 95 % intervals over pieces.

    Returns:
        model, window, sinks, n (pieces), repetition, repetition_low, repetition_high (fractions), ppl,
        ppl_low, ppl_high (the teacher's, of what was written), shared (leading tokens that are the teacher's
        own, median), shared_most.
    """
    found = []
    for labels, part in rows.groupby(_SPEC, sort=False, dropna=False):
        row = {**dict(zip(_SPEC, labels, strict=True)), "n": len(part)}
        for name, values in (("repetition", part["repetition"]), ("ppl", part["loss"])):
            value, low, high = bootstrap(values.to_numpy(dtype=float), draws=draws, seed=seed)
            ends = [math.exp(x) for x in (value, low, high)] if name == "ppl" else [value, low, high]
            row |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        shared = {"shared": float(part["shared_tokens"].median()), "shared_most": part["shared_tokens"].max()}
        found.append(row | shared)
    return pd.DataFrame(found)


def words(found: pd.DataFrame, model: str, window: int, sinks: int) -> dict[str, str]:
    """What a text says of continuations under full attention and SWA(window, sinks), or "not measured yet":
    `full_repetition`, `repetition`, `full_ppl`, `ppl`, each with its interval, `shared` and `pieces`; and
    `verdict`, whether the student repeats itself more."""
    own = found[found["model"] == model]
    rows = {"full_": own[own["window"].isna()]}
    rows[""] = own[_is(own, window, sinks)]
    told = {}
    for prefix, part in rows.items():
        row = part.iloc[0] if len(part) else None
        told[f"{prefix}repetition"] = UNKNOWN if row is None else _percent(_ends(row, "repetition"))
        told[f"{prefix}ppl"] = (
            UNKNOWN if row is None else "{:.2f} ({:.2f} to {:.2f})".format(*_ends(row, "ppl"))
        )
    told["verdict"] = UNKNOWN if any(part.empty for part in rows.values()) else _verdict(*rows.values())
    told["shared"] = UNKNOWN if row is None else f"{row['shared']:.0f}"
    told["pieces"] = str(int(own["n"].iloc[0])) if len(own) else UNKNOWN
    return told


def _verdict(full: pd.DataFrame, student: pd.DataFrame) -> str:
    """By the intervals of the two shares of repeated 4-grams."""
    theirs, ours = (_ends(part.iloc[0], "repetition") for part in (full, student))
    if ours.low > theirs.high:
        return "the window repeats itself more than full attention does"
    if ours.high < theirs.low:
        return "the window repeats itself less than full attention does"
    looping = " (both loop, as small models do when they write greedily)" if theirs.value > 0.5 else ""
    return f"the two repeat themselves too alike to tell apart on so few texts{looping}"


def _is(rows: pd.DataFrame, window: int, sinks: int) -> pd.Series:
    return ((rows["window"] == window) & (rows["sinks"] == sinks)).fillna(False).astype(bool)


def _ends(row: pd.Series, name: str) -> Interval:
    return Interval(*(float(row[part]) for part in (name, f"{name}_low", f"{name}_high")))


def _percent(found: Interval) -> str:
    return f"{100 * found.value:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f})"


# ---- items that are answered in writing.


def written(
    mode: str,
    model: str,
    others: Sequence[str],
    tasks: Mapping[str, int],
    specs: Sequence[SWA],
    **settings: object,
) -> pd.DataFrame:
    """The table of GSM8K and HumanEval: share solved with its 95 % interval, by task and model.

    `model` is measured as `mode` says; in mode "stored", and of the `others`, whatever is stored is shown, of
    the most items; others without any have no row. A cell without rows says "not measured yet"; where full
    attention solves nothing, SWA's cells say "no signal".

    Args:
        tasks: items of each task to measure.

    Returns:
        As text: task, model, full attention, a column for each spec, n.
    """
    if mode != "stored":
        for task, items in tasks.items():
            generation.measure(mode, model, [Full(), *specs], task, items, **settings)
    columns = {"full attention": Full(), **{f"SWA({spec.window}, {spec.sinks})": spec for spec in specs}}
    rows = []
    for task, name in product(tasks, dict.fromkeys([model, *others])):
        solved = {column: _solved(name, task, spec) for column, spec in columns.items()}
        if name == model or any(solved.values()):
            rows.append({"task": _TASKS[task], "model": name, **_row(solved)})
    return pd.DataFrame(rows, columns=["task", "model", *columns, "n"])


def _solved(model: str, task: str, spec: SWA | Full) -> tuple[int, int] | None:
    """How many items are stored as solved, of how many; the run with most items counts."""
    try:
        rows = results.read("generation")
    except MissingResult:
        return None
    own = rows[(rows["model"] == model) & (rows["task"] == task) & (rows["metric"] == "right")]
    if isinstance(spec, Full):
        own = own[own["method"] == "full"]
    else:
        own = own[_is(own, spec.window, spec.sinks) & (own["positions"] == spec.positions)]
    if own.empty:
        return None
    most = own.loc[own["n"].astype(int).idxmax()]
    return round(float(most["value"]) * int(most["n"])), int(most["n"])


def _row(solved: dict[str, tuple[int, int] | None]) -> dict[str, str]:
    full = solved["full attention"]
    silent, row = full is not None and full[0] == 0, {}
    for name, found in solved.items():
        share = UNKNOWN if found is None else _percent(wilson(found[0] / found[1], found[1]))
        row[name] = NO_SIGNAL if silent and found else share
    if silent:
        row["full attention"] = f"0 of {full[1]}"
    row["n"] = " / ".join(dict.fromkeys(str(found[1]) for found in solved.values() if found)) or "–"
    return row
