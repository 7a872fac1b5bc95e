"""How do the paper's tables look on a page? HTML that is complete without scripts, and sorts with them."""

from __future__ import annotations

import html
from dataclasses import dataclass

import pandas as pd

from swalib import reported
from swalib.figures.show import Figure
from swalib.figures.tables_long import TABLES
from swalib.figures.tables_parts import Notes, cell, number, row, row_head, table
from swalib.reported import LABELS, TASKS

_COLUMNS = (*TASKS, "average6")


@dataclass(frozen=True, kw_only=True)
class StaticFigure(Figure):
    """A figure that is HTML: readers without scripts get `static`, and its script starts from it."""

    static: str

    def _fallback(self) -> str:
        return self.static


def printed_table(number: int, *, caption: str) -> Figure:
    """A table of the paper as printed, but for Table 5; cells in doubt are marked, and their notes say why.

    Bold is the best of a column apart from the unchanged model: in Table 1 and 4 of all, in Table 2 of each
    teacher's students, in Table 3 at each window, in Table 6 on each task.

    Raises:
        ValueError: another table, which has no such form.
    """
    if number not in _TABLES:
        known = ", ".join(map(str, _TABLES))
        raise ValueError(f"Table {number} has no sortable form: choose from {known}.")
    title, build, summary = _TABLES[number]
    printed, notes = reported.printed(number), Notes(reported.doubts().query("table == @number"))
    shown = build(printed, notes)
    rows = shown.count("<tr") - 1
    return StaticFigure(
        id=f"printed-table-{number}",
        kind="printed-table",
        title=title,
        data={"provenance": f"Table {number}, {reported.PROVENANCE}"},
        alt=f"Table {number} of the paper, {rows} rows: {summary(printed)}. {notes.plain()}",
        caption=caption,
        static=f'<div class="swa-scroll" tabindex="0" role="region" aria-label="{html.escape(title)}">'
        f"{shown}</div>{notes.listed()}",
    )


# ---- Table 1.


def _table1(rows: pd.DataFrame, notes: Notes) -> str:
    heads = ["method", "MMLU, %", "average, %", "training tokens", "stages"]
    best = rows.groupby("task")["value"].max()
    body = []
    for method, own in rows.groupby("method", sort=False):
        cells, first = own.set_index("task"), own.iloc[0]
        tokens, stages = first["post_training_tokens"], first["stages"]
        cost = cell(_size(tokens), tokens, False, "") + cell(float(stages[0]), stages, False, "")
        marked = [_spread(cells, task, best[task], notes) for task in ("mmlu", "average6")]
        name = row_head(method, notes.mark("all", method, None))
        body.append(row(f"{name}{''.join(marked)}{cost}"))
    return table(heads, body)


def _spread(cells: pd.DataFrame, task: str, best: float, notes: Notes) -> str:
    """Mean and sd over teachers; the paper gives DiJiang no average."""
    if task not in cells.index:
        return "<td>–</td>"
    value, sd = cells.loc[task, ["value", "sd"]]
    text = f"{value:.1f}" + ("" if pd.isna(sd) else f" ± {sd:.1f}")
    return cell(value, text, value == best, notes.mark("all", cells.loc[task, "method"], task))


def _size(tokens: str) -> float:
    """What "60M/830M", "8–12B" and "0" sort by: the larger number, in millions."""
    last = tokens.replace("–", "/").split("/")[-1]
    return float(last.rstrip("MB")) * (1000 if last.endswith("B") else 1)


# ---- Table 2.


def _table2(rows: pd.DataFrame, notes: Notes) -> str:
    wide = rows.pivot(index=["base_model", "method"], columns="task", values="value")
    body = []
    for base_model, own in rows.groupby("base_model", sort=False):
        methods = list(own["method"].unique())
        best = wide.loc[base_model].drop("Teacher").max()
        for method in methods:
            cells = wide.loc[(base_model, method)]
            shown = "".join(
                number(
                    cells[task],
                    method != "Teacher" and cells[task] == best[task],
                    notes.mark(base_model, method, task),
                )
                for task in _COLUMNS
            )
            name = row_head(method, notes.mark(base_model, method, None), base_model)
            body.append(row(name + shown, method == methods[0]))
    return table(["method, teacher", *(LABELS[task] for task in _COLUMNS)], body)


# ---- In words.


def _summary1(rows: pd.DataFrame) -> str:
    swa = rows[rows["method"] == "SWA"].set_index("task")["value"]
    return f"SWA recovers {swa['mmlu']} % of MMLU and {swa['average6']} % on average of six tasks"


def _summary2(rows: pd.DataFrame) -> str:
    models = rows["base_model"].nunique()
    return f"scores of {models} teachers and their students on six tasks, in percent"


_TABLES = {
    1: ("How much of its teachers does each method recover, after how much training?", _table1, _summary1),
    2: ("What do teachers and students score?", _table2, _summary2),
    **TABLES,
}
