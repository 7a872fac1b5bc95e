"""What else changes a score? One setting of the evaluation at a time, on the same items as the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import torch

from swalib import items, results
from swalib.evals.bench import proven, resident
from swalib.evals.harness import Cell, choices, short
from swalib.evals.likelihood import Scorer
from swalib.evals.resampling import DRAWS, interval, resampled_means
from swalib.results import Measured, MissingResult
from swalib.spec import SWA, Full

TASKS = ("piqa", "arc_easy", "hellaswag")  # where a model of 135M parameters is above chance
REFERENCE = "reference"
STUDENT = SWA(64, 4)
COMMAND = "swa measure variants"


@dataclass(frozen=True)
class Variant:
    """One setting: its name on the page, and what it sets of `Cell`, or `shots` or `batch_size`."""

    label: str
    settings: Mapping[str, object]


VARIANTS = {
    REFERENCE: Variant("float32, no BOS, no template, no examples, batches of 8", {}),
    "bfloat16": Variant("bfloat16", {"dtype": "bfloat16"}),
    "bos": Variant("a BOS in front", {"bos": True}),
    "template": Variant("the chat template", {"template": True}),
    "shots": Variant("five worked examples", {"shots": 5}),
    "batch": Variant("one item at a time", {"batch_size": 1}),
}


@dataclass(frozen=True)
class Batched(Cell):
    """Items scored `batch_size` at a time, in one run: rows of their own, though scores should not differ."""

    batch_size: int = 1

    def config(self) -> dict[str, object]:
        """What identifies the run in the results."""
        return super().config() | {"experiment": "variants", "batch_size": self.batch_size}

    def measure(self) -> Measured:
        """Score the items, full attention's own included."""
        loaded = resident(self.model, self.device, getattr(torch, self.dtype))
        with proven(loaded, self.spec, self.impl) as student:
            return self.compute(Scorer(student, self.batch_size), loaded)


def variants(
    mode: str,
    model: str,
    spec: SWA = STUDENT,
    tasks: Sequence[str] = TASKS,
    limit: int = 100,
    names: Sequence[str] = tuple(VARIANTS),
    **settings: object,
) -> pd.DataFrame:
    """The same items under full attention and under `spec`, by variant.

    All but the batch size are runs of `swalib.evals.harness.short`, and stored with them. In mode "stored" a
    variant that isn't stored is left out.

    Args:
        mode: "stored", "run", "smoke" or "reproduce", see `swalib.results.load_or_run`.
        names: of VARIANTS.
        settings: fields of `Cell` for all of them: seed, source, impl, device.

    Returns:
        One row for each variant, item and spec: variant, window, sinks (missing for full attention), task,
        place, choice, correct, gold_loglikelihood (nats).

    Raises:
        ValueError: no variant is called so; else as `short`.
    """
    if unknown := [name for name in names if name not in VARIANTS]:
        raise ValueError(f"no variant is called {unknown[0]!r}: choose from {', '.join(VARIANTS)}.")
    columns = ["variant", "window", "sinks", "task", "place", "choice", "correct", "gold_loglikelihood"]
    found = [pd.DataFrame(columns=columns)]
    for name in names:
        try:
            rows = _measured(mode, model, spec, tasks, limit, {**settings, **VARIANTS[name].settings})
        except MissingResult:
            continue
        found.append(rows.assign(variant=name)[columns])
    return pd.concat(found[1:] or found, ignore_index=True)


def _measured(
    mode: str, model: str, spec: SWA, tasks: Sequence[str], limit: int, settings: dict
) -> pd.DataFrame:
    if "batch_size" not in settings:
        shots = settings.pop("shots", 0)
        return short(mode, model, [spec], tasks, [shots], limit, **settings)
    cells = [
        Batched(model, one, task, 0, 0, limit, **settings) for one, task in product((Full(), spec), tasks)
    ]
    return pd.concat([_frame(cell, mode) for cell in cells], ignore_index=True)


def _frame(cell: Batched, mode: str) -> pd.DataFrame:
    arrays = results.load_or_run(cell.config(), cell.measure, mode, command=COMMAND).arrays
    gold = arrays["gold"].astype(int)
    choice = choices(arrays, items.task(cell.task).metric)
    whole = cell.spec == Full()
    return pd.DataFrame(
        {
            "window": pd.NA if whole else cell.spec.window,
            "sinks": pd.NA if whole else cell.spec.sinks,
            "task": cell.task,
            "place": arrays["place"],
            "choice": choice,
            "correct": choice == gold,
            "gold_loglikelihood": arrays["loglikelihood"][np.arange(len(gold)), gold].astype(float),
        }
    )


def effects(found: pd.DataFrame, spec: SWA = STUDENT, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """What each variant changes, under full attention and under `spec`, on average over the tasks.

    Args:
        found: as `variants` returns it.

    Returns:
        A row for each of VARIANTS and each of the two: variant, label, window, sinks (missing for full
        attention), n, score, difference (score − the reference's), low and high (its 95 % interval, items
        resampled in pairs within tasks), changed (share of items with another choice) and moved (the largest
        change of a right option's log-likelihood, nats). What is not measured is NaN, with n = 0.

    Raises:
        ValueError: a variant was not scored on the reference's items.
    """
    rows = []
    for name, (window, sinks) in product(VARIANTS, ((None, None), (spec.window, spec.sinks))):
        own = found[found["window"].isna() if window is None else found["window"] == window]
        about = {"variant": name, "label": VARIANTS[name].label, "window": window, "sinks": sinks}
        rows.append(
            about | _effect(own[own["variant"] == REFERENCE], own[own["variant"] == name], draws, seed)
        )
    return pd.DataFrame(rows).astype({"window": "Int64", "sinks": "Int64"})


def _effect(reference: pd.DataFrame, variant: pd.DataFrame, draws: int, seed: int) -> dict:
    nothing = dict.fromkeys(("score", "difference", "low", "high", "changed", "moved"), np.nan)
    if reference.empty or variant.empty:
        return {"n": 0, **nothing}
    both = variant.merge(reference, on=["task", "place"], suffixes=("", "_reference"))
    if len(both) != len(variant) or len(both) != len(reference):
        raise ValueError("a variant was scored on other items than the reference: measure both anew.")
    rng = np.random.default_rng(seed)
    tables = [part[["correct", "correct_reference"]].to_numpy(np.float64) for _, part in both.groupby("task")]
    seen = np.mean([table.mean(0) for table in tables], axis=0)
    drawn = np.mean([resampled_means(table, draws, rng) for table in tables], axis=0)
    change = interval(seen[0] - seen[1], drawn[:, 0] - drawn[:, 1])
    moved = (both["gold_loglikelihood"] - both["gold_loglikelihood_reference"]).abs().max()
    return {
        "n": len(both),
        "score": float(seen[0]),
        **dict(zip(("difference", "low", "high"), change, strict=True)),
        "changed": float((both["choice"] != both["choice_reference"]).mean()),
        "moved": float(moved),
    }
