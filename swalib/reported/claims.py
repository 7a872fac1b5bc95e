"""Does SWA beat linear attention, under which assumptions? The claim, recomputed from the printed rows.

`recompute` is the reference for the calculator in the page: book/assets/swa-claims.js does the same, and a
test holds the two together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from swalib.evals.recovery import CHANCE, mean_of_ratios, over_teachers, ratio_of_averages
from swalib.reported import TASKS
from swalib.reported.pairs import QWQ, SWA, Cells, Pair, base_models, pairs

CHANCE_PCT = tuple(100 * CHANCE[task] for task in TASKS)
TOGGLES = (
    "same_teachers",
    "source_teachers",
    "without_qwq",
    "source_cells",
    "above_chance",
    "six_tasks",
    "mean_of_ratios",
)


@dataclass(frozen=True)
class Options:
    """What the claim rests on.

    Args:
        same_teachers: compare each method with SWA on that method's teachers, row by row; else each is
            averaged over all teachers it was tried on.
        source_teachers: divide by the teacher as the method's source measured it, with the student's own
            shots; a pair without one drops out. Else by the paper's 5-shot teacher.
        without_qwq: leave out QwQ-32B, where SWA's row is the teacher's.
        source_cells: the source's cells and methods where a printed one is in doubt.
        above_chance: recovery above chance; else plain.
        six_tasks: all six tasks; else MMLU alone.
        mean_of_ratios: average six tasks as the mean of their recoveries; else as the ratio of mean scores.
        base_models: the teachers that count, by name.
    """

    same_teachers: bool = True
    source_teachers: bool = False
    without_qwq: bool = False
    source_cells: bool = False
    above_chance: bool = False
    six_tasks: bool = False
    mean_of_ratios: bool = False
    base_models: tuple[str, ...] = base_models()

    def __post_init__(self):
        if unknown := sorted(set(self.base_models) - set(base_models())):
            known = ", ".join(base_models())
            raise ValueError(f"Table 2 has no teacher {unknown[0]!r}: choose from {known}.")


@dataclass(frozen=True)
class Used:
    """A pair that counts: its place among the rows, the cells divided, and the recovery in percent."""

    index: int
    base_model: str
    student: Cells
    teacher: Cells
    recovery_pct: float


@dataclass(frozen=True)
class Row:
    """One linear method against SWA, in percent; `swa_pct` is over the same pairs or over all of SWA's."""

    method: str
    mean_pct: float
    sd_pct: float
    swa_pct: float
    used: tuple[Used, ...]
    swa_used: tuple[Used, ...]

    @property
    def lead(self) -> float:
        """How far SWA is ahead, in points."""
        return self.swa_pct - self.mean_pct


@dataclass(frozen=True)
class Claim:
    """What is left of the claim: linear methods from the one that does best against SWA to the worst.

    Args:
        rows: one a method that has a pair left.
        left_out: methods without one.
        won, contested: on how many teachers SWA is ahead of all linear methods, of how many that have one.
    """

    options: Options
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]
    won: int
    contested: int

    @property
    def beaten(self) -> int:
        """How many linear methods SWA is ahead of."""
        return sum(row.lead > 0 for row in self.rows)

    @property
    def rank(self) -> int:
        """SWA's place among itself and the linear methods."""
        return 1 + len(self.rows) - self.beaten

    @property
    def lead(self) -> float:
        """SWA's lead over the method that does best against it, in points; NaN without methods."""
        return self.rows[0].lead if self.rows else float("nan")

    def sentence(self) -> str:
        """The claim in words."""
        if not self.rows:
            return "No linear method is left to compare with: choose more teachers."
        best, options = self.rows[0], self.options
        what = "six tasks" if options.six_tasks else "MMLU"
        amount = f"{what} above chance" if options.above_chance else what
        whose = "On the same" if options.same_teachers else "With each averaged over its own"
        more = f"more of {amount} than {self.beaten} of {len(self.rows)} linear methods"
        way = "behind" if best.lead > 0 else "ahead"
        told = f"{best.method}, the best against it, is {abs(best.lead):.1f} points {way}"
        return (
            f"{whose} teachers, SWA(64, 4) recovers {more}. {told} ({best.mean_pct:.1f} % against "
            f"{best.swa_pct:.1f} %). SWA is best on {self.won} of {self.contested} teachers."
        )


