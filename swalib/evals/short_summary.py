"""What do the scored items of the six short tasks say? Scores, recovery, and whether the window binds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from swalib.evals.harness import binds
from swalib.evals.recovery import CHANCE, has_signal, letter_bias, majority
from swalib.evals.resampling import DRAWS, Interval, bootstrap, interval, ratio_above, resampled_means
from swalib.reported import LABELS

MEASURES = ("score", "recovery", "recovery_above_chance", "agreement")
AVERAGE6, SIGNAL_AVERAGE, ALL_ITEMS = "average6", "signal_average", "all_items"
NONE, UNKNOWN = Interval(np.nan, np.nan, np.nan), "not measured yet"


# ---- Scores, recovery and agreement.


class Summary(NamedTuple):
    """teachers: a row for each model, task and number of shots. rows: one for each of a spec's measures.

    A task is one of the six, "average6" (their mean, the paper's average) or "signal_average" (the mean over
    the tasks in which the teacher is above chance).

    teachers: model, task, shots, n, tasks (how many are averaged), score, low, high, signal, chance, majority
    and letter_bias (what always choosing the commonest right option scores, and choosing blindly as often as
    the teacher chooses each; NaN for averages). rows: model, task, shots, window, sinks, n, measure (one of
    MEASURES), value, low, high. Intervals are 95 %, over items resampled within their tasks and paired.
    Recoveries are NaN where the teacher has no signal; an end of an interval that is unbounded is infinite.
    """

    teachers: pd.DataFrame
    rows: pd.DataFrame

    def of(self, model: str, task: str, shots: int, window: int, sinks: int, measure: str) -> Interval:
        """One measured number with its interval; all NaN where it is not measured."""
        asked = {"model": model, "task": task, "shots": shots, "window": window, "sinks": sinks}
        found = self.rows
        for name, value in (asked | {"measure": measure}).items():
            found = found[found[name] == value]
        return Interval(*(float(x) for x in found.iloc[0][["value", "low", "high"]])) if len(found) else NONE

    def teacher(self, model: str, task: str, shots: int) -> Interval:
        """The score of full attention with its interval; all NaN where it is not measured."""
        keys = self.teachers[["model", "task", "shots"]]
        found = self.teachers[(keys == [model, task, shots]).all(axis=1)]
        return Interval(*(float(x) for x in found.iloc[0][["score", "low", "high"]])) if len(found) else NONE


def summarise(items: pd.DataFrame, draws: int = DRAWS, seed: int = 0) -> Summary:
    """Scores, recovery and agreement of every spec, task by task and on average; see `Summary`.

    Args:
        items: as `short_items.gather` returns them.

    Raises:
        ValueError: there are no items of full attention, or a task has no known chance.
    """
    if not items["window"].isna().any():
        raise ValueError("there is no item of full attention: nothing can be recovered without the teacher.")
    if unknown := sorted(set(items["task"]) - set(CHANCE)):
        raise ValueError(f"no chance level is known for {unknown[0]!r}: choose from {', '.join(CHANCE)}.")
    teachers, rows = [], []
    for (model, shots), part in items.groupby(["model", "shots"], sort=False):
        full = {task: one for task, one in part[part["window"].isna()].groupby("task", sort=False)}
        found = [_teacher(tasks, name, full, draws, seed) for name, tasks in _groups(full, draws, seed)]
        teachers += [{"model": model, "shots": shots, **one} for one in found]
        for (window, sinks), own in part[part["window"].notna()].groupby(["window", "sinks"]):
            about = {"model": model, "shots": shots, "window": int(window), "sinks": int(sinks)}
            rows += [about | row for row in _measured(own, found, draws, seed)]
    columns = ["model", "shots", "window", "sinks", "task", "n", "measure", "value", "low", "high"]
    return Summary(pd.DataFrame(teachers), pd.DataFrame(rows, columns=columns))


def _groups(full: Mapping[str, pd.DataFrame], draws: int, seed: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from ((task, (task,)) for task in full)
    if set(full) == set(CHANCE):
        yield AVERAGE6, tuple(CHANCE)
    right = {task: one["teacher"] == one["gold"] for task, one in full.items()}
    told = tuple(task for task in full if has_signal(right[task], CHANCE[task], draws, seed))
    if len(told) > 1:
        yield SIGNAL_AVERAGE, told


def _teacher(tasks: tuple[str, ...], name: str, full: Mapping, draws: int, seed: int) -> dict:
    parts = [full[task] for task in tasks]
    chance = float(np.mean([CHANCE[task] for task in tasks]))
    seen, drawn = resampled(parts, draws, seed)
    score = interval(seen[1], drawn[:, 1])
    row = {"task": name, "n": sum(map(len, parts)), "tasks": tasks, "score": score.value}
    row |= {"low": score.low, "high": score.high, "chance": chance, "majority": np.nan, "letter_bias": np.nan}
    if len(tasks) > 1:
        return row | {"signal": score.low > chance}
    gold, teacher = (parts[0][column].to_numpy() for column in ("gold", "teacher"))
    options = max(round(1 / chance), int(max(gold.max(), teacher.max())) + 1)
    baselines = {"majority": majority(gold), "letter_bias": letter_bias(teacher, gold, options).blind}
    return row | baselines | {"signal": has_signal(teacher == gold, chance, draws, seed)}


def _measured(own: pd.DataFrame, teachers: Sequence[dict], draws: int, seed: int) -> Iterator[dict]:
    by_task = dict(iter(own.groupby("task", sort=False)))
    for teacher in teachers:
        if not set(teacher["tasks"]) <= set(by_task):
            continue
        parts = [by_task[task] for task in teacher["tasks"]]
        seen, drawn = resampled(parts, draws, seed)
        row = {"task": teacher["task"], "n": sum(map(len, parts))}
        for measure in MEASURES:
            value, low, high = _interval(measure, seen, drawn, teacher)
            yield row | {"measure": measure, "value": value, "low": low, "high": high}


def _interval(measure: str, seen: np.ndarray, drawn: np.ndarray, teacher: Mapping) -> Interval:
    """One measure of means [..., (student, teacher, same)]."""
    if measure in ("score", "agreement"):
        column = 0 if measure == "score" else 2
        return interval(seen[column], drawn[:, column])
    if not teacher["signal"]:
        return NONE
    ratio = ratio_above(teacher["chance"] if measure == "recovery_above_chance" else 0.0)
    return interval(ratio(seen[:2]), ratio(drawn[:, :2]))


def resampled(parts: Sequence[pd.DataFrame], draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Means over tasks of student's score, teacher's score and sameness: [3], and resampled [draws, 3]."""
    rng = np.random.default_rng(seed)
    tables = [_table(part) for part in parts]
    seen = np.mean([table.mean(0) for table in tables], axis=0)
    return seen, np.mean([resampled_means(table, draws, rng) for table in tables], axis=0)


