"""In a real browser: BABILong's tables and figures show what the tables say, whatever is chosen."""

import babilong_small as small
import pytest
from browser import Opened, open_page, write_page

from swalib import SWA, Full, figures
from swalib.evals import babilong_facts, babilong_summary
from swalib.evals.babi import TASKS

pytestmark = pytest.mark.browser

GUESSES = {task: babilong_summary.guessing(task) for task in (*TASKS, *babilong_summary.MEANS)}
ROWS = babilong_summary.summarise(small.items())
FACTS = small.facts()
GRID = ([64, 128, 256], [0, 4])
PRINTED, MEASURED, PLACES = "babilong-printed", "babilong-measured", "babilong-facts"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    printed = babilong_summary.printed()
    words = {"caption": "c", "command": babilong_summary.command}
    drawn = [
        *(figures.printed_table(number, caption="c") for number in (3, 4, 6)),
        figures.babilong_printed(printed, GUESSES, caption="c", proviso="if 100 items"),
        figures.babilong_measured(ROWS, GUESSES, *GRID, **words),
        figures.babilong_facts(FACTS, ROWS, GUESSES, *GRID, caption="c"),
    ]
    return write_page(tmp_path_factory.mktemp("babilong"), drawn)


@pytest.fixture(scope="module")
def opened(page):
    with open_page(page) as opened:
        assert opened.wait_drawn() == 6
        yield opened
        opened.assert_quiet()


def choose(opened: Opened, id: str, name: str, text: str) -> None:
    opened.page.select_option(f"#{id}-{name}", label=text)
    opened.state(id)


def drawn(opened: Opened, id: str) -> dict[str, list]:
    return {trace["name"]: trace["y"] for trace in opened.traces(id)}


def said(opened: Opened, id: str) -> str:
    return opened.page.text_content(f"#{id} .swa-says")


def rows_of(opened: Opened, id: str) -> dict[str, list[str]]:
    cells = opened.page.eval_on_selector_all(
        f"#{id} .swa-short tbody tr",
        "all => all.map((one) => [...one.children].map((cell) => cell.textContent))",
    )
    return {name: rest for name, *rest in cells}


def notes(opened: Opened, id: str) -> list[str]:
    script = "id => document.getElementById(id).__swa.plot.layout.annotations.map((one) => one.text)"
    return opened.page.evaluate(script, id)


def percent(task: str, measure: str, spec: SWA | Full) -> list:
    found = (babilong_summary.number(ROWS, "m1", task, n, measure, spec).value for n in small.LENGTHS)
    return [None if value != value else pytest.approx(100 * value, rel=1e-4) for value in found]


def test_every_figure_fits_a_narrow_dark_page(page):
    with open_page(page, width=390, dark=True) as narrow:
        assert narrow.wait_drawn() == 6
        narrow.assert_quiet()
        assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(("number", "rows"), [(3, 30), (4, 3), (6, 15)])
def test_the_long_tables_sort_and_tell(opened, number, rows):
    head = opened.page.locator(f"#printed-table-{number} thead th").nth(4)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    values = opened.page.eval_on_selector_all(
        f"#printed-table-{number} tbody tr", "all => all.map((row) => +row.cells[4].dataset.sort)"
    )
    assert len(values) == rows
    assert values == sorted(values, reverse=True)
    opened.page.locator(f"#printed-table-{number} tbody tr").first.locator("td").nth(3).hover()
    told = opened.page.inner_text(f"#printed-table-{number} .swa-told")
    assert told.startswith("Full attention")
    assert f"Table {number}, as printed in the paper (transcribed)" in told


def test_the_printed_lines_are_hollow_and_the_band_is_what_guessing_scores(opened):
    choose(opened, PRINTED, "task", "qa5, three-argument relations")
    assert drawn(opened, PRINTED)["SWA(256, 4)"] == [49, 35, 29, 30]
    assert drawn(opened, PRINTED)["a label of the right kind"] == [pytest.approx(30.575)] * 2
    plot = f"document.getElementById('{PRINTED}').__swa.plot"
    symbols = opened.page.evaluate(f"{plot}.data.slice(3).map((one) => one.marker.symbol)")
    assert symbols == ["circle-open"] * 3
    band = opened.page.evaluate(f"(({{ y0, y1 }}) => [y0, y1])({plot}.layout.shapes[0])")
    assert band == [pytest.approx(100 / 7, rel=1e-4), pytest.approx(30.575)]


