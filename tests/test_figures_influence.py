"""Influence in tables, words and figures: exact counts against `reachable`, ratios against hand-made rows."""

import numpy as np
import pandas as pd
import pytest

from swalib import SWA, Full, figures, results
from swalib.evals import reach, reach_summary, reachability
from swalib.evals.reach_summary import at, layers_table, relays, times, words

DISTANCES = np.array([0, 1, 2, 4, 8, 16, 32, 48, 64, 96, 128])
LAWS = {
    (None, None): lambda d: 1 / (1 + d),
    (32, 4): lambda d: 4.0 ** -(d / 16),
    (32, 0): lambda d: 2.0 ** -(d / 16),
}


def made_up(model: str = "smollm2-135m", kind: str = "shift", measure: str = "logits") -> pd.DataFrame:
    """Rows as `gather` returns them, whose means follow a law of the distance."""
    parts = []
    for (w, s), law in LAWS.items():
        limit = np.nan if w is None else 30 * (w - s - 1)
        about = {"model": model, "window": w or pd.NA, "sinks": s if w else pd.NA, "kind": kind}
        about |= {"measure": measure, "pieces": 3, "exact_reach": 128.0, "limit": limit}
        mean = law(DISTANCES)
        about |= {"mean": mean, "least": mean / 2, "most": 3 * mean}
        parts.append(
            pd.DataFrame(
                {
                    "distance": DISTANCES.astype(float),
                }
            ).assign(**about)
        )
    return pd.concat(parts, ignore_index=True)


ROWS = pd.concat([made_up(), made_up(kind="gradient", measure="gradient")], ignore_index=True)


# ---- exactly.


def test_no_path_leads_through_first_tokens_and_some_do_through_others():
    found = relays([SWA(6, 2), SWA(6, 2, sink_positions=(10, 20))], layers=3, length=30)
    assert found["differing"].tolist()[0] == 0
    assert found["differing"].tolist()[1] > 0
    within = sum(1 for i in range(30) for j in range(i + 1) if i - j <= 9 or j < 2)
    assert found["pairs"].iloc[0] == within, "three layers of three tokens, and two sinks"
    assert found["what"].tolist() == ["SWA(6, 2), the first tokens as sinks", "SWA(6, 2), sinks at 10, 20"]


@pytest.mark.parametrize(("w", "s"), [(6, 2), (9, 0), (4, 3)])
def test_the_table_of_layers_is_what_masks_show(w, s):
    table = layers_table([w], s, [5, 13, 24], depths=(2, 3)).loc[f"SWA({w}, {s})"]
    for distance in (5, 13, 24):
        start = s + 1
        seen = [
            n
            for n in range(1, 26)
            if reachability.reachable(start + 30, [SWA(w, s)] * n)[start + distance, start]
        ]
        assert table[str(distance)] == (str(seen[0]) if seen else "never")
    assert table["reach of 3"] == str(3 * (w - s - 1))


def test_a_full_layer_anywhere_reaches_everything():
    for place in range(4):
        layers = [SWA(5, 1)] * 4
        layers[place] = Full()
        assert reachability.reachable(40, layers)[39].all(), "the chapter's second exercise"


# ---- words of measured rows.


def test_words_are_ratios_of_the_rows():
    told = words(ROWS, "smollm2-135m", 32, 4)
    assert told["fall_2"] == times(4.0**-1, 4.0**-4) == "64 times"
    assert told["fall_3"] == "1,000 times", "1,024, to two digits"
    assert told["full_fall_2"] == times(1 / 17, 1 / 65) == "3.8 times"
    assert told["below_2"] == times(1 / 65, 4.0**-4)
    assert told["above"] == times(4.0**-1, 1 / 17) == "4.2 times"
    assert told["sinkless_2"] == times(2.0**-4, 4.0**-4) == "16 times"
    assert told["sinkless"] == "16 times at 2w, 64 times at 3w"
    assert (told["pieces"], told["tokens"], told["limit"]) == ("3", "128", "810")


