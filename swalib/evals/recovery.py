"""How much of its teacher does a student keep, on which evidence, and how sure is that?

Recovery is the paper's measure, student's score / teacher's score (its Table 1). It counts guessing as
recovered ability, so beside it stand recovery above chance, (student − chance) / (teacher − chance), and
agreement, the share of items where both choose alike. Where the teacher itself can't be told from chance
there is no signal: nothing is there to recover, and every ratio is NaN. Scores are fractions in [0, 1] or
percent, as long as all of a call are the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from swalib.evals.resampling import DRAWS, Interval, bootstrap, interval, ratio_above, resampled_means

# What guessing scores: one option in four, or in two.
CHANCE = {
    **dict.fromkeys(("mmlu", "arc_challenge", "arc_easy", "hellaswag"), 0.25),
    **dict.fromkeys(("piqa", "winogrande"), 0.5),
}
NO_SIGNAL = "no signal"


# ---- Of scores: one teacher, one or several tasks.


def recovery(student: ArrayLike, teacher: ArrayLike) -> np.ndarray:
    """Student / teacher, fp64, of the arguments' broadcast shape.

    Raises:
        ValueError: a teacher's score is 0 or less, or not finite.
    """
    return recovery_above_chance(student, teacher, 0.0)


def recovery_above_chance(student: ArrayLike, teacher: ArrayLike, chance: ArrayLike) -> np.ndarray:
    """(Student − chance) / (teacher − chance), fp64, of the broadcast shape; negative below chance.

    Raises:
        ValueError: a teacher's score is not above chance, or a score is not finite.
    """
    student, teacher, chance = (np.asarray(x, np.float64) for x in (student, teacher, chance))
    if not (np.isfinite(student).all() and np.isfinite(teacher).all()):
        raise ValueError("a score is missing (NaN or infinite): leave out tasks that were not measured.")
    if not (teacher > chance).all():
        what = "0" if not chance.any() else "chance"
        raise ValueError(f"a teacher scores no more than {what}: there is nothing to recover ({NO_SIGNAL}).")
    return (student - chance) / (teacher - chance)


def ratio_of_averages(student: ArrayLike, teacher: ArrayLike, chance: ArrayLike = 0.0) -> float:
    """The paper's average recovery: the mean score over tasks [tasks] of the student / that of the teacher.

    With `chance` [tasks] or a number, both means are taken above chance. Raises as `recovery_above_chance`.
    """
    means = (float(np.mean(np.asarray(x, np.float64))) for x in (student, teacher, chance))
    return float(recovery_above_chance(*means))


def mean_of_ratios(student: ArrayLike, teacher: ArrayLike, chance: ArrayLike = 0.0) -> float:
    """The mean over tasks [tasks] of each task's recovery: another function than `ratio_of_averages`.

    Raises as `recovery_above_chance`, for any of the tasks.
    """
    return float(np.mean(recovery_above_chance(student, teacher, chance)))


class Spread(NamedTuple):
    """A mean over teachers, their sample standard deviation (NaN of one teacher alone), and their number."""

    mean: float
    sd: float
    n: int


def over_teachers(recoveries: ArrayLike) -> Spread:
    """Mean and sample standard deviation (n − 1) of recoveries [teachers], as Table 1 prints them.

    Raises:
        ValueError: there is no teacher, or a recovery is missing.
    """
    values = np.asarray(recoveries, np.float64).ravel()
    if not values.size or np.isnan(values).any():
        raise ValueError("no mean over teachers: give at least one recovery, and none that is missing.")
    return Spread(float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else np.nan, values.size)


# ---- Of items: the same ones, answered by both.


def agreement(student_choice: ArrayLike, teacher_choice: ArrayLike) -> float:
    """The share of items [items] on which both choose the same option, right or wrong.

    Raises:
        ValueError: no items, or not as many from both.
    """
    student_choice, teacher_choice = np.asarray(student_choice), np.asarray(teacher_choice)
    _require_pairs(student_choice, teacher_choice)
    return float(np.mean(student_choice == teacher_choice))


def has_signal(teacher: ArrayLike, chance: float, draws: int = DRAWS, seed: int = 0) -> bool:
    """Whether the teacher's item scores [items] are above chance: the bootstrap interval excludes it.

    Raises as `bootstrap`.
    """
    return bootstrap(teacher, draws=draws, seed=seed).low > chance


def compare(
    student: ArrayLike, teacher: ArrayLike, chance: float, draws: int = DRAWS, seed: int = 0
) -> tuple[Interval, Interval]:
    """Recovery and recovery above chance on the same items, each with its paired 95 % interval.

    Both are NaN throughout where the teacher has no signal. Resamples in which the teacher is not above
    chance count as unbounded.

    Args:
        student, teacher: scores of the same items, 0 or 1 each [items].
        chance: what guessing scores.

    Raises:
        ValueError: no items, not as many from both, or a score that is missing.
    """
    student, teacher = np.asarray(student, np.float64), np.asarray(teacher, np.float64)
    _require_pairs(student, teacher)
    if not has_signal(teacher, chance, draws, seed):
        return Interval(*[np.nan] * 3), Interval(*[np.nan] * 3)
    table = np.stack([student, teacher], axis=1)
    return tuple(bootstrap(table, ratio_above(floor), draws, seed) for floor in (0.0, chance))


def summarise(items: pd.DataFrame, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """One row a task: scores, recovery, recovery above chance and agreement, with their 95 % intervals.

    Args:
        items: one row an item, with the columns task (a name in `CHANCE`), student and teacher (scores, 0 or
            1), student_choice and teacher_choice (the options' numbers).

    Returns:
        task, n, chance, student, teacher, signal, and for each of recovery, recovery_above_chance and
        agreement the value, `_low` and `_high`. Where `signal` is False both recoveries are NaN.

    Raises:
        ValueError: a column is missing, or a task has no known chance; else as `compare`.
    """
    groups = _by_task(items, "task student teacher student_choice teacher_choice")
    return pd.DataFrame(_summary(task, group, draws, seed) for task, group in groups.items())


def averages(
    items: pd.DataFrame, above_chance: bool = False, draws: int = DRAWS, seed: int = 0
) -> dict[str, Interval]:
    """`ratio_of_averages` and `mean_of_ratios` over the tasks with a signal, by name, with 95 % intervals.

    Items are resampled within their task. Both are NaN where no task has a signal.

    Args:
        items: one row an item, with the columns task, student and teacher, as for `summarise`.

    Raises:
        ValueError: as `summarise`.
    """
    groups = _by_task(items, "task student teacher")
    kept = {
        task: one for task, one in groups.items() if has_signal(one["teacher"], CHANCE[task], draws, seed)
    }
    if not kept:
        return dict.fromkeys(("ratio_of_averages", "mean_of_ratios"), Interval(*[np.nan] * 3))
    floor = np.array([CHANCE[task] if above_chance else 0.0 for task in kept])[:, None]
    tables = [one[["student", "teacher"]].to_numpy(np.float64) for one in kept.values()]
    rng = np.random.default_rng(seed)
    seen = np.stack([table.mean(0) for table in tables]) - floor
    drawn = np.stack([resampled_means(table, draws, rng) for table in tables], axis=1) - floor
    whole, ratio = ratio_above(0.0), lambda means: ratio_above(0.0)(means).mean(-1)
    return {
        "ratio_of_averages": interval(whole(seen.mean(-2)), whole(drawn.mean(-2))),
        "mean_of_ratios": interval(ratio(seen), ratio(drawn)),
    }


# ---- What needs no model: baselines.


def majority(gold: ArrayLike) -> float:
    """What always choosing the most frequent right option of gold [items] scores; ValueError for no items."""
    gold = np.asarray(gold)
    _require_pairs(gold, gold)
    return float(np.unique(gold, return_counts=True)[1].max() / gold.size)


class LetterBias(NamedTuple):
    """How often each option's number is chosen, and what choosing blindly at those rates would score."""

    shares: np.ndarray
    blind: float


def letter_bias(choice: ArrayLike, gold: ArrayLike, options: int) -> LetterBias:
    """Shares [options] of the choices, and the expected score of drawing from them whatever the question.

    A model whose score is no better than `blind` shows no sign of reading the questions.

    Args:
        choice, gold: numbers of the chosen and of the right option, 0 to options − 1 [items].

    Raises:
        ValueError: no items, not as many of both, or a number outside the options.
    """
    choice, gold = np.asarray(choice), np.asarray(gold)
    _require_pairs(choice, gold)
    if min(choice.min(), gold.min()) < 0 or max(choice.max(), gold.max()) >= options:
        raise ValueError(f"an option is not one of 0 to {options - 1}: count them from 0.")
    shares, right = (np.bincount(x, minlength=options) / x.size for x in (choice, gold))
    return LetterBias(shares, float(shares @ right))


# ---- The parts.


def _require_pairs(one: np.ndarray, other: np.ndarray) -> None:
    if one.shape != other.shape or one.ndim != 1:
        raise ValueError(
            f"student and teacher must answer the same items: got shapes {one.shape}, {other.shape}."
        )
    if not one.size:
        raise ValueError("there are no items to compare.")


def _by_task(items: pd.DataFrame, columns: str) -> dict[str, pd.DataFrame]:
    if missing := [name for name in columns.split() if name not in items.columns]:
        raise ValueError(f"the items lack the column(s) {', '.join(missing)}.")
    if unknown := sorted(set(items["task"]) - set(CHANCE)):
        raise ValueError(f"no chance level is known for {unknown[0]!r}: choose from {', '.join(CHANCE)}.")
    if items.empty:
        raise ValueError("there are no items to compare.")
    return dict(iter(items.groupby("task", sort=False)))


def _summary(task: str, group: pd.DataFrame, draws: int, seed: int) -> dict:
    chance = CHANCE[task]
    student, teacher = (group[name].to_numpy(np.float64) for name in ("student", "teacher"))
    plain, above = compare(student, teacher, chance, draws, seed)
    same = group["student_choice"].to_numpy() == group["teacher_choice"].to_numpy()
    row = {"task": task, "n": len(group), "chance": chance, "student": student.mean()}
    row |= {"teacher": teacher.mean(), "signal": not np.isnan(plain.value)}
    found = {
        "recovery": plain,
        "recovery_above_chance": above,
        "agreement": bootstrap(same, draws=draws, seed=seed),
    }
    return row | _flat(found)


def _flat(found: dict[str, Interval]) -> dict[str, float]:
    ends = ("", "_low", "_high")
    return {name + end: value for name, one in found.items() for end, value in zip(ends, one, strict=True)}
