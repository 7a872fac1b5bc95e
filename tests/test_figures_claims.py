"""The tables and the calculator as they leave Python: what is printed is shown, with scripts and without."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from swalib import figures, reported
from swalib.figures import claims as drawn
from swalib.figures import methods, theme
from swalib.reported import LABELS, TASKS, claims
from swalib.reported.pairs import pairs

TABLES = {number: figures.printed_table(number, caption="c") for number in (1, 2)}
CALCULATOR = figures.claim_calculator(caption="c")


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{html}</div>")


def text(cell: ElementTree.Element) -> str:
    """A cell's own words, without marks and small print."""
    return (cell.text or "") + "".join(child.tail or "" for child in cell)


def marks(cell: ElementTree.Element) -> list[str]:
    found = cell.find("sup")
    return [] if found is None else found.text.split(" ")


# ---- The printed tables.


def test_table_2_shows_every_printed_cell_in_its_place():
    page, rows = parsed(TABLES[2].static), reported.printed(2)
    heads = [head.text for head in page.iter("th") if head.get("scope") == "col"]
    assert heads == ["method, teacher", *LABELS.values()]
    score = {(r.base_model, r.method, r.task): r.value for r in rows.itertuples()}
    body = list(page.find(".//tbody"))
    assert len(body) == 44
    for row in body:
        name, *cells = list(row)
        key = (name.find("small").text, text(name))
        for task, cell in zip((*TASKS, "average6"), cells, strict=True):
            value = score.pop((*key, task), None)
            assert text(cell) == ("–" if value is None else f"{value:.1f}")
            assert cell.get("data-sort") == (None if value is None else str(value))
    assert not score


def test_table_1_shows_every_printed_cell_and_the_cost():
    page, rows = parsed(TABLES[1].static), reported.printed(1).set_index(["method", "task"])
    body = list(page.find(".//tbody"))
    assert len(body) == 13
    for row in body:
        method, mmlu, average, tokens, stages = (text(cell) for cell in row)
        assert reported.cost(method).startswith(f"{tokens} tokens, {stages} stage")
        for shown, task in ((mmlu, "mmlu"), (average, "average6")):
            if (method, task) not in rows.index:
                assert (method, shown) == ("DiJiang", "–")
                continue
            value, sd = rows.loc[(method, task), ["value", "sd"]]
            assert shown == f"{value}" + (f" ± {sd}" if sd == sd else "")


def test_costs_sort_by_tokens_not_by_letters():
    body = list(parsed(TABLES[1].static).find(".//tbody"))
    order = sorted(body, key=lambda row: float(row[3].get("data-sort")))
    tokens = list(dict.fromkeys(text(row[3]) for row in order))
    assert tokens == ["0", "20M", "40M", "350–700M", "60M/830M", "3–5B", "8–12B", "20B", "40B", "100B"]


@pytest.mark.parametrize("number", [1, 2])
def test_every_doubt_is_marked_at_its_cell_and_its_reason_listed(number):
    page = parsed(TABLES[number].static)
    reasons = [item.text for item in page.iter("li")]
    assert len(reasons) == len(set(reasons)) == {1: 3, 2: 8}[number]
    found = set()
    columns = ["mmlu"] if number == 1 else [*TASKS, "average6"]
    for row in page.find(".//tbody"):
        name = row[0].find("small")
        key = ("all" if name is None else name.text, text(row[0]))
        cells = [(None, row[0]), *zip(columns, list(row)[1:], strict=False)]
        for task, cell in cells:
            found |= {(*key, task, reasons[ord(mark) - ord("a")]) for mark in marks(cell)}
    doubts = reported.doubts().query("table == @number").astype(object)
    doubts = doubts.where(doubts.notna(), None)
    assert found == {(d.base_model, d.method, d.task, d.reason) for d in doubts.itertuples()}


def test_the_best_student_of_each_teacher_is_bold_and_no_teacher_is():
    rows = reported.printed(2).query("method != 'Teacher'")
    best = rows.groupby(["base_model", "task"])["value"].max()
    for row in parsed(TABLES[2].static).find(".//tbody"):
        base_model = row[0].find("small").text
        for task, cell in zip((*TASKS, "average6"), list(row)[1:], strict=True):
            wanted = text(row[0]) != "Teacher" and text(cell) == f"{best[base_model, task]:.1f}"
            assert (cell.get("class") == "swa-best") == wanted


def test_tables_without_such_a_form_are_refused():
    with pytest.raises(ValueError, match="Table 5 has no sortable form: choose from 1, 2, 3, 4, 6"):
        figures.printed_table(5, caption="c")


# ---- The calculator.


def test_the_page_gets_the_rows_the_presets_and_the_words_of_every_toggle():
    data = json.loads(CALCULATOR.payload())["data"]
    assert data["pairs"] == json.loads(json.dumps([pair.as_json() for pair in pairs()]))
    assert data["tasks"] == [LABELS[task] for task in TASKS]
    assert data["chance"] == [25, 25, 25, 25, 50, 50]
    assert [toggle["name"] for toggle in data["toggles"]] == list(claims.TOGGLES)
    assert all(toggle["off"] != toggle["on"] for toggle in data["toggles"])
    assert data["presets"]["fair"] == data["initial"]
    assert set(data["methods"].values()) <= set(theme.METHODS)
    assert len(data["methods"]) == 12
    assert len(CALCULATOR.payload()) < 40_000


def test_without_scripts_a_reader_gets_the_fair_table_and_its_sentence():
    page = CALCULATOR.html()
    static = re.search(r"<noscript>(.*)</noscript>", page, re.DOTALL)[1]
    claim = claims.recompute(options=claims.FAIR)
    assert f"<p>{claim.sentence()}</p>" in static
    rows = [[text(cell) for cell in row] for row in parsed(static).find(".//tbody")]
    assert rows == [
        [
            row.method,
            str(len(row.used)),
            drawn._minus(row.mean_pct),
            f"{row.swa_pct:.1f}",
            drawn._signed(row.lead),
        ]
        for row in claim.rows
    ]
    assert rows[0] == ["DiJiang", "1", "72.0", "70.8", "−1.2"]
    assert "teachers compared: the same for both; " in page
    assert claim.sentence() in CALCULATOR.alt


def test_another_start_and_a_lead_of_nothing():
    some = claims.Options(six_tasks=True, base_models=("QwQ-32B", "Llama-3.1-8B"))
    figure = figures.claim_calculator(caption="c", options=some)
    assert figure.data["initial"]["base_models"] == ("QwQ-32B", "Llama-3.1-8B")
    assert "without 9 of the teachers" in figure.static
    assert [drawn._signed(points) for points in (0.04, -0.04, 1.25, -3)] == ["0.0", "0.0", "+1.2", "−3.0"]


def test_every_figure_asks_a_question_in_words_enough():
    for figure in (*TABLES.values(), CALCULATOR):
        assert figure.title.endswith("?")
        assert len(figure.alt) > 150


# ---- The cards of the chapter before.


def test_the_cards_costs_are_table_1_s():
    for card in methods.CARDS:
        if card.source == methods.TABLE1:
            name = "SWA" if card.key == "swa" else card.title
            assert card.cost == reported.cost(name)
