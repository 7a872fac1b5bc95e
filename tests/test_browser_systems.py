"""Costs and timings in a real browser: what is drawn is the data, wherever the controls stand."""

from collections.abc import Iterator

import numpy as np
import pytest
from browser import Opened, open_page, write_page
from systems_small import measured

from swalib import figures
from swalib.systems import grids

pytestmark = pytest.mark.browser

ROWS, LIMITS, MEMORY, FLOPS = measured()
AT = ROWS[ROWS["hidden"] == 32]
FLOORS = grids.floors(ROWS, LIMITS)
ALONE = FLOORS[(FLOORS["hidden"] == 32) & (FLOORS["batch"] == 1)]
WIDTHS = FLOORS[(FLOORS["method"] == "swa") & (FLOORS["window"] == 8) & (FLOORS["context_tokens"] == 16)]
FIGURES = [
    figures.systems_memory(MEMORY, caption="c", rows=AT, batches=(1, 4)),
    figures.systems_flops(FLOPS, caption="c"),
    figures.systems_speed(AT, caption="c"),
    figures.systems_batch(AT, caption="c"),
    figures.systems_roofline(ALONE, caption="c", context_tokens=64, features=8),
    figures.systems_launches(WIDTHS[WIDTHS["batch"] == 1], caption="c"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("systems"), FIGURES)


@pytest.fixture(scope="module")
def opened(page) -> Iterator[Opened]:
    with open_page(page) as opened:
        assert opened.wait_drawn() == 6
        yield opened


def drawn(opened: Opened, id: str) -> dict[str, list[float]]:
    return {trace["name"]: trace["y"] for trace in opened.traces(id)}


@pytest.mark.parametrize(("w", "group", "batch"), [(8, 1, 1), (16, 2, 4), (64, 1, 4)])
def test_memory_follows_its_sliders(opened, w, group, batch):
    for name, value in {"window": w, "group": group, "batch": batch}.items():
        opened.slide("systems-memory", name, value)
    lines, state = drawn(opened, "systems-memory"), opened.state("systems-memory")
    chosen = MEMORY[(MEMORY["method"] == "swa") & (MEMORY["window"] == w) & (MEMORY["group"] == group)]
    chosen = chosen[(chosen["dtype"] == state["dtype"]) & (chosen["state_dtype"] == state["state_dtype"])]
    assert np.allclose(lines[f"SWA({w}, {state['sinks']})"], batch * chosen["bytes"] / 1e6, rtol=1e-4)
    mark = opened.page.evaluate("document.getElementById('systems-memory').__swa.plot.layout.shapes[0].x0")
    linear = MEMORY[(MEMORY["method"] == "hedgehog") & (MEMORY["features"] == state["features"])]
    same = (linear["group"] == group) & (linear["dtype"] == state["dtype"])
    assert mark == linear[same & (linear["state_dtype"] == state["state_dtype"])]["equal_window"].iloc[0]


def test_allocated_bytes_appear_at_their_own_settings(opened):
    for name, value in {"group": 1, "batch": 1}.items():
        opened.slide("systems-memory", name, value)
    for name, count in (("float32", 8), ("float16", 4)):
        opened.page.select_option("#systems-memory-dtype", label=name)
        opened.page.select_option("#systems-memory-state_dtype", label="float32")
        opened.slide("systems-memory", "window", 16)
        assert len(opened.traces("systems-memory")) == count


def test_flops_can_be_counted_with_the_model(opened):
    opened.page.select_option("#systems-flops-part", label="the whole model")
    opened.page.select_option("#systems-flops-task", label="the whole prompt")
    opened.state("systems-flops")
    full = FLOPS[(FLOPS["method"] == "full") & (FLOPS["task"] == "prefill")]
    assert np.allclose(drawn(opened, "systems-flops")["full attention"], full["all"] / 1e6, rtol=1e-4)


@pytest.mark.parametrize("task", ["decode", "prefill"])
def test_speeds_are_the_measured_ones(opened, task):
    labels = {"decode": "decode, a token at a time", "prefill": "prefill, a prompt at once"}
    opened.page.select_option("#systems-speed-task", label=labels[task])
    opened.slide("systems-speed", "window", 16)
    chosen = AT[(AT["method"] == "swa") & (AT["window"] == 16) & (AT["task"] == task) & (AT["batch"] == 1)]
    assert np.allclose(drawn(opened, "systems-speed")["SWA(16, 2)"], chosen["speed"], rtol=1e-4)


def test_a_bar_and_its_marks(opened):
    opened.slide("systems-roofline", "context", 256)
    bars, floor, launch = opened.traces("systems-roofline")
    here = ALONE[(ALONE["context_tokens"] == 256) & (ALONE["features"].isna() | (ALONE["features"] == 8))]
    assert np.allclose(bars["x"], here["step_ms"], rtol=1e-4)
    assert np.allclose(floor["x"], here["floor_ms"], rtol=1e-4)
    assert np.allclose(launch["x"], here["launch_ms"], rtol=1e-4)


def test_only_what_was_measured_has_markers_and_is_called_so(opened):
    script = """id => document.getElementById(id).__swa.plot.data.map(
      ({ name, mode, hovertemplate }) => [name, mode, /, measured</.test(hovertemplate)])"""
    for id in ("systems-flops", "systems-speed", "systems-launches"):
        for name, mode, told in opened.page.evaluate(script, id):
            assert told == (mode == "lines+markers"), name
    assert {told for _, _, told in opened.page.evaluate(script, "systems-launches")} == {True, False}


def test_axes_stay_while_sliding(opened):
    script = "() => ['systems-memory', 'systems-speed'].map((id) => {"
    script += " const { layout, clientHeight } = document.getElementById(id).__swa.plot;"
    script += " return [layout.xaxis.range, layout.yaxis.range, clientHeight]; })"
    before = opened.page.evaluate(script)
    opened.slide("systems-memory", "window", 8)
    opened.slide("systems-memory", "batch", 4)
    assert opened.page.evaluate(script) == before


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_figure_is_drawn_quietly_and_fits(page, width, dark):
    with open_page(page, width=width, dark=dark) as opened:
        assert opened.wait_drawn() == 6
        opened.assert_quiet()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
