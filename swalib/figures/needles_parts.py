"""What the figures of needles are made of: selectors, axes, lines by their settings, words in colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import pandas as pd

from swalib.figures import rows as shape

TASKS = {"s_niah_1": "S-NIAH-1", "s_niah_2": "S-NIAH-2", "s_niah_3": "S-NIAH-3"}
METHODS = {"Full attention": "full", "SWA": "sinks", "LoLCATs": "lolcats", "Liger-GLA": "liger"}
POSITIONS = {"text": "text positions", "cache": "positions in the cache"}
MEASURES = {"found": "needles found", "loglikelihood": "log-likelihood of the answer"}
COLUMNS = (
    "model window sinks positions task context_tokens defined n found found_low found_high loglikelihood "
    "loglikelihood_low loglikelihood_high inside inside_n outside outside_n"
)
FOUND = {"title": "needles found, %", "short": "found, %", "span": [-9, 104]}


def controls(data: dict, alone: Sequence[str] = (), **options: Mapping | Sequence) -> dict:
    """`data` with a control for each of `options`, from value to text; a single value is fixed without one.

    `data["initial"]` says where they start; a value that is not among the options starts at the first. Those
    named by `alone`, and the measure, are not shared with other figures of the page.
    """
    labels = {"task": "task", "window": "window w", "sinks": "sinks s", "method": "divided by"}
    labels |= {"measure": "measure", "haystack": "haystack", "positions": "positions", "model": "model"}
    found, fixed, initial = [], {}, data.pop("initial", {})
    for name, texts in options.items():
        values = list(texts)
        start = initial.get(name) if initial.get(name) in values else values[0]
        if len(values) == 1:
            fixed[name] = start
            continue
        shown = [str(texts[value]) if isinstance(texts, Mapping) else str(value) for value in values]
        about = {"name": name, "label": labels[name], "values": values, "initial": start, "texts": shown}
        found.append(about | {"shared": name not in ("measure", *alone)})
    return {**data, "controls": found, "fixed": fixed}


def part(fields: str, values: Mapping) -> dict:
    """A part of a data block whose entry is looked up by the standing of the space-separated `fields`."""
    return {"fields": fields.split(), "values": dict(values)}


def key(name: str, *values: object) -> str:
    """How a data block names an entry."""
    return "|".join([name, *(str(int(v)) if isinstance(v, float) else str(v) for v in values)])


def line(name: str, label: str, short: str, method: str, layer: str, fields: str, **looks: object) -> dict:
    """A line, or dots, of one method and layer; `short` is its name where there is little room."""
    about = {"name": name, "label": label, "short": short, "method": method, "layer": layer}
    return about | {"fields": fields.split()} | looks


def contexts(lengths: Iterable[int]) -> dict:
    """The logarithmic axis of lengths."""
    found = sorted({int(length) for length in lengths})
    ticks = [[n, tokens(n), nth % 2 == 1 and len(found) > 5] for nth, n in enumerate(found)]
    return {
        "title": "length of prompt and answer (tokens, log scale)",
        "short": "length (tokens)",
        "span": [found[0] / 1.12, found[-1] * 1.12],
        "log": True,
        "ticks": ticks,
    }


def tokens(n: int) -> str:
    """512, 1K, 2K, …"""
    return f"{n // 1024}K" if n >= 1024 and n % 1024 == 0 else f"{n:,}"


def pct(value: float) -> float | None:
    """A fraction in percent, for a data block; None where there is none."""
    return shape.rounded(100 * value)


def said(value: float, digits: int = 1) -> str:
    """A fraction in percent, for a reader."""
    return "–" if pd.isna(value) else f"{100 * value:.{digits}f} %"


def coloured(method: str, text: str) -> dict:
    """A number of a sentence, in its method's colour."""
    return {"method": method, "text": text}


# ---- Measured rows.


class Grid:
    """What the selectors of a table of scores offer, and where they start."""

    def __init__(self, scores: pd.DataFrame, task: str, window: int, sinks: int) -> None:
        slid = shape.sliders(scores, window, sinks)
        kept = [name for name in POSITIONS if name in set(scores["positions"])]
        self.options = {
            "task": {name: label for name, label in TASKS.items() if name in set(scores["task"])},
            "measure": MEASURES,
            "model": list(dict.fromkeys(scores["model"])),
            "positions": {name: POSITIONS[name] for name in kept},
            "window": slid["windows"],
            "sinks": slid["sinks"],
        }
        self.initial = {**slid["initial"], "task": task, "measure": "found", "positions": "text"}

    def every(self, *names: str) -> list[tuple]:
        """All settings of the named selectors, with s < w."""
        found = product(*(self.options[name] for name in names))
        specs = [dict(zip(names, one, strict=True)) for one in found]
        return [tuple(one.values()) for one in specs if one.get("sinks", 0) < one.get("window", 1 << 40)]


def own(scores: pd.DataFrame, task: str, model: str, positions: str, window: int, sinks: int) -> pd.DataFrame:
    """The rows of one spec, by length."""
    same = (scores["task"] == task) & (scores["model"] == model) & (scores["positions"] == positions)
    same &= (scores["window"] == window) & (scores["sinks"] == sinks)
    return scores[same].sort_values("context_tokens")


def value(row: dict, measure: str) -> str:
    """A measured number with its interval, for a reader."""
    if measure == "found":
        return f"{said(row['found'])} found ({said(row['found_low'])} to {said(row['found_high'])})"
    low, high = row["loglikelihood_low"], row["loglikelihood_high"]
    return f"{row['loglikelihood']:.2f} nats a token ({low:.2f} to {high:.2f})"
