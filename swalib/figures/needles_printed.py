"""What do the printed S-NIAH scores say beside a window-only model? Figures over Table 3, nothing measured.

The tables are those of `swalib.evals.niah_printed`; fractions in them are percent on the page. `window`,
`task` and `method` among the arguments are where the controls start. The caption states the conclusion.
"""

from __future__ import annotations

from itertools import product

import pandas as pd

from swalib.figures import needles_parts as parts
from swalib.figures import rows as shape
from swalib.figures.needles_parts import FOUND, METHODS, TASKS, coloured, key, line, part, said, tokens
from swalib.figures.show import Figure

INFINITE = 1500.0  # where the axis of ratios has ∞
HAYSTACKS = {"filled": "fills its length, as in RULER", "short": "short, as ports to harnesses fill it"}
_SYMBOLS = ("circle-open", "square-open", "diamond-open")


# ---- The ratio, cell by cell.


def needle_ratios(
    ratios: pd.DataFrame,
    counts: pd.DataFrame,
    *,
    caption: str,
    id: str = "needle-ratios",
    title: str = "Is SWA 2–10 times better, cell by cell?",
    method: str = "LoLCATs",
) -> Figure:
    """SWA's printed score over another method's for every task, length and window, with the band 2 to 10.

    Args:
        ratios, counts: as `ratios` and `counted` of `swalib.evals.niah_printed` return them.

    Raises:
        ValueError: a column is missing.
    """
    shape.need(ratios, "task context_tokens window method swa other ratio low high place")
    shape.need(counts, "below within above infinite cells")
    cells = list(product(TASKS, sorted(ratios["context_tokens"].unique())))
    windows = [int(w) for w in sorted(ratios["window"].unique())]
    values, lines = {}, []
    for nth, w in enumerate(windows):
        lines.append(line(f"w{w}", f"w = {w}", str(w), "sinks", "printed", "method", dots=True))
        lines[-1]["symbol"] = _SYMBOLS[nth % len(_SYMBOLS)]
        for name, own in ratios[ratios["window"] == w].groupby("method", sort=False):
            values[key(f"w{w}", name)] = _dots(own, cells, 0.24 * (nth - (len(windows) - 1) / 2))
    methods = list(dict.fromkeys(ratios["method"]))
    data = {
        "initial": {"method": method},
        "lines": lines,
        "values": values,
        "bars": "x",
        "bands": [{"from": 2, "to": 10, "text": "2–10 times"}],
        "x": _ratio_axis(),
        "y": part("", {"y": _cell_axis(cells)}),
        "says": part("method", {key("says", name): _ratio_words(name, ratios, counts) for name in methods}),
        "height": 620,
        "left": 116,
    }
    data = parts.controls(data, method={name: name for name in methods})
    alt = (
        "Dot chart of SWA's printed score divided by another method's, one row for each task and length, "
        f"three windows, on a logarithmic axis with the band 2 to 10. {_told(counts)}."
    )
    return Figure(id=id, kind="needle-lines", title=title, data=data, alt=alt, caption=caption)


def _dots(own: pd.DataFrame, cells: list, shift: float) -> dict:
    rows = [row for row in own.to_dict("records") if (row["task"], row["context_tokens"]) in cells]
    finite = [row["place"] != "infinite" for row in rows]
    return {
        "x": [shape.rounded(row["ratio"]) if ok else INFINITE for row, ok in zip(rows, finite, strict=True)],
        "y": [cells.index((row["task"], row["context_tokens"])) + shift for row in rows],
        "low": [shape.rounded(row["low"]) for row in rows],
        "high": [shape.rounded(row["high"]) if ok else None for row, ok in zip(rows, finite, strict=True)],
        "hover": [_ratio_hover(row) for row in rows],
        "method": METHODS[own["method"].iloc[0]],
    }


