"""What does the paper print, what do the methods' own papers say, and which printed cells are in doubt?

Three layers of numbers are never mixed. This package holds two of them, in percent as they were printed: the
paper's own cells (`printed`) and those of its sources (`source`). What a command of this repository measured
is the third and lies in results/. The printed cells were transcribed from a published deep-read of the paper
and checked against two other summaries and against themselves (`swalib.reported.findings`).
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import pandas as pd

TASKS = ("mmlu", "arc_challenge", "arc_easy", "hellaswag", "piqa", "winogrande")
LABELS = {
    "mmlu": "MMLU",
    "arc_challenge": "ARC-C",
    "arc_easy": "ARC-E",
    "hellaswag": "HellaSwag",
    "piqa": "PIQA",
    "winogrande": "WinoGrande",
    "average6": "average",
}
PROVENANCE = "as printed in the paper (transcribed)"


def printed(table: int | None = None) -> pd.DataFrame:
    """The cells of the paper's Tables 1 to 6, or of one of them, one a row.

    Columns: table, base_model, method, window and sinks (tokens), task, context, metric, value and sd
    (percent; sd over base models), post_training_tokens and stages (Table 1), provenance. The methods Teacher
    (Tables 2, 5) and Full attention (3, 4, 6) are the unchanged model.

    Raises:
        ValueError: the paper's table is not one of the six.
    """
    rows = _read("printed")
    if table is None:
        return rows
    if table not in set(rows["table"]):
        raise ValueError(f"Table {table} is not transcribed: choose one of 1 to 6.")
    return rows[rows["table"] == table].reset_index(drop=True)


def source() -> pd.DataFrame:
    """What the methods' own papers say of cells that the paper prints otherwise or leaves out.

    Columns: base_model (as the paper names it), method (RADLADS: all students taken from there), role
    (teacher, student, ablation), task, metric, shots (missing: not stated), value (percent), citation, note.
    """
    return _read("source")


def doubts() -> pd.DataFrame:
    """Printed cells in doubt, each with why.

    Columns: table, base_model, method, task (missing: the whole row), context (Tables 3 to 6), kind, reason.
    Kinds: shots (student and teacher under different numbers of examples), value (its source says another),
    teacher, student (its source says another), copied, recomputed (Table 1 does not follow from Table 2),
    haystack (perhaps empty), window (not the one it was trained with), derived (from another table),
    below_chance.
    """
    return _read("doubts")


def cost(method: str) -> str:
    """What post-training costs by Table 1, such as "40M tokens, 2 stages".

    Raises:
        ValueError: Table 1 has no row for the method.
    """
    rows = printed(1)
    found = rows[rows["method"] == method]
    if found.empty:
        known = ", ".join(rows["method"].unique())
        raise ValueError(f"Table 1 has no method {method!r}: choose from {known}.")
    tokens, stages = found.iloc[0][["post_training_tokens", "stages"]]
    return f"{tokens} tokens, {stages} stage{'' if stages == '1' else 's'}"


def _read(name: str) -> pd.DataFrame:
    return _parsed(name).copy()


@cache
def _parsed(name: str) -> pd.DataFrame:
    text = {"post_training_tokens": "string", "stages": "string", "context": "string", "note": "string"}
    with resources.files(__name__).joinpath(f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype=text)