def _table(part: pd.DataFrame) -> np.ndarray:
    right, same = part["teacher"] == part["gold"], part["choice"] == part["teacher"]
    return np.stack([part["correct"], right, same], axis=1).astype(np.float64)


# ---- Does the window bind?


def lengths(items: pd.DataFrame, windows: Sequence[int], bins_per_octave: int = 4) -> pd.DataFrame:
    """How many items have how many tokens that attend: a row for each bin of each model, task and shots.

    An item's longest row counts, without its last token, which is only predicted. "all_items" pools all six.

    Args:
        items: as `short_items.gather` returns them, with those of full attention.

    Returns:
        model, task, shots, low, high (a bin holds lengths above low up to high, and every window is an edge,
        so that no bin is half within it), items.
    """
    rows = []
    for (model, task, shots), part in _pooled(items[items["window"].isna()]):
        attending = part["tokens"].to_numpy() - 1
        steps = np.arange(bins_per_octave * int(np.ceil(np.log2(max(attending.max(), 2)))) + 1)
        edges = np.unique([0, *np.round(2 ** (steps / bins_per_octave)).astype(int), *windows])
        counts = np.bincount(np.searchsorted(edges, attending), minlength=len(edges))[1:]
        about = {"model": model, "task": task, "shots": shots}
        rows.append(pd.DataFrame({**about, "low": edges[:-1], "high": edges[1:], "items": counts}))
    return pd.concat(rows, ignore_index=True)


