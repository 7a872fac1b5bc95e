"""What is said of scored items agrees with slow loops; and stored parts with gaps are found as they are."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
import short_small
from short_small import WINDOWS

from swalib import SWA, results
from swalib.evals import harness, recovery, short_items, short_models, short_summary
from swalib.evals.recovery import CHANCE
from swalib.evals.short_summary import AVERAGE6, SIGNAL_AVERAGE
from swalib.reported import LABELS
from swalib.results import MissingResult

ITEMS = short_small.items()
FOUND = short_summary.summarise(ITEMS, draws=2000)


def chosen(model: str, shots: int, window: int | None, sinks: int | None, task: str | None = None):
    own = ITEMS[(ITEMS["model"] == model) & (ITEMS["shots"] == shots)]
    own = own[own["window"].isna() if window is None else (own["window"] == window)]
    own = own if window is None else own[own["sinks"] == sinks]
    return own if task is None else own[own["task"] == task]


# ---- Scores, recovery, agreement.


@pytest.mark.parametrize(("task", "shots"), [("arc_easy", 5), ("piqa", 0), ("hellaswag", 5)])
def test_one_task_is_what_recovery_summarise_says(task, shots):
    own = chosen("m1", shots, 64, 4, task)
    table = pd.DataFrame(
        {
            "task": task,
            "student": own["correct"].astype(float),
            "teacher": (own["teacher"] == own["gold"]).astype(float),
            "student_choice": own["choice"],
            "teacher_choice": own["teacher"],
        }
    )
    expected = recovery.summarise(table, draws=2000).iloc[0]
    assert FOUND.of("m1", task, shots, 64, 4, "score").value == own["correct"].mean()
    assert FOUND.teacher("m1", task, shots).value == expected["teacher"]
    for measure in ("recovery", "recovery_above_chance", "agreement"):
        got = FOUND.of("m1", task, shots, 64, 4, measure)
        assert got.value == pytest.approx(expected[measure])
        # Resampled by other draws: the ends agree but for the draws' own noise.
        width = expected[f"{measure}_high"] - expected[f"{measure}_low"]
        assert got.low == pytest.approx(expected[f"{measure}_low"], abs=width / 5)
        assert got.high == pytest.approx(expected[f"{measure}_high"], abs=width / 5)


def test_the_average_is_the_papers_over_six_tasks_and_only_where_all_are_measured():
    means = [
        (own["correct"].mean(), (own["teacher"] == own["gold"]).mean())
        for own in (chosen("m1", 5, 64, 4, task) for task in CHANCE)
    ]
    student, teacher = (sum(column) / 6 for column in zip(*means, strict=True))
    assert FOUND.of("m1", AVERAGE6, 5, 64, 4, "score").value == pytest.approx(student)
    assert FOUND.of("m1", AVERAGE6, 5, 64, 4, "recovery").value == pytest.approx(student / teacher)
    floor = sum(CHANCE.values()) / 6
    above = FOUND.of("m1", AVERAGE6, 5, 64, 4, "recovery_above_chance")
    assert above.value == pytest.approx((student - floor) / (teacher - floor))
    assert above.low < above.value < above.high
    assert math.isnan(FOUND.of("m1", AVERAGE6, 5, 256, 0, "score").value)  # PIQA is missing there
    assert AVERAGE6 not in set(FOUND.teachers.query("model == 'm2'")["task"])  # and WinoGrande there


def test_a_teacher_at_chance_has_no_signal_and_no_percentage():
    teachers = FOUND.teachers.set_index(["model", "task", "shots"])
    rows = FOUND.rows.set_index(["model", "task", "shots"])
    assert set(teachers["signal"]) == {True, False}
    for key, teacher in teachers.iterrows():
        own = rows.loc[[key]]
        told = own[own["measure"].str.startswith("recovery")]["value"].notna()
        assert told.all() if teacher["signal"] else not told.any()
        assert own[own["measure"] == "score"]["value"].notna().all()
    silent = teachers.loc[("m1", "mmlu", 5)]
    assert not silent["signal"]
    assert silent["low"] <= silent["chance"]


def test_the_signal_average_holds_the_tasks_with_a_signal_alone():
    teachers = FOUND.teachers.query("model == 'm1' and shots == 5").set_index("task")
    told = tuple(task for task in CHANCE if teachers.loc[task, "signal"])
    assert teachers.loc[SIGNAL_AVERAGE, "tasks"] == told
    assert 1 < len(told) < 6
    mean = np.mean([chosen("m1", 5, 16, 0, task)["correct"].mean() for task in told])
    assert FOUND.of("m1", SIGNAL_AVERAGE, 5, 16, 0, "score").value == pytest.approx(mean)


def test_baselines_are_counted_from_the_gold_and_the_teachers_choices():
    own = chosen("m1", 5, None, None, "arc_easy")
    teacher = FOUND.teachers.query("model == 'm1' and shots == 5 and task == 'arc_easy'").iloc[0]
    assert teacher["majority"] == max((own["gold"] == option).mean() for option in range(4))
    blind = sum((own["teacher"] == o).mean() * (own["gold"] == o).mean() for o in range(4))
    assert teacher["letter_bias"] == pytest.approx(blind)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda items: items[items["window"].notna()], "no item of full attention"),
        (lambda items: items.assign(task="gpqa"), "no chance level is known for 'gpqa'"),
    ],
)
def test_items_that_say_nothing_are_refused(spoil, told):
    with pytest.raises(ValueError, match=told):
        short_summary.summarise(spoil(ITEMS))


# ---- Does the window bind?


def test_every_item_lies_in_one_bin_and_windows_are_edges():
    table = short_summary.lengths(ITEMS, [*WINDOWS, 100])
    share = short_summary.bound(ITEMS, [*WINDOWS, 100])
    for (model, task, shots), part in table.groupby(["model", "task", "shots"]):
        own = chosen(model, shots, None, None, None if task == "all_items" else task)
        for w in (*WINDOWS, 100):
            longer = sum(tokens - 1 > w for tokens in own["tokens"])
            assert part.loc[part["low"] >= w, "items"].sum() == longer
            row = share.query("model == @model and task == @task and shots == @shots and window == @w").iloc[
                0
            ]
            assert (row["n"], row["bound"], row["share"]) == (len(own), longer, longer / len(own))
        assert part["items"].sum() == len(own)
        assert (part["low"].to_numpy()[1:] == part["high"].to_numpy()[:-1]).all()


def test_bound_and_unbound_items_are_scored_apart():
    table = short_summary.apart(ITEMS, draws=500).set_index(["model", "task", "shots", "window", "sinks"])
    for window, sinks in ((64, 4), (256, 4), (16, 0)):
        own = chosen("m1", 0, window, sinks, "arc_easy")
        found = table.loc[[("m1", "arc_easy", 0, window, sinks)]]
        for row in found.to_dict("records"):
            part = own[(own["tokens"] - 1 > window) == row["longer"]]
            assert row["n"] == len(part)
            assert row["student"] == pytest.approx(part["correct"].mean())
            assert row["teacher"] == pytest.approx((part["teacher"] == part["gold"]).mean())
            assert row["difference"] == pytest.approx(row["student"] - row["teacher"])
            assert row["low"] <= row["difference"] <= row["high"]
            assert row["longer"] or row["low"] == row["high"] == 0  # equal by definition
        assert found["n"].sum() == len(own)
    assert not table.xs(256, level="window").query("shots == 0 and longer")["n"].any()


def test_words_hold_the_numbers_or_say_that_they_are_missing():
    share = short_summary.bound(ITEMS, WINDOWS)
    words = short_summary.words(FOUND, share, "m1", 64, 4)
    own = chosen("m1", 5, 64, 4)
    mean = own.groupby("task")["correct"].mean().mean()
    assert words["student_5"].startswith(f"{100 * mean:.1f} % (")
    assert words["longer_5"] == "100 %"
    assert "MMLU" in words["silent_5"]
    other = short_summary.words(FOUND, share, "m2", 64, 4)
    assert {other[f"{name}_0"] for name in ("full", "student", "recovery", "silent", "longer")} == {
        "not measured yet"
    }
    assert not {"nan", "inf"} & set(" ".join(words.values()).split())


def test_models_side_by_side_are_paired_differences_over_six_tasks():
    table = short_models.differences(ITEMS, FOUND, [16, 64, 256, 999], 4, draws=500)
    assert list(table["model"]) == ["m1"]  # m2 lacks a task
    row = table.iloc[0]
    score = FOUND.teacher("m1", AVERAGE6, 5)
    assert row["full, %"].startswith(f"{100 * score.value:.1f} (")
    for w in (16, 64, 256):
        own = chosen("m1", 5, w, 4)
        change = own["correct"] * 1.0 - (own["teacher"] == own["gold"])
        mean = 100 * change.groupby(own["task"]).mean().mean()
        value, low, _, high = row[f"w = {w}"].replace("−", "-").strip(")").split()
        assert float(value) == pytest.approx(mean, abs=0.051)
        # A normal interval over tasks' own variances says nearly the same as the bootstrap.
        half = 196 * np.sqrt(change.groupby(own["task"]).var(ddof=0).sum() / 60) / 6
        assert float(low.strip("(")) == pytest.approx(mean - half, abs=1)
        assert float(high) == pytest.approx(mean + half, abs=1)
    assert row["w = 999"] == "not measured yet"


def test_no_model_side_by_side_keeps_the_columns():
    table = short_models.differences(ITEMS[ITEMS["shots"] == 0], FOUND, [64], 4)
    assert table.empty
    assert "w = 64" in table.columns


def test_only_differences_with_an_interval_beside_zero_are_told_apart():
    apart = short_models.told_apart(ITEMS, [16, 64, 256, 999], 4, draws=500)
    table = short_models.differences(ITEMS, FOUND, [16, 64, 256, 999], 4, draws=500)
    for w in (16, 64, 256):
        shown = table.loc[0, f"w = {w}"]
        _, low, _, high = shown.replace("−", "-").replace("(", "").replace(")", "").split()
        assert (f"{shown} at w = {w}" in apart) == (float(low) > 0 or float(high) < 0), apart
    assert "999" not in apart
    assert "m2" not in apart  # it lacks a task
    worse = ITEMS.copy()
    student = (worse["window"] == 64) & (worse["sinks"] == 4)
    worse.loc[student.fillna(False).astype(bool), "correct"] = False
    told = short_models.told_apart(worse, [64], 4, draws=500)
    assert told.startswith("m1, −")
    assert told.endswith(" at w = 64")
    assert short_models.told_apart(worse, [999], 4) == "none"


def test_what_models_keep_is_recovery_above_chance_or_no_signal():
    table = short_models.kept(FOUND, 64, 4).set_index("model")
    assert list(table.index) == ["m1", "m2"]
    assert table.loc["m2", "WinoGrande"] == "not measured yet"
    silent = FOUND.teachers.query("model == 'm1' and shots == 5 and not signal")["task"]
    for task in CHANCE:
        cell = table.loc["m1", LABELS[task]]
        if task in set(silent):
            assert cell == "no signal"
            continue
        value, low, high = FOUND.of("m1", task, 5, 64, 4, "recovery_above_chance")
        expected = f"{100 * value:.0f} ({100 * low:.0f} to {100 * high:.0f})"
        assert cell.replace("\N{NO-BREAK SPACE}", " ") == expected.replace("-", "−").replace("inf", "∞")
    assert set(short_models.kept(FOUND, 999, 4).loc[0]) == {"m1", "no signal", "not measured yet"}


def test_a_sentence_names_the_models_with_a_signal():
    told = short_models.sentence(FOUND, "piqa", 64, 4)
    assert told.count("scores") == told.count("above chance") == 2
    assert told.startswith(f"m1 scores {short_summary.in_percent(FOUND.teacher('m1', 'piqa', 5))} with full")
    for measure in ("score", "recovery", "recovery_above_chance"):
        assert short_summary.in_percent(FOUND.of("m2", "piqa", 5, 64, 4, measure)) in told
    assert "under SWA(999, 4) not measured yet" in short_models.sentence(FOUND, "piqa", 999, 4)
    assert short_models.sentence(FOUND, "mmlu", 64, 4) == "no model measured so far has a signal"


# ---- What is stored.


def test_specs_have_fewer_sinks_than_window_and_more_of_them_at_one():
    specs = short_items.specs([4, 64], [0, 4], [1, 8])
    assert specs == [SWA(4, 0), *(SWA(64, s) for s in (0, 1, 4, 8))]


@pytest.fixture
def store(results_folder, monkeypatch):
    """A results folder in which tiny-llama's toy items are stored: parts of four, some of them missing."""
    pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -e '.[eval]'")
    monkeypatch.setattr(harness, "PART", 4)
    monkeypatch.setattr(short_items, "PART", 4)
    asked = {"source": "toy", "batch_size": 4}
    harness.short("run", "tiny-llama", [SWA(16, 2)], ["piqa"], [0], 8, **asked)
    harness.short("run", "tiny-llama", [SWA(32, 2)], ["piqa"], [0], 4, **asked)
    return results_folder


