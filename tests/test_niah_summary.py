"""S-NIAH in tables and words: Table 3 divided by hand, the null model counted one by one, gaps as gaps."""

import shlex

import needles_small
import numpy as np
import pandas as pd
import pytest

from swalib import SWA, Full, models, reported, results
from swalib.cli import _parameters
from swalib.evals import needles, niah, niah_places, niah_printed, niah_summary
from swalib.reported import findings

ITEMS = needles_small.items()
SCORES = niah_summary.scores(ITEMS)
PLACES = needles_small.places()
RATIOS = niah_printed.ratios()


# ---- printed.


def test_every_cell_of_table_3_is_there_once():
    rows, cells = niah_printed.printed(), reported.printed(3)
    assert len(rows) == len(cells) == 120
    assert sorted(100 * rows["value"]) == pytest.approx(sorted(cells["value"]))
    assert not rows[["task", "context_tokens", "value"]].isna().any(axis=None)
    assert (rows["low"] <= rows["value"]).all()
    assert (rows["value"] <= rows["high"]).all()


def test_ratios_are_the_cells_divided_by_hand():
    def cell(task, length, w, method):
        found = RATIOS[(RATIOS["task"] == task) & (RATIOS["context_tokens"] == length)]
        (row,) = found[(found["window"] == w) & (found["method"] == method)].to_dict("records")
        return row

    assert cell("s_niah_1", 4096, 512, "LoLCATs")["ratio"] == pytest.approx(19.0 / 8.8)
    assert cell("s_niah_3", 2048, 128, "Liger-GLA")["ratio"] == pytest.approx(41.4 / 1.2)
    assert cell("s_niah_3", 4096, 512, "Full attention")["ratio"] == pytest.approx(23.0 / 99.8)
    infinite = cell("s_niah_1", 4096, 128, "LoLCATs")
    assert infinite["ratio"] == infinite["high"] == np.inf
    assert infinite["place"] == "infinite"
    assert infinite["low"] == pytest.approx(0.126 / 0.00597, rel=1e-3)  # 0 of 500: at most 0.597 %
    assert (RATIOS["ratio"] >= RATIOS["low"]).all()
    long = RATIOS[(RATIOS["method"] == "LoLCATs") & (RATIOS["context_tokens"] > 512)]
    known = findings.needle_ratios()
    assert sorted(long["ratio"]) == pytest.approx(sorted(known))


def test_a_ratios_interval_covers_what_500_items_can_do():
    """By drawing both scores again and again: 95 % of the ratios lie inside, give or take."""
    rng = np.random.default_rng(3)
    a, b = 0.2, 0.06
    known = niah_printed._ratio(np.array([a]), np.array([b]))
    drawn = rng.binomial(500, a, 20_000) / np.maximum(rng.binomial(500, b, 20_000), 1)
    inside = np.mean((drawn >= known["low"]) & (drawn <= known["high"]))
    assert 0.93 < inside < 0.97


def test_counts_add_up_and_edges_of_the_band_are_within():
    counts = niah_printed.counted(RATIOS)
    assert counts["cells"].to_dict() == {"LoLCATs": 36, "Liger-GLA": 36, "all": 72}
    linear = RATIOS[RATIOS["method"] != "Full attention"]
    finite = linear[np.isfinite(linear["ratio"])]
    assert counts.loc["all", "within"] == ((finite["ratio"] >= 2) & (finite["ratio"] <= 10)).sum()
    assert counts.loc["all", "infinite"] == len(linear) - len(finite) == 7
    places = niah_printed._ratio(np.array([0.2, 0.2, 0.19, 0.21]), np.array([0.1, 0.02, 0.1, 0.02]))["place"]
    assert list(places) == ["within", "within", "below", "above"]


# ---- the null model.


