"""The figures of needles as they leave Python: data in, data drawn; gaps, silence and infinity as such."""

import needles_small
import numpy as np
import pytest
from needles_small import LENGTHS, WINDOWS

from swalib import figures
from swalib.evals import niah_printed, niah_summary

ITEMS = needles_small.items()
SCORES = niah_summary.scores(ITEMS)
DEPTHS = niah_summary.by_depth(ITEMS)
PLACES = needles_small.places()
NULL = niah_printed.null(PLACES, [128, *WINDOWS], [0, 4])
PRINTED = niah_printed.printed()
RATIOS = niah_printed.ratios(PRINTED)
MEASURED = {"caption": "c", "command": niah_summary.command}


def scores(**changed) -> figures.Figure:
    return figures.needle_scores(**({"scores": SCORES} | MEASURED | changed))


def depths(**changed) -> figures.Figure:
    return figures.needle_depths(**({"depths": DEPTHS, "null": NULL} | MEASURED | changed))


def test_ratios_are_dots_where_the_table_says_and_infinite_ones_at_the_end():
    data = figures.needle_ratios(RATIOS, niah_printed.counted(RATIOS), caption="c").data
    seen = 0
    for row in RATIOS.to_dict("records"):
        dots = data["values"][f"w{row['window']:.0f}|{row['method']}"]
        place = list(niah_printed.TASKS).index(row["task"]) * 4 + [512, 1024, 2048, 4096].index(
            row["context_tokens"]
        )
        (nth,) = [n for n, y in enumerate(dots["y"]) if round(y) == place]
        if np.isfinite(row["ratio"]):
            assert dots["x"][nth] == pytest.approx(row["ratio"], rel=1e-4)
            assert dots["high"][nth] == pytest.approx(row["high"], rel=1e-4)
        else:
            assert [1500.0, "∞ (0.0)", False] in data["x"]["ticks"]
            assert (dots["x"][nth], dots["high"][nth]) == (1500.0, None)
        assert dots["low"][nth] == pytest.approx(row["low"], rel=1e-4)
        seen += 1
    assert seen == sum(len(dots["x"]) for dots in data["values"].values()) == 108
    assert data["bands"] == [{"from": 2, "to": 10, "text": "2–10 times"}]
    words = data["says"]["values"]["says|LoLCATs"]
    assert words[1] == {"method": "lolcats", "text": "15 of 36"}
    assert "9 % to 23 %" in str(data["says"]["values"]["says|Full attention"])
    low, high = data["x"]["span"]
    finite = RATIOS[np.isfinite(RATIOS["ratio"])]
    assert low <= finite["low"].min()
    assert finite["high"].max() < high


def test_printed_lines_and_the_null_are_the_tables():
    data = figures.needle_null(PRINTED, NULL, caption="c").data
    for row in PRINTED.to_dict("records"):
        for w in [row["window"]] if row["window"] > 0 else [128, 256, 512]:
            line = data["values"][f"{row['method']}|{row['task']}|{w:.0f}"]
            nth = line["x"].index(row["context_tokens"])
            assert line["y"][nth] == pytest.approx(100 * row["value"])
            assert line["low"][nth] == pytest.approx(100 * row["low"], rel=1e-4)
    for row in NULL[NULL["sinks"] == 4].to_dict("records"):
        kind = "short" if row["short_haystacks"] else "filled"
        line = data["values"][f"answer|{row['task']}|{row['window']}|{kind}"]
        share = line["y"][line["x"].index(row["context_tokens"])]
        assert share == pytest.approx(100 * row["null_from_answer"])
    table = data["table"]["values"]["table|s_niah_1|256|filled"]
    known = NULL.query("task == 's_niah_1' and window == 256 and sinks == 4 and not short_haystacks")
    share = 100 * known.set_index("context_tokens").loc[4096, "null_from_question"]
    assert table["rows"][-1][:3] == ["4K", "14.6 %", f"{share:.1f} %"]
    assert table["rows"][-1][-1] == f"{14.6 - share:+.1f}"
    layers = {line["name"]: line["layer"] for line in data["lines"]}
    assert layers["SWA"] == "printed"
    assert layers["question"] == "computed"


