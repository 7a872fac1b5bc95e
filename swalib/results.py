"""What has been measured, and under which key?

One measurement is one row of `results/<experiment>.csv` (columns: results/README.md). The key of a run is the
hash of its whole config, so that changing any setting can neither reuse nor overwrite another setting's rows.
"""

import hashlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from swalib import store
from swalib.provenance import ROOT, commit, hardware
from swalib.wheels import DataUnavailable

MODES = ("stored", "run", "smoke", "reproduce")
FOUND_BY_THE_RUN = (
    "run_key",
    "n",
    "metric",
    "value",
    "stderr",
    "unit",
    "params_json",
    "commit",
    "date",
    "run_seconds",
)

Config = Mapping[str, object]


class MissingResult(LookupError):
    """A row or array that nobody has stored yet; the message holds the command that measures it."""


@dataclass(frozen=True)
class Value:
    """One measured number: `unit` is what it counts ("nats", "ms"), `n` how many samples it is over."""

    metric: str
    value: float
    unit: str
    n: int | None = None
    stderr: float | None = None


@dataclass(frozen=True)
class Measured:
    """What one run found: numbers for the CSV, and arrays, stored in the dtype they come in."""

    values: list[Value]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, array in self.arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
                raise TypeError(
                    f"array {name!r} must be a numpy array of numbers, not {type(array).__name__}"
                )


@dataclass(frozen=True)
class Result:
    """The rows of one run and its arrays, made and read from disk when first asked for."""

    run_key: str
    _rows: Sequence[Mapping[str, object]] = field(repr=False)
    _load: Callable[[], Mapping[str, np.ndarray]] = field(repr=False)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row a metric, typed as in `store.frame`."""
        return store.frame(self._rows)

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays by name; MissingResult when they are not on this disk."""
        return dict(self._load())

    def value(self, metric: str) -> float:
        """The number stored under `metric`; KeyError names the metrics there are."""
        found = self.rows.loc[self.rows["metric"] == metric, "value"]
        if found.empty:
            raise KeyError(
                f"run {self.run_key} has no metric {metric!r}, only {', '.join(self.rows['metric'])}"
            )
        return float(found.iloc[0])


def load_or_run(
    config: Config,
    compute: Callable[[], Measured],
    mode: str,
    folder: str | Path | None = None,
    command: str | None = None,
) -> Result:
    """The result of `config`, stored or computed as `mode` says.

    - stored: read, or raise MissingResult with the command that measures.
    - run: compute and append what is missing.
    - smoke: compute and write nothing.
    - reproduce: like run, into a folder of its own; a run whose weights or texts can't be had is noted in its
      skipped.txt, and the stored rows are returned.

    `config` needs `experiment` and an integer `version`, raised by hand when the meaning of the numbers
    changes; keys without a column of their own are kept in `params_json`; None is the same as an absent key.
    `folder` is as in `results_folder`; `command` defaults to the one that runs the current notebook.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    key = run_key(config)
    if mode == "smoke":
        measured = compute()
        return Result(key, list(_rows(config, key, measured, 0.0)), lambda: measured.arrays)
    if mode == "reproduce":
        return _reproduce(config, compute, results_folder(folder))
    path = results_folder(folder) / f"{config['experiment']}.csv"
    command = command or os.environ.get("SWALIB_COMMAND") or f"swa measure {config['experiment']}"
    if key not in store.table(path):
        if mode == "stored":
            raise MissingResult(
                f"{path.name} has no row for {_canonical(config)}; measure it with: {command}"
            )
        store.require_writable(path.parent)
        started = time.perf_counter()
        measured = compute()
        store.append(path, key, _rows(config, key, measured, time.perf_counter() - started), measured.arrays)
    again = compute if mode == "run" else None
    return Result(key, store.table(path)[key], lambda: _arrays(path, key, command, again))


def run_key(config: Config) -> str:
    """16 hex digits that identify `config`: sha256 of its canonical JSON.

    Raises TypeError for a value that is not plain JSON, ValueError for a missing or misplaced key.
    """
    if not re.fullmatch(r"[a-z0-9_]+", str(config.get("experiment", ""))):
        raise ValueError(
            "config needs `experiment`, a name of a-z, 0-9 and _ that is also the name of its CSV"
        )
    if type(config.get("version")) is not int:
        raise ValueError(
            "config needs `version`, an integer raised by hand when the experiment's meaning changes"
        )
    for name, value in config.items():
        if name in FOUND_BY_THE_RUN:
            raise ValueError(f"config must not set `{name}`: the run itself finds it")
        wanted = int if name in store.INTEGERS else str
        if name in store.COLUMNS and value is not None and type(value) is not wanted:
            raise TypeError(f"config `{name}` must be {wanted.__name__} or None, not {value!r}")
        _require_json(str(name), value)
    return hashlib.sha256(_canonical(config).encode()).hexdigest()[:16]


def results_folder(folder: str | Path | None = None) -> Path:
    """`folder`, else SWALIB_RESULTS, else this checkout's results/; RuntimeError outside a checkout."""
    chosen = folder or os.environ.get("SWALIB_RESULTS")
    if chosen:
        return Path(chosen).expanduser().resolve()
    if not (ROOT / "pyproject.toml").exists():
        raise RuntimeError(
            "swalib is not installed from a checkout: set SWALIB_RESULTS to the folder of its results."
        )
    return ROOT / "results"


