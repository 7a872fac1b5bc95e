"""How many pairs does a state of so many bytes hold? Associative recall by the mechanism alone, untrained.

n random keys and values are written one after the other, then each key is asked for; what is read is right if
of all n values its own is the nearest. Keys, scales and gates are chosen, not learned: this is what the
recurrence can hold at best with such keys, not what a trained model reaches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from swalib import results
from swalib.evals.mechanisms import MECHANISMS, softmax, unit
from swalib.evals.perplexity import spec_columns
from swalib.results import Measured, Value
from swalib.spec import SWA, Full

KEYS = {"random": 0.0, "alike": 0.5}  # name -> mean cosine of two keys
BYTES = 4  # of a number, in states and in caches
BINS = 32  # of pairs by age
_SECONDS_PER_RUN = 2.0  # of one core; only for the estimate


def draw(pairs: int, head_dim: int, keys: str, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Keys of norm sqrt(head_dim) and values of norm 1: fp64 [draws, 1, pairs, head_dim] each.

    Args:
        keys: "random", or "alike": all share a direction, so that two have a cosine of 0.5 on average.

    Raises:
        ValueError: no keys are called so.
    """
    if keys not in KEYS:
        raise ValueError(f"keys must be one of {', '.join(KEYS)}, got {keys!r}")
    generator = torch.Generator().manual_seed(seed)
    sizes, share = (draws, 1, pairs, head_dim), KEYS[keys]
    own, v = (torch.randn(*sizes, generator=generator, dtype=torch.float64) for _ in range(2))
    shared = torch.randn(draws, 1, 1, head_dim, generator=generator, dtype=torch.float64)
    k = math.sqrt(share) * unit(shared) + math.sqrt(1 - share) * unit(own)
    return math.sqrt(head_dim) * unit(k), unit(v)


def equal_window(
    head_dim: int,
    features: int | None = None,
    *,
    state_heads: int = 1,
    kv_heads: int = 1,
    state_bytes: int = BYTES,
    kv_bytes: int = BYTES,
) -> int:
    """w* whose keys and values take as many bytes as the states S [features, head_dim] of all heads."""
    features = head_dim if features is None else features
    return state_heads * features * head_dim * state_bytes // (2 * kv_heads * head_dim * kv_bytes)


# ---- Measurements.


@dataclass(frozen=True)
class Cell:
    """One measurement: a mechanism of MECHANISMS, or softmax under `spec`, at one head size, all `pairs`."""

    mechanism: str
    head_dim: int
    keys: str = "random"
    spec: SWA | Full | None = None
    pairs: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    draws: int = 8
    seed: int = 0

    def config(self) -> dict[str, object]:
        """What identifies the measurement in the results; see `swalib.results.run_key`."""
        softmax = {} if self.spec is None else {**spec_columns(self.spec), "impl": "reference"}
        return {
            "experiment": "recall",
            "version": 1,
            "method": self.mechanism,
            **softmax,
            "dtype": "float64",
            "task": f"{self.keys} keys",
            "head_dim": self.head_dim,
            "pairs": list(self.pairs),
            "draws": self.draws,
            "seed": self.seed,
        }

    def compute(self) -> Measured:
        """Run it."""
        read = MECHANISMS[self.mechanism].read if self.spec is None else softmax(self.spec)
        values, arrays = [], {}
        for pairs in self.pairs:
            k, v = draw(pairs, self.head_dim, self.keys, self.draws, self.seed)
            right, cosine = judge(read(k, v), v)
            by_draw = right.mean(1)
            error = by_draw.std(ddof=1) / math.sqrt(self.draws) if self.draws > 1 else None
            values.append(Value(f"recall_{pairs}", by_draw.mean(), "1", right.size, error))
            for name, found in (("recall", right), ("cosine", cosine)):
                parts = np.array_split(found.mean(0), min(pairs, BINS))
                arrays[f"{name}_{pairs}"] = np.array([part.mean() for part in parts], dtype=np.float32)
        return Measured([*values, Value("state_bytes", self.state_bytes(), "bytes")], arrays)

    def state_bytes(self) -> int:
        """Bytes of S or, under SWA, of w keys and values; of full attention's after the most pairs."""
        if self.spec is None:
            return self.head_dim**2 * BYTES
        kept = self.spec.window if isinstance(self.spec, SWA) else max(self.pairs)
        return 2 * kept * self.head_dim * BYTES


