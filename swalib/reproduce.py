"""Do the stored rows come out again, measured afresh on this machine?"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from swalib import results
from swalib.notebooks import NotebookFailed, names, run_notebook
from swalib.provenance import ROOT

# Relative: another CPU sums in another order. Accuracies may move by an item.
TOLERANCE = {"default": 1e-3, "acc": 0.04, "acc_norm": 0.04}
# Timings, which benchmarks/ judges as ratios, and a process's memory belong to their machine.
MACHINE_UNITS = ("s", "ms", "us", "tokens/s", "bytes resident")


@dataclass(frozen=True)
class Report:
    """How many rows were compared, those that differ, and what could not be measured and why."""

    judged: int
    differing: pd.DataFrame
    skipped: list[str]


def reproduce(preset: str = "cpu", root: Path = ROOT, tolerance: Mapping[str, float] = TOLERANCE) -> Report:
    """Measure `preset` again into _build/reproduce, whatever is stored, and compare with the stored rows.

    Says on stderr first what it will cost. A killed run goes on where it was when called again; a finished
    one is kept as _build/reproduced. Raises NotebookFailed when a notebook fails, unless its data are absent.
    """
    fresh = root / "_build" / "reproduce"
    stored = {
        path.stem: results.read(path.stem, root / "results") for path in (root / "results").glob("*.csv")
    }
    hours = sum(results.run_seconds(rows) for rows in stored.values()) / 3600
    print(f"estimated {hours:.2g} hours: what the stored rows took on their machine", file=sys.stderr)
    fresh.mkdir(parents=True, exist_ok=True)
    skipped = _measure(preset, root, fresh)
    found = [_compare(path, stored, tolerance) for path in sorted(fresh.glob("*.csv"))]
    done = root / "_build" / "reproduced"
    shutil.rmtree(done, ignore_errors=True)
    fresh.rename(done)
    judged, differing = zip(*found, strict=True) if found else ([0], [pd.DataFrame()])
    return Report(sum(judged), pd.concat(differing), skipped)


def _measure(preset: str, root: Path, fresh: Path) -> list[str]:
    before = os.environ.get("SWALIB_RESULTS")
    os.environ["SWALIB_RESULTS"] = str(fresh)
    skipped = []
    try:
        for name in names(root / "notebooks"):
            print(f"measuring {name}", file=sys.stderr, flush=True)
            try:
                out = root / "_build" / "runs" / f"{name}.ipynb"
                run_notebook(name, preset, {"mode": "reproduce"}, out, root / "notebooks")
            except NotebookFailed as failure:
                if failure.error != "DataUnavailable":
                    raise
                skipped.append(str(failure))
    finally:
        os.environ.pop("SWALIB_RESULTS")
        os.environ |= {} if before is None else {"SWALIB_RESULTS": before}
    notes = fresh / "skipped.txt"
    return skipped + (sorted(set(notes.read_text().splitlines())) if notes.exists() else [])


def _compare(
    path: Path, stored: Mapping[str, pd.DataFrame], tolerance: Mapping[str, float]
) -> tuple[int, pd.DataFrame]:
    fresh = results.read(path.stem, path.parent)
    fresh = fresh[~fresh["unit"].isin(MACHINE_UNITS)]
    return len(fresh), results.compare(stored.get(path.stem, fresh.iloc[:0]), fresh, tolerance)
