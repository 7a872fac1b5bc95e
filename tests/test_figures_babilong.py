"""BABILong's figures as they leave Python: the tables' numbers in the data block, and gaps named."""

import json

import babilong_small as small
import pytest

from swalib import SWA, Full, figures
from swalib.evals import babilong_facts, babilong_summary
from swalib.evals.babi import TASKS

GUESSES = {task: babilong_summary.guessing(task) for task in (*TASKS, *babilong_summary.MEANS)}
PRINTED = babilong_summary.printed()
ROWS = babilong_summary.summarise(small.items())
FACTS = small.facts()
WINDOWS, SINKS = [64, 128, 256], [0, 4]
WORDS = {"caption": "c", "command": babilong_summary.command}
DRAWN = {
    "printed": figures.babilong_printed(PRINTED, GUESSES, caption="c", proviso="if 100 items"),
    "measured": figures.babilong_measured(ROWS, GUESSES, WINDOWS, SINKS, **WORDS),
    "facts": figures.babilong_facts(FACTS, ROWS, GUESSES, WINDOWS, SINKS, caption="c"),
}


def data(name):
    return json.loads(DRAWN[name].payload())["data"]


def test_every_printed_cell_and_mean_is_drawn_with_its_interval():
    found = data("printed")
    assert found["contexts"] == ["0K", "1K", "2K", "4K"]
    assert found["layer"] == "printed"
    drawn = 0
    for row in PRINTED.itertuples():
        who = {"Full attention": "full", "SWA": "256,4", "LoLCATs": "LoLCATs"}[row.method]
        cells = found["values"][f"Llama-3.1-8B|{row.task}|{who}"]["official"]
        cell = cells[found["contexts"].index(row.context)]
        assert cell[:3] == pytest.approx([100 * row.value, 100 * row.low, 100 * row.high], rel=1e-4)
        assert cell[3] is None, "the number of items is not known"
        drawn += 1
    assert drawn == sum(len(one["official"]) for one in found["values"].values()) == 84


def test_every_measured_number_is_drawn_and_nothing_else():
    found = data("measured")
    assert (found["contexts"], found["models"]) == (["512", "1,024"], ["m1", "m2"])
    drawn = {
        (key, measure, at): cell
        for key, cells in found["values"].items()
        for measure, own in cells.items()
        for at, cell in enumerate(own)
        if cell is not None
    }
    assert len(drawn) == len(ROWS)
    for spec in (Full(), SWA(256, 4), SWA(256, 0)):
        who = "full" if spec == Full() else f"256,{spec.sinks}"
        for task, measure in (("qa2", "official"), ("qa5", "gap"), ("qa1-4", "invalid")):
            wanted = babilong_summary.number(ROWS, "m1", task, 512, measure, spec)
            cell = drawn[f"m1|{task}|{who}", measure, 0]
            assert cell[:3] == pytest.approx([100 * one for one in wanted], rel=1e-4, abs=1e-9)
            assert cell[3] == (160 if task == "qa1-4" else 40)


def test_gaps_stay_gaps_and_have_a_command():
    found = data("measured")
    assert found["values"]["m1|qa1|256,0"]["official"][1] is None
    assert "m2|qa1|256,4" not in found["values"]
    assert found["commands"]["m2"] == "swa measure babilong -p model m2 -p windows '[w]' -p sinks '[s]'"
    assert (found["windows"], found["sinks"]) == (WINDOWS, SINKS)
    longer = figures.babilong_measured(ROWS, GUESSES, WINDOWS, SINKS, contexts=[1024, 2048], **WORDS).data
    assert longer["contexts"] == ["512", "1,024", "2,048"]
    assert longer["values"]["m1|qa1|full"]["official"][2] is None
    assert longer["signal"]["m1|qa1"] == [*found["signal"]["m1|qa1"], None]


def test_signal_and_guesses_are_the_summary_s():
    found = data("measured")
    full = ROWS[ROWS["window"].isna() & (ROWS["measure"] == "official")]
    for row in full.itertuples():
        at = [512, 1024].index(row.context_tokens)
        assert found["signal"][f"{row.model}|{row.task}"][at] == row.signal
    for name in DRAWN:
        guesses = data(name)["guesses"]
        for task, guess in guesses.items():
            assert guess == pytest.approx({k: 100 * v for k, v in vars(GUESSES[task]).items()}, rel=1e-4)
    assert "no signal" in DRAWN["measured"].alt


def test_facts_are_the_distances_sorted():
    found = data("facts")
    assert found["lengths"] == [512, 1024]
    for (model, task, length), part in FACTS.groupby(["model", "task", "context_tokens"]):
        own = found["facts"][f"{model}|{task}|{length}"]
        assert own["first"] == sorted(part["first"])
        assert own["last"] == sorted(part["last"])
    assert found["span"][1] > FACTS["first"].max()
    share = babilong_facts.within(FACTS, [256], [4]).query("model == 'm1' and task == 'qa3'")
    assert len(share) == 2
    assert "Within the 252 latest tokens" in DRAWN["facts"].alt


def test_controls_start_as_asked_or_at_what_there_is():
    assert data("measured")["initial"] == {
        "model": "m1",
        "task": "qa1",
        "measure": "official",
        "window": 256,
        "sinks": 4,
    }
    other = figures.babilong_measured(ROWS, GUESSES, [64], [0], window=256, **WORDS)
    assert other.data["initial"]["window"] == 64
    assert other.data["initial"]["sinks"] == 0
    assert data("printed")["initial"]["task"] == "qa1-4"


def test_bad_tables_are_refused():
    with pytest.raises(ValueError, match="lacks the column"):
        figures.babilong_measured(ROWS.drop(columns="signal"), GUESSES, WINDOWS, SINKS, **WORDS)
    with pytest.raises(ValueError, match="the table has no rows"):
        figures.babilong_facts(FACTS.iloc[:0], ROWS, GUESSES, WINDOWS, SINKS, caption="c")
    with pytest.raises(ValueError, match="no baselines are known for qa1"):
        figures.babilong_printed(PRINTED, {}, caption="c", proviso="p")
    with pytest.raises(
        ValueError, match=r"the sliders need windows and sinks with s < w: got \[4\] and \[4\]"
    ):
        figures.babilong_measured(ROWS, GUESSES, [4], [4], **WORDS)
