"""In a real browser: what is drawn is what the table says, wherever the sliders stand."""

import numpy as np
import pytest
from browser import Opened, open_page, write_page
from tables import (
    SINKS,
    WINDOWS,
    curves,
    grid,
    kind_rows,
    mass,
    position_rows,
    prefill_rows,
    stream_rows,
)

from swalib import figures

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """One page with every figure over measured rows."""
    return write_page(
        tmp_path_factory.mktemp("figures"),
        [
            figures.perplexity_by_window(grid(), caption="c", window=32),
            figures.collapse(curves(), caption="c", window=32),
            figures.heatmap(grid(), caption="c", window=32),
            figures.positions(position_rows(), caption="c", window=32),
            figures.prefill(*prefill_rows(), caption="c"),
            figures.attention_mass(mass(), caption="c"),
            figures.sink_kinds(kind_rows(), caption="c"),
            figures.stream(stream_rows(), caption="c"),
        ],
    )


@pytest.fixture(scope="module")
def opened(page):
    """The page opened once for all tests that only move sliders."""
    with open_page(page) as opened:
        assert opened.wait_drawn() == 8
        yield opened


def by_name(opened: Opened, id: str) -> dict[str, list]:
    return {trace["name"]: trace["y"] for trace in opened.traces(id)}


def loss(task: str, window=None, sinks=None):
    table = curves().query("task == @task")
    if window is None:
        return table[table["window"].isna()]["loss"]
    return table[(table["window"] == window) & (table["sinks"] == sinks)]["loss"]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_figure_is_drawn_quietly_and_fits(page, width, dark):
    with open_page(page, width=width, dark=dark) as opened:
        assert opened.wait_drawn() == 8
        opened.assert_quiet()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        themes = opened.page.eval_on_selector_all(".swa-figure", "all => all.map((one) => one.dataset.theme)")
        assert themes == ["dark" if dark else "light"] * 8


@pytest.mark.parametrize(("window", "sinks"), [(16, 4), (64, 1), (64, 16)])
def test_the_collapse_draws_the_rows_of_its_sliders(opened, window, sinks):
    opened.slide("collapse", "window", window)
    opened.slide("collapse", "sinks", sinks)
    drawn = by_name(opened, "collapse")
    assert drawn.keys() == {"full attention", f"SWA({window}, 0)", f"SWA({window}, {sinks})"}
    assert np.allclose(drawn["full attention"], loss("essay"), rtol=1e-4)
    assert np.allclose(drawn[f"SWA({window}, 0)"], loss("essay", window, 0), rtol=1e-4)
    assert np.allclose(drawn[f"SWA({window}, {sinks})"], loss("essay", window, sinks), rtol=1e-4)
    opened.assert_quiet()


def test_without_sinks_one_line_less(opened):
    opened.slide("collapse", "window", 32)
    opened.slide("collapse", "sinks", 0)
    assert by_name(opened, "collapse").keys() == {"full attention", "SWA(32, 0)"}


def test_axes_stay_while_a_slider_moves(opened):
    axes = "({ xaxis, yaxis }) => [xaxis.range, yaxis.range]"
    ids = ["collapse", "perplexity-by-window", "positions", "perplexity-map"]
    seen = set()
    for window in WINDOWS:
        opened.slide("collapse", "window", window)
        for id in ids:
            opened.state(id)
        script = f"ids => ids.map((id) => ({axes})(document.getElementById(id).__swa.plot.layout))"
        seen.add(str(opened.page.evaluate(script, ids)))
    assert len(seen) == 1


def test_sliders_are_shared_across_the_page(opened):
    opened.slide("collapse", "window", 16)
    opened.slide("perplexity-map", "sinks", 1)
    for id in ("collapse", "perplexity-map", "perplexity-by-window"):
        assert opened.state(id) | {"source": None} == {"window": 16, "sinks": 1, "source": None}
    assert opened.state("positions") == {"window": 16}


