"""A figure's data block holds exactly what its table says, and what can't be drawn honestly is refused."""

import json

import numpy as np
import pandas as pd
import pytest
from tables import curves, grid, kind_rows, mass, position_rows, prefill_rows, stream_rows

from swalib import figures
from swalib.figures import live, show, theme


def block(figure: figures.Figure) -> dict:
    """What the script in the page reads."""
    html = figure.html()
    start = html.index('<script type="application/json">') + len('<script type="application/json">')
    return json.loads(html[start : html.index("</script>", start)])


def valid(**changes) -> dict:
    return {"id": "a", "kind": "k", "title": "t?", "data": {}, "alt": "alt", "caption": "c"} | changes


@pytest.mark.parametrize("field", ["kind", "title", "alt", "caption"])
def test_a_figure_without_words_is_refused(field):
    with pytest.raises(ValueError, match=f"non-empty {field}"):
        figures.Figure(**valid(**{field: " "}))


@pytest.mark.parametrize("id", ["", "Upper", "two words", 'a"b'])
def test_ids_are_safe_in_html_and_file_names(id):
    with pytest.raises(ValueError, match="lower-case"):
        figures.Figure(**valid(id=id))


@pytest.mark.parametrize("value", [float("nan"), np.arange(3), {1, 2}])
def test_data_that_json_cannot_hold_is_refused(value):
    with pytest.raises(TypeError, match="figure 'a' holds data"):
        figures.Figure(**valid(data={"value": value}))


def test_text_can_neither_close_the_script_nor_the_attribute():
    figure = figures.Figure(**valid(data={"text": "</script><b>"}, alt='"<&', caption="<i>", title="<u>"))
    assert block(figure)["data"]["text"] == "</script><b>"
    assert figure.html().count("</script>") == 1
    for raw in ("<b>", "<i>", "<u>"):
        assert raw not in figure.html()


def test_the_bundle_is_static_in_the_book_and_live_elsewhere(monkeypatch, tmp_path):
    figure = figures.Figure(**valid())
    monkeypatch.setattr(show, "PICTURES", tmp_path)
    monkeypatch.setenv("SWALIB_STATIC", "1")
    assert set(figure._repr_mimebundle_()) == {"text/html", "text/plain"}
    (tmp_path / "a.png").write_bytes(b"png")
    assert set(figure._repr_mimebundle_()) == {"text/html", "text/plain", "image/png"}
    assert '<noscript><img class="swa-fallback" alt="alt"' in figure.html()
    monkeypatch.delenv("SWALIB_STATIC")
    data, _ = figure._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data


def test_the_lab_runs_the_script_text_of_the_book():
    for name in show.SCRIPTS:
        assert show.asset(name) in show.module()
    with pytest.raises(RuntimeError, match="clone of the repository"):
        show.asset("absent.js")


def test_every_method_has_a_colour_on_both_papers():
    palette = theme.palette()
    assert palette["light"]["methods"].keys() == palette["dark"]["methods"].keys() == theme.METHODS.keys()
    assert palette["light"]["methods"]["sinks"] == "#0072B2"
    assert len({method.light for method in theme.METHODS.values()}) == len(theme.METHODS)


def test_collapse_holds_every_curve():
    table = curves()
    sources = block(figures.collapse(table, caption="c"))["data"]["sources"]
    assert [source["id"] for source in sources] == ["m1|essay", "m1|novel"]
    for source in sources:
        mine = table[(table["model"] + "|" + table["task"]) == source["id"]]
        assert np.allclose(source["full"], mine[mine["window"].isna()]["loss"], rtol=1e-4)
        for name, drawn in source["curves"].items():
            window, sinks = map(int, name.split(","))
            loss = mine[(mine["window"] == window) & (mine["sinks"] == sinks)]["loss"]
            assert np.allclose(drawn, loss, rtol=1e-4)
        assert len(source["curves"]) == mine.groupby(["window", "sinks"]).ngroups


def test_curves_with_positions_of_their_own_are_refused():
    table = curves()
    table.loc[table["window"].notna(), "position"] += 1
    with pytest.raises(ValueError, match="positions"):
        figures.collapse(table, caption="c")


