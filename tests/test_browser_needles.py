"""In a real browser: the figures of needles draw what the tables say, whatever is chosen."""

import needles_small
import pytest
from browser import Opened, open_page, write_page
from needles_small import LENGTHS, WINDOWS

from swalib import figures
from swalib.evals import niah_printed, niah_summary

pytestmark = pytest.mark.browser

ITEMS = needles_small.items()
SCORES = niah_summary.scores(ITEMS)
PLACES = needles_small.places()
NULL = niah_printed.null(PLACES, [128, *WINDOWS], [0, 4])
PRINTED = niah_printed.printed()
RATIOS = niah_printed.ratios(PRINTED)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    measured = {"caption": "c", "command": niah_summary.command, "lengths": [4096]}
    beyond = niah_printed.beyond(PLACES, [128, *WINDOWS], [512, 4096, 65536], 32)
    drawn = [
        figures.needle_ratios(RATIOS, niah_printed.counted(RATIOS), caption="c"),
        figures.needle_null(PRINTED, NULL, caption="c"),
        figures.needle_lengths(niah_printed.lengths(PLACES), PRINTED, caption="c"),
        figures.needle_depths(niah_summary.by_depth(ITEMS), NULL, **measured),
        figures.needle_scores(SCORES, **measured),
        figures.needle_beyond(beyond, PRINTED, SCORES, caption="c", layers=32),
    ]
    return write_page(tmp_path_factory.mktemp("needles"), drawn)


@pytest.fixture(scope="module")
def opened(page):
    with open_page(page) as opened:
        assert opened.wait_drawn() == 6
        yield opened


def choose(opened: Opened, id: str, name: str, text: str) -> None:
    opened.page.select_option(f"#{id}-{name}", label=text)
    opened.state(id)


def drawn(opened: Opened, id: str) -> dict[str, list]:
    return {trace["name"]: trace["y"] for trace in opened.traces(id)}


def said(opened: Opened, id: str) -> str:
    return opened.page.text_content(f"#{id} .swa-says")


def layout(opened: Opened, id: str, field: str):
    return opened.page.evaluate(f"document.getElementById('{id}').__swa.plot.layout.{field}")


def expected(rows, column: str = "found") -> list:
    return [pytest.approx(100 * value, rel=1e-4) for value in rows.sort_values("context_tokens")[column]]


def own(task: str, w: int, s: int, positions: str = "text"):
    rows = SCORES[(SCORES["task"] == task) & (SCORES["positions"] == positions)]
    return rows[(rows["window"] == w) & (rows["sinks"] == s)]


def test_every_figure_is_drawn_quietly_and_fits_a_phone(page):
    with open_page(page, width=390, dark=True) as opened:
        assert opened.wait_drawn() == 6
        opened.assert_quiet()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_ratios_drawn_are_those_of_the_method_chosen(opened):
    for method in ("Liger-GLA", "Full attention"):
        choose(opened, "needle-ratios", "method", method)
        traces = {trace["name"]: trace["x"] for trace in opened.traces("needle-ratios")}
        for w in (128, 512):
            rows = RATIOS[(RATIOS["method"] == method) & (RATIOS["window"] == w)]
            finite = rows.loc[rows["place"] != "infinite", "ratio"]
            assert sorted(traces[f"w = {w}"])[: len(finite)] == pytest.approx(sorted(finite), rel=1e-4)
            assert sorted(traces[f"w = {w}"])[len(finite) :] == [1500] * (len(rows) - len(finite))
    band = layout(opened, "needle-ratios", "shapes[0]")
    assert (band["x0"], band["x1"]) == (2, 10)


def test_the_null_line_follows_task_window_and_haystack(opened):
    choose(opened, "needle-null", "task", "S-NIAH-2")
    choose(opened, "needle-null", "haystack", "short, as ports to harnesses fill it")
    opened.slide("needle-null", "window", 512)
    found = drawn(opened, "needle-null")
    rows = PRINTED[(PRINTED["task"] == "s_niah_2") & (PRINTED["window"] == 512)]
    assert found["SWA"] == expected(rows[rows["method"] == "SWA"], "value")
    null = NULL.query("task == 's_niah_2' and window == 512 and sinks == 4 and short_haystacks")
    lines = [trace["y"] for trace in opened.traces("needle-null") if trace["name"] == "window alone"]
    assert lines == [expected(null, "null_from_question"), expected(null, "null_from_answer")]
    assert opened.page.locator("#needle-null table tbody tr").count() == 4
    plot = "document.getElementById('needle-null').__swa.plot"
    printed = opened.page.evaluate(f"{plot}.data.map(({{ line, marker }}) => [line.dash, marker.symbol])[1]")
    assert printed == ["dash", "circle-open"]
    choose(opened, "needle-null", "haystack", "fills its length, as in RULER")