def test_sinks_give_way_to_the_window_and_say_so(opened):
    opened.slide("collapse", "window", 64)
    opened.slide("collapse", "sinks", 16)
    opened.slide("collapse", "window", 16)
    assert opened.state("collapse")["sinks"] == 4
    said = "s must be below w = 16: s is now 4"
    assert opened.page.text_content("#collapse output[for=collapse-sinks]") == said
    assert opened.page.get_attribute("#collapse-sinks", "aria-valuetext") == said
    opened.slide("collapse", "window", 32)
    assert "must be below" not in opened.page.text_content("#collapse output[for=collapse-sinks]")


def test_another_text_is_another_table(opened):
    opened.slide("collapse", "window", 32)
    opened.page.select_option("#collapse-source", label="m1, novel")
    opened.state("collapse")
    assert np.allclose(by_name(opened, "collapse")["SWA(32, 0)"], loss("novel", 32, 0), rtol=1e-4)
    opened.page.select_option("#collapse-source", label="m1, essay")
    opened.state("collapse")


@pytest.mark.parametrize("sinks", [s for s in SINKS if s > 0])
def test_perplexity_by_window_draws_and_says_the_row(opened, sinks):
    opened.slide("perplexity-by-window", "window", 32)
    opened.slide("perplexity-by-window", "sinks", sinks)
    table = grid()
    drawn = by_name(opened, "perplexity-by-window")
    for name, count in (("no sinks", 0), (f"{sinks} sink{'s' if sinks > 1 else ''}", sinks)):
        expected = table[(table["sinks"] == count) & (table["window"] > count)].sort_values("window")["ppl"]
        assert np.allclose(np.array(drawn[name], dtype=float), expected, rtol=1e-4, equal_nan=True)
    here = table[(table["window"] == 32) & (table["sinks"] == sinks)]["ppl"].item()
    said = opened.page.text_content("#perplexity-by-window .swa-says")
    assert f"Perplexity with w = 32: full\u00a020.0, no\u00a0sinks\u00a0{drawn['no sinks'][1]:.0f}, " in said
    assert said.endswith(f"{here:.1f}.")


def test_the_heat_map_is_the_grid(opened):
    opened.slide("perplexity-map", "window", 64)
    opened.slide("perplexity-map", "sinks", 16)
    (z,) = [trace["z"] for trace in opened.traces("perplexity-map") if trace["z"]]
    table = grid()
    for y, sinks in enumerate(SINKS):
        for x, window in enumerate(WINDOWS):
            ppl = table[(table["window"] == window) & (table["sinks"] == sinks)]["ppl"]
            if ppl.empty or ppl.isna().item():
                assert z[y][x] is None
            else:
                assert 10 ** z[y][x] == pytest.approx(ppl.item(), rel=1e-4)
    assert "not measured yet" in opened.page.text_content("#perplexity-map .swa-says")


def test_positions_and_prefill_draw_their_rows(opened):
    table, drawn = position_rows(), by_name(opened, "positions")
    for kind in ("text", "cache"):
        assert np.allclose(drawn[f"{kind} positions"], table[table["positions"] == kind]["ppl"], rtol=1e-4)
    rows, perplexities = prefill_rows()
    drawn = by_name(opened, "prefill")
    for variant, name in (("masked", "masked prefill"), ("dense", "dense prefill, then evict")):
        assert np.allclose(drawn[name], rows[rows["variant"] == variant]["loss"], rtol=1e-4)
        ppl = perplexities[perplexities["variant"] == variant]["ppl"].item()
        assert f"{ppl:.1f}" in opened.page.text_content("#prefill .swa-table")


@pytest.mark.parametrize("counted", [1, 4])
def test_attention_mass_is_drawn_layer_by_head(opened, counted):
    opened.slide("attention-mass", "counted", counted)
    (trace,) = opened.traces("attention-mass")
    expected = mass().query("sinks_counted == @counted").pivot(index="layer", columns="head", values="mass")
    assert np.allclose(trace["z"], expected, rtol=1e-4)