def judge(o: Tensor, v: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """For each pair, oldest first: whether its value is the nearest of all to what is read (1 or 0), and the
    cosine of the two; [draws, pairs] each. Values have norm 1, so the nearest has the largest product."""
    products = (o @ v.mT)[:, 0]
    right = products.argmax(-1) == torch.arange(v.shape[2])
    own = products.diagonal(dim1=-2, dim2=-1)
    return right.double().numpy(), (own / o[:, 0].norm(dim=-1).clamp(min=1e-300)).numpy()


def cells(
    head_dims: Sequence[int],
    factors: Sequence[int] = (1, 4, 8),
    sinks: int = 4,
    keys: Sequence[str] = tuple(KEYS),
    **sizes,
) -> list[tuple[Cell, int | None]]:
    """Every cell, and by how much its window's share of bytes is multiplied; None for other mechanisms."""
    found: list[tuple[Cell, int | None]] = []
    for d, kind in product(head_dims, keys):
        found.append((Cell("full", d, kind, Full(), **sizes), None))
        for factor in factors:
            window = factor * equal_window(d)
            found.append((Cell("swa", d, kind, SWA(window, sinks), **sizes), factor))
        found += [(Cell(name, d, kind, **sizes), None) for name in MECHANISMS]
    return found


def measure(
    mode: str,
    head_dims: Sequence[int],
    pairs: Sequence[int],
    factors: Sequence[int] = (1, 4, 8),
    sinks: int = 4,
    draws: int = 8,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Recall of every mechanism, of SWA(factor·w*, sinks) with w* at equal bytes, and of full attention.

    Returns:
        (rows, ages). rows: mechanism, label, setting, keys, head_dim, factor, window, sinks, state_bytes,
        pairs, recall, stderr, n, cosine. ages: mechanism, keys, head_dim, factor, pairs, age (pairs written
        since, centre of a bin), recall, cosine.
    """
    sizes = {"pairs": tuple(pairs), "draws": draws, "seed": seed}
    asked = cells(head_dims, factors, sinks, **sizes)
    if mode == "run":
        absent = results.missing([cell.config() for cell, _ in asked])
        results.estimate(_SECONDS_PER_RUN, len(absent))
    rows, ages = [], []
    for cell, factor in tqdm(asked, desc="recall", disable=mode == "stored"):
        found = results.load_or_run(cell.config(), cell.compute, mode)
        about = {"mechanism": cell.mechanism, "keys": cell.keys, "head_dim": cell.head_dim, "factor": factor}
        by_metric = found.rows.set_index("metric")
        for count in pairs:
            recall, cosine = (found.arrays[f"{name}_{count}"] for name in ("recall", "cosine"))
            parts = np.array_split(np.arange(count), len(recall))
            age = [count - 1 - part.mean() for part in parts]
            ages.append(pd.DataFrame({"pairs": count, "age": age, "recall": recall, "cosine": cosine}))
            ages[-1] = ages[-1].assign(**about)
            one = by_metric.loc[f"recall_{count}", ["value", "stderr", "n"]]
            weights = [len(part) for part in parts]
            rows.append(_words(cell) | about | {"pairs": count, "recall": one["value"]})
            rows[-1] |= one[["stderr", "n"]].to_dict() | {"cosine": np.average(cosine, weights=weights)}
            rows[-1] |= {"state_bytes": int(found.value("state_bytes"))}
    return pd.DataFrame(rows), pd.concat(ages, ignore_index=True)


def _words(cell: Cell) -> dict[str, object]:
    if cell.spec is None:
        known = MECHANISMS[cell.mechanism]
        return {"label": known.label, "setting": known.setting, "window": None, "sinks": None}
    if isinstance(cell.spec, Full):
        return {"label": "full attention", "setting": "keeps every pair", "window": None, "sinks": None}
    w, s = cell.spec.window, cell.spec.sinks
    return {"label": f"SWA({w}, {s})", "setting": f"{s} first, {w - s} latest", "window": w, "sinks": s}


def headline(rows: pd.DataFrame, head_dim: int, pairs: int) -> dict[str, float]:
    """The numbers of one head size and number of pairs by name, for prose.

    `<mechanism>_<keys>`: recall, of softmax under a window `swa<factor>_<keys>`; `<mechanism>_<keys>_cosine`:
    of what is read with what was written; `swa<factor>_window`; `state_kb`, `head_dim` and `pairs`.
    """
    here = rows[(rows["head_dim"] == head_dim) & (rows["pairs"] == pairs)]
    found: dict[str, float] = {"head_dim": head_dim, "pairs": pairs, "state_kb": head_dim**2 * BYTES / 1000}
    for row in here.to_dict("records"):
        name = row["mechanism"] if pd.isna(row["factor"]) else f"swa{int(row['factor'])}"
        found[f"{name}_{row['keys']}"] = float(row["recall"])
        found[f"{name}_{row['keys']}_cosine"] = float(row["cosine"])
        if not pd.isna(row["window"]):
            found[f"{name}_window"] = int(row["window"])
    return found
