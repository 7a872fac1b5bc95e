"""How do the paper's tables look on a page? HTML that is complete without scripts, and sorts with them."""

from __future__ import annotations

import html
from dataclasses import dataclass

import pandas as pd

from swalib import reported
from swalib.figures.show import Figure
from swalib.reported import LABELS, TASKS

_COLUMNS = (*TASKS, "average6")


@dataclass(frozen=True, kw_only=True)
class StaticFigure(Figure):
    """A figure that is HTML: readers without scripts get `static`, and its script starts from it."""

    static: str

    def _fallback(self) -> str:
        return self.static


def printed_table(number: int, *, caption: str) -> Figure:
    """Table 1 or 2 of the paper as printed; cells in doubt are marked, and their notes say why.

    Raises:
        ValueError: another table, which has no such form.
    """
    if number not in _TABLES:
        raise ValueError(f"Table {number} has no sortable form: choose 1 or 2.")
    title, build = _TABLES[number]
    notes = _Notes(reported.doubts().query("table == @number"))
    table = build(reported.printed(number), notes)
    rows = table.count("<tr") - 1
    return StaticFigure(
        id=f"printed-table-{number}",
        kind="printed-table",
        title=title,
        data={"provenance": f"Table {number}, {reported.PROVENANCE}"},
        alt=f"Table {number} of the paper, {rows} rows: {_summary(number)}. {notes.plain()}",
        caption=caption,
        static=f'<div class="swa-scroll" tabindex="0" role="region" aria-label="{html.escape(title)}">'
        f"{table}</div>{notes.listed()}",
    )


class _Notes:
    """Letters for the reasons of doubt, in the order in which they are met."""

    def __init__(self, doubts: pd.DataFrame) -> None:
        self._doubts, self._letters = doubts, {}

    def mark(self, base_model: str, method: str, task: str | None) -> str:
        """The marks of a cell, or of a whole row (task None)."""
        found = self._doubts[(self._doubts["base_model"] == base_model) & (self._doubts["method"] == method)]
        found = found[found["task"].isna()] if task is None else found[found["task"] == task]
        for reason in found["reason"]:
            self._letters.setdefault(reason, chr(ord("a") + len(self._letters)))
        marks = [self._letters[reason] for reason in found["reason"]]
        return f'<sup class="swa-doubt">{" ".join(marks)}</sup>' if marks else ""

    def listed(self) -> str:
        items = "".join(f"<li>{html.escape(reason)}</li>" for reason in self._letters)
        return f'<p class="swa-noted">In doubt:</p><ol class="swa-notes" type="a">{items}</ol>'

    def plain(self) -> str:
        return "In doubt: " + " ".join(self._letters)


# ---- Table 1.


def _table1(rows: pd.DataFrame, notes: _Notes) -> str:
    heads = ["method", "MMLU, %", "average, %", "training tokens", "stages"]
    best = rows.groupby("task")["value"].max()
    body = []
    for method, own in rows.groupby("method", sort=False):
        cells, first = own.set_index("task"), own.iloc[0]
        tokens, stages = first["post_training_tokens"], first["stages"]
        cost = _cell(_size(tokens), tokens, False, "") + _cell(float(stages[0]), stages, False, "")
        marked = [_spread(cells, task, best[task], notes) for task in ("mmlu", "average6")]
        name = _row_head(method, notes.mark("all", method, None))
        body.append(f"<tr>{name}{''.join(marked)}{cost}</tr>")
    return _table(heads, body)


def _spread(cells: pd.DataFrame, task: str, best: float, notes: _Notes) -> str:
    """Mean and sd over teachers; the paper gives DiJiang no average."""
    if task not in cells.index:
        return "<td>–</td>"
    value, sd = cells.loc[task, ["value", "sd"]]
    text = f"{value:.1f}" + ("" if pd.isna(sd) else f" ± {sd:.1f}")
    return _cell(value, text, value == best, notes.mark("all", cells.loc[task, "method"], task))


def _size(tokens: str) -> float:
    """What "60M/830M", "8–12B" and "0" sort by: the larger number, in millions."""
    last = tokens.replace("–", "/").split("/")[-1]
    return float(last.rstrip("MB")) * (1000 if last.endswith("B") else 1)


# ---- Table 2.


def _table2(rows: pd.DataFrame, notes: _Notes) -> str:
    wide = rows.pivot(index=["base_model", "method"], columns="task", values="value")
    body = []
    for base_model, own in rows.groupby("base_model", sort=False):
        methods = list(own["method"].unique())
        best = wide.loc[base_model].drop("Teacher").max()
        for method in methods:
            cells = wide.loc[(base_model, method)]
            first = ' class="swa-first"' if method == methods[0] else ""
            shown = "".join(
                _number(
                    cells[task],
                    method != "Teacher" and cells[task] == best[task],
                    notes.mark(base_model, method, task),
                )
                for task in _COLUMNS
            )
            name = _row_head(method, notes.mark(base_model, method, None), base_model)
            body.append(f"<tr{first}>{name}{shown}</tr>")
    return _table(["method, teacher", *(LABELS[task] for task in _COLUMNS)], body)


def _number(value: float, best: bool, mark: str) -> str:
    return "<td>–</td>" if pd.isna(value) else _cell(value, f"{value:.1f}", best, mark)


# ---- Both.


def _table(heads: list[str], body: list[str]) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in heads)
    return (
        f'<table class="swa-table swa-printed"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def _row_head(name: str, mark: str, under: str = "") -> str:
    below = f"<small>{html.escape(under)}</small>" if under else ""
    return f'<th scope="row">{html.escape(name)}{mark}{below}</th>'


def _cell(value: float, text: str, best: bool, mark: str) -> str:
    kind = ' class="swa-best"' if best else ""
    return f'<td{kind} data-sort="{value}">{text}{mark}</td>'


def _summary(number: int) -> str:
    rows = reported.printed(number)
    if number == 1:
        swa = rows[rows["method"] == "SWA"].set_index("task")["value"]
        return f"SWA recovers {swa['mmlu']} % of MMLU and {swa['average6']} % on average of six tasks"
    models = rows["base_model"].nunique()
    return f"scores of {models} teachers and their students on six tasks, in percent"


_TABLES = {
    1: ("How much of its teachers does each method recover, after how much training?", _table1),
    2: ("What do teachers and students score?", _table2),
}
