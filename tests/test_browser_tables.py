"""The paper's tables in a real browser: they sort by every column, and say of each cell where it is from."""

from collections.abc import Iterator

import pytest
from browser import Opened, open_page, write_page

from swalib import figures, reported

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> Iterator[Opened]:
    drawn = [figures.printed_table(number, caption="c") for number in (1, 2)]
    with open_page(write_page(tmp_path_factory.mktemp("tables"), drawn)) as opened:
        assert opened.wait_drawn() == 2
        yield opened
        opened.assert_quiet()


def column(opened: Opened, number: int, index: int) -> list[str]:
    return opened.page.evaluate(
        """([number, index]) => [...document.querySelectorAll(`#printed-table-${number} tbody tr`)]
           .map((row) => {
             const copy = row.cells[index].cloneNode(true);
             copy.querySelectorAll("sup").forEach((mark) => mark.remove());
             return copy.textContent; })""",
        [number, index],
    )


@pytest.mark.parametrize("index", range(1, 7))
def test_table_2_sorts_by_any_column_and_back(opened, index):
    printed = column(opened, 2, 0)
    head = opened.page.locator("#printed-table-2 thead th").nth(index)
    head.locator("button").focus()
    for order, down in (("descending", True), ("ascending", False)):
        opened.page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == order
        texts = column(opened, 2, index)
        values = [float(one) for one in texts if one != "–"]
        assert values == sorted(values, reverse=down)
        assert texts[len(values) :] == ["–"] * (44 - len(values))
        sorted_heads = opened.page.locator("#printed-table-2 th:not([aria-sort=none])[aria-sort]")
        assert sorted_heads.count() == 1
    opened.page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "none"
    assert column(opened, 2, 0) == printed


def test_table_1_sorts_names_and_tokens(opened):
    opened.page.click("#printed-table-1 thead th:nth-child(1) button")
    names = column(opened, 1, 0)
    assert names == sorted(reported.printed(1)["method"].unique(), key=str.lower)
    opened.page.click("#printed-table-1 thead th:nth-child(4) button")
    assert column(opened, 1, 3)[:3] == ["100B", "40B", "20B"]
    assert column(opened, 1, 3)[-1] == "0"


def test_a_cell_tells_where_it_is_from_and_what_speaks_against_it(opened):
    told = "#printed-table-2 .swa-told"
    cell = opened.page.locator("#printed-table-2 tbody tr", has_text="Llamba").locator("td").first
    cell.hover()
    assert opened.page.inner_text(told) == (
        "Llamba on Llama-3.1-8B, MMLU: 60.0. Table 2, as printed in the paper (transcribed). In doubt: "
        "0-shot at its source (RADLADS, arXiv 2505.03005); the teacher printed beside it is 5-shot. "
        "61.0 in its source (Llamba, arXiv 2502.14458), whose teacher is the Instruct model, at 68.0."
    )
    cell.click()
    for key, start in (
        (
            "ArrowRight",
            "Llamba on Llama-3.1-8B, ARC-C: 54.6. Table 2, as printed",
        ),
        ("ArrowUp", "LoLCATs on Llama-3.1-8B, ARC-C: 54.4. Table 2"),
        ("ArrowLeft", "LoLCATs on Llama-3.1-8B, MMLU: 54.9. Table 2"),
        ("ArrowLeft", "LoLCATs on Llama-3.1-8B. Table 2"),
        ("ArrowLeft", "LoLCATs on Llama-3.1-8B. Table 2"),
    ):
        opened.page.keyboard.press(key)
        assert opened.page.inner_text(told).startswith(start)
    stops = opened.page.locator("#printed-table-2 tbody [tabindex='0']")
    assert stops.count() == 1
    row = opened.page.locator("#printed-table-2 tbody tr", has_text="QwQ-32B").nth(1)
    row.locator("td").nth(3).hover()
    assert "In doubt: Equal to the teacher in all six cells" in opened.page.inner_text(told)


def test_every_note_letter_is_a_note(opened):
    for number in (1, 2):
        items = opened.page.locator(f"#printed-table-{number} .swa-notes li").count()
        letters = opened.page.eval_on_selector_all(
            f"#printed-table-{number} sup", "all => all.flatMap((one) => one.textContent.split(' '))"
        )
        assert set(letters) == {chr(ord("a") + place) for place in range(items)}
