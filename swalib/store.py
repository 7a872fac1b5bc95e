"""How do measured rows lie on disk so that a kill at any moment loses and doubles nothing?

A CSV is only ever replaced whole, by a complete and flushed copy in which old rows keep their bytes. Arrays
reach the disk before the rows that vouch for them. Writers of one experiment take turns through a lock file.
"""

import csv
import io
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock

COLUMNS = (
    *(
        "run_key",
        "experiment",
        "model",
        "method",
        "window",
        "sinks",
        "positions",
        "impl",
        "dtype",
        "task",
        "shots",
    ),
    *(
        "context_tokens",
        "n",
        "metric",
        "value",
        "stderr",
        "unit",
        "seed",
        "hardware",
        "params_json",
        "commit",
        "date",
    ),
)
INTEGERS = ("window", "sinks", "shots", "context_tokens", "n", "seed")
FLOATS = ("value", "stderr")
METRIC = COLUMNS.index("metric")

Row = list[str]


def table(path: Path) -> dict[str, list[Row]]:
    """The rows of one CSV by run key, read again only when the file was replaced; {} without a file.

    Raises ValueError for a file that a bad merge or edit has damaged.
    """
    try:
        now = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return _parse(path, now.st_ino, now.st_mtime_ns, now.st_size)


def append(path: Path, key: str, rows: Iterable[Iterable[object]], arrays: Mapping[str, np.ndarray]) -> None:
    """Add the rows and arrays of run `key`, unless another process has stored that run meanwhile."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    with _lock(path):
        if key in table(path):
            return
        if arrays:
            _write_arrays(path, key, arrays)
        old = path.read_bytes() if path.exists() else (",".join(COLUMNS) + "\n").encode()
        _replace(path, old + b"\n" * (not old.endswith(b"\n")) + text.getvalue().encode())


def arrays_path(path: Path, key: str) -> Path:
    """Where the arrays of run `key` lie, beside the CSV at `path`."""
    return path.parent / "runs" / f"{key}.npz"


def save_arrays(path: Path, key: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Store the arrays of run `key` beside the CSV at `path`, whole or not at all."""
    with _lock(path):
        _write_arrays(path, key, arrays)


def load_arrays(path: Path, key: str) -> dict[str, np.ndarray]:
    """The arrays of run `key` in the dtypes they were stored in; FileNotFoundError when there are none."""
    with np.load(arrays_path(path, key), allow_pickle=False) as stored:
        return dict(stored)


def frame(rows: Iterable[Iterable[object]]) -> pd.DataFrame:
    """Rows as a tidy DataFrame: nullable Int64 integers, exact floats, absent text missing."""
    texts = [[None if cell in ("", None) else str(cell) for cell in row] for row in rows]
    found = pd.DataFrame(texts, columns=list(COLUMNS))
    for name in INTEGERS:
        cells = [row[COLUMNS.index(name)] for row in texts]
        found[name] = pd.array([None if cell is None else int(cell) for cell in cells], "Int64")
    for name in FLOATS:
        cells = [row[COLUMNS.index(name)] for row in texts]
        found[name] = pd.Series(
            [math.nan if cell is None else float(cell) for cell in cells], dtype="float64"
        )
    return found


def require_writable(folder: Path) -> None:
    """Find out before hours are spent: RuntimeError when `folder` can't be made or written to."""
    try:
        for place in (folder, folder / "runs"):
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                pass
    except OSError as error:
        raise RuntimeError(
            f"nothing can be written to {folder} ({error.strerror}): make it writable or set SWALIB_RESULTS."
        ) from error


@lru_cache(maxsize=32)
def _parse(path: Path, *_version: int) -> dict[str, list[Row]]:
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    if not lines or tuple(lines[0]) != COLUMNS:
        raise ValueError(f"{path} does not start with the columns of results/README.md: restore it from git.")
    found: dict[str, list[Row]] = {}
    for number, row in enumerate(lines[1:], start=2):
        if len(row) != len(COLUMNS):
            raise ValueError(
                f"{path}: row {number} has {len(row)} cells, not {len(COLUMNS)}: delete or mend it."
            )
        rows = found.setdefault(row[0], [])
        if any(row[METRIC] == other[METRIC] for other in rows):
            raise ValueError(f"{path}: row {number} repeats a metric of run {row[0]}: delete one of the two.")
        rows.append(row)
    return found


def _lock(path: Path) -> FileLock:
    return FileLock(path.with_name(f".{path.stem}.lock"))


def _write_arrays(path: Path, key: str, arrays: Mapping[str, np.ndarray]) -> None:
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    _replace(arrays_path(path, key), packed.getvalue())


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