@pytest.mark.parametrize("spec", [SWA(6, 2), SWA(9, 0), SWA(12, 4)])
def test_seen_is_the_mask_itself(spec):
    rng = np.random.default_rng(0)
    start = rng.integers(0, 60, 80)
    end = start + rng.integers(1, 9, 80)
    rows = pd.DataFrame({"needle_start": start, "needle_end": end, "question": end + rng.integers(0, 9, 80)})
    rows["prompt_tokens"] = rows["question"] + rng.integers(1, 9, 80)
    found = niah_printed.seen(rows, spec.window, spec.sinks)
    for row, question, answer in zip(rows.itertuples(), *found.to_numpy().T, strict=True):
        assert question == niah.sees(row.question - 1, row.needle_start, row.needle_end, spec)
        assert answer == niah.sees(row.prompt_tokens - 1, row.needle_start, row.needle_end, spec)
    assert 0 < found.to_numpy().mean() < 1


def test_null_rates_and_edges_are_counts_over_places():
    table = niah_printed.null(PLACES, [256, 512], [0, 4, 300])
    assert len(table) == 3 * 4 * 2 * 5  # SWA(256, 300) does not exist
    row = table.query("task == 's_niah_1' and context_tokens == 1024 and not short_haystacks")
    row = row.query("window == 256 and sinks == 4").iloc[0]
    part = PLACES.query("task == 's_niah_1' and context_tokens == 1024 and not short_haystacks")
    sees = [
        niah.sees(one.question - 1, one.needle_start, one.needle_end, SWA(256, 4))
        for one in part.itertuples()
    ]
    assert row["null_from_question"] == np.mean(sees)
    assert row["edge_from_question"] == part["depth"].to_numpy()[np.argmax(sees)]
    assert row["null_from_answer"] < row["null_from_question"]
    assert np.isnan(niah_printed.null(PLACES, [8], [0])["edge_from_answer"]).all()


def test_above_null_compares_the_whole_interval():
    table = niah_printed.null(PLACES, [256], [4]).assign(null_from_question=0.15)
    found = niah_printed.above_null(table).set_index(["task", "context_tokens"])
    assert bool(found.loc[("s_niah_1", 2048), "above"])  # 21.0 (17.7 to 24.8)
    assert not bool(found.loc[("s_niah_1", 4096), "above"])  # 14.6
    assert found.loc[("s_niah_1", 4096), "excess"] == pytest.approx(-0.004)
    other = niah_printed.above_null(table, method="LoLCATs").set_index(["task", "context_tokens"])
    assert other.loc[("s_niah_2", 4096), "value"] == pytest.approx(0.082)


def test_beyond_goes_on_from_exact_rates_and_reach_ends():
    table = niah_printed.beyond(PLACES, [256, 512], [4096, 8192, 65536], layers=30)
    exact = niah_printed.null(PLACES, [256, 512], [4]).query("context_tokens == 4096 and not short_haystacks")
    both = table.merge(exact, on=["task", "window", "context_tokens"])
    assert len(both) == 6
    assert np.allclose(both["null"], both["null_from_question"], atol=1 / 40)
    row = table.query("task == 's_niah_1' and window == 256 and context_tokens == 65536").iloc[0]
    room = 65536 - (4096 - 3901) - 20  # all but what is no haystack, and the needle itself
    assert row["null"] == pytest.approx((252 - 20) / room)
    assert row["reach"] == pytest.approx((30 * 251 - 30) / room)
    assert (table.query("context_tokens == 4096")["reach"] == 1).all()


def test_words_hold_the_numbers_of_their_tables():
    rates = niah_printed.null(PLACES, [128, 256, 512], [0, 4])
    told = niah_printed.words(RATIOS, rates, niah_printed.lengths(PLACES))
    assert all(type(value) in (int, float) for value in told.values())
    assert told["kept_least"] == pytest.approx(9.2)
    assert told["kept_most"] == pytest.approx(23.0, abs=0.1)
    assert told["within"] + told["below"] + told["above"] + told["infinite"] == told["cells"] == 72
    assert told["long_cells"] == 54
    assert told["behind"] == 0
    assert (told["least_essays"], told["printed_1_256"]) == (97.6, 91.8)
    assert told["s_niah_2_short_haystack"] == 0
    assert told["over"] <= told["over_of"] == 27
    assert told["cut_1024"] == pytest.approx(100 * 20 / 809)


