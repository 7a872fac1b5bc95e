"""Which items of the six short tasks are scored, or stored? A grid of specs, with gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import pandas as pd

from swalib import results
from swalib.evals import perplexity
from swalib.evals.harness import PART, Cell, short
from swalib.results import MissingResult
from swalib.spec import SWA, Full


def specs(
    windows: Sequence[int], sinks: Sequence[int], more_sinks: Sequence[int] = (), more_at: int = 64
) -> list[SWA]:
    """SWA(w, s) wherever s < w, w outermost; at the window `more_at`, `more_sinks` too."""
    counts = {w: [*sinks, *(more_sinks if w == more_at else ())] for w in windows}
    return [SWA(w, s) for w in windows for s in sorted(set(counts[w])) if s < w]


def gather(
    mode: str,
    model: str,
    specs: Sequence[SWA],
    tasks: Sequence[str],
    shots: Sequence[int],
    limit: int,
    **settings: object,
) -> pd.DataFrame:
    """Items as `swalib.evals.harness.short` returns them; in mode "stored", those of whatever is stored.

    Stored parts count from the first on, so that a spec, task and number of shots has up to `limit` items, or
    none. The other modes measure all of them.

    Raises:
        MissingResult: in mode "stored", nothing is stored for the model; the message says how to measure it.
        ValueError: as `short`.
    """
    if mode != "stored":
        return short(mode, model, specs, tasks, shots, limit, **settings)
    found = []
    for task, n in product(tasks, shots):
        sizes = {spec: _most(model, spec, task, n, limit, settings) for spec in (Full(), *specs)}
        for size in sorted(set(sizes.values()) - {0}):
            chosen = [spec for spec, most in sizes.items() if most == size]
            rows = short("stored", model, chosen, [task], [n], size, **settings)
            found.append(rows if Full() in chosen else rows[rows["window"].notna()])
    if not found:
        return short(mode, model, specs, tasks, shots, limit, **settings)  # which says what is missing
    return pd.concat(found, ignore_index=True)


def gather_all(
    mode: str, model: str, others: Sequence[str], *asked: object, **settings: object
) -> pd.DataFrame:
    """`gather` for `model`, and what is stored of the `others`, if anything is.

    Raises as `gather`, for `model`.
    """
    found = [gather(mode, model, *asked, **settings)]
    for other in others:
        try:
            if other != model:
                found.append(gather("stored", other, *asked, **settings))
        except MissingResult:
            continue
    return pd.concat(found, ignore_index=True)


def perplexities(
    mode: str,
    models: Sequence[str],
    text: str,
    specs: Sequence[SWA],
    context_tokens: int = 2048,
    n: int = 2,
    device: str = "cpu",
) -> pd.DataFrame:
    """Rows of `swalib.evals.perplexity.grid` for the specs on `n` pieces of a text.

    The first model is measured as `mode` says; in mode "stored", and of the other models, what is stored.

    Raises:
        MissingResult: in mode "stored", nothing is stored of any of them; the message says how to measure it.
    """
    found = []
    for model, spec in product(dict.fromkeys(models), specs):
        asked = ([model], [text], [spec.window], [spec.sinks])
        how = mode if model == models[0] else "stored"
        try:
            found.append(perplexity.grid(how, *asked, context_tokens=context_tokens, n=n, device=device).rows)
        except MissingResult as error:
            absent = str(error)
    if not found:
        raise MissingResult(absent)
    return pd.concat(found).drop_duplicates(["model", "task", "window", "sinks"], ignore_index=True)


def _most(model: str, spec: SWA | Full, task: str, shots: int, limit: int, settings: Mapping) -> int:
    """How many items are stored of one spec, task and number of shots, up to `limit`, and of its teacher."""
    for size in [limit, *range((limit - 1) // PART * PART, 0, -PART)]:
        parts = [(first, min(PART, size - first)) for first in range(0, size, PART)]
        cells = [Cell(model, one, task, shots, *part, **settings) for one in {Full(), spec} for part in parts]
        if not results.missing([cell.config() for cell in cells]):
            return size
    return 0


def command(model: str) -> str:
    """What measures one cell of `model`; [shots], [w] and [s] stand for the cell's own."""
    return f"swa measure short -p model {model} -p shots '[shots]' -p windows '[w]' -p sinks '[s]'"
