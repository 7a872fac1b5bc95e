"""The figures over the six tasks as they leave Python: data in, data drawn; gaps and silence as such."""

import numpy as np
import pandas as pd
import pytest
import short_small
from short_small import WINDOWS

from swalib import figures
from swalib.evals import short_items, short_summary, variants

ITEMS = short_small.items()
FOUND = short_summary.summarise(ITEMS, draws=500)
WORDS = {"caption": "c", "command": short_items.command}


def scores(**changed) -> figures.Figure:
    given = {"teachers": FOUND.teachers, "rows": FOUND.rows, "perplexities": short_small.perplexities()}
    given |= changed
    return figures.short_scores(**given, **WORDS)


def lengths(**changed) -> figures.Figure:
    given = {"lengths": short_summary.lengths(ITEMS, WINDOWS), "bound": short_summary.bound(ITEMS, WINDOWS)}
    given |= {"apart": short_summary.apart(ITEMS, draws=200)} | changed
    return figures.short_lengths(**given, **WORDS)


def source(figure: figures.Figure, model: str, task: str, shots: int) -> dict:
    about = {"model": model, "task": task, "shots": shots}
    (found,) = (one for one in figure.data["sources"] if about.items() <= one.items())
    return found


def test_scores_are_the_rows_in_percent_and_nothing_else():
    figure, seen = scores(), 0
    for row in FOUND.rows.to_dict("records"):
        cell = source(figure, row["model"], row["task"], row["shots"])["cells"]
        drawn = cell[f"{row['window']},{row['sinks']}"]
        for value, end in zip(drawn[row["measure"]], ("value", "low", "high"), strict=True):
            if np.isfinite(row[end]):
                assert value == pytest.approx(100 * row[end], rel=1e-4)
            else:
                assert value is None
        assert drawn["n"] == row["n"]
        seen += 1
    assert seen == sum(
        len(cell) - 1 for one in figure.data["sources"] for cell in one["cells"].values()
    )  # n is the one key that is no measure
    assert "256,0" not in source(figure, "m1", "piqa", 5)["cells"]
    assert source(figure, "m1", "mmlu", 5)["signal"] is False


def test_full_attention_baselines_and_perplexity_are_the_tables():
    figure = scores()
    for row in FOUND.teachers.to_dict("records"):
        drawn = source(figure, row["model"], row["task"], row["shots"])
        for name in ("score", "low", "high", "chance", "majority", "letter_bias"):
            if np.isnan(row[name]):
                assert drawn[name] is None
            else:
                assert drawn[name] == pytest.approx(100 * row[name], rel=1e-4)
    cells = figure.data["perplexities"]["m1"]
    for row in short_small.perplexities().dropna().to_dict("records"):
        assert cells["cells"][f"{row['window']:.0f},{row['sinks']:.0f}"]["ppl"] == pytest.approx(row["ppl"])
    assert list(figure.data["perplexities"]) == ["m1"]


def test_selectors_and_sliders_hold_what_is_there_and_the_command_what_is_not():
    data = scores().data
    assert data["windows"] == list(WINDOWS)
    assert data["sinks"] == [0, 1, 4]
    assert data["models"] == ["m1", "m2"]
    assert data["shots"] == [0, 5]
    assert [task["id"] for task in data["tasks"]][-2:] == ["average6", "signal_average"]
    assert data["commands"]["m2"].startswith("swa measure short -p model m2 ")
    assert data["initial"] == {
        "window": 64,
        "sinks": 4,
        "model": "m1",
        "task": "average6",
        "shots": 5,
        "measure": "score",
    }


def test_an_axis_holds_every_interval_and_an_unbounded_one_is_left_open():
    rows = FOUND.rows.copy()
    first = rows.index[(rows["measure"] == "recovery_above_chance") & rows["value"].notna()][0]
    rows.loc[first, ["low", "high"]] = [-np.inf, 1.5]
    figure = scores(rows=rows)
    low, high = figure.data["spans"]["recovery_above_chance"]
    assert high >= 150
    assert low <= 0
    row = rows.loc[first]
    cell = source(figure, row["model"], row["task"], row["shots"])["cells"][f"{row['window']},{row['sinks']}"]
    assert cell["recovery_above_chance"][1:] == [None, 150]


