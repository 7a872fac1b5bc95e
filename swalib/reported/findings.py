"""What does arithmetic on the printed cells say that the paper does not? Values in percent."""

from __future__ import annotations

import numpy as np
import pandas as pd

from swalib.evals.recovery import CHANCE, over_teachers, ratio_of_averages
from swalib.reported import TASKS, printed, source
from swalib.reported.claims import CHANCE_PCT, FAIR, Options, Row, recompute, sensitivity
from swalib.reported.pairs import QWQ, SWA, pairs

_MMLU_ITEMS, _WINOGRANDE_ITEMS = 14_042, 1_267
_QUOTED = (("SWA", "mmlu"), ("SWA", "average6"), ("QRWKV6", "mmlu"), ("QRWKV6", "average6"))


# ---- Does the transcription agree with itself?


def worst_average() -> float:
    """The largest difference, in points, of a printed six-task average (Tables 2, 5) from its cells' mean."""
    rows = printed()
    rows = rows[rows["table"].isin([2, 5])]
    wide = rows.pivot(index=["table", "base_model", "method"], columns="task", values="value")
    return float((wide[list(TASKS)].mean(axis=1) - wide["average6"]).abs().max())


def sniah_samples_off() -> float:
    """How far a cell of Table 3 is from a multiple of 0.2 at most: 500 samples leave no other value."""
    cells = printed(3)["value"] / 0.2
    return float(0.2 * (cells - cells.round()).abs().max())


def table4_off() -> float:
    """The largest difference, in points, of Table 4 from the rounded mean of Table 6's five tasks."""
    means = printed(6).groupby(["method", "context"])["value"].mean().round()
    return float((printed(4).set_index(["method", "context"])["value"] - means).abs().max())


# ---- Recovery: Tables 1 and 2.


def matched(method: str, six_tasks: bool = False, **options: bool) -> Row:
    """A method and SWA on the method's own teachers; other options as in `Options`.

    Raises:
        ValueError: the method has no row in Table 2 under these options.
    """
    rows = recompute(options=Options(six_tasks=six_tasks, **options)).rows
    found = [row for row in rows if row.method == method]
    if not found:
        raise ValueError(
            f"no pair of {method!r} is left: choose from {', '.join(row.method for row in rows)}."
        )
    return found[0]


def matching_widens() -> tuple[list[str], list[str]]:
    """Methods over which SWA's lead on MMLU grows when teachers are matched, and those where it shrinks."""
    own = {row.method: row.lead for row in recompute(options=Options(same_teachers=False)).rows}
    grown = {row.method: row.lead > own[row.method] for row in recompute().rows}
    return [name for name, more in grown.items() if more], [name for name, more in grown.items() if not more]


def swa(without: tuple[str, ...] = (), **options: bool) -> tuple[float, float]:
    """SWA's mean recovery and its sd over all teachers but those `without`."""
    kept = tuple(pair for pair in pairs() if pair.base_model not in without)
    used = recompute(kept, Options(same_teachers=False, **options)).rows[0].swa_used
    return over_teachers([one.recovery_pct for one in used])[:2]


def copied_from_teacher() -> list[tuple[str, str]]:
    """Students whose six cells all equal their teacher's: (row, teacher)."""
    return [(pair.row, pair.base_model) for pair in pairs() if pair.student == pair.teacher]


def differing_cells() -> pd.DataFrame:
    """Printed student cells beside their source's: base_model, method, task, printed, source, citation."""
    ours = printed(2).rename(columns={"value": "printed"})
    theirs = source().rename(columns={"value": "source"})
    both = theirs[theirs["role"] == "student"].merge(ours, on=["base_model", "method", "task"])
    return both[["base_model", "method", "task", "printed", "source", "citation"]]


def table1() -> pd.DataFrame:
    """Table 1 beside its recomputation from Table 2: method, task, printed, recomputed, sd, n."""
    found = []
    for task, six in (("mmlu", False), ("average6", True)):
        rows = recompute(options=Options(same_teachers=False, six_tasks=six)).rows
        own = {row.method: [one.recovery_pct for one in row.used] for row in rows}
        own[SWA] = [one.recovery_pct for one in rows[0].swa_used]
        for method, values in own.items():
            mean, sd, n = over_teachers(values)
            found.append({"method": method, "task": task, "recomputed": mean, "recomputed_sd": sd, "n": n})
    ours = printed(1)[["method", "task", "value", "sd"]].rename(columns={"value": "printed"})
    return ours.merge(pd.DataFrame(found), on=["method", "task"])


def headline() -> dict[str, float]:
    """The numbers of the chapter's prose: percent, points and counts; `printed_` ones are Table 1's cells."""
    rows = printed(1).set_index(["method", "task"])["value"]
    cells = {f"printed_{method.lower()}_{task}": float(rows[method, task]) for method, task in _QUOTED}
    fair, over, same = recompute(options=FAIR), sensitivity(), matched("QRWKV6")
    low, high = guessing_recovers()
    return cells | {
        "fair_beaten": fair.beaten,
        "fair_methods": len(fair.rows),
        "fair_behind": -fair.lead,
        "fair_best": fair.rows[0].mean_pct,
        "fair_best_swa": fair.rows[0].swa_pct,
        "combinations": over.total,
        "upheld": over.upheld,
        "most_ahead": over.most_ahead,
        "widened": len(matching_widens()[0]),
        "same_swa": same.swa_pct,
        "same_qrwkv6": same.mean_pct,
        "shots_qrwkv6": matched("QRWKV6", source_teachers=True).mean_pct,
        "no_qwq_swa": swa((QWQ,))[0],
        "above_swa": swa(above_chance=True)[0],
        "above_lolcats": matched("LoLCATs", above_chance=True).mean_pct,
        "five_tasks": five_zero_shot_tasks(),
        "guess_low": low,
        "guess_high": high,
        "stderr_dijiang": stderr_points("Llama2.0-7B", "DiJiang", above_chance=True),
    }