@pytest.mark.parametrize("draw", [figures.heatmap, figures.perplexity_by_window])
def test_grids_hold_every_cell(draw):
    table = grid()
    (source,) = block(draw(table, caption="c"))["data"]["sources"]
    assert source["full"]["ppl"] == pytest.approx(table[table["window"].isna()]["ppl"].item(), rel=1e-4)
    for row in table[table["window"].notna()].to_dict("records"):
        cell = source["cells"][f"{row['window']:g},{row['sinks']:g}"]
        if np.isnan(row["ppl"]):
            assert cell == {"ppl": None, "n": 512, "command": "swa run grid"}
        else:
            assert cell["ppl"] == pytest.approx(row["ppl"], rel=1e-4)
            assert cell["half"] == pytest.approx(1.96 * row["stderr"], rel=1e-4)


def test_a_grid_says_each_thing_once_and_names_what_is_missing():
    table = grid()
    with pytest.raises(ValueError, match=r"more than one row for \(window, sinks\) = \(16,0\)"):
        figures.heatmap(
            pd.concat([table, table[(table["window"] == 16) & (table["sinks"] == 0)]]), caption="c"
        )
    with pytest.raises(ValueError, match="no row for full attention"):
        figures.heatmap(table[table["window"].notna()], caption="c")
    with pytest.raises(ValueError, match="2 rows for full attention"):
        figures.heatmap(pd.concat([table, table[table["window"].isna()]]), caption="c")
    with pytest.raises(ValueError, match="no ppl and no command"):
        figures.heatmap(table.drop(columns="command"), caption="c")
    with pytest.raises(ValueError, match=r"lacks the column\(s\) ppl"):
        figures.heatmap(table.drop(columns="ppl"), caption="c")
    with pytest.raises(ValueError, match="no rows"):
        figures.heatmap(table.head(0), caption="c")
    with pytest.raises(ValueError, match="only full attention"):
        figures.heatmap(table[table["window"].isna()], caption="c")


def test_sliders_start_where_asked_or_at_what_there_is():
    start = block(figures.heatmap(grid(), caption="c", window=32, sinks=1))["data"]["initial"]
    assert start == {"window": 32, "sinks": 1}
    start = block(figures.heatmap(grid(), caption="c", window=7, sinks=5))["data"]["initial"]
    assert start == {"window": 16, "sinks": 16}


def test_positions_keep_text_and_cache_apart():
    table = position_rows()
    (source,) = block(figures.positions(table, caption="c"))["data"]["sources"]
    for kind in ("text", "cache"):
        row = table[(table["positions"] == kind) & (table["window"] == 32)].iloc[0]
        assert source["kinds"][kind]["32,4"]["ppl"] == pytest.approx(row["ppl"], rel=1e-4)
    with pytest.raises(ValueError, match="'text' or 'cache', not 'slot'"):
        figures.positions(table.replace("cache", "slot"), caption="c")


def test_prefill_joins_curves_and_perplexities():
    rows, perplexities = prefill_rows()
    (source,) = block(figures.prefill(rows, perplexities, caption="c"))["data"]["sources"]
    for curve in source["curves"]:
        mine = rows[rows["variant"] == curve["variant"]]
        assert np.allclose(curve["loss"], mine["loss"], rtol=1e-4)
        ppl = perplexities[perplexities["variant"] == curve["variant"]]["ppl"].item()
        assert curve["ppl"] == pytest.approx(ppl, rel=1e-4)
    with pytest.raises(ValueError, match="no perplexity for m1, essay, dense"):
        figures.prefill(rows, perplexities[perplexities["variant"] != "dense"], caption="c")
    with pytest.raises(ValueError, match="variant must be one of"):
        figures.prefill(rows.replace("dense", "warm"), perplexities, caption="c")


def test_attention_mass_is_layer_by_head():
    table = mass()
    (source,) = block(figures.attention_mass(table, caption="c"))["data"]["sources"]
    assert (source["layers"], source["heads"]) == ([0, 1, 2], [0, 1, 2, 3, 4])
    for row in table.to_dict("records"):
        drawn = source["mass"][str(row["sinks_counted"])][row["layer"]][row["head"]]
        assert drawn == pytest.approx(row["mass"], rel=1e-4)
    assert source["uniform"] == {"1": 0.02, "4": 0.08}