def bound(items: pd.DataFrame, windows: Sequence[int]) -> pd.DataFrame:
    """The share of items longer than each window: model, task, shots, window, n, bound (items), share."""
    rows = []
    for (model, task, shots), part in _pooled(items[items["window"].isna()]):
        for w in windows:
            longer = int(binds(part["tokens"].to_numpy(), w).sum())
            about = {"model": model, "task": task, "shots": shots, "window": w}
            rows.append({**about, "n": len(part), "bound": longer, "share": longer / len(part)})
    return pd.DataFrame(rows)


def apart(items: pd.DataFrame, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """Full attention and SWA on the items that are longer than the window, and on those that fit into it.

    Returns:
        model, task, shots, window, sinks, longer (bool), n, teacher and student (scores), difference
        (student − teacher, 0 by definition where the item fits), low and high: its paired 95 % interval. A
        part without items has no row.
    """
    rows = []
    for (window, sinks), own in items[items["window"].notna()].groupby(["window", "sinks"]):
        for (model, task, shots), part in _pooled(own):
            longer = binds(part["tokens"].to_numpy(), int(window))
            about = {"model": model, "task": task, "shots": shots, "window": int(window), "sinks": int(sinks)}
            parts = ((True, part[longer]), (False, part[~longer]))
            rows += [
                {**about, "longer": which, **_pair(one, draws, seed)} for which, one in parts if len(one)
            ]
    columns = [
        "model",
        "shots",
        "window",
        "sinks",
        "task",
        "longer",
        "n",
        "teacher",
        "student",
        "difference",
        "low",
        "high",
    ]
    return pd.DataFrame(rows, columns=columns)


def _pair(part: pd.DataFrame, draws: int, seed: int) -> dict:
    table = _table(part)[:, :2]
    difference = bootstrap(table, lambda means: means[..., 0] - means[..., 1], draws, seed)
    student, teacher = (float(x) for x in table.mean(0))
    row = {"n": len(part), "teacher": teacher, "student": student, "difference": difference.value}
    return row | {"low": difference.low, "high": difference.high}


def _pooled(items: pd.DataFrame) -> Iterator[tuple[tuple[str, str, int], pd.DataFrame]]:
    """Items by model, task and shots; and all tasks of a model and shots together, where there are six."""
    for (model, shots), part in items.groupby(["model", "shots"], sort=False):
        yield from (((model, task, shots), one) for task, one in part.groupby("task", sort=False))
        if set(part["task"]) == set(CHANCE):
            yield (model, ALL_ITEMS, shots), part


# ---- In words.


def words(found: Summary, share: pd.DataFrame, model: str, window: int, sinks: int) -> dict[str, str]:
    """What a text says of one model and SWA(window, sinks), by name, or "not measured yet".

    For each number of shots N in 0 and 5: `full_N`, `student_N`, `agreement_N` of the six tasks' average,
    `recovery_N` and `above_N` of the tasks with a signal, `silent_N` (the tasks without), `longer_N` (percent
    of the items). `share` is as `bound` returns it.
    """
    told = {}
    for n in (0, 5):
        told[f"full_{n}"] = in_percent(found.teacher(model, AVERAGE6, n))
        kinds = {"student": "score", "agreement": "agreement"}
        told |= {
            f"{name}_{n}": in_percent(found.of(model, AVERAGE6, n, window, sinks, measure))
            for name, measure in kinds.items()
        }
        kinds = {"recovery": "recovery", "above": "recovery_above_chance"}
        told |= {
            f"{name}_{n}": in_percent(found.of(model, SIGNAL_AVERAGE, n, window, sinks, measure))
            for name, measure in kinds.items()
        }
        told[f"silent_{n}"] = _silent(found.teachers, model, n)
        chosen = share.query("model == @model and task == @ALL_ITEMS and shots == @n and window == @window")
        told[f"longer_{n}"] = f"{100 * chosen['share'].iloc[0]:.0f} %" if len(chosen) else UNKNOWN
    return told


def in_percent(found: Interval) -> str:
    """A fraction with its interval, in percent."""
    if np.isnan(found.value):
        return UNKNOWN
    return f"{100 * found.value:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})"


def _silent(teachers: pd.DataFrame, model: str, shots: int) -> str:
    own = teachers[(teachers["model"] == model) & (teachers["shots"] == shots)]
    own = own[own["task"].isin(list(CHANCE))]
    if own.empty:
        return UNKNOWN
    return ", ".join(LABELS[task] for task in own.loc[~own["signal"].astype(bool), "task"]) or "none"
