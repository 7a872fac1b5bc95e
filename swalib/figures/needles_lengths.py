"""How long are S-NIAH's prompts truly, and what is possible beyond 4K? Figures over exact token counts.

The tables are those of `swalib.evals.niah_printed` and `niah_summary`; fractions in them are percent on the
page. The caption states the conclusion.
"""

from __future__ import annotations

from itertools import product

import pandas as pd

from swalib.figures import needles_parts as parts
from swalib.figures import rows as shape
from swalib.figures.needles_parts import TASKS, coloured, key, line, part, said, tokens
from swalib.figures.show import Figure

FLOOR = 0.1  # percent: where the logarithmic axis of shares ends


# ---- True lengths.


def needle_lengths(
    lengths: pd.DataFrame,
    printed: pd.DataFrame,
    *,
    caption: str,
    id: str = "needle-lengths",
    title: str = "How long are the prompts truly?",
    task: str = "s_niah_2",
    window: int = 128,
) -> Figure:
    """True prompt lengths against the length asked for, in filled haystacks and in those of ports, beside w.

    Args:
        lengths, printed: as the functions of `swalib.evals.niah_printed` of these names return them.

    Raises:
        ValueError: a column is missing.
    """
    shape.need(lengths, "task context_tokens short_haystacks prompt_tokens haystack_tokens")
    shape.need(printed, "task context_tokens method window value")
    windows = [int(w) for w in sorted(printed["window"].dropna().unique())]
    tasks = {name: label for name, label in TASKS.items() if name in set(lengths["task"])}
    keys = list(product(tasks, windows))
    tables = {key("table", *one): _length_table(lengths, printed, *one) for one in keys}
    data = {
        "initial": {"task": task, "window": window},
        **_length_lines(lengths),
        "x": parts.contexts(lengths["context_tokens"]),
        "rule": part("window", {key("rule", w): {"y": w, "text": f"w = {w}"} for w in windows}),
        "says": part("task window", {key("says", *one): _length_words(lengths, *one) for one in keys}),
        "table": part("task window", tables),
    }
    data = parts.controls(data, ("task", "window"), task=tasks, window=windows)
    least = lengths[lengths["context_tokens"] == lengths["context_tokens"].min()]
    told = ", ".join(
        f"{TASKS[row['task']]} {row['prompt_tokens']:.0f}"
        for row in least[least["short_haystacks"]].to_dict("records")
    )
    alt = (
        "Line chart of true prompt lengths against the length asked for, haystacks that fill it and the "
        "short ones of harness ports, with a dotted line at w. At the least length, short haystacks: "
        f"{told} tokens."
    )
    return Figure(id=id, kind="needle-lines", title=title, data=data, alt=alt, caption=caption)


