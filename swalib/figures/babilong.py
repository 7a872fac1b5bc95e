"""What do BABILong's scores show, and do the needed facts stand within the window? Figures over its tables.

The tables are those of `swalib.evals.babilong_summary` and `babilong_facts`; nothing is computed here. Shares
are fractions in the tables and percent on the page. `task`, `measure`, `window` and `start_sinks` are where
the controls start. The caption states the conclusion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from swalib.evals.babilong_items import Baselines
from swalib.figures import rows as shape
from swalib.figures.show import Figure
from swalib.figures.tables_long import TASK_LABELS

_TASKS = {
    **{key.removeprefix("babilong_"): label for key, label in TASK_LABELS.items()},
    "qa1-4": "mean of qa1 to qa4",
    "qa1-5": "mean of all five",
}
_MEASURES = {
    "official": "official score",
    "substring": "substring score",
    "both": "both scorers",
    "gap": "right by the substring alone",
    "invalid": "invalid answers",
}
_WHICH = {"first": "all that the answer needs", "last": "the last that it needs"}
_FULL = {"key": "full", "method": "full", "label": "full attention", "short": "full"}
_LOLCATS = {"key": "LoLCATs", "method": "lolcats", "label": "LoLCATs", "short": "LoLCATs"}
_METHODS = {"Full attention": "full", "SWA": "256,4", "LoLCATs": "LoLCATs"}


def babilong_printed(
    rows: pd.DataFrame,
    guesses: Mapping[str, Baselines],
    *,
    caption: str,
    proviso: str,
    task: str = "qa1-4",
) -> Figure:
    """Table 6 and its means against the context, beside what guessing scores.

    Args:
        rows: of `swalib.evals.babilong_summary.printed`.
        guesses: by task and mean.
        proviso: what the intervals rest on; told with each.

    Raises:
        ValueError: a column is missing, or a task has no baselines.
    """
    shape.need(rows, "method task context value low high")
    contexts = list(dict.fromkeys(rows["context"]))
    values: dict[str, dict] = {}
    for (method, name), part in rows.groupby(["method", "task"], sort=False):
        cells = {row.context: _cell(row) for row in part.itertuples()}
        values[f"Llama-3.1-8B|{name}|{_METHODS[method]}"] = {"official": [cells.get(c) for c in contexts]}
    swa = {"key": "256,4", "method": "sinks", "label": "SWA(256, 4)", "short": "SWA"}
    data = {
        **_common(rows, guesses, contexts, ["Llama-3.1-8B"], task, "printed", f"; {proviso}"),
        "systems": [_FULL, swa, _LOLCATS],
        "values": values,
        "signal": {},
    }
    data["initial"]["measure"] = "official"
    last = contexts[-1]
    told = rows[(rows["task"] == data["initial"]["task"]) & (rows["context"] == last)]
    alt = (
        f"Line chart of printed scores against the context, {', '.join(contexts)}, with a band for what "
        f"guessing scores. {_TASKS[data['initial']['task']]} at {last}: "
        + ", ".join(f"{row.method} {100 * row.value:.0f} %" for row in told.itertuples())
        + "."
    )
    title = "Who still beats guessing as the context grows? (printed)"
    return Figure(
        id="babilong-printed", kind="babilong-scores", title=title, data=data, alt=alt, caption=caption
    )


def babilong_measured(
    rows: pd.DataFrame,
    guesses: Mapping[str, Baselines],
    windows: Sequence[int],
    sinks: Sequence[int],
    *,
    caption: str,
    command: Callable[[str], str],
    contexts: Sequence[int] = (),
    task: str = "qa1",
    measure: str = "official",
    window: int = 256,
    start_sinks: int = 4,
) -> Figure:
    """Both scores, their gap and invalid answers against the context: full attention and SWA(w, s).

    Args:
        rows: of `swalib.evals.babilong_summary.summarise`.
        windows, sinks: what the sliders offer, measured or not.
        command: from a model to what measures it, with [w] and [s] for the sliders' values.
        contexts: lengths (tokens) that the axis offers, measured or not, beside those in `rows`.

    Raises:
        ValueError: a column is missing, a task has no baselines, or a slider has no value.
    """
    shape.need(rows, "model task context_tokens window sinks n measure value low high signal")
    lengths = sorted({int(one) for one in (*rows["context_tokens"], *contexts)})
    models = list(dict.fromkeys(rows["model"]))
    data = {
        **_common(rows, guesses, [f"{one:,}" for one in lengths], models, task, "measured", ""),
        **_sliders(windows, sinks, window, start_sinks),
        "systems": [_FULL, {"key": "swa"}],
        "measures": [{"id": key, "label": label} for key, label in _MEASURES.items()],
        "commands": {model: command(model) for model in models},
        "values": _values(rows, lengths),
        "signal": _signal(rows, lengths),
    }
    data["initial"] |= {"measure": measure, "task": _first_task(data, task), **data.pop("start")}
    told = rows[rows["window"].isna() & (rows["measure"] == "official")]
    alt = (
        "Line chart of the chosen score against the context for full attention and SWA(w, s) with 95 % "
        "intervals, and a band for what guessing scores; a table under it holds every number. Full "
        f"attention, official: {'; '.join(_told(row) for row in told.itertuples())}."
    )
    title = "What is right, by whose count?"
    return Figure(
        id="babilong-measured", kind="babilong-scores", title=title, data=data, alt=alt, caption=caption
    )


def babilong_facts(
    found: pd.DataFrame,
    rows: pd.DataFrame,
    guesses: Mapping[str, Baselines],
    windows: Sequence[int],
    sinks: Sequence[int],
    *,
    caption: str,
    task: str = "qa1",
    window: int = 256,
    start_sinks: int = 4,
) -> Figure:
    """The share of items whose needed facts lie within so many tokens of the answer, beside the window.

    Args:
        found: of `swalib.evals.babilong_facts.distances`. rows: as for `babilong_measured`.

    Raises:
        ValueError: a column is missing, there are no rows, or a slider has no value.
    """
    shape.need(found, "model task context_tokens first last")
    lengths = sorted(int(one) for one in found["context_tokens"].unique())
    models = list(dict.fromkeys(found["model"]))
    facts = {
        f"{model}|{name}|{length}": {which: sorted(int(one) for one in part[which]) for which in _WHICH}
        for (model, name, length), part in found.groupby(["model", "task", "context_tokens"], sort=False)
    }
    data = {
        **_common(found, guesses, [f"{one:,}" for one in lengths], models, task, "measured", ""),
        **_sliders(windows, sinks, window, start_sinks),
        "lengths": lengths,
        "which": [{"id": key, "label": label} for key, label in _WHICH.items()],
        "facts": facts,
        "values": _values(rows, lengths),
        "span": [min(16, *(w - s for w in windows for s in sinks if s < w)), int(found["first"].max()) + 1],
    }
    data["initial"] |= {"which": "first", **data.pop("start")}
    recents = data["initial"]["window"] - data["initial"]["sinks"]
    shares = (found["first"] <= recents).groupby([found["task"], found["context_tokens"]]).mean()
    alt = (
        "Staircase lines, one a context: the share of items whose needed facts begin within so many tokens "
        f"of the answer. Within the {recents} latest tokens: "
        + "; ".join(f"{name} at {length:,} {share:.0%}" for (name, length), share in shares.items())
        + "."
    )
    title = "Do the facts stand within the window?"
    return Figure(
        id="babilong-facts", kind="babilong-facts", title=title, data=data, alt=alt, caption=caption
    )


# ---- What the three share.


def _common(rows, guesses, contexts, models, task, layer, proviso) -> dict:
    known = set(rows["task"])
    if missing := sorted(known - set(guesses)):
        raise ValueError(f"no baselines are known for {missing[0]}: give guesses for it.")
    tasks = [name for name in _TASKS if name in known]
    return {
        "layer": layer,
        "proviso": proviso,
        "contexts": contexts,
        "models": models,
        "tasks": [{"id": name, "label": _TASKS[name]} for name in tasks],
        "guesses": {
            name: {kind: shape.rounded(100 * share) for kind, share in vars(guesses[name]).items()}
            for name in tasks
        },
        "initial": {"model": models[0], "task": task if task in tasks else tasks[0]},
    }


def _told(row) -> str:
    return (
        f"{row.task} at {row.context_tokens:,} {100 * row.value:.0f} %{'' if row.signal else ', no signal'}"
    )


def _first_task(data: dict, task: str) -> str:
    names = [one["id"] for one in data["tasks"]]
    return task if task in names else names[0]


def _sliders(windows: Sequence[int], sinks: Sequence[int], window: int, start: int) -> dict:
    if not len(windows) or not len(sinks) or min(sinks) >= max(windows):
        raise ValueError(
            f"the sliders need windows and sinks with s < w: got {list(windows)} and {list(sinks)}."
        )
    first = {
        "window": window if window in windows else max(windows),
        "sinks": start if start in sinks else min(sinks),
    }
    return {"windows": sorted(windows), "sinks": sorted(sinks), "start": first}


def _cell(row) -> list[float | int | None]:
    """[percent, low, high, items]."""
    items = int(row.n) if hasattr(row, "n") else None
    return [*(shape.rounded(100 * value) for value in (row.value, row.low, row.high)), items]


def _values(rows: pd.DataFrame, lengths: Sequence[int]) -> dict[str, dict]:
    found: dict[str, dict] = {}
    for row in rows.itertuples():
        who = "full" if pd.isna(row.window) else shape.key(row.window, row.sinks)
        cells = found.setdefault(f"{row.model}|{row.task}|{who}", {}).setdefault(
            row.measure, [None] * len(lengths)
        )
        if row.context_tokens in lengths:
            cells[lengths.index(row.context_tokens)] = _cell(row)
    return found


def _signal(rows: pd.DataFrame, lengths: Sequence[int]) -> dict[str, list[bool | None]]:
    full = rows[rows["window"].isna() & (rows["measure"] == "official")]
    found: dict[str, list[bool | None]] = {}
    for row in full.itertuples():
        own = found.setdefault(f"{row.model}|{row.task}", [None] * len(lengths))
        own[lengths.index(row.context_tokens)] = bool(row.signal)
    return found
