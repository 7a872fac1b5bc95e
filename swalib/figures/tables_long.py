"""How do the paper's tables of long contexts look on a page? S-NIAH (3) and BABILong (4 and 6)."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from swalib.figures.tables_parts import Notes, number, row, row_head, table

FULL = "Full attention"
TASK_LABELS = {
    "babilong_qa1": "qa1, one fact",
    "babilong_qa2": "qa2, two facts",
    "babilong_qa3": "qa3, three facts",
    "babilong_qa4": "qa4, two-argument relations",
    "babilong_qa5": "qa5, three-argument relations",
}


def _table3(rows: pd.DataFrame, notes: Notes) -> str:
    """A row for each task, window and method, full attention first of a task; a column for each context."""
    contexts, body = list(rows["context"].unique()), []
    for task, of_task in rows.groupby("task"):
        for _, part in of_task.groupby("window", dropna=False, sort=False):
            columns = [(task, context) for context in contexts]
            body.append((task, part["window"].fillna(0).iloc[0], _group(part, columns, notes, task, 1)))
    lines = [line for *_, group in sorted(body, key=lambda one: one[:2]) for line in group]
    return table(["method, task", *contexts], lines)


def _table4(rows: pd.DataFrame, notes: Notes) -> str:
    """A row for each method, a column for each context."""
    columns = [("babilong_qa1-5", context) for context in rows["context"].unique()]
    return table(["method", *(context for _, context in columns)], list(_group(rows, columns, notes)))


def _table6(rows: pd.DataFrame, notes: Notes) -> str:
    """A row for each task and method, a column for each context."""
    contexts, body = list(rows["context"].unique()), []
    for task, part in rows.groupby("task"):
        body += _group(part, [(task, context) for context in contexts], notes, TASK_LABELS[task])
    return table(["method, task", *contexts], body)


def _group(
    part: pd.DataFrame, columns: list[tuple[str, str]], notes: Notes, under: str = "", decimals: int = 0
) -> Iterator[str]:
    """The rows of methods that are compared, full attention first."""
    wide = part.pivot(index="method", columns=["task", "context"], values="value")
    best = wide.drop(FULL, errors="ignore").max()
    methods = sorted(part["method"].unique(), key=lambda method: method != FULL)
    for method in methods:
        own = part[part["method"] == method].iloc[0]
        shown = (
            number(
                wide.loc[method, column],
                method != FULL and wide.loc[method, column] == best[column],
                notes.mark(own["base_model"], method, *column),
                decimals,
            )
            for column in columns
        )
        name = row_head(_named(own), notes.mark(own["base_model"], method, None), under)
        yield row(name + "".join(shown), method == methods[0])


def _named(own: pd.Series) -> str:
    """Such as "SWA(128, 4)", "LoLCATs, w = 128" and "Full attention"."""
    if pd.notna(own["sinks"]):
        return f"{own['method']}({own['window']:.0f}, {own['sinks']:.0f})"
    return own["method"] + (f", w = {own['window']:.0f}" if pd.notna(own["window"]) else "")


# ---- In words.


def _summary3(rows: pd.DataFrame) -> str:
    return f"scores on three S-NIAH tasks at four contexts, in percent; {_last(rows, 1)}"


def _summary_babilong(rows: pd.DataFrame) -> str:
    of = "five tasks" if rows["task"].nunique() > 1 else "the mean of five tasks"
    return f"scores on BABILong, {of}, at four contexts, in percent; {_last(rows, 0)}"


def _last(rows: pd.DataFrame, decimals: int) -> str:
    """What SWA scores at the longest context."""
    values = rows[(rows["context"] == "4K") & (rows["method"] == "SWA")]["value"]
    low, high = f"{values.min():.{decimals}f}", f"{values.max():.{decimals}f}"
    return f"at 4K SWA scores {low if low == high else f'{low} to {high}'}"


TABLES = {
    3: ("How often is the needle found on Llama-3.1-8B?", _table3, _summary3),
    4: ("How well does Llama-3.1-8B reason over long text?", _table4, _summary_babilong),
    6: ("How well does Llama-3.1-8B reason over long text, task by task?", _table6, _summary_babilong),
}