def _length_lines(lengths: pd.DataFrame) -> dict:
    lines = [
        line("filled", "fills its length", "filled", "full", "computed", "task"),
        line("short", "short haystacks of ports", "short", "other", "computed", "task", dash="4px 3px"),
    ]
    values = {
        key("short" if short else "filled", task): _counts(own, short)
        for (task, short), own in lengths.groupby(["task", "short_haystacks"], sort=False)
    }
    top = int(lengths["context_tokens"].max())
    ticks = [[64 << n, tokens(64 << n), False] for n in range((top // 64).bit_length())]
    axis = {"title": "tokens of the prompt (log scale)", "short": "prompt (tokens)", "log": True}
    axis |= {"span": [56, 1.2 * top], "ticks": ticks}
    return {"lines": lines, "values": values, "y": part("", {"y": axis})}


def _counts(own: pd.DataFrame, short: bool) -> dict:
    own = own.sort_values("context_tokens")
    kind = "short haystacks" if short else "fills its length"
    hover = [
        f"{kind}, length {tokens(row['context_tokens'])}<br>prompt {row['prompt_tokens']:.0f} tokens, "
        f"haystack without the needle {row['haystack_tokens']:.0f}"
        for row in own.to_dict("records")
    ]
    x, y = ([float(n) for n in own[name]] for name in ("context_tokens", "prompt_tokens"))
    return {"x": x, "y": y, "hover": hover}


def _length_table(lengths: pd.DataFrame, printed: pd.DataFrame, task: str, window: int) -> dict:
    own = lengths[lengths["task"] == task].set_index(["context_tokens", "short_haystacks"])
    score = printed[(printed["task"] == task) & (printed["window"] == window) & (printed["method"] == "SWA")]
    score = score.set_index("context_tokens")["value"]
    rows = []
    for n in sorted({n for n, _ in own.index}):
        row = [tokens(n)]
        for short in (False, True):
            known = (n, short) in own.index
            found = own.loc[(n, short)] if known else None
            row += (
                [f"{found['prompt_tokens']:,.0f}", f"{found['haystack_tokens']:,.0f}"]
                if known
                else ["–", "–"]
            )
        rows.append([*row, said(score.get(n, float("nan")))])
    head = ["length", "filled: prompt", "haystack", "short: prompt", "haystack", f"SWA({window}, 4), printed"]
    return {"head": head, "rows": rows}


def _length_words(lengths: pd.DataFrame, task: str, window: int) -> list:
    own = lengths[(lengths["task"] == task) & lengths["short_haystacks"]].sort_values("context_tokens")
    if own.empty:
        return [f"{TASKS[task]}: no short haystack is stored."]
    first = own.iloc[0]
    head = [
        f"{TASKS[task]}, short haystacks at {tokens(int(first['context_tokens']))}: the prompt has ",
        coloured("other", f"{first['prompt_tokens']:.0f} tokens"),
    ]
    if first["prompt_tokens"] <= window:
        return [*head, f", so all of it fits into w = {window}: there SWA is full attention."]
    return [*head, f", more than w = {window}."]


# ---- Beyond 4K.


def needle_beyond(
    beyond: pd.DataFrame,
    printed: pd.DataFrame,
    measured: pd.DataFrame,
    *,
    caption: str,
    layers: int,
    id: str = "needle-beyond",
    title: str = "What can be found beyond 4K?",
    task: str = "s_niah_1",
    window: int = 256,
) -> Figure:
    """The share of needles that a window alone shows and that L layers of it can reach, on to long contexts.

    Args:
        beyond, printed: as the functions of `swalib.evals.niah_printed` of these names return them.
        measured: as `swalib.evals.niah_summary.scores` returns them, of one model; may have no rows.
        layers: those that `beyond` counts.

    Raises:
        ValueError: a column is missing.
    """
    shape.need(beyond, "task window context_tokens null reach")
    shape.need(printed, "task context_tokens method window value low high")
    windows = [int(w) for w in sorted(beyond["window"].unique())]
    tasks = {name: label for name, label in TASKS.items() if name in set(beyond["task"])}
    says = {key("says", *one): _beyond_words(beyond, layers, *one) for one in product(tasks, windows)}
    data = {
        "initial": {"task": task, "window": window},
        **_beyond_lines(beyond, printed, measured, layers),
        "x": parts.contexts(beyond["context_tokens"]),
        "says": part("task window", says),
    }
    data = parts.controls(data, task=tasks, window=windows)
    alt = (
        "Line chart on logarithmic axes of the share of needles against length: those wholly inside one "
        f"window, those that {layers} layers of it can reach, and SWA's scores as printed and as measured."
    )
    return Figure(id=id, kind="needle-lines", title=title, data=data, alt=alt, caption=caption)


def _beyond_lines(beyond: pd.DataFrame, printed: pd.DataFrame, measured: pd.DataFrame, layers: int) -> dict:
    reach, about = f"reach of {layers} layers", "task window"
    lines = [
        line("reach", reach, "reach", "sinks", "computed", about, dash="4px 3px"),
        line("null", "window alone", "window", "chance", "computed", about),
        line("printed", "SWA, printed", "printed", "sinks", "printed", about),
        line("measured", "SWA, measured", "measured", "sinks", "measured", about),
    ]
    values = {}
    for (name, w), own in beyond.groupby(["task", "window"], sort=False):
        values |= {key(kind, name, w): _share(own, kind) for kind in ("reach", "null")}
    for (name, w), own in printed[printed["method"] == "SWA"].groupby(["task", "window"], sort=False):
        values[key("printed", name, w)] = _points(own, "value", "low", "high", "as printed")
    ours = measured[(measured["sinks"] == 4) & (measured["positions"] == "text")]
    for (name, w), own in ours.groupby(["task", "window"], sort=False):
        whose = own["model"].iloc[0]
        values[key("measured", name, w)] = _points(own, "found", "found_low", "found_high", whose)
    ticks = [[FLOOR, f"≤ {FLOOR}", False]] + [[x, f"{x:g}", False] for x in (0.3, 1, 3, 10, 30, 100)]
    axis = {"title": "needles, % (log scale)", "short": "needles, %", "log": True, "span": [0.085, 125]}
    return {"lines": lines, "values": values, "y": part("", {"y": axis | {"ticks": ticks}})}


def _share(own: pd.DataFrame, kind: str) -> dict:
    own = own.sort_values("context_tokens")
    label = {"reach": "within reach", "null": "wholly inside the window"}[kind]
    return {
        "x": [int(n) for n in own["context_tokens"]],
        "y": [parts.pct(share) if share > 0 else None for share in own[kind]],
        "hover": [
            f"{tokens(int(n))}: {said(share, 2)} {label}, computed"
            for n, share in zip(own["context_tokens"], own[kind], strict=True)
        ],
    }


def _points(own: pd.DataFrame, value: str, low: str, high: str, whose: str) -> dict:
    own = own.sort_values("context_tokens")
    drawn = {
        name: [max(FLOOR, parts.pct(share)) for share in own[column]]
        for name, column in (("y", value), ("low", low), ("high", high))
    }
    hover = [
        f"{whose}, {tokens(int(row['context_tokens']))}: {said(row[value])} "
        f"({said(row[low])} to {said(row[high])})"
        for row in own.to_dict("records")
    ]
    return {"x": [int(n) for n in own["context_tokens"]], **drawn, "hover": hover}


def _beyond_words(beyond: pd.DataFrame, layers: int, task: str, window: int) -> list:
    own = beyond[(beyond["task"] == task) & (beyond["window"] == window)].sort_values("context_tokens")
    whole, last = own[own["reach"] >= 1], own.iloc[-1]
    upto = f"up to {tokens(int(whole['context_tokens'].iloc[-1]))} " if len(whole) else "nowhere "
    return [
        f"{layers} layers of SWA({window}, 4) can reach every needle {upto}of the lengths shown; at "
        f"{tokens(int(last['context_tokens']))} they reach ",
        coloured("sinks", said(last["reach"], 0)),
        ", and the window itself shows ",
        coloured("chance", said(last["null"])),
        ".",
    ]