@pytest.mark.parametrize(("model", "window"), [("smollm2-135m", 64), ("other", 32)])
def test_what_is_not_measured_is_said_to_be(model, window):
    told = words(ROWS, model, window, 4)
    assert {told[name] for name in ("fall_2", "below_3", "sinkless_2", "limit")} == {"not measured yet"}


def test_a_distance_without_a_bin_near_it_has_no_value():
    own = ROWS[ROWS["kind"] == "shift"]
    assert at(own, 64) == pytest.approx(1 / 65)
    assert np.isnan(at(own, 300))
    assert np.isnan(at(own, 64, 99, 4))
    assert times(1.0, 0.0) == "infinitely many times"


def test_gaps_are_left_out_and_the_limit_is_not_the_pieces(results_folder, tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("".join(chr(32 + (n * n * 7 + n // 3) % 95) for n in range(900)), encoding="utf-8")
    asked = {"kinds": ["gradient"], "text": str(path), "context_tokens": 64, "n": 1}
    specs = reach_summary.specs([6, 9], [2])
    assert specs == [Full(), SWA(6, 2), SWA(9, 2)]
    with pytest.raises(results.MissingResult):
        reach_summary.gather("stored", "tiny-llama", [], specs, **asked)
    reach.measure("run", "tiny-llama", specs[:2], **asked)
    monkeypatch.setitem(reach_summary.LAYERS, "tiny-llama", 3)
    rows = reach_summary.gather("stored", "tiny-llama", ["tiny-qwen2"], specs, **asked)
    assert set(rows["window"].dropna()) == {6}
    assert set(rows["limit"].dropna()) == {9}
    slid = rows[rows["window"].notna()]
    assert slid["distance"].iloc[-1] == 61.5, "the sinks, 61 and 62 tokens back, have a bin of their own"
    assert slid["mean"].iloc[-1] > 0
    assert (slid.loc[(slid["distance"] > 12) & (slid["distance"] < 61), "mean"] == 0).all()


# ---- figures.


def test_every_line_of_the_figure_is_the_rows_without_zeros():
    rows = ROWS.assign(mean=ROWS["mean"].where(ROWS["distance"] < 100, 0.0))
    data = figures.influence_by_distance(rows, caption="c", command="x", window=32, sinks=4).data
    assert [kind["id"] for kind in data["kinds"]] == ["shift|logits", "gradient|gradient"]
    for (w, s), law in LAWS.items():
        line = data["lines"][f"smollm2-135m|shift|logits|{'full' if w is None else f'{w},{s}'}"]
        assert line["x"] == [1, 2, 4, 8, 16, 32, 48, 64, 96]
        assert line["y"] == pytest.approx([law(x) for x in line["x"]], rel=1e-4)
        assert line["low"] == pytest.approx([law(x) / 2 for x in line["x"]], rel=1e-4)
        assert line["high"] == pytest.approx([3 * law(x) for x in line["x"]], rel=1e-4)
    assert data["limits"] == {"smollm2-135m|32,4": 810, "smollm2-135m|32,0": 930}
    assert data["initial"] == {"window": 32, "sinks": 4}


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: figures.needle_reach({"m": 99}, caption="c"), "layers up to 40"),
        (lambda: figures.needle_reach({}, caption="c"), "layers up to 40"),
        (
            lambda: figures.influence_by_distance(ROWS.drop(columns="limit"), caption="c", command="x"),
            "limit",
        ),
        (lambda: figures.influence_by_distance(ROWS.assign(kind="push"), caption="c", command="x"), "'push'"),
        (
            lambda: figures.influence_by_distance(pd.concat([ROWS, ROWS]), caption="c", command="x"),
            "more than once",
        ),
    ],
)
def test_what_can_t_be_drawn_is_refused(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()
