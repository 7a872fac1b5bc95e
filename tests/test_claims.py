"""The calculator, held to a slow way over the CSV's rows; its presets; numbers that trace back."""

import itertools
import statistics

import numpy as np
import pytest

from swalib import reported
from swalib.reported import TASKS, claims, findings
from swalib.reported.claims import Options, recompute
from swalib.reported.pairs import pairs


def slowly(options: Options) -> dict[str, tuple[float, float]]:
    """Method -> mean recovery and SWA's, from the CSV's rows with dictionaries and loops."""
    rows = reported.printed(2)
    score = {(r.base_model, r.method, r.task): r.value for r in rows.itertuples()}
    tasks = TASKS if options.six_tasks else TASKS[:1]
    chance = {task: 50 if task in ("piqa", "winogrande") else 25 for task in tasks}
    roles = {(r.role, r.base_model, r.method, r.task): r.value for r in reported.source().itertuples()}
    shots = reported.doubts().query("kind == 'shots'")
    zero_shot = set(zip(shots["base_model"], shots["method"], strict=True))
    found: dict[str, list] = {}
    for base_model, row in dict.fromkeys(zip(rows["base_model"], rows["method"], strict=True)):
        if row == "Teacher" or base_model not in options.base_models:
            continue
        if options.without_qwq and base_model == "QwQ-32B":
            continue
        method = row.removesuffix("-RoPE")
        if options.source_cells and row == "QRWKV7":
            if base_model == "Qwen2.5-72B-Instruct":
                continue
            method = "QRWKV6"
        student, teacher = {}, {}
        for task in tasks:
            student[task] = score.get((base_model, row, task))
            teacher[task] = score[base_model, "Teacher", task]
            if options.source_cells:
                student[task] = roles.get(("student", base_model, row, task), student[task])
            if options.source_teachers:
                own = roles.get(("teacher", base_model, row, task))
                if (base_model, row) in zero_shot and row != "Llamba":
                    own = roles.get(("teacher", base_model, "RADLADS", task))
                    if own is None and task == "mmlu":
                        teacher[task] = None
                teacher[task] = own if own is not None else teacher[task]
        if None in student.values() or None in teacher.values():
            continue
        floor = {task: chance[task] if options.above_chance else 0 for task in tasks}
        if options.mean_of_ratios:
            parts = [(student[t] - floor[t]) / (teacher[t] - floor[t]) for t in tasks]
            value = sum(parts) / len(parts)
        else:
            value = sum(student[t] - floor[t] for t in tasks) / sum(teacher[t] - floor[t] for t in tasks)
        found.setdefault(method, []).append((base_model, 100 * value))
    swa = dict(found.pop("SWA", []))
    return {
        method: (
            statistics.mean(value for _, value in ones),
            statistics.mean(
                swa[base_model] for base_model in ([b for b, _ in ones] if options.same_teachers else swa)
            ),
        )
        for method, ones in found.items()
    }


@pytest.mark.parametrize("options", list(claims.every_combination())[::3], ids=str)
def test_every_combination_is_the_slow_one(options):
    claim, expected = recompute(options=options), slowly(options)
    assert {row.method for row in claim.rows} == set(expected)
    for row in claim.rows:
        assert (row.mean_pct, row.swa_pct) == pytest.approx(expected[row.method])
    leads = [row.lead for row in claim.rows]
    assert leads == sorted(leads)
    assert claim.beaten == sum(swa > own for own, swa in expected.values())
    assert claim.rank == 1 + len(expected) - claim.beaten


def test_fewer_teachers_and_none():
    some = Options(base_models=("Llama-3.1-8B", "QwQ-32B"))
    found = {row.method: row for row in recompute(options=some).rows}
    assert set(found) == {"LoLCATs", "Llamba", "QRWKV6"} == set(slowly(some))
    assert np.isnan(found["Llamba"].sd_pct)
    nobody = recompute(options=Options(base_models=()))
    assert (nobody.rows, nobody.rank, len(nobody.left_out)) == ((), 1, 12)
    assert nobody.sentence() == "No linear method is left to compare with: choose more teachers."


