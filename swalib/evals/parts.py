"""Long-context items are measured in parts that a stop can't undo: which ones, and all as one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from tqdm import tqdm

from swalib import results
from swalib.evals.bench import SECONDS_PER_NEW_TOKEN, SECONDS_PER_TOKEN
from swalib.results import Config, Measured

PART = 25  # items of one run


class Part(Protocol):
    """Some items of a task at a length, under a spec."""

    model: str

    def config(self) -> dict[str, object]: ...

    def compute(self) -> Measured: ...


def cut(make: Callable[..., Part], specs: Sequence, lengths: Sequence[int], tasks: Sequence, limit: int):
    """`make(spec, task, length, first, count)` for all parts of `limit` items of each task and length.

    Raises:
        ValueError: a limit below 1.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    return [
        make(spec, task, length, first, min(PART, limit - first))
        for spec in dict.fromkeys(specs)
        for length in lengths
        for task in tasks
        for first in range(0, limit, PART)
    ]


def table(
    mode: str,
    cells: Sequence[Part],
    frame: Callable[[Part, Mapping[str, np.ndarray]], pd.DataFrame],
    title: str,
    gaps: bool = False,
) -> pd.DataFrame:
    """The frames of all parts, stored or computed as `mode` says, after saying what the missing ones cost.

    Args:
        gaps: in mode "stored", leave out what is not stored, as long as something is.

    Raises:
        MissingResult: in mode "stored", a part is not stored; with `gaps`, none is.
    """
    if mode == "run":
        absent = results.missing([cell.config() for cell in cells])
        results.estimate(seconds(absent) / max(len(absent), 1), len(absent))
    if gaps and mode == "stored":
        cells = [cell for cell in cells if not results.missing([cell.config()])] or cells
    frames = []
    for cell in tqdm(cells, desc=title, disable=mode == "stored"):
        found = results.load_or_run(cell.config(), cell.compute, mode)
        frames.append(frame(cell, found.arrays))
    return pd.concat(frames, ignore_index=True)


def seconds(configs: Sequence[Config]) -> float:
    """Of one core, if every item generates all its tokens."""
    return sum(
        config["items"]
        * (config["context_tokens"] * SECONDS_PER_TOKEN + config["new_tokens"] * SECONDS_PER_NEW_TOKEN)
        for config in configs
    )