@pytest.mark.parametrize(("window", "task"), [(256, "essay"), (64, "essay"), (64, "novel")])
def test_sink_kinds_draw_a_dot_for_each_row_on_the_line_of_its_kind(opened, window, task):
    opened.slide("sink-kinds", "window", window)
    opened.page.select_option("#sink-kinds-source", label=f"m1, {task}")
    opened.state("sink-kinds")
    table = kind_rows().query("task == @task")
    full, none, some = opened.traces("sink-kinds")
    rows = table[table["window"] == window]
    lines = {kind: place for place, kind in enumerate(rows["kind"].unique())}
    for trace, part in ((none, rows[rows["sinks"] == 0]), (some, rows[rows["sinks"] > 0])):
        assert np.allclose(trace["x"], part["ppl"], rtol=1e-4)
        assert trace["y"] == [lines[kind] for kind in part["kind"]]
    assert np.allclose(full["x"], table[table["kind"] == "full"]["ppl"].item(), rtol=1e-4)
    labels = opened.page.evaluate("document.getElementById('sink-kinds').__swa.plot.layout.yaxis.ticktext")
    assert labels == list(rows["label"].unique())
    said = opened.page.text_content("#sink-kinds .swa-says")
    assert said.endswith(f"keeping nothing {rows[rows['sinks'] == 0]['ppl'].item():.1f}.")


@pytest.mark.parametrize("window", [512, 64])
def test_the_stream_draws_its_bins_and_its_bytes(opened, window):
    opened.slide("stream", "window", window)
    table = stream_rows()
    traces = {trace["name"]: trace for trace in opened.traces("stream")}
    shown = {"full attention": table[table["window"].isna()]}
    with_sinks = table[(table["window"] == window) & (table["sinks"] > 0)]
    shown |= {
        f"{where} positions": with_sinks[with_sinks["positions"] == where] for where in ("text", "cache")
    } | {"no sinks": table[(table["window"] == window) & (table["sinks"] == 0)]}
    for name, rows in shown.items():
        assert traces[name]["x"] == ((rows["start"] + rows["end"]) / 2).tolist()
        assert np.allclose(traces[name]["y"], rows["ppl"], rtol=1e-4)
    for name, held in (("full attention", "full attention"), (f"SWA({window}, 4)", "text positions")):
        assert np.allclose(traces[f"cache of {name}"]["y"], shown[held]["cache_bytes"] / 1e6, rtol=1e-6)
        assert traces[f"cache of {name}"]["x"] == shown[held]["end"].tolist()
    said = opened.page.text_content("#stream .swa-says")
    ends = [
        f"{name} {shown[name]['ppl'].iloc[-1]:.1f}"
        for name in ("no sinks", "text positions", "cache positions")
    ]
    assert said.startswith(f"Perplexity of tokens 10,240 to 12,288, {', '.join(ends)}; cache ")
    mark = opened.page.evaluate("document.getElementById('stream').__swa.plot.layout.shapes.map((s) => s.x0)")
    assert mark == [4096]


def test_the_theme_follows_the_page(opened):
    for name, ink in (("dark", "#DDDDDD"), ("light", "#333333")):
        opened.page.evaluate("name => { document.documentElement.dataset.theme = name; }", name)
        opened.page.wait_for_function(
            "ink => document.getElementById('collapse').__swa.plot.data[0].line.color === ink", arg=ink
        )
    opened.assert_quiet()


def test_a_figure_without_its_script_says_so(tmp_path):
    path = write_page(
        tmp_path, [figures.Figure(id="a", kind="absent", title="t", data={}, alt="a", caption="c")]
    )
    with open_page(path) as opened:
        assert "did not load" in opened.page.text_content(".swa-error")