def mmlu_without(method: str, row: str = "", base_model: str = "") -> float:
    """A method's mean MMLU recovery without one of its rows or teachers."""
    kept = [pair for pair in pairs() if pair.method == method and base_model != pair.base_model]
    recoveries = [100 * pair.student[0] / pair.teacher[0] for pair in kept if pair.row != row]
    return over_teachers(recoveries).mean


def guessing_recovers() -> tuple[float, float]:
    """The least and the most that guessing alone "recovers" of a teacher's six-task average."""
    recoveries = [100 * ratio_of_averages(CHANCE_PCT, pair.teacher) for pair in pairs()]
    return min(recoveries), max(recoveries)


def stderr_points(base_model: str, row: str, above_chance: bool = False) -> float:
    """Standard error, in points, of a pair's MMLU recovery from the student's 14,042 items alone, p(1 − p)/n.

    The teacher's error comes on top, and pairing would take some of both away; the items are not published.
    """
    pair = next(pair for pair in pairs() if (pair.base_model, pair.row) == (base_model, row))
    score, room = pair.student[0] / 100, pair.teacher[0] - above_chance * CHANCE_PCT[0]
    return float(100 * 100 * np.sqrt(score * (1 - score) / _MMLU_ITEMS) / room)


def five_zero_shot_tasks(row: str = SWA) -> float:
    """Mean recovery, by ratio of averages, of the five tasks other than MMLU."""
    kept = [pair for pair in pairs() if pair.row == row]
    return over_teachers([100 * ratio_of_averages(pair.student[1:], pair.teacher[1:]) for pair in kept]).mean


def best_on_average() -> tuple[list[str], list[str]]:
    """Teachers on which SWA's printed six-task average is the highest, and those on which it is not."""
    rows = printed(2).query("task == 'average6' and method != 'Teacher'")
    best = rows.loc[rows.groupby("base_model", sort=False)["value"].idxmax()]
    ahead = best["method"] == SWA
    return best.loc[ahead, "base_model"].tolist(), best.loc[~ahead, "base_model"].tolist()


# ---- Long contexts: Tables 3 to 6.


def needles(context: str = "4K", tasks: tuple[str, ...] = ()) -> pd.DataFrame:
    """The lowest and highest S-NIAH score by method at one context: index method; low, high."""
    rows = printed(3)
    rows = rows[(rows["context"] == context) & rows["task"].isin(tasks or rows["task"].unique())]
    return rows.groupby("method")["value"].agg(low="min", high="max")


def needle_ratios(contexts: tuple[str, ...] = ("1K", "2K", "4K")) -> pd.Series:
    """SWA's S-NIAH score / LoLCATs' by (window, task, context); infinite where LoLCATs has 0.0."""
    rows = printed(3)
    rows = rows[rows["context"].isin(contexts) & rows["window"].notna()]
    wide = rows.pivot(index=["window", "task", "context"], columns="method", values="value")
    return wide[SWA] / wide["LoLCATs"]


def babilong(method: str, tasks: int = 4) -> pd.Series:
    """Mean of BABILong qa1 to qa`tasks` by context; chance is 1/6 on qa1 to qa4."""
    rows = printed(6)
    wanted = rows["task"].isin([f"babilong_qa{number}" for number in range(1, tasks + 1)])
    return rows[wanted & (rows["method"] == method)].groupby("context")["value"].mean()


def window_only(
    window: int, after_tokens: int = 0, sinks: int = 4, needle_tokens: int = 30, haystack_tokens: int = 3850
) -> float:
    """What a model finds that has nothing but its window: needles that lie wholly inside it.

    A needle of `needle_tokens` stands anywhere in the haystack with equal chance; `after_tokens` lie between
    the haystack's end and the token that answers. A context of 4K leaves about 3,850 tokens for the haystack.

    Raises:
        ValueError: the window has no room for its sinks, or a length is not positive.
    """
    if not 0 <= sinks < window or min(needle_tokens, haystack_tokens) < 1:
        raise ValueError(f"need 0 <= sinks < window and positive lengths: got SWA({window}, {sinks}).")
    return 100 * min(1.0, max(0.0, window - sinks - after_tokens - needle_tokens) / haystack_tokens)


def near_chance() -> pd.DataFrame:
    """Table 5's linear students on MMLU and WinoGrande: points above chance, and in standard errors."""
    rows = printed(5)
    rows = rows[~rows["method"].isin(["Teacher", SWA]) & rows["task"].isin(["mmlu", "winogrande"])]
    chance = rows["task"].map(CHANCE)
    items = rows["task"].map({"mmlu": _MMLU_ITEMS, "winogrande": _WINOGRANDE_ITEMS})
    points = rows["value"] - 100 * chance
    stderr = 100 * np.sqrt(chance * (1 - chance) / items)
    return rows[["base_model", "method", "task"]].assign(points=points, stderrs=points / stderr)
