"""Recovery and its intervals, against slow loops and closed forms; and no number where there is no signal."""

import math
import random

import numpy as np
import pandas as pd
import pytest

from swalib.evals import recovery, resampling
from swalib.evals.recovery import CHANCE, Interval


def answers(n: int, teacher: float, kept: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores of n items: a teacher's, and a student's who keeps each of them with probability `kept`."""
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < teacher
    student = np.where(rng.random(n) < kept, truth, rng.random(n) < teacher)
    return student.astype(float), truth.astype(float)


# ---- Scores.


def test_recovery_is_the_ratio_and_takes_chance_off_both():
    assert recovery.recovery(56.3, 62.5) == pytest.approx(0.9008)
    assert recovery.recovery_above_chance(0.40, 0.65, 0.25) == pytest.approx(0.375)
    assert recovery.recovery_above_chance(0.20, 0.65, 0.25) == pytest.approx(-0.125)
    both = recovery.recovery_above_chance([0.4, 0.8], [0.65, 0.9], [0.25, 0.5])
    assert np.allclose(both, [0.375, 0.75])


@pytest.mark.parametrize("chance", [0.0, 0.25])
def test_a_guesser_recovers_nothing_above_chance_but_much_below(chance):
    assert recovery.recovery_above_chance(0.25, 0.5, chance) == pytest.approx(0.5 if chance == 0 else 0)


def test_the_two_averages_are_two_functions():
    student, teacher = [0.4, 0.9], [0.8, 0.9]
    assert recovery.ratio_of_averages(student, teacher) == pytest.approx(1.3 / 1.7)
    assert recovery.mean_of_ratios(student, teacher) == pytest.approx((0.5 + 1) / 2)
    chance = [0.25, 0.5]
    assert recovery.ratio_of_averages(student, teacher, chance) == pytest.approx(0.55 / 0.95)
    assert recovery.mean_of_ratios(student, teacher, chance) == pytest.approx((0.15 / 0.55 + 1) / 2)
    assert recovery.ratio_of_averages([50, 70], [60, 80], 25) == pytest.approx(70 / 90)


def test_the_spread_over_teachers_is_a_sample_s():
    values = [0.9, 0.95, 1.0]
    mean = sum(values) / 3
    sd = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    assert recovery.over_teachers(values) == pytest.approx((mean, sd, 3))
    alone = recovery.over_teachers([0.9])
    assert (alone.mean, alone.n) == (0.9, 1)
    assert math.isnan(alone.sd)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: recovery.recovery(0.5, 0.0), "scores no more than 0"),
        (lambda: recovery.recovery_above_chance(0.5, 0.25, 0.25), "scores no more than chance"),
        (lambda: recovery.mean_of_ratios([0.5, 0.5], [0.6, 0.5], 0.5), "no signal"),
        (lambda: recovery.recovery(float("nan"), 0.5), "a score is missing"),
        (lambda: recovery.ratio_of_averages([0.5, np.nan], [0.5, 0.5]), "a score is missing"),
        (lambda: recovery.over_teachers([]), "at least one recovery"),
        (lambda: recovery.over_teachers([0.9, np.nan]), "none that is missing"),
        (lambda: recovery.agreement([1, 2], [1]), r"the same items: got shapes \(2,\), \(1,\)"),
        (lambda: recovery.agreement([], []), "no items to compare"),
        (lambda: recovery.bootstrap([1.0, np.nan]), "none missing"),
        (lambda: recovery.bootstrap([1.0], draws=1), "got 1 draws"),
        (lambda: recovery.bootstrap([1.0], level=95), "level 95"),
        (lambda: recovery.letter_bias([0, 4], [0, 1], 4), "one of 0 to 3"),
        (lambda: recovery.letter_bias([0, -1], [0, 1], 4), "one of 0 to 3"),
        (lambda: recovery.summarise(pd.DataFrame({"task": ["mmlu"]})), "lack the column.s. student"),
        (lambda: recovery.averages(items().assign(task="trivia")), "no chance level is known for 'trivia'"),
        (lambda: recovery.averages(items().iloc[:0]), "no items to compare"),
    ],
)
def test_bad_input_gets_a_sentence(call, told):
    with pytest.raises(ValueError, match=told):
        call()


# ---- Intervals.


def slow(student, teacher, floor: float, draws: int, seed: int) -> tuple[float, float]:
    """The same interval with one item drawn at a time."""
    rng, pairs, found = random.Random(seed), list(zip(student, teacher, strict=True)), []
    for _ in range(draws):
        drawn = [rng.choice(pairs) for _ in pairs]
        s, t = (sum(one) / len(pairs) - floor for one in zip(*drawn, strict=True))
        found.append(s / t)
    found.sort()
    return found[int(0.025 * draws)], found[int(0.975 * draws)]


@pytest.mark.parametrize("floor", [0.0, 0.25])
def test_the_interval_of_a_ratio_is_that_of_items_drawn_one_by_one(floor):
    student, teacher = answers(120, 0.7, 0.8)
    plain, above = recovery.compare(student, teacher, 0.25, draws=20_000)
    fast = above if floor else plain
    assert fast.value == pytest.approx((student.mean() - floor) / (teacher.mean() - floor))
    low, high = slow(student, teacher, floor, draws=3000, seed=1)
    assert fast.low == pytest.approx(low, abs=0.012)
    assert fast.high == pytest.approx(high, abs=0.012)


def test_the_interval_of_a_mean_is_the_binomial_s():
    scores = np.repeat([1.0, 0.0], [420, 180])
    found = recovery.bootstrap(scores, draws=40_000)
    half = 1.96 * math.sqrt(0.7 * 0.3 / 600)
    assert found == pytest.approx((0.7, 0.7 - half, 0.7 + half), abs=0.002)
    narrower = recovery.bootstrap(scores, draws=40_000, level=0.5)
    assert narrower.high - narrower.low == pytest.approx(2 * 0.674 * half / 1.96, abs=0.002)


def test_pairing_matters_a_copy_of_the_teacher_has_no_spread_at_all():
    _, teacher = answers(80, 0.6, 1.0)
    for found in recovery.compare(teacher, teacher, 0.25):
        assert found == (1, 1, 1)
    shuffled = np.random.default_rng(1).permutation(teacher)
    plain, _ = recovery.compare(shuffled, teacher, 0.25)
    assert plain.value == 1
    assert plain.low < 0.85 < 1.15 < plain.high


def test_equal_seeds_give_equal_intervals_whatever_the_order_of_the_items():
    student, teacher = answers(100, 0.7, 0.8)
    found = recovery.compare(student, teacher, 0.25, draws=500, seed=3)
    order = np.random.default_rng(0).permutation(100)
    assert recovery.compare(student[order], teacher[order], 0.25, draws=500, seed=3) == found
    assert recovery.compare(student, teacher, 0.25, draws=500, seed=4) != found


def test_drawing_in_blocks_is_drawing_at_once(monkeypatch):
    scores = np.random.default_rng(0).random(50)
    whole = recovery.bootstrap(scores, draws=400)
    monkeypatch.setattr(resampling, "_AT_ONCE", 50 * 7)
    assert recovery.bootstrap(scores, draws=400) == whole


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng, hits = np.random.default_rng(5), 0
    for seed in range(200):
        teacher = rng.random(150) < 0.7
        student = np.where(
            rng.random(150) < 0.8, teacher, rng.random(150) < 0.35
        )  # 0.8·0.7 + 0.2·0.35 = 0.63
        plain, _ = recovery.compare(student, teacher, 0.25, draws=400, seed=seed)
        hits += plain.low <= (0.8 * 0.7 + 0.2 * 0.35) / 0.7 <= plain.high
    assert 180 <= hits <= 199


# ---- No signal.


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),
    [(0.5, 100, 0.404, 0.596), (0.0, 25, 0.0, 0.133), (1.0, 25, 0.867, 1.0), (0.1175, 400, 0.0896, 0.1527)],
)
def test_intervals_of_shares_are_wilson_s(share, n, low, high):
    assert resampling.wilson(share, n) == pytest.approx((share, low, high), abs=5e-4)


def test_wilson_s_interval_solves_its_quadratic():
    shares = np.array([0, 3, 25]) / 25
    _, low, high = resampling.wilson(shares, 25)
    assert (low[0], high[2]) == (0, 1)
    for share, edge in ((3 / 25, low[1]), (3 / 25, high[1]), (0, high[0]), (1, low[2])):
        assert (share - edge) ** 2 == pytest.approx(1.96**2 * edge * (1 - edge) / 25, rel=1e-9)


@pytest.mark.parametrize(("share", "n"), [(0.5, 0), (1.2, 10), (np.nan, 10)])
def test_a_share_of_nothing_is_refused(share, n):
    with pytest.raises(ValueError, match="need a share in"):
        resampling.wilson(share, n)


def test_a_teacher_at_chance_gives_no_number():
    guesses = np.tile([1.0, 0, 0, 0], 50)
    assert not recovery.has_signal(guesses, 0.25)
    assert recovery.has_signal(guesses, 0.15)
    for found in recovery.compare(np.roll(guesses, 1), guesses, 0.25):
        assert all(math.isnan(number) for number in found)


def test_the_edge_of_the_signal_is_the_binomial_s():
    """Of 400 items at chance 0.25 the two-sided 95 % interval leaves chance from about 0.294 on."""
    told = [recovery.has_signal(np.arange(400) < count, 0.25) for count in (100, 112, 124, 136)]
    assert told == [False, False, True, True]


def items(n: int = 200, seed: int = 0) -> pd.DataFrame:
    parts = []
    for number, (task, score) in enumerate({"mmlu": 0.25, "arc_easy": 0.7, "piqa": 0.8}.items()):
        student, teacher = answers(n, score, 0.8, seed + number)
        choices = np.random.default_rng(seed).integers(0, 4, (2, n))
        rows = {"task": task, "student": student, "teacher": teacher}
        parts.append(
            pd.DataFrame(rows | {"student_choice": choices[0], "teacher_choice": np.sort(choices[1])})
        )
    return pd.concat(parts, ignore_index=True)


def test_a_summary_has_one_row_a_task_and_says_where_there_is_no_signal():
    given = items()
    table = recovery.summarise(given, draws=300).set_index("task")
    assert list(table.index) == ["mmlu", "arc_easy", "piqa"]
    assert table["signal"].tolist() == [False, True, True]
    assert table.loc["mmlu", [name for name in table if name.startswith("recovery")]].isna().all()
    for task in ("arc_easy", "piqa"):
        group, row = given[given["task"] == task], table.loc[task]
        plain, above = recovery.compare(group["student"], group["teacher"], CHANCE[task], draws=300)
        assert tuple(row[["recovery", "recovery_low", "recovery_high"]]) == plain
        assert row["recovery_above_chance_high"] == above.high
        same = sum(group["student_choice"] == group["teacher_choice"]) / len(group)
        assert (
            row["agreement"] == same == recovery.agreement(group["student_choice"], group["teacher_choice"])
        )
        assert row["agreement_low"] < same < row["agreement_high"]
        assert (row["n"], row["chance"]) == (200, CHANCE[task])
    assert 0 < table.loc["mmlu", "agreement"] < 1


@pytest.mark.parametrize("above_chance", [False, True])
def test_averages_leave_out_tasks_without_signal_and_resample_within_tasks(above_chance):
    given = items()
    found = recovery.averages(given, above_chance, draws=4000)
    kept = [given[given["task"] == task] for task in ("arc_easy", "piqa")]
    student, teacher = ([one[name].mean() for one in kept] for name in ("student", "teacher"))
    chance = [0.25, 0.5] if above_chance else 0.0
    expected = recovery.ratio_of_averages(student, teacher, chance)
    assert found["ratio_of_averages"].value == pytest.approx(expected)
    assert found["mean_of_ratios"].value == pytest.approx(recovery.mean_of_ratios(student, teacher, chance))
    rng, drawn = np.random.default_rng(9), []
    for _ in range(1500):
        picks = [one.iloc[rng.integers(0, len(one), len(one))] for one in kept]
        means = ([one[name].mean() for one in picks] for name in ("student", "teacher"))
        drawn.append(recovery.ratio_of_averages(*means, chance))
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found["ratio_of_averages"].low == pytest.approx(low, abs=0.012)
    assert found["ratio_of_averages"].high == pytest.approx(high, abs=0.012)


def test_averages_of_nothing_but_chance_are_no_number():
    found = recovery.averages(items()[lambda rows: rows["task"] == "mmlu"], draws=300)
    assert all(math.isnan(number) for one in found.values() for number in one)
    assert isinstance(found["mean_of_ratios"], Interval)


# ---- Baselines.


def test_the_majority_is_the_share_of_the_most_frequent_answer():
    assert recovery.majority([2, 0, 2, 1, 2]) == 0.6
    assert recovery.majority(["kitchen", "garden", "kitchen", "office"]) == 0.5


def test_letter_bias_and_what_choosing_blindly_at_these_rates_would_score():
    choice, gold = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 2])
    found = recovery.letter_bias(choice, gold, options=4)
    assert found.shares.tolist() == [0.75, 0.25, 0, 0]
    pairs = [choice[i] == gold[j] for i in range(4) for j in range(4)]
    assert found.blind == sum(pairs) / 16
    always = recovery.letter_bias(np.zeros(4, int), gold, options=4)
    assert always.blind == 0.25


def test_chance_is_one_in_the_number_of_options():
    assert list(CHANCE.values()) == [1 / 4] * 4 + [1 / 2] * 2
