"""Where do the facts stand that a BABILong question needs, and does a window see them from the answer?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
import pandas as pd

from swalib import results
from swalib.evals import babi, parts
from swalib.evals.babi import Item
from swalib.evals.babilong import Cell
from swalib.evals.babilong_items import LABELS
from swalib.evals.babilong_summary import UNKNOWN
from swalib.spec import SWA, Full

_STORIES = 200  # as many as `swalib.evals.babilong_items.build` draws
COLUMNS = ["model", "task", "context_tokens", "item", "first", "last"]


def needed(story: Item) -> tuple[int, int]:
    """The first and the last sentence that the answer needs, as indices into the facts.

    The first is the latest one from which on the answer still follows; the last is the one after which it
    stands for good.

    Raises:
        ValueError: the answer does not follow from the facts.
    """
    facts, count = story.facts, len(story.facts)

    def follows(start: int, end: int) -> bool:
        return babi.solve(facts[start:end], story.question) == story.answer

    if not follows(0, count):
        raise ValueError(f"{story.answer!r} does not follow from the facts: {story.question}")
    first = next(n for n in reversed(range(count)) if follows(n, count))
    last = next(n for n in reversed(range(count)) if not follows(0, n))
    return first, max(first, last)


def distances(
    mode: str,
    models: Sequence[str],
    tasks: Sequence[str],
    context_tokens: Sequence[int],
    limit: int,
    specs: Sequence[SWA] = (),
    **settings: object,
) -> pd.DataFrame:
    """How far back the needed facts begin, for the items that any of the specs was asked.

    In mode "stored" what is not stored is left out, and may be all of it. Positions don't depend on a model's
    answers, so that mode "reproduce" reads them from what is stored.

    Args:
        settings: fields of `swalib.evals.babilong.Cell`.

    Returns:
        model, task, context_tokens, item, first, last: tokens from where the first (last) needed fact begins
        to the prompt's end, its last token included. SWA(w, s) reads it from there if they are at most w − s.
    """
    mode = "stored" if mode == "reproduce" else mode
    cells: dict[tuple, Cell] = {}
    for model in models:
        make = partial(Cell, model, **settings)
        for cell in parts.cut(make, [Full(), *specs], context_tokens, tasks, limit):
            if mode != "stored" or not results.missing([cell.config()]):
                cells.setdefault((model, cell.task, cell.context_tokens, cell.first), cell)
    found = [results.load_or_run(cell.config(), cell.compute, mode).arrays for cell in cells.values()]
    frames = [_placed(*one) for one in zip(cells.values(), found, strict=True)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=COLUMNS)


def _placed(cell: Cell, found: Mapping[str, np.ndarray]) -> pd.DataFrame:
    rows = []
    for n in range(cell.count):
        starts, end = found["facts"][n, :, 0], int(found["prompt_tokens"][n])
        answer = LABELS[cell.task][int(found["answer"][n])]
        story = _told(cell, cell.first + n, int((starts >= 0).sum()), answer)
        first, last = (end - int(starts[fact]) for fact in needed(story))
        rows.append((cell.model, cell.task, cell.context_tokens, cell.first + n, first, last))
    return pd.DataFrame(rows, columns=COLUMNS)


def _told(cell: Cell, number: int, facts: int, answer: str) -> Item:
    """The story of a stored item: of its number's draws the first with as many facts and the same answer."""
    for drawn in range(_STORIES):
        story = babi.item(cell.task, number, cell.seed if not drawn else f"{cell.seed}+{drawn}")
        if (len(story.facts), story.answer) == (facts, answer):
            return story
    raise ValueError(f"item {number} of {cell.task} is not one that is generated today: measure it again.")


def within(
    found: pd.DataFrame, windows: Sequence[int], sinks: Sequence[int], which: str = "first"
) -> pd.DataFrame:
    """The share of items whose needed facts SWA(w, s) reads from the answer: all (first) or the last of them.

    Args:
        found: as `distances` returns it.

    Returns:
        model, task, context_tokens, window, sinks, n, within (share).
    """
    keys = ["model", "task", "context_tokens"]
    rows = [
        (*values, window, s, len(part), float((part[which] <= window - s).mean()))
        for values, part in found.groupby(keys, sort=False)
        for window, s in product(windows, sinks)
        if s < window
    ]
    return pd.DataFrame(rows, columns=[*keys, "window", "sinks", "n", "within"])


def words(found: pd.DataFrame, model: str, spec: SWA) -> dict[str, str]:
    """What a text says of one model and window, by name, or "not measured yet".

    `inside`: the share of all tasks' items with every needed fact in the window, at each context that has
    items of them all. `facts_n`: those items.
    """
    own = found[found["model"] == model]
    tasks = own.groupby("context_tokens")["task"].transform("nunique")
    own = own[tasks == tasks.max()]
    shares = (own["first"] <= spec.window - spec.sinks).groupby(own["context_tokens"]).mean()
    told = [f"{100 * share:.0f} % of the items at {length:,} tokens" for length, share in shares.items()]
    return {"inside": ", ".join(told) or UNKNOWN, "facts_n": str(len(own))}