def recompute(rows: Sequence[Pair] | None = None, options: Options = Options()) -> Claim:
    """The claim under `options` from the pairs of Table 2, or from `rows`."""
    rows = pairs() if rows is None else tuple(rows)
    used: dict[str, list[Used]] = {}
    for index, pair in enumerate(rows):
        method = pair.source_method if options.source_cells else pair.method
        if method and (one := _used(index, pair, options)):
            used.setdefault(method, []).append(one)
    swa = {one.base_model: one for one in used.pop(SWA, [])}
    table = [_row(method, ones, swa, options.same_teachers) for method, ones in used.items()]
    table.sort(key=lambda row: row.lead)
    methods = dict.fromkeys(pair.method for pair in rows if pair.method != SWA)
    rivals = [(one.base_model, one.recovery_pct) for ones in used.values() for one in ones]
    best = {name: max(value for other, value in rivals if other == name) for name, _ in rivals}
    return Claim(
        options=options,
        rows=tuple(table),
        left_out=tuple(method for method in methods if method not in used),
        won=sum(swa[name].recovery_pct > value for name, value in best.items()),
        contested=len(best),
    )


def _used(index: int, pair: Pair, options: Options) -> Used | None:
    """The pair's recovery, None where it does not count: left out, or a cell is missing."""
    if pair.base_model not in options.base_models or (options.without_qwq and pair.base_model == QWQ):
        return None
    count = len(TASKS) if options.six_tasks else 1
    student = (pair.source_student if options.source_cells else pair.student)[:count]
    teacher = (pair.source_teacher if options.source_teachers else pair.teacher)[:count]
    if None in student or None in teacher:
        return None
    average = mean_of_ratios if options.mean_of_ratios else ratio_of_averages
    chance = CHANCE_PCT[:count] if options.above_chance else 0.0
    return Used(index, pair.base_model, student, teacher, 100 * average(student, teacher, chance))


def _row(method: str, used: list[Used], swa: dict[str, Used], same_teachers: bool) -> Row:
    own = over_teachers([one.recovery_pct for one in used])
    beside = [swa[one.base_model] for one in used] if same_teachers else list(swa.values())
    against = float(np.mean([one.recovery_pct for one in beside]))
    return Row(method, own.mean, own.sd, against, tuple(used), tuple(beside))


# ---- Presets.


def every_combination() -> Iterator[Options]:
    """The 128 combinations of the toggles, with all teachers."""
    for values in product((False, True), repeat=len(TOGGLES)):
        yield Options(**dict(zip(TOGGLES, values, strict=True)))


def extremes() -> tuple[Options, Options]:
    """Of all combinations the most and the least favourable to SWA.

    By its lead over the method that does best against it, in points; the first of equals in the
    order of `every_combination`.
    """
    found = [(recompute(options=options).lead, options) for options in every_combination()]
    return max(found, key=lambda one: one[0])[1], min(found, key=lambda one: one[0])[1]


class Sensitivity(NamedTuple):
    """What changes with the assumptions.

    total: combinations that can differ; upheld: those that leave SWA ahead of every linear method;
    most_ahead: how many methods are ahead of SWA at most; ahead: in how many combinations each of them is.
    """

    total: int
    upheld: int
    most_ahead: int
    ahead: dict[str, int]


def sensitivity() -> Sensitivity:
    """Over all combinations with all teachers; with MMLU alone the average of six makes no difference."""
    differing = [one for one in every_combination() if one.six_tasks or not one.mean_of_ratios]
    ahead = [
        [row.method for row in recompute(options=options).rows if row.lead <= 0] for options in differing
    ]
    counts = Counter(method for methods in ahead for method in methods)
    most = max(len(methods) for methods in ahead)
    return Sensitivity(
        len(differing), sum(not methods for methods in ahead), most, dict(counts.most_common())
    )


# Table 1's column of averages.
AS_PRINTED = Options(same_teachers=False, six_tasks=True)
# Like with like, and MMLU alone: on the other five most prompts fit into the window.
FAIR = Options(source_teachers=True, without_qwq=True, source_cells=True, above_chance=True)


def presets() -> dict[str, Options]:
    """The named sets of assumptions: as printed, fair, most and least favourable to SWA."""
    most, least = extremes()
    return {
        "as printed": AS_PRINTED,
        "fair": FAIR,
        "most favourable to SWA": most,
        "least favourable": least,
    }