def test_sink_kinds_hold_a_dot_for_each_row_in_the_order_of_the_table():
    table = kind_rows()
    figure = figures.sink_kinds(table, caption="c")
    sources = block(figure)["data"]["sources"]
    for source in sources:
        mine = table[(table["model"] + "|" + table["task"]) == source["id"]]
        assert source["full"]["ppl"] == pytest.approx(mine[mine["window"].isna()]["ppl"].item(), rel=1e-4)
        for window in (64, 256):
            rows = mine[mine["window"] == window]
            lines = source["kinds"][str(window)]
            assert [line["label"] for line in lines] == ["nothing", "two at random", "the first token"]
            dots = [dot for line in lines for dot in line["dots"]]
            assert np.allclose([dot["ppl"] for dot in dots], rows["ppl"], rtol=1e-4)
            assert np.allclose([dot["half"] for dot in dots], 1.96 * rows["stderr"], rtol=1e-4)
            assert [dot["positions"] for dot in dots] == rows["positions"].tolist()
    assert len(sources) == 2
    assert "two at random 20.9 to 22.9" in figure.alt
    assert block(figures.sink_kinds(table, caption="c", window=256))["data"]["initial"] == {"window": 256}


def test_sink_kinds_refuse_what_was_not_measured():
    table = kind_rows()
    with pytest.raises(ValueError, match="no row for full attention"):
        figures.sink_kinds(table[table["window"].notna()], caption="c")
    with pytest.raises(ValueError, match=r"lacks the column\(s\) label"):
        figures.sink_kinds(table.drop(columns="label"), caption="c")
    table.loc[3, "ppl"] = np.nan
    with pytest.raises(ValueError, match="without a ppl can't be drawn"):
        figures.sink_kinds(table, caption="c")


def test_a_stream_holds_every_bin_of_every_curve():
    table = stream_rows()
    figure = figures.stream(table.sample(frac=1, random_state=0), caption="c")
    data = block(figure)["data"]
    (source,) = data["sources"]
    curves = {(None, "text"): source["full"]} | {
        (int(w), kind): curve for w, kinds in source["curves"].items() for kind, curve in kinds.items()
    }
    assert len(curves) == 7
    for (window, kind), curve in curves.items():
        same = table["window"].isna() if window is None else table["window"] == window
        sinks = (table["sinks"] == 0) == (kind == "none")
        rows = table[same & sinks & (table["positions"] == ("cache" if kind == "cache" else "text"))]
        for name, column, factor in (
            ("start", "start", 1),
            ("end", "end", 1),
            ("ppl", "ppl", 1),
            ("half", "stderr", 1.96),
            ("n", "n", 1),
            ("bytes", "cache_bytes", 1),
        ):
            assert np.allclose(curve[name], factor * rows[column], rtol=1e-4)
    assert (data["windows"], data["sinks"], source["trained"]) == ([64, 512], [4], 4096)
    assert data["initial"]["window"] == 512
    assert "full attention 25.7 at first, 425 before token 6,144" in figure.alt


def test_a_stream_is_refused_where_it_would_mislead():
    table = stream_rows()
    with pytest.raises(ValueError, match="m1, novel: a bin stands more than once"):
        figures.stream(pd.concat([table, table.head(1)]), caption="c")
    other = table.assign(sinks=table["sinks"].mask((table["window"] == 64) & (table["sinks"] > 0), 8))
    with pytest.raises(ValueError, match="one number of sinks besides 0, and has 8, 4"):
        figures.stream(other, caption="c")
    with pytest.raises(ValueError, match="no row for full attention"):
        figures.stream(table[table["window"].notna()], caption="c")
    with pytest.raises(ValueError, match=r"lacks the column\(s\) cache_bytes"):
        figures.stream(table.drop(columns="cache_bytes"), caption="c")


def test_the_panel_measures_the_readers_text_and_says_what_went_wrong():
    asked = []

    def compute(text, window, sinks, positions):
        asked.append((text, window, sinks, positions))
        if not text:
            raise ValueError("a text needs two tokens.")
        table = curves().query("task == 'essay'")
        return table[table["window"].isna() | (table["window"] == window)]

    panel = live.panel(compute, text="once upon a time", window=32, sinks=4)
    area, controls, status, shown = panel.children
    width, sinks, _, button = controls.children
    button.click()
    assert asked == [("once upon a time", 32, 4, "text")]
    assert status.value == ""
    first = shown.children[0].holder
    area.value = ""
    button.click()
    assert status.value == "a text needs two tokens."
    assert shown.children[0].holder == first
    width.value, sinks.value = 16, 16
    button.click()
    assert "s must be below w" in status.value
    assert len(asked) == 2
    assert not button.disabled


def test_the_panel_is_a_note_in_the_book(monkeypatch):
    monkeypatch.setenv("SWALIB_STATIC", "1")
    assert "JupyterLab" in live.panel(lambda *_: pd.DataFrame()).data