@pytest.mark.parametrize(("task", "label"), [("qa1", "qa1, one fact"), ("qa1-4", "mean of qa1 to qa4")])
def test_the_measured_lines_are_the_rows_of_the_scorer(opened, task, label):
    opened.slide(MEASURED, "window", 256)
    choose(opened, MEASURED, "task", label)
    for sinks in (4, 0):
        opened.slide(MEASURED, "sinks", sinks)
        for measure, text in (("official", "official score"), ("invalid", "invalid answers")):
            choose(opened, MEASURED, "measure", text)
            found = drawn(opened, MEASURED)
            assert found["full attention"] == percent(task, measure, Full())
            assert found[f"SWA(256, {sinks})"] == percent(task, measure, SWA(256, sinks))
    assert rows_of(opened, MEASURED)["SWA(256, 0), official"][1] == "not measured yet"
    lacks = "Not measured yet at 1,024: swa measure babilong -p model m1 -p windows '[256]' -p sinks '[0]'"
    assert said(opened, MEASURED).endswith(lacks)


def test_both_scorers_show_their_gap(opened):
    opened.slide(MEASURED, "sinks", 4)
    choose(opened, MEASURED, "task", "qa2, two facts")
    choose(opened, MEASURED, "measure", "both scorers")
    found = drawn(opened, MEASURED)
    assert found["SWA(256, 4), official"] == percent("qa2", "official", SWA(256, 4))
    assert found["SWA(256, 4), substring"] == percent("qa2", "substring", SWA(256, 4))
    gap = 100 * babilong_summary.number(ROWS, "m1", "qa2", 512, "gap", SWA(256, 4)).value
    assert rows_of(opened, MEASURED)["SWA(256, 4), substring alone"][0].startswith(f"{gap:.1f} %")


def test_no_signal_is_said_where_full_attention_only_guesses(opened):
    choose(opened, MEASURED, "measure", "official score")
    choose(opened, MEASURED, "task", "qa3, three facts")
    assert notes(opened, MEASURED).count("no signal") == 2
    assert "No signal: full attention does not clear what guessing scores" in said(opened, MEASURED)
    assert rows_of(opened, MEASURED)["signal"] == ["no signal"] * 2
    choose(opened, MEASURED, "task", "qa1, one fact")
    assert "no signal" not in notes(opened, MEASURED)
    assert rows_of(opened, MEASURED)["signal"] == ["yes"] * 2


def test_what_is_not_measured_has_its_command(opened):
    opened.slide(MEASURED, "window", 128)
    assert "SWA(128, 4), qa1, one fact: not measured yet" in said(opened, MEASURED)
    assert "swa measure babilong -p model m1 -p windows '[128]' -p sinks '[4]'" in said(opened, MEASURED)
    assert "SWA(128, 4)" not in notes(opened, MEASURED)


def test_the_share_within_the_window_follows_the_sliders(opened):
    choose(opened, PLACES, "task", "qa3, three facts")
    for which, text in (("first", "all that the answer needs"), ("last", "the last that it needs")):
        choose(opened, PLACES, "which", text)
        for window in (64, 256):
            opened.slide(PLACES, "window", window)
            shares = babilong_facts.within(FACTS, [window], [4], which)
            shares = shares.query("model == 'm1' and task == 'qa3'").set_index("context_tokens")["within"]
            table = rows_of(opened, PLACES)
            guess = max(vars(GUESSES["qa3"]).values())
            for length, name in ((512, "512"), (1024, "1,024")):
                share = shares[length]
                assert drawn(opened, PLACES)[f"within, {name}"] == [pytest.approx(100 * share)]
                told = [float(cell.removesuffix(" %")) for cell in table[name][1:3]]
                assert told == pytest.approx([100 * share, 100 * (share + (1 - share) * guess)], abs=0.051)
    official = babilong_summary.number(ROWS, "m1", "qa3", 512, "official", SWA(256, 4)).value
    assert rows_of(opened, PLACES)["512"][3].startswith(f"{100 * official:.1f} %")
    opened.page.focus(f"#{PLACES}-window")
    opened.page.keyboard.press("Home")
    assert opened.state(PLACES)["window"] == 64
    assert opened.state(MEASURED)["window"] == 64