def test_before_any_student_is_measured_full_attention_is_drawn():
    figure = scores(rows=FOUND.rows.iloc[:0])
    assert all(one["cells"] == {} for one in figure.data["sources"])
    assert figure.data["windows"] == list(WINDOWS)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"teachers": FOUND.teachers.drop(columns="signal")}, "lacks the column.s. signal"),
        ({"rows": FOUND.rows.drop(columns="low")}, "lacks the column.s. low"),
        ({"rows": pd.concat([FOUND.rows, FOUND.rows.iloc[:1]])}, "more than one row for score"),
        ({"perplexities": short_small.perplexities().iloc[1:]}, "no row for full attention"),
    ],
)
def test_a_table_that_cannot_be_drawn_is_refused(changed, told):
    with pytest.raises(ValueError, match=told):
        scores(**changed)


def test_lengths_bins_and_parts_are_the_tables():
    figure, table = lengths(), short_summary.lengths(ITEMS, WINDOWS)
    for key, part in table.groupby(["model", "task", "shots"]):
        drawn = source(figure, *key)
        kept = part[part["items"] > 0]
        bins = {(low, high): count for low, high, count in drawn["bins"] if count}
        assert bins == dict(zip(zip(kept["low"], kept["high"], strict=True), kept["items"], strict=True))
    for row in short_summary.bound(ITEMS, WINDOWS).to_dict("records"):
        drawn = source(figure, row["model"], row["task"], row["shots"])["bound"][str(row["window"])]
        assert drawn == {name: row[name] for name in ("n", "bound", "share")}
    for row in short_summary.apart(ITEMS, draws=200).to_dict("records"):
        parts = source(figure, row["model"], row["task"], row["shots"])["parts"]
        drawn = parts[f"{row['window']},{row['sinks']}"]["longer" if row["longer"] else "fits"]
        assert drawn["n"] == row["n"]
        for name in ("teacher", "student", "difference", "low", "high"):
            assert drawn[name] == pytest.approx(100 * row[name], rel=1e-4, abs=1e-9)


def test_lengths_are_drawn_before_any_student_is_measured():
    empty = short_summary.apart(ITEMS[ITEMS["window"].isna()])
    figure = lengths(apart=empty)
    assert figure.data["sinks"] == [4]
    assert all(one["parts"] == {} for one in figure.data["sources"])


def test_effects_are_drawn_in_points_and_gaps_stay_gaps():
    table = variants.effects(pd.DataFrame(columns=["variant", "window"]))
    numbers = {"n": 300, "score": 0.5, "difference": -0.021, "low": -0.05, "high": 0.01}
    numbers |= {"changed": 0.04, "moved": 0.37}
    table.loc[2, list(numbers)] = list(numbers.values())
    figure = figures.short_variants(table, caption="c", command="swa measure variants")
    drawn = figure.data["rows"][2]
    assert (drawn["variant"], drawn["spec"], drawn["method"]) == ("bfloat16", "full attention", "full")
    expected = {"score": 50, "difference": -2.1, "low": -5, "high": 1, "changed": 4, "moved": 0.37, "n": 300}
    assert {name: drawn[name] for name in expected} == pytest.approx(expected)
    other = figure.data["rows"][3]
    assert (other["spec"], other["method"], other["n"]) == ("SWA(64, 4)", "sinks", 0)
    assert other["difference"] is None
    assert "bfloat16 -2.1 (full attention)" in figure.alt


def test_selectors_start_at_what_is_measured():
    """With five examples alone, a figure that would start without examples showed nothing."""
    five = ITEMS[(ITEMS["shots"] == 5) & (ITEMS["task"] != "mmlu")]
    table = {"lengths": short_summary.lengths(five, WINDOWS), "bound": short_summary.bound(five, WINDOWS)}
    initial = lengths(**table, apart=short_summary.apart(five, draws=20)).data["initial"]
    assert (initial["shots"], initial["task"]) == (5, "arc_challenge")
    initial = scores(teachers=FOUND.teachers.query("shots == 5 and task == 'piqa'")).data["initial"]
    assert (initial["shots"], initial["task"]) == (5, "piqa")
