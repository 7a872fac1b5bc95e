"""What are the paper's tables made of? Cells, row heads, and the letters of the reasons of doubt."""

from __future__ import annotations

import html
from collections.abc import Sequence

import pandas as pd


class Notes:
    """Letters for the reasons of doubt, in the order in which they are met.

    Args:
        doubts: as `swalib.reported.doubts` returns them, of one table.
    """

    def __init__(self, doubts: pd.DataFrame) -> None:
        self._doubts, self._letters = doubts, {}

    def mark(self, base_model: str, method: str, task: str | None, context: str | None = None) -> str:
        """The marks of a cell, or of a whole row (task None, and no context of its own)."""
        found = self._doubts[(self._doubts["base_model"] == base_model) & (self._doubts["method"] == method)]
        found = found[found["task"].isna()] if task is None else found[found["task"] == task]
        found = found[found["context"].isna()] if context is None else found[found["context"] == context]
        for reason in found["reason"]:
            self._letters.setdefault(reason, chr(ord("a") + len(self._letters)))
        marks = [self._letters[reason] for reason in found["reason"]]
        return f'<sup class="swa-doubt">{" ".join(marks)}</sup>' if marks else ""

    def listed(self) -> str:
        """The reasons as a list."""
        items = "".join(f"<li>{html.escape(reason)}</li>" for reason in self._letters)
        return f'<p class="swa-noted">In doubt:</p><ol class="swa-notes" type="a">{items}</ol>'

    def plain(self) -> str:
        """The reasons as a sentence or more."""
        return "In doubt: " + " ".join(self._letters)


def table(heads: Sequence[str], body: Sequence[str]) -> str:
    """A table of rows in HTML; the heads are plain text."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in heads)
    return (
        f'<table class="swa-table swa-printed"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def row(cells: str, first: bool = False) -> str:
    """A row of cells in HTML; the first of a group is set apart."""
    kind = ' class="swa-first"' if first else ""
    return f"<tr{kind}>{cells}</tr>"


def row_head(name: str, mark: str, under: str = "") -> str:
    """A row's name with its marks, and small print under it."""
    below = f"<small>{html.escape(under)}</small>" if under else ""
    return f'<th scope="row">{html.escape(name)}{mark}{below}</th>'


def cell(value: float | str, text: str | float, best: bool, mark: str) -> str:
    """A number with its marks, which sorts by `value`; the best are bold."""
    kind = ' class="swa-best"' if best else ""
    return f'<td{kind} data-sort="{value}">{text}{mark}</td>'


def number(value: float, best: bool, mark: str, decimals: int = 1) -> str:
    """A number, or a dash where there is none."""
    return "<td>–</td>" if pd.isna(value) else cell(value, f"{value:.{decimals}f}", best, mark)