def _ratio_hover(row: dict) -> str:
    head = f"{TASKS[row['task']]}, {tokens(row['context_tokens'])}, w = {int(row['window'])}<br>"
    head += f"SWA {said(row['swa'])}, {row['method']} {said(row['other'])}<br>"
    if row["place"] == "infinite":
        return head + f"∞ (0.0); 500 items without a hit still allow {row['low']:.1f}×"
    return head + f"{row['ratio']:.2f}× (95 %: {row['low']:.2f} to {row['high']:.2f})"


def _ratio_axis() -> dict:
    minor = (0.05, 0.2, 0.5, 5, 20, 50, 200, 500)
    shown = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
    ticks = [[x, f"{x:g}", x in minor] for x in shown]
    title = "SWA's score / the other's (times, log scale)"
    ticks.append([INFINITE, "∞ (0.0)", False])
    return {"title": title, "short": "ratio (times)", "log": True, "span": [0.05, 2400], "ticks": ticks}


def _cell_axis(cells: list) -> dict:
    ticks = [[nth, f"{TASKS[task]}, {tokens(n)}", False] for nth, (task, n) in enumerate(cells)]
    return {"title": "", "span": [len(cells) - 0.4, -0.6], "ticks": ticks}


def _ratio_words(name: str, ratios: pd.DataFrame, counts: pd.DataFrame) -> list:
    if name not in counts.index:
        own = ratios[ratios["method"] == name]
        longest = own[own["context_tokens"] == own["context_tokens"].max()]["ratio"]
        share = coloured("sinks", f"{said(longest.min(), 0)} to {said(longest.max(), 0)}")
        last = tokens(int(own["context_tokens"].max()))
        return [f"At {last}, SWA keeps ", share, " of full attention's score, in any task and window."]
    row = counts.loc[name]
    within = coloured(METHODS[name], f"{row['within']} of {row['cells']}")
    return [
        "SWA is 2–10 times better in ",
        within,
        f" cells; less in {row['below']}, more in {row['above']}, and in {row['infinite']} {name} has 0.0.",
    ]


def _told(counts: pd.DataFrame) -> str:
    rows = counts.drop(index="all", errors="ignore").iterrows()
    return "; ".join(
        f"{name}: {row['within']} of {row['cells']} cells in the band, {row['below']} below, {row['above']} "
        f"above, {row['infinite']} infinite"
        for name, row in rows
    )


# ---- Beside the null line.


def needle_null(
    printed: pd.DataFrame,
    null: pd.DataFrame,
    *,
    caption: str,
    id: str = "needle-null",
    title: str = "Does SWA find more than its window shows?",
    task: str = "s_niah_1",
    window: int = 256,
) -> Figure:
    """Printed scores against length, and what a model finds that sees nothing but SWA(w, 4)'s window.

    Args:
        printed, null: as the functions of `swalib.evals.niah_printed` of these names return them.

    Raises:
        ValueError: a column is missing.
    """
    shape.need(printed, "task context_tokens method window value low high")
    shape.need(null, "task context_tokens short_haystacks window sinks null_from_question null_from_answer")
    null = null[null["sinks"] == 4]
    windows = [int(w) for w in sorted(printed["window"].dropna().unique())]
    lines, values = _printed_lines(printed, windows)
    null_lines, null_values = _null_lines(null)
    lines, values = lines + null_lines, values | null_values
    tasks = {name: label for name, label in TASKS.items() if name in set(printed["task"])}
    keys = list(product(tasks, windows, HAYSTACKS))
    tables = {key("table", *one): _null_table(printed, null, *one) for one in keys}
    data = {
        "initial": {"task": task, "window": window, "haystack": "filled"},
        "lines": lines,
        "values": values,
        "x": parts.contexts(printed["context_tokens"]),
        "y": part("", {"y": FOUND}),
        "says": part(
            "task window haystack",
            {key("says", *one): _null_words(tables[key("table", *one)], *one) for one in keys},
        ),
        "table": part("task window haystack", tables),
    }
    data = parts.controls(data, task=tasks, haystack=HAYSTACKS, window=windows)
    alt = (
        "Line chart of printed S-NIAH scores against length for full attention, SWA, LoLCATs and Liger at "
        "one window, and the share of needles that lie wholly inside that window. A table under it lists "
        "SWA's scores beside that share."
    )
    return Figure(id=id, kind="needle-lines", title=title, data=data, alt=alt, caption=caption)