def read(experiment: str, folder: str | Path | None = None) -> pd.DataFrame:
    """All rows of `experiment`, typed as in `store.frame`; MissingResult when nothing is stored."""
    rows = store.table(results_folder(folder) / f"{experiment}.csv").values()
    if not rows:
        raise MissingResult(f"nothing is stored for {experiment}; measure it with: swa measure {experiment}")
    return store.frame(row for run in rows for row in run)


def missing(configs: Iterable[Config], folder: str | Path | None = None) -> list[Config]:
    """Those of `configs` that have no stored rows yet."""
    place = results_folder(folder)
    return [
        config
        for config in configs
        if run_key(config) not in store.table(place / f"{config['experiment']}.csv")
    ]


def estimate(seconds_per_run: float, runs: int, cores: int = 1) -> float:
    """Say on stderr what `runs` missing runs will cost, if any, and return it in core-hours."""
    hours = seconds_per_run * runs * cores / 3600
    if runs:
        print(f"estimated {hours:.2g} core-hours for {runs} missing run{'s' * (runs > 1)}", file=sys.stderr)
    return hours


def run_seconds(rows: pd.DataFrame) -> float:
    """How long the runs behind `rows` took when they were measured, in seconds."""
    return sum(json.loads(params)["run_seconds"] for params in rows.drop_duplicates("run_key")["params_json"])


def compare(stored: pd.DataFrame, fresh: pd.DataFrame, tolerance: Mapping[str, float]) -> pd.DataFrame:
    """The rows of `fresh` that `stored` lacks, or that differ by more than the relative tolerance.

    `tolerance` holds one for each metric that needs its own, and a "default". Rows that only `stored` has
    are not judged.
    """
    same = ["experiment", "run_key", "metric"]
    both = fresh.merge(stored[[*same, "value"]], on=same, how="left", suffixes=("_fresh", "_stored"))
    both["tolerance"] = [tolerance.get(metric, tolerance["default"]) for metric in both["metric"]]
    old, new = both["value_stored"], both["value_fresh"]
    agrees = (old == new) | ((new - old).abs() <= both["tolerance"] * np.maximum(old.abs(), new.abs()))
    settings = ["model", "method", "window", "sinks", "positions", "task", "context_tokens"]
    return both.loc[~agrees, [*same, *settings, "value_stored", "value_fresh", "tolerance"]].reset_index(
        drop=True
    )


def _reproduce(config: Config, compute: Callable[[], Measured], folder: Path) -> Result:
    if folder == ROOT / "results":
        raise RuntimeError(
            "mode reproduce measures into a folder of its own: set SWALIB_RESULTS, or use swa reproduce."
        )
    try:
        return load_or_run(config, compute, "run", folder)
    except DataUnavailable as absent:
        with (folder / "skipped.txt").open("a", encoding="utf-8") as notes:
            notes.write(f"{_canonical(config)}: {absent}\n")
        return load_or_run(config, compute, "stored", ROOT / "results")


def _arrays(
    path: Path, key: str, command: str, again: Callable[[], Measured] | None
) -> Mapping[str, np.ndarray]:
    try:
        return store.load_arrays(path, key)
    except FileNotFoundError as error:
        if again is None:
            raise MissingResult(
                f"the arrays of run {key} are not stored; measure them with: {command}"
            ) from error
    # Arrays too large for git may be absent though the rows are there.
    store.require_writable(path.parent)
    store.save_arrays(path, key, again().arrays)
    return store.load_arrays(path, key)


def _canonical(config: Config) -> str:
    kept = {name: value for name, value in config.items() if value is not None}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _require_json(name: str, value: object) -> None:
    if isinstance(value, list | tuple):
        for item in value:
            _require_json(name, item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"config `{name}` has the key {key!r}; JSON keys are text")
            _require_json(f"{name}.{key}", item)
    elif type(value) not in (bool, int, float, str, type(None)):
        raise TypeError(
            f"config `{name}` is a {type(value).__name__}; use plain JSON: text, numbers, lists, dicts"
        )
    elif isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"config `{name}` is {value}; JSON has no such number")


def _rows(config: Config, key: str, measured: Measured, seconds: float) -> list[list[object]]:
    """The CSV rows of one run, one a value."""
    metrics = [value.metric for value in measured.values]
    if not metrics or len(set(metrics)) < len(metrics):
        raise ValueError(f"a run needs values with a metric each of its own, got {metrics}")
    extras = {
        name: value for name, value in config.items() if name not in store.COLUMNS and value is not None
    }
    base = dict.fromkeys(store.COLUMNS) | {name: config[name] for name in config if name in store.COLUMNS}
    base |= {"run_key": key, "hardware": config.get("hardware") or hardware(), "commit": commit()}
    base["params_json"] = json.dumps(extras | {"run_seconds": round(seconds, 3)}, sort_keys=True)
    base["date"] = datetime.now(UTC).date().isoformat()
    return [list((base | _numbers(value)).values()) for value in measured.values]


def _numbers(found: Value) -> dict[str, object]:
    value = float(found.value)
    if math.isnan(value):
        raise ValueError(f"{found.metric} came out as NaN; nothing was stored for this run")
    stderr = None if found.stderr is None else float(found.stderr)
    n = None if found.n is None else int(found.n)
    return {"metric": found.metric, "value": value, "unit": found.unit, "n": n, "stderr": stderr}