def test_scores_follow_the_controls_and_gaps_are_crosses(opened):
    choose(opened, "needle-scores", "task", "S-NIAH-2")
    opened.slide("needle-scores", "window", 256)
    opened.slide("needle-scores", "sinks", 4)
    found = drawn(opened, "needle-scores")
    assert found["SWA with sinks"] == expected(own("s_niah_2", 256, 4))
    assert "SWA, no sinks" not in found
    choose(opened, "needle-scores", "positions", "positions in the cache")
    assert drawn(opened, "needle-scores")["SWA with sinks"] == expected(own("s_niah_2", 256, 4, "cache"))
    choose(opened, "needle-scores", "positions", "text positions")
    crosses = [trace for trace in opened.traces("needle-scores") if trace["name"] == "not measured yet"]
    assert crosses[0]["x"] == [4096]
    opened.slide("needle-scores", "sinks", 0)
    command = niah_summary.command("s_niah_2", "m1", "text", 256, 0, [*LENGTHS, 4096])
    assert command in said(opened, "needle-scores")
    choose(opened, "needle-scores", "measure", "log-likelihood of the answer")
    full = SCORES[(SCORES["task"] == "s_niah_2") & SCORES["window"].isna()]
    assert drawn(opened, "needle-scores")["full attention"] == pytest.approx(
        full["loglikelihood"].tolist(), rel=1e-4
    )
    choose(opened, "needle-scores", "measure", "needles found")
    opened.slide("needle-scores", "sinks", 4)


def test_no_signal_is_written_into_the_picture(opened):
    def notes():
        texts = layout(opened, "needle-scores", "annotations.map((one) => one.text)")
        return [text for text in texts if "no signal" in text]

    choose(opened, "needle-scores", "task", "S-NIAH-3")
    assert notes() == ["no signal at 2K:<br>full attention finds nothing"]
    choose(opened, "needle-scores", "task", "S-NIAH-1")
    assert notes() == []


def test_both_maps_and_the_outline_are_the_tables(opened):
    choose(opened, "needle-depths", "task", "S-NIAH-1")
    table = niah_summary.by_depth(ITEMS)
    outlines = []
    for w in WINDOWS:
        opened.slide("needle-depths", "window", w)
        maps = [trace["z"] for trace in opened.traces("needle-depths") if trace["z"]]
        for z, rows in zip(maps, (table[table["window"].isna()], table[table["window"] == w]), strict=True):
            rows = rows[(rows["task"] == "s_niah_1") & (rows["positions"] == "text")]
            for row in rows[rows["sinks"].isna() | (rows["sinks"] == 4)].to_dict("records"):
                value = z[row["step"]][LENGTHS.index(row["context_tokens"])]
                assert value == pytest.approx(100 * row["found"], rel=1e-4)
            assert all(line[3] is None for line in z)
        shapes = layout(opened, "needle-depths", "shapes")
        outlines.append([shape["y0"] for shape in shapes if shape["type"] == "rect"])
        assert sum(shape["type"] == "path" for shape in shapes) >= 10  # 4096 is hatched in both maps
        edges = NULL.query(f"task == 's_niah_1' and window == {w} and sinks == 4 and not short_haystacks")
        assert outlines[-1] == pytest.approx(edges["edge_from_question"].tolist(), rel=1e-4)
    assert outlines[0] != outlines[1]
    assert f"SWA({WINDOWS[-1]}, 4)" in said(opened, "needle-depths")


def test_lengths_and_beyond_draw_their_tables(opened):
    choose(opened, "needle-lengths", "task", "S-NIAH-3")
    opened.slide("needle-lengths", "window", 128)
    found = drawn(opened, "needle-lengths")
    lengths = niah_printed.lengths(PLACES).query("task == 's_niah_3' and short_haystacks")
    assert found["short haystacks of ports"] == lengths["prompt_tokens"].tolist()
    assert layout(opened, "needle-lengths", "shapes[0].y0") == 128
    assert "fits into w = 128" in said(opened, "needle-lengths")
    choose(opened, "needle-beyond", "task", "S-NIAH-1")
    opened.slide("needle-beyond", "window", 512)
    found = drawn(opened, "needle-beyond")
    assert found["SWA, printed"] == pytest.approx([100, 69.0, 33.6, 19.0])
    assert found["SWA, measured"] == expected(own("s_niah_1", 512, 4))
    opened.assert_quiet()