def _printed_lines(printed: pd.DataFrame, windows: list[int]) -> tuple[list[dict], dict]:
    lines, values = [], {}
    for name, own in printed.groupby("method", sort=False):
        short = {"Full attention": "full", "Liger-GLA": "Liger"}.get(name, name)
        lines.append(line(name, name, short, METHODS[name], "printed", "task window"))
        for task, w in product(own["task"].unique(), windows):
            chosen = own[(own["task"] == task) & ((own["window"] == w) | own["window"].isna())]
            chosen = chosen.sort_values("context_tokens")
            values[key(name, task, w)] = {
                "x": [int(n) for n in chosen["context_tokens"]],
                **{
                    k: [parts.pct(v) for v in chosen[n]]
                    for k, n in (("y", "value"), ("low", "low"), ("high", "high"))
                },
                "hover": [_printed_hover(row) for row in chosen.to_dict("records")],
            }
    return lines, values


def _printed_hover(row: dict) -> str:
    window = "" if pd.isna(row["window"]) else f", w = {int(row['window'])}"
    spread = f"95 % of 500 items: {said(row['low'])} to {said(row['high'])}"
    place = f"{tokens(row['context_tokens'])}: {said(row['value'])}"
    return f"{row['method']}{window}, printed<br>{place}<br>{spread}"


def _null_lines(null: pd.DataFrame) -> tuple[list[dict], dict]:
    lines, values, about = [], {}, ("chance", "computed", "task window haystack")
    for where, dash in (("question", "solid"), ("answer", "4px 3px")):
        lines.append(line(where, "window alone", "window", *about, dash=dash, unnamed=where == "answer"))
        values |= _null_values(null, where)
    return lines, values


def _null_values(null: pd.DataFrame, where: str) -> dict:
    values = {}
    for (task, short, w), own in null.groupby(["task", "short_haystacks", "window"], sort=False):
        own, column = own.sort_values("context_tokens"), f"null_from_{where}"
        told = f"window alone, counted from the {where}, exact"
        values[key(where, task, w, "short" if short else "filled")] = {
            "x": [int(n) for n in own["context_tokens"]],
            "y": [parts.pct(share) for share in own[column]],
            "hover": [
                f"{told}<br>{tokens(n)}: {said(share)}"
                for n, share in zip(own["context_tokens"], own[column], strict=True)
            ],
        }
    return values


def _null_table(printed: pd.DataFrame, null: pd.DataFrame, task: str, window: int, haystack: str) -> dict:
    own = printed[(printed["task"] == task) & (printed["window"] == window) & (printed["method"] == "SWA")]
    chosen = null[(null["task"] == task) & (null["window"] == window)]
    chosen = chosen[chosen["short_haystacks"] == (haystack == "short")].set_index("context_tokens")
    rows = []
    for row in own.sort_values("context_tokens").to_dict("records"):
        n = int(row["context_tokens"])
        if n not in chosen.index:
            continue
        question, answer = (float(chosen.loc[n, f"null_from_{where}"]) for where in ("question", "answer"))
        excess = f"{100 * (row['value'] - question):+.1f}"
        rows.append([tokens(n), said(row["value"]), said(question), said(answer), excess])
    head = [
        "length",
        f"SWA({window}, 4)",
        "window, from question",
        "from answer",
        "above, points",
    ]
    return {"head": head, "rows": rows}


def _null_words(table: dict, task: str, window: int, haystack: str) -> list:
    if not table["rows"]:
        return [f"{TASKS[task]}: no exact places are stored for this haystack."]
    last = table["rows"][-1]
    return [
        f"{TASKS[task]} at {last[0]}: SWA({window}, 4) finds ",
        coloured("sinks", last[1]),
        f" as printed; its window alone shows {last[2]} of the needles from before the question, {last[3]} "
        "from where the answer begins.",
    ]
