"""Who is compared with whom in Table 2? One pair of student and teacher a row, and what speaks against it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache

import pandas as pd

from swalib.reported import TASKS, doubts, printed, source

Cells = tuple[float | None, ...]
# Table 1 counts the RoPE variants with their method.
COUNTED_AS = {"QRWKV6-RoPE": "QRWKV6", "QRWKV7-RoPE": "QRWKV7"}
# Rows of Table 2 that are another method at their source (its name), or no student of this teacher (None).
SOURCE_METHOD = {
    ("Qwen2.5-7B-Instruct", "QRWKV7"): "QRWKV6",
    ("Qwen2.5-72B-Instruct", "QRWKV7"): None,
}
SWA, QWQ = "SWA", "QwQ-32B"


@dataclass(frozen=True)
class Pair:
    """A student and its teacher, in percent, in the order of `swalib.reported.TASKS`; None: no number.

    Args:
        row, method: as Table 2 names the student, and as Table 1 counts it.
        student, teacher: as printed; the teacher's MMLU is 5-shot.
        source_student: as the student's source has it, where that is another number; else as printed.
        source_teacher: as the student's source measured it, with the student's own shots. The printed one
            where nothing speaks against it; None where the source's is not known.
        source_method: what the row is at its source; None: a student of another size.
        doubts: the reasons against the pair, one sentence each.
    """

    row: str
    method: str
    base_model: str
    student: Cells
    teacher: Cells
    source_student: Cells
    source_teacher: Cells
    source_method: str | None
    doubts: tuple[str, ...] = ()

    def as_json(self) -> dict:
        """All fields, as the page's script gets them."""
        return asdict(self)


@cache
def pairs() -> tuple[Pair, ...]:
    """The 33 pairs of Table 2, in its order."""
    table = printed(2)
    return tuple(
        _pair(base_model, row, table)
        for base_model in base_models()
        for row in table.loc[table["base_model"] == base_model, "method"].unique()
        if row != "Teacher"
    )


@cache
def base_models() -> tuple[str, ...]:
    """The 11 teachers of Table 2, in its order."""
    return tuple(printed(2)["base_model"].unique())


def _pair(base_model: str, row: str, table: pd.DataFrame) -> Pair:
    of_model = table[table["base_model"] == base_model]
    student = _cells(of_model[of_model["method"] == row])
    teacher = _cells(of_model[of_model["method"] == "Teacher"])
    against = doubts().query("table == 2")
    against = against[(against["base_model"] == base_model) & (against["method"] == row)]
    counted = COUNTED_AS.get(row, row)
    return Pair(
        row=row,
        method=counted,
        base_model=base_model,
        student=student,
        teacher=teacher,
        source_student=_over(student, _source(base_model, row, "student")),
        source_teacher=_source_teacher(base_model, row, teacher, set(against["kind"])),
        source_method=SOURCE_METHOD.get((base_model, row), counted),
        doubts=tuple(against["reason"]),
    )


def _source_teacher(base_model: str, row: str, teacher: Cells, kinds: set[str]) -> Cells:
    """The teacher beside the student at its source: RADLADS' own row, or the MMLU that the source names.

    Of a student with 0-shot MMLU and no such teacher only MMLU is in doubt, but then the pair has no MMLU.
    """
    own = _source(base_model, row, "teacher")
    if "shots" in kinds and not any(own):
        radlads = _source(base_model, "RADLADS", "teacher")
        return radlads if all(radlads) else (None, *teacher[1:])
    return _over(teacher, own)


def _cells(rows: pd.DataFrame) -> Cells:
    values = dict(zip(rows["task"], rows["value"], strict=True))
    return tuple(values.get(task) for task in TASKS)


def _source(base_model: str, method: str, role: str) -> Cells:
    rows = source()
    return _cells(
        rows[(rows["base_model"] == base_model) & (rows["method"] == method) & (rows["role"] == role)]
    )


def _over(cells: Cells, own: Cells) -> Cells:
    return tuple(ours if theirs is None else theirs for ours, theirs in zip(cells, own, strict=True))