# ---- places.


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(" ".join(f"Day {n}. The old ferry left late." for n in range(99)), encoding="utf-8")
    return str(path)


def test_null_rates_go_through_every_place(book):
    loaded = models.load("tiny-llama")
    found = niah_places.measure("smoke", "tiny-llama", needles.TASKS, [1100], [False], text=book)
    rates = niah_printed.null(found, [300, 500, 4000], [4]).set_index(["task", "window"])
    for task, places in found.groupby("task"):
        needle = needles.draw(task, 0)[0]
        ends = [needles.build(loaded, task, 1100, needle, depth, text=book) for depth in (0.0, 1.0)]
        assert len(places) == (40 if task != "s_niah_1" else ends[0].units)
        spans = places[["needle_start", "needle_end"]].to_numpy()
        assert (spans[0] == ends[0].span).all()
        assert task == "s_niah_1" or (spans[-1] == ends[1].span).all()
        for where in ("null_from_question", "null_from_answer"):
            assert 0 <= rates[where][task, 300] < rates[where][task, 500] < rates[where][task, 4000] == 1
    line, before = len(needles.NOISE) + 1, 300 - 4 - len(needles.draw("s_niah_1", 0)[0].sentence) - 1
    expected = (before // line) / (found["task"] == "s_niah_1").sum()
    assert rates["null_from_question"]["s_niah_1", 300] == pytest.approx(expected)


def test_places_are_measured_once_and_hold_both_haystacks(results_folder, book):
    asked = ("tiny-llama", ["s_niah_2"], [700])
    settings = {"text": book, "new_tokens": 4}
    with pytest.raises(results.MissingResult, match="measure it with: swa measure niah_places"):
        niah_places.measure("stored", *asked, **settings)
    found = niah_places.measure("run", *asked, **settings)
    assert found.equals(niah_places.measure("stored", *asked, **settings))
    assert found[found["short_haystacks"]]["prompt_tokens"].max() < 500  # not one step of words fits
    assert found[~found["short_haystacks"]]["prompt_tokens"].min() > 660


def test_scores_are_means_of_their_items():
    for row in SCORES.to_dict("records"):
        own = ITEMS[(ITEMS["task"] == row["task"]) & (ITEMS["context_tokens"] == row["context_tokens"])]
        full = own[own["window"].isna()]
        own = (
            full
            if np.isnan(row["window"])
            else own[(own["window"] == row["window"]) & (own["sinks"] == row["sinks"])]
        )
        own = own[own["positions"] == row["positions"]]
        assert (row["found"], row["n"]) == (own["hit"].mean(), len(own))
        assert row["loglikelihood"] == pytest.approx((own["loglikelihood"] / 5).mean())
        inside = own[own["null_from_question"].astype(bool)]
        assert (row["inside"], row["inside_n"]) == (inside["hit"].sum(), len(inside))
        assert row["outside"] + row["inside"] == own["hit"].sum()
        assert row["signal"] == bool(full["hit"].any())
    silent = SCORES[~SCORES["signal"]]
    assert set(zip(silent["task"], silent["context_tokens"], strict=True)) == {("s_niah_3", 2048)}


def test_depths_split_the_items_and_lose_none():
    table = niah_summary.by_depth(ITEMS, bins=4)
    assert table["n"].sum() == len(ITEMS)
    assert set(table["step"]) == {0, 1, 2, 3}
    row = table.query(
        "task == 's_niah_1' and context_tokens == 1024 and window == 256 and sinks == 4 and step == 3"
    )
    own = ITEMS[(ITEMS["task"] == "s_niah_1") & (ITEMS["context_tokens"] == 1024) & (ITEMS["depth"] >= 0.75)]
    own = own[(own["window"] == 256) & (own["sinks"] == 4) & (own["positions"] == "text")]
    assert row["found"].iloc[0] == own["hit"].mean()


def test_words_count_both_sides_of_the_window():
    told = niah_summary.words(SCORES, "m1", 256, 4)
    own = ITEMS[(ITEMS["window"] == 256) & (ITEMS["sinks"] == 4) & (ITEMS["positions"] == "text")]
    outside = own[~own["null_from_question"].astype(bool)]
    assert told["outside"] == f"{outside['hit'].sum()} of {len(outside)}"
    assert told["found"] == f"{own['hit'].sum()} of {len(own)}"
    assert told["silent"] == "S-NIAH-3 at 2,048 tokens"
    assert told["verdict"].endswith("something gets past the window.")
    none = ITEMS.assign(hit=ITEMS["hit"] & ITEMS["null_from_question"].astype(bool))
    told = niah_summary.words(niah_summary.scores(none), "m1", 256, 4)
    assert "nothing that greedy decoding could use gets past" in told["verdict"]
    told = niah_summary.words(SCORES, "m1", 64, 4)
    assert told["student"] == told["outside"] == "not measured yet"
    assert told["full"].startswith("90 % (82 to 95) at 512 tokens")
    assert "2,048" in told["full"]
    sizes = ITEMS.groupby(["task", "context_tokens", "window", "sinks", "positions"], dropna=False).size()
    assert told["items"] == str(sizes.max())
    fewer = ITEMS.drop(ITEMS[ITEMS["context_tokens"] == 512].index[::2])
    mixed = niah_summary.words(niah_summary.scores(fewer), "m1", 256, 4)["items"].split(" to ")
    assert int(mixed[0]) < int(mixed[1]) == sizes.max()
    rest = ITEMS[(ITEMS["task"] != "s_niah_2") | (ITEMS["context_tokens"] != 2048)]
    told = niah_summary.words(niah_summary.scores(rest), "m1", 256, 4)
    assert "2,048" not in told["full"] + told["student"]  # not all tasks are known there
    assert "1,024" in told["full"]


def test_a_window_that_holds_the_text_is_full_attention_unmeasured(monkeypatch):
    asked = []

    def measured(mode, model, specs, tasks, lengths, limit, **settings):
        asked.append((lengths[0], specs))
        if lengths == [2048]:
            raise results.MissingResult("none stored")
        rows = ITEMS[(ITEMS["context_tokens"] == lengths[0]) & ~ITEMS["defined"].astype(bool)]
        return rows.drop(columns="defined")

    monkeypatch.setattr(niah, "measure", measured)
    specs = [SWA(256, 4), SWA(512, 4)]
    rows = niah_summary.gather("stored", "m1", specs, ["s_niah_1"], [512, 2048], 30)
    assert asked == [(512, [Full(), SWA(256, 4)]), (2048, [Full(), *specs])]
    copied = rows[rows["defined"]]
    assert set(copied["window"]) == {512}
    full = rows[rows["window"].isna()]
    assert copied["hit"].tolist() == full["hit"].tolist()
    assert copied["null_from_answer"].all()
    both = niah_summary.gather_all("stored", "m1", ["m2"], specs, ["s_niah_1"], [512], 30)
    assert len(both) == 2 * len(rows)
    with pytest.raises(results.MissingResult, match="none stored"):
        niah_summary.gather("stored", "m1", specs, ["s_niah_1"], [2048], 30)


def test_the_command_names_one_spec_in_the_notebooks_own_parameters():
    for positions, window, sinks in (("text", 256, 4), ("text", 256, 0), ("cache", 256, 4)):
        line = niah_summary.command("s_niah_1", "m1", positions, window, sinks, [512])
        given = _parameters(shlex.split(line)[3:])
        lists = {name: given[name] for name in ("windows", "bare_windows", "cache_windows")}
        used = "cache_windows" if positions == "cache" else "windows" if sinks else "bare_windows"
        assert lists == {name: [256] if name == used else [] for name in lists}
        assert (given["tasks"], given["lengths"], given["model"]) == (["s_niah_1"], [512], "m1")