def test_every_number_is_traced_to_its_cells():
    for row in recompute(options=claims.FAIR).rows:
        for one in (*row.used, *row.swa_used):
            pair = pairs()[one.index]
            assert one.base_model == pair.base_model
            assert one.student == pair.source_student[:1]
            assert one.teacher == pair.source_teacher[:1]
            above = 100 * (one.student[0] - 25) / (one.teacher[0] - 25)
            assert one.recovery_pct == pytest.approx(above)
        assert row.mean_pct == pytest.approx(statistics.mean(one.recovery_pct for one in row.used))


def test_the_extremes_are_those_of_all_128_combinations():
    combinations = list(claims.every_combination())
    assert len(set(combinations)) == 2**7
    leads = {options: min(swa - own for own, swa in slowly(options).values()) for options in combinations}
    most, least = claims.extremes()
    assert leads[most] == pytest.approx(max(leads.values()))
    assert leads[least] == pytest.approx(min(leads.values()))
    assert (leads[most], leads[least]) == pytest.approx((1.43, -5.75), abs=0.005)


def test_how_much_hangs_on_the_assumptions():
    ways = [one for one in claims.every_combination() if one.six_tasks or not one.mean_of_ratios]
    leads = [{method: swa - own for method, (own, swa) in slowly(one).items()} for one in ways]
    found = claims.sensitivity()
    assert (found.total, found.upheld) == (96, sum(min(one.values()) > 0 for one in leads)) == (96, 17)
    assert found.most_ahead == max(sum(lead <= 0 for lead in one.values()) for one in leads) == 3
    methods = {method for one in leads for method, lead in one.items() if lead <= 0}
    assert found.ahead == {
        method: sum(one.get(method, 1) <= 0 for one in leads) for method in sorted(methods)
    }
    assert methods == {"QRWKV6", "QRWKV7", "DiJiang", "Llamba"}


def test_the_presets_are_four_and_say_what_they_say():
    presets = claims.presets()
    assert list(presets) == ["as printed", "fair", "most favourable to SWA", "least favourable"]
    assert all(one != other for one, other in itertools.combinations(presets.values(), 2))
    assert recompute(options=presets["as printed"]).sentence() == (
        "With each averaged over its own teachers, SWA(64, 4) recovers more of six tasks than 10 of 11 "
        "linear methods. QRWKV6, the best against it, is 0.2 points ahead (99.2 % against 99.0 %). SWA is "
        "best on 8 of 10 teachers."
    )
    assert recompute(options=presets["fair"]).sentence() == (
        "On the same teachers, SWA(64, 4) recovers more of MMLU above chance than 8 of 10 linear methods. "
        "DiJiang, the best against it, is 1.2 points ahead (72.0 % against 70.8 %). SWA is best on 8 of 10 "
        "teachers."
    )
    assert "points behind" in recompute(options=presets["most favourable to SWA"]).sentence()


def test_an_unknown_teacher_is_refused():
    with pytest.raises(ValueError, match="no teacher 'GPT-2': choose from Phi"):
        Options(base_models=("GPT-2",))


# ---- The chapter's prose.


def test_the_headline_is_plain_numbers_true_to_the_calculator():
    numbers = findings.headline()
    assert {type(number) for number in numbers.values()} == {int, float}
    fair = recompute(options=claims.FAIR)
    assert (numbers["fair_beaten"], numbers["fair_methods"]) == (fair.beaten, len(fair.rows)) == (8, 10)
    assert (numbers["fair_best"], numbers["fair_best_swa"]) == pytest.approx((72.02, 70.81), abs=0.005)
    assert numbers["fair_behind"] == pytest.approx(numbers["fair_best"] - numbers["fair_best_swa"])
    printed = [numbers[f"printed_{name}"] for name in ("swa_mmlu", "swa_average6", "qrwkv6_average6")]
    assert printed == [93.2, 99.0, 99.1]


def test_the_error_of_one_pair_is_the_binomial_s():
    stderr = (0.407 * (1 - 0.407) / 14_042) ** 0.5
    plain = findings.stderr_points("Llama2.0-7B", "DiJiang")
    assert plain == pytest.approx(100 * stderr / 0.459)
    above = findings.stderr_points("Llama2.0-7B", "DiJiang", above_chance=True)
    assert above == pytest.approx(100 * stderr / (0.459 - 0.25))
