"""Tables 3, 4 and 6 as they leave Python: every printed cell in its place, with what speaks against it."""

import xml.etree.ElementTree as ElementTree
from math import comb

import pandas as pd
import pytest

from swalib import figures, reported
from swalib.figures import tables_long
from swalib.reported import findings
from swalib.reported.pairs import pairs

NUMBERS = (3, 4, 6)
PAGES = {
    number: ElementTree.fromstring(f"<div>{figures.printed_table(number, caption='c').static}</div>")
    for number in NUMBERS
}
FULL = "Full attention"


def text(cell: ElementTree.Element) -> str:
    return (cell.text or "") + "".join(child.tail or "" for child in cell)


def row_key(head: ElementTree.Element, number: int) -> tuple[str, float | None, str | None]:
    """Method, window and task of a row."""
    name, task = text(head), None
    if number != 4:
        labels = {label: key for key, label in tables_long.TASK_LABELS.items()}
        task = head.find("small").text
        task = labels.get(task, task)
    if name == FULL:
        return FULL, None, task
    method, window = name.split(", w = ") if ", w = " in name else name.removesuffix(", 4)").split("(")
    return method, float(window), task


def shown(number: int) -> list[tuple[tuple, ElementTree.Element]]:
    """All cells: ((method, window, task, context), cell)."""
    heads = [head.text for head in PAGES[number].find(".//thead/tr")][1:]
    found = []
    for row in PAGES[number].find(".//tbody"):
        method, window, task = row_key(row[0], number)
        for head, cell in zip(heads, list(row)[1:], strict=True):
            found.append(((method, window, task or "babilong_qa1-5", head), cell))
    return found


def printed(number: int) -> dict[tuple, float]:
    rows = reported.printed(number)
    return {
        (row.method, None if pd.isna(row.window) else row.window, row.task, row.context): row.value
        for row in rows.itertuples()
    }


@pytest.mark.parametrize(("number", "cells", "decimals"), [(3, 120, 1), (4, 12, 0), (6, 60, 0)])
def test_every_printed_cell_is_in_its_place(number, cells, decimals):
    found = shown(number)
    assert len(found) == cells
    for _, cell in found:
        assert text(cell) == f"{float(cell.get('data-sort')):.{decimals}f}"
    assert {key: float(cell.get("data-sort")) for key, cell in found} == printed(number)


@pytest.mark.parametrize("number", NUMBERS)
def test_bold_is_the_best_of_those_compared_and_never_full_attention(number):
    cells = printed(number)
    for (method, window, task, context), cell in shown(number):
        rivals = [
            value
            for (m, w, *of), value in cells.items()
            if m != FULL and (w, of) == (window, [task, context])
        ]
        wanted = method != FULL and cells[method, window, task, context] == max(rivals)
        assert (cell.get("class") == "swa-best") == wanted


@pytest.mark.parametrize(("number", "reasons"), [(3, 2), (4, 3), (6, 2)])
def test_every_doubt_is_marked_at_its_cell_and_listed_once(number, reasons):
    page = PAGES[number]
    listed = [item.text for item in page.iter("li")]
    assert len(listed) == len(set(listed)) == reasons

    def marked(cell: ElementTree.Element) -> list[str]:
        sup = cell.find("sup")
        return [] if sup is None else [listed[ord(mark) - ord("a")] for mark in sup.text.split(" ")]

    found = {(m, task, context, why) for (m, _, task, context), cell in shown(number) for why in marked(cell)}
    rows = page.find(".//tbody")
    found |= {(row_key(row[0], number)[0], None, None, why) for row in rows for why in marked(row[0])}
    doubts = reported.doubts().query("table == @number").astype(object)
    doubts = doubts.where(doubts.notna(), None)
    assert found == {(d.method, d.task, d.context, d.reason) for d in doubts.itertuples()}
    assert all(why in figures.printed_table(number, caption="c").alt for why in listed)


def test_the_cells_called_below_chance_are_those_that_luck_does_not_explain():
    doubts = reported.doubts().query("kind == 'below_chance' and table == 6")
    called = set(doubts[["method", "task", "context"]].itertuples(index=False, name=None))
    low = set()
    for row in reported.printed(6).itertuples():
        p = 1 / 7 if row.task == "babilong_qa5" else 1 / 6
        at_most = sum(comb(100, k) * p**k * (1 - p) ** (100 - k) for k in range(int(row.value) + 1))
        low |= {(row.method, row.task, row.context)} if at_most < 0.01 else set()
    assert called == low
    assert ("SWA", "babilong_qa2", "4K") in called


def test_table_4_is_said_to_follow_from_table_6_and_does():
    assert set(reported.doubts().query("kind == 'derived'")["method"]) == {"SWA", "LoLCATs", FULL}
    assert findings.table4_off() == 0


def test_the_rows_are_named_as_the_paper_s_settings():
    names = [text(row[0]) for row in PAGES[3].find(".//tbody")]
    assert names[:4] == [FULL, "SWA(128, 4)", "LoLCATs, w = 128", "Liger-GLA, w = 128"]
    assert names == 3 * names[:10]
    assert [text(row[0]) for row in PAGES[4].find(".//tbody")] == [FULL, "SWA(256, 4)", "LoLCATs, w = 256"]
    first = [row for row in PAGES[6].find(".//tbody") if row.get("class") == "swa-first"]
    assert [text(row[0]) for row in first] == [FULL] * 5


def test_the_pairs_of_table_2_are_untouched_by_the_doubts_of_other_tables():
    own = [pair for pair in pairs() if pair.base_model == "Llama-3.1-8B"]
    assert {pair.row: len(pair.doubts) for pair in own} == {"SWA": 0, "LoLCATs": 1, "Llamba": 2}