def test_true_lengths_and_what_fits_into_the_window_is_said():
    lengths = niah_printed.lengths(PLACES)
    data = figures.needle_lengths(lengths, PRINTED, caption="c").data
    for row in lengths.to_dict("records"):
        line = data["values"][f"{'short' if row['short_haystacks'] else 'filled'}|{row['task']}"]
        assert line["y"][line["x"].index(row["context_tokens"])] == row["prompt_tokens"]
    said = data["says"]["values"]
    assert "there SWA is full attention" in str(said["says|s_niah_2|128"])
    assert "more than w = 128" in str(said["says|s_niah_1|128"])
    assert data["rule"]["values"]["rule|256"]["y"] == 256
    assert data["table"]["values"]["table|s_niah_2|128"]["rows"][0][3:] == ["80", "0", "100.0 %"]
    assert not any(control["shared"] for control in data["controls"])


def test_beyond_draws_three_layers_apart_and_nothing_below_its_floor():
    table = niah_printed.beyond(PLACES, [256, 512], [4096, 65536], 32)
    none = SCORES.assign(found=0.0, found_low=0.0)
    data = figures.needle_beyond(table, PRINTED, none, caption="c", layers=32).data
    values = data["values"]
    assert set(values["measured|s_niah_1|256"]["y"]) == {0.1}
    assert values["printed|s_niah_1|256"]["y"] == pytest.approx([91.8, 34.8, 21.0, 14.6])
    row = table.query("task == 's_niah_1' and window == 512 and context_tokens == 65536").iloc[0]
    assert values["reach|s_niah_1|512"]["y"][-1] == pytest.approx(100 * row["reach"], rel=1e-4)
    assert values["null|s_niah_1|512"]["y"][-1] == pytest.approx(100 * row["null"], rel=1e-4)
    assert [line["layer"] for line in data["lines"]] == ["computed", "computed", "printed", "measured"]
    empty = figures.needle_beyond(table, PRINTED, SCORES.iloc[:0], caption="c", layers=32)
    assert not any(name.startswith("measured") for name in empty.data["values"])


def test_scores_are_the_rows_and_what_is_not_measured_has_a_cross_and_a_command():
    figure = scores(lengths=[512, 4096])
    data, seen = figure.data, 0
    for row in SCORES.to_dict("records"):
        place = f"{row['task']}|m1"
        if np.isnan(row["window"]):
            name = f"full|found|{place}"
        elif row["sinks"]:
            name = f"swa|found|{place}|{row['positions']}|{row['window']:.0f}|{row['sinks']:.0f}"
        else:
            name = f"bare|found|{place}|{row['positions']}|{row['window']:.0f}"
        line, other = data["values"][name], data["values"][name.replace("found", "loglikelihood", 1)]
        nth = line["x"].index(row["context_tokens"])
        assert line["y"][nth] == pytest.approx(100 * row["found"], rel=1e-4)
        assert other["low"][nth] == pytest.approx(row["loglikelihood_low"], rel=1e-4)
        seen += 1
    drawn = [one for name, one in data["values"].items() if name.split("|")[0] in ("full", "swa", "bare")]
    assert sum(len(one["x"]) for one in drawn) == 2 * seen
    assert data["values"]["absent|found|s_niah_1|m1|text|256|4"]["x"] == [4096]
    assert data["values"]["absent|found|s_niah_2|m1|text|256|0"]["x"] == [*LENGTHS, 4096]
    said = data["says"]["values"]["says|found|s_niah_2|m1|text|256|0"]
    assert said[-1] == {"code": niah_summary.command("s_niah_2", "m1", "text", 256, 0, [*LENGTHS, 4096])}
    said = data["says"]["values"]["says|found|s_niah_1|m1|text|256|4"]
    assert said[-1] == {"code": niah_summary.command("s_niah_1", "m1", "text", 256, 4, [4096])}
    assert [tick[0] for tick in data["x"]["ticks"]] == [*LENGTHS, 4096]


def test_silence_is_said_where_full_attention_finds_nothing():
    data = scores().data
    assert data["note"]["values"] == {"note|s_niah_3|m1": "no signal at 2K:<br>full attention finds nothing"}
    assert "no signal" in str(data["says"]["values"]["says|found|s_niah_3|m1|text|256|4"])
    assert "no signal" not in str(data["says"]["values"]["says|found|s_niah_1|m1|text|256|4"])


