"""In a real browser: the needle travels as the masks say, and lines are the rows, wherever controls stand."""

from collections.abc import Iterator

import pandas as pd
import pytest
from browser import Opened, open_page, write_page
from test_figures_generation import CURVES, FOUND, SPECS
from test_figures_influence import LAWS, ROWS

from swalib import SWA, figures
from swalib.evals.generation_summary import binned
from swalib.evals.reachability import reachable

pytestmark = pytest.mark.browser

# A wider window, measured with sinks and by one kind alone.
WIDER = ROWS[(ROWS["window"] == 32) & (ROWS["sinks"] == 4) & (ROWS["kind"] == "shift")].assign(window=64)
SIZES = {"windows": (4, 8, 16), "distances": (8, 20, 40), "layers": 7}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    command = "swa measure reach -p model [model] -p windows '[w]' -p sinks '[s]'"
    drawn = [
        figures.needle_reach({"A-small": 3, "B-large": 6}, caption="c", **SIZES),
        figures.influence_by_distance(
            pd.concat([ROWS, WIDER]), caption="c", command=command, window=32, sinks=4
        ),
        figures.continuations(binned(CURVES, 8), FOUND, caption="c", command=command, window=8, sinks=2),
    ]
    return write_page(tmp_path_factory.mktemp("generation"), drawn)


@pytest.fixture(scope="module")
def opened(page) -> Iterator[Opened]:
    with open_page(page) as opened:
        assert opened.wait_drawn() == 3
        yield opened


def said(opened: Opened, id: str) -> str:
    return opened.page.text_content(f"#{id} .swa-says")


@pytest.mark.parametrize(
    ("w", "s", "distance", "layers"), [(8, 2, 20, 5), (16, 1, 40, 3), (4, 0, 8, 2), (16, 8, 20, 7)]
)
def test_the_needle_travels_as_the_masks_say(opened, w, s, distance, layers):
    for name, value in {"window": w, "sinks": s, "distance": distance, "layer": layers}.items():
        opened.slide("needle-reach", name, value)
    needle = s + 2
    question = needle + distance
    reached = [reachable(question + 3, [SWA(w, s)] * n)[: question + 1, needle] for n in range(1, 8)]
    bars, *marks = opened.traces("needle-reach")
    assert bars["y"] == list(range(layers + 1))
    assert bars["x"] == [0, *(int(seen.sum()) - 1 for seen in reached[:layers])]
    first = next((n for n, seen in enumerate(reached, 1) if seen[question]), None)
    seen = [mark["y"][0] for mark in marks if mark["name"] == "first seen"]
    assert seen == ([first] if first is not None and first <= layers else [])
    for label, count in (("A-small", 3), ("B-large", 6)):
        sees = first is not None and first <= count
        assert f"{label} ({count}): {'can see it' if sees else 'never'}." in said(opened, "needle-reach")


def test_sinks_give_way_to_a_smaller_window(opened):
    opened.slide("needle-reach", "sinks", 4)
    opened.slide("needle-reach", "window", 4)
    assert opened.state("needle-reach")["sinks"] == 2, "s gives way to w"
    opened.slide("needle-reach", "layer", 7)
    assert opened.traces("needle-reach")[0]["x"] == list(range(8))


@pytest.mark.parametrize(
    ("kind", "sinks"),
    [("a token shifted: change of the logits", 4), ("gradient of the last loss by a token", 0)],
)
def test_influence_is_the_rows(opened, kind, sinks):
    opened.page.select_option("#influence-kind", label=kind)
    opened.slide("influence", "window", 32)
    opened.slide("influence", "sinks", sinks)
    drawn = {trace["name"]: trace for trace in opened.traces("influence")}
    names = {(None, None): "full attention", (32, 4): "SWA(32, 4)", (32, 0): "SWA(32, 0)"}
    assert set(drawn) == {name for key, name in names.items() if sinks or key != (32, 4)}
    for key, name in names.items():
        if name in drawn:
            assert drawn[name]["y"] == pytest.approx([LAWS[key](x) for x in drawn[name]["x"]], rel=1e-4)
    limit = 30 * (32 - sinks - 1)
    assert f"Nothing can arrive from further than {limit} tokens." in said(opened, "influence")
    edge, *_ = opened.page.evaluate(
        "document.getElementById('influence').__swa.plot.layout.shapes.map((s) => s.x0)"
    )
    assert edge == 32 - sinks - 1


@pytest.mark.parametrize(
    ("kind", "sinks", "measured"), [("shift", 4, True), ("shift", 0, False), ("gradient", 4, False)]
)
def test_what_is_not_measured_is_named_with_its_command(opened, kind, sinks, measured):
    labels = {
        "shift": "a token shifted: change of the logits",
        "gradient": "gradient of the last loss by a token",
    }
    opened.page.select_option("#influence-kind", label=labels[kind])
    opened.slide("influence", "window", 64)
    opened.slide("influence", "sinks", sinks)
    drawn = {trace["name"] for trace in opened.traces("influence")}
    assert drawn == {"full attention", *([f"SWA(64, {sinks})"] if measured else [])}
    command = f"swa measure reach -p model smollm2-135m -p windows '[64]' -p sinks '[{sinks}]'"
    assert (f"SWA(64, {sinks}) is not measured yet: {command}" in said(opened, "influence")) != measured


def test_continuations_are_the_curves_over_a_table_of_all(opened):
    opened.slide("continuations", "sinks", 2)
    drawn = {trace["name"]: trace["y"] for trace in opened.traces("continuations")}
    assert set(drawn) == {"full attention", "SWA(8, 0)", "SWA(8, 2)"}
    table = binned(CURVES, 8)
    expected = table[(table["window"] == 8) & (table["sinks"] == 2)]["ppl"]
    assert drawn["SWA(8, 2)"] == pytest.approx(list(expected), rel=1e-4)
    cells = opened.page.locator("#continuations tbody tr").all_text_contents()
    assert len(cells) == len(SPECS)
    assert any(row.startswith("SWA(8, 0)90 % (") for row in cells)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_figure_is_drawn_quietly_and_fits(page, width, dark):
    with open_page(page, width=width, dark=dark, reduced_motion=dark) as opened:
        assert opened.wait_drawn() == 3
        if dark:  # where motion is not wanted, the layers are stepped through
            before = opened.state("needle-reach")["layer"]
            opened.page.click("#needle-reach button[aria-label='one step on']")
            assert opened.state("needle-reach")["layer"] == before + 1
        opened.assert_quiet()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
