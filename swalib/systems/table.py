"""What has been timed, on which machines? One tidy row for each cell and machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from swalib import results
from swalib.provenance import ROOT, hardware
from swalib.results import Config, MissingResult
from swalib.systems.cost import decode_flops, decode_traffic
from swalib.systems.machine import Limits
from swalib.systems.measure import Cell

METRICS = ("fits", "step_ms", "step_low_ms", "step_high_ms", "speed", "state_bytes", "peak_bytes", "ops")
METRICS = (*METRICS, "needed_bytes")
LIMITS = ("copy", "read", "matrix", "op")
COMMAND = "swa run 08_systems -p mode run"


def measure(mode: str, cells: Sequence[Cell], optional: Sequence[Cell] = ()) -> pd.DataFrame:
    """One row for each cell and machine on which it was measured.

    Args:
        mode: "run" measures what this machine lacks, after an estimate; "smoke" measures and stores nothing;
            "stored" and "reproduce" read, since timings belong to the machine that took them.
        optional: cells that may be missing.

    Returns:
        Columns label, the fields of `Kind`, task, context_tokens, batch, hidden, dtype, device, impl, graph,
        hardware; fits (bool), step_ms with its quartiles step_low_ms and step_high_ms, speed (tokens/s),
        state_bytes (allocated), peak_bytes, ops and needed_bytes, NaN where a cell did not fit; and, of a
        decode step on paper, moved_bytes, weight_bytes (part of it) and flops, NaN where `cost` has none.

    Raises:
        MissingResult: one of `cells` is stored for no machine.
    """
    if mode == "run":
        absent = [cell for cell in cells if results.missing([_here(cell.config())])]
        results.estimate(sum(cell.seconds for cell in absent) / max(len(absent), 1), len(absent))
    rows = [
        _labels(cell) | {"hardware": machine} | values
        for cell, machine, values in _found(mode, cells, optional)
    ]
    table = pd.DataFrame(rows).reindex(columns=[*_labels(cells[0]), "hardware", *METRICS])
    return table.assign(fits=table["fits"] == 1)


def limits(mode: str, asked: Sequence[Limits], optional: Sequence[Limits] = ()) -> pd.DataFrame:
    """The machines' own limits: dtype, device, hardware, copy and read (GB/s), matrix (GFLOP/s), op (us).

    `mode` and errors as in `measure`.
    """
    rows = [
        {"dtype": one.dtype, "device": one.device, "hardware": machine} | values
        for one, machine, values in _found(mode, asked, optional)
    ]
    return pd.DataFrame(rows, columns=["dtype", "device", "hardware", *LIMITS])


Measurement = Cell | Limits


def _here(config: Config) -> Config:
    return {**config, "hardware": hardware()}


def _found(
    mode: str, asked: Sequence[Measurement], optional: Sequence[Measurement]
) -> Iterator[tuple[Measurement, str, dict[str, float]]]:
    """Each measurement, a machine that has taken it, with "smoke" and "run" this one too; value by metric."""
    bar = tqdm(asked, desc="systems", disable=mode not in ("run", "smoke"))
    if mode == "smoke":
        for one in bar:
            yield one, hardware(), _values(results.load_or_run(_here(one.config()), one.compute, mode).rows)
        return
    for one in bar if mode == "run" else ():
        results.load_or_run(_here(one.config()), one.compute, mode, command=COMMAND)
    folder = ROOT / "results" if mode == "reproduce" else None
    by_key, machines = _stored(str(asked[0].config()["experiment"]), folder)
    for one in [*asked, *optional]:
        keys = {machine: results.run_key({**one.config(), "hardware": machine}) for machine in machines}
        found = {machine: by_key[key] for machine, key in keys.items() if key in by_key}
        if one in asked and not found:
            raise _missing(one.config())
        for machine, rows in found.items():
            yield one, machine, _values(rows)


def _stored(experiment: str, folder: Path | None) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Rows by run key, and the machines that they come from."""
    try:
        rows = results.read(experiment, folder)
    except MissingResult:
        return {}, []
    return dict(list(rows.groupby("run_key", sort=False))), list(rows["hardware"].unique())


def _values(rows: pd.DataFrame) -> dict[str, float]:
    return {str(metric): float(value) for metric, value in zip(rows["metric"], rows["value"], strict=True)}


def _labels(cell: Cell) -> dict[str, object]:
    kind = {name: np.nan if value is None else value for name, value in asdict(cell.kind).items()}
    names = ("task", "context_tokens", "batch", "dtype", "device", "graph")
    own = {name: getattr(cell, name) for name in names}
    own |= {"hidden": cell.shape.hidden, "impl": cell.config()["impl"]}
    return {"label": cell.kind.label, **kind, **own, **_on_paper(cell)}


def _on_paper(cell: Cell) -> dict[str, float]:
    attention, sizes = cell.kind.attention, (cell.shape, cell.context_tokens, cell.batch)
    if attention is None or cell.task != "decode":
        return dict.fromkeys(("moved_bytes", "weight_bytes", "flops"), np.nan)
    traffic = decode_traffic(attention, *sizes, cell.dtype)
    flops = decode_flops(attention, *sizes).total
    return {"moved_bytes": traffic.total, "weight_bytes": traffic.weights, "flops": flops}


def _missing(config: Config) -> MissingResult:
    what = ", ".join(f"{name} {config[name]}" for name in ("task", "method", "dtype") if name in config)
    return MissingResult(f"{config['experiment']}.csv has no row for {what}; measure it with: {COMMAND}")