def test_what_is_stored_is_found_part_by_part_and_nothing_else(store):
    specs = [SWA(16, 2), SWA(32, 2), SWA(48, 2)]
    asked = (specs, ["piqa", "arc_easy"], [0, 5], 12)
    got = short_items.gather_all("stored", "tiny-llama", ["tiny-gemma3"], *asked, source="toy")
    counts = got.groupby(["task", "shots", "window"], dropna=False).size().to_dict()
    sizes = {w: counts[("piqa", 0, w)] for w in (16, 32)}
    assert sizes == {16: 8, 32: 4}
    assert len(got) == 8 + 8 + 4  # full attention once, however many specs
    expected = harness.short("stored", "tiny-llama", [SWA(16, 2)], ["piqa"], [0], 8, source="toy")
    kept = got[got["window"].isna() | (got["window"] == 16)].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, expected, check_dtype=False)


def test_where_nothing_is_stored_the_command_is_told(results_folder):
    with pytest.raises(MissingResult, match="measure it with: swa measure short"):
        short_items.gather("stored", "tiny-llama", [SWA(16, 2)], ["piqa"], [0], 4, source="toy")
    with pytest.raises(MissingResult, match="measure it with: swa measure sinks"):
        short_items.perplexities("stored", ["tiny-llama"], "essay", [SWA(16, 2)])


def test_perplexities_are_chapter_1s_rows_for_models_that_have_them(monkeypatch):
    monkeypatch.setenv("SWALIB_RESULTS", str(results.ROOT / "results"))
    models = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"]
    specs = [SWA(w, s) for w, s in product((64, 128), (0, 2))]
    got = short_items.perplexities("stored", models, "essay", specs)
    stored = results.read("sinks").query("metric == 'perplexity' and task == 'essay' and positions == 'text'")
    for row in got.to_dict("records"):
        own = stored[stored["model"] == row["model"]]
        own = own[own["window"].isna() if pd.isna(row["window"]) else own["window"] == row["window"]]
        own = own if pd.isna(row["window"]) else own[own["sinks"] == row["sinks"]]
        assert row["ppl"] in set(own["value"])
    assert got.groupby("model").size().to_dict() == {"smollm2-135m": 5, "gemma3-270m": 3}