def test_a_length_at_which_full_attention_is_not_measured_is_not_called_silent():
    known = ~((ITEMS["context_tokens"] == 2048) & ITEMS["window"].isna())
    data = scores(scores=niah_summary.scores(ITEMS[known])).data
    assert data["note"]["values"] == {}
    said = str(data["says"]["values"]["says|found|s_niah_3|m1|text|256|4"])
    assert "full attention not measured there yet" in said
    assert "no signal" not in said


def test_the_null_is_that_of_the_same_items():
    line = scores().data["values"]["answer|found|s_niah_1|m1|256|4"]
    own = ITEMS[(ITEMS["task"] == "s_niah_1") & (ITEMS["window"] == 256) & (ITEMS["sinks"] == 4)]
    own = own[own["positions"] == "text"].groupby("context_tokens")["null_from_answer"].mean()
    assert dict(zip(line["x"], line["y"], strict=True)) == pytest.approx(
        (100 * own.astype(float)).to_dict(), rel=1e-4
    )


def test_maps_hold_every_cell_and_gaps_stay_gaps():
    data = depths(lengths=[4096]).data
    assert data["lengths"] == [*LENGTHS, 4096]
    seen = 0
    for row in DEPTHS.to_dict("records"):
        full = np.isnan(row["window"])
        name = f"{'full' if full else 'swa'}|found|{row['task']}|m1"
        name += "" if full else f"|{row['positions']}|{row['window']:.0f}|{row['sinks']:.0f}"
        z = data["cells"][name]["z"][row["step"]][LENGTHS.index(row["context_tokens"])]
        assert z == pytest.approx(100 * row["found"], rel=1e-4)
        seen += 1
    drawn = [
        cell for name, one in data["cells"].items() if "|found|" in name for line in one["z"] for cell in line
    ]
    assert sum(cell is not None for cell in drawn) == seen
    assert all(one["z"][0][3] is None for one in data["cells"].values())
    assert "4K" in data["cells"]["full|found|s_niah_1|m1"]["hover"][0][3]
    edge = NULL.query("task == 's_niah_1' and context_tokens == 1024 and window == 256 and sinks == 4")
    edge = edge[~edge["short_haystacks"]]["edge_from_question"].iloc[0]
    assert data["edges"]["values"]["edges|m1|s_niah_1|256|4"][1] == pytest.approx(edge, rel=1e-4)
    own = SCORES.query("task == 's_niah_1' and window == 256 and sinks == 4 and positions == 'text'")
    said = data["says"]["values"]["says|s_niah_1|m1|text|256|4"]
    assert {"method": "sinks", "text": f"{own['outside'].sum()} of {own['outside_n'].sum()}"} in said
    assert said[-1] == {"code": niah_summary.command("s_niah_1", "m1", "text", 256, 4, [4096])}


def test_a_window_over_every_length_has_nothing_outside():
    items = ITEMS[(ITEMS["context_tokens"] == 512) & (ITEMS["window"].isna() | (ITEMS["window"] == 512))]
    figure = depths(depths=niah_summary.by_depth(items))
    assert "up to w, SWA is full attention" in str(figure.data["says"]["values"])
    assert "No length above a window is measured yet" in figure.alt


@pytest.mark.parametrize(
    ("draw", "told"),
    [
        (lambda: scores(scores=SCORES.drop(columns="outside")), "lacks the column.s. outside"),
        (lambda: scores(scores=SCORES[SCORES["window"].isna()]), "no row with a window"),
        (lambda: depths(depths=DEPTHS.drop(columns="step")), "lacks the column.s. step"),
        (lambda: depths(null=NULL.drop(columns="model")), "lacks the column.s. model"),
        (
            lambda: figures.needle_null(PRINTED.drop(columns="low"), NULL, caption="c"),
            "lacks the column.s. low",
        ),
        (
            lambda: figures.needle_ratios(RATIOS.iloc[:0], niah_printed.counted(RATIOS), caption="c"),
            "no rows",
        ),
    ],
)
def test_a_table_that_cannot_be_drawn_is_refused(draw, told):
    with pytest.raises(ValueError, match=told):
        draw()
