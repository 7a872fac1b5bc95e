"""What do Table 3's printed S-NIAH scores say, cell by cell, and beside what a window alone finds?

Scores are fractions, intervals 95 %. Contexts are in tokens; the paper's "0.5K" is 512.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from swalib import reported
from swalib.evals.resampling import Z95, wilson

TASKS = {"s_niah_1": "S-NIAH-1", "s_niah_2": "S-NIAH-2", "s_niah_3": "S-NIAH-3"}
SAMPLES = 500  # of each printed cell: all are multiples of 0.2 %
BAND = (2.0, 10.0)  # "2–10 times better"
FULL = "Full attention"
_LABELS = {label: task for task, label in TASKS.items()}
_TOKENS = {"0.5K": 512, "1K": 1024, "2K": 2048, "4K": 4096}


# ---- The printed cells.


def printed() -> pd.DataFrame:
    """Table 3: task, context_tokens, method, window (missing: full attention), value and its interval.

    The interval is Wilson's for 500 items.
    """
    rows = reported.printed(3)
    found = pd.DataFrame(
        {
            "task": rows["task"].map(_LABELS),
            "context_tokens": rows["context"].map(_TOKENS),
            "method": rows["method"],
            "window": rows["window"],
            "value": rows["value"] / 100,
        }
    )
    _, low, high = wilson(found["value"], SAMPLES)
    return found.assign(low=low, high=high)


def ratios(rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """SWA's printed score divided by each other method's, cell by cell.

    Args:
        rows: as `printed` returns them.

    Returns:
        task, context_tokens, window, method (divided by), swa, other, ratio (infinite where the other scores
        0.0), low, high (the ratio's 95 % interval from 500 items a score, by the delta method on its log; for
        an infinite one, low is what 500 items without a hit still allow and high is infinite), place
        ("below", "within" or "above" the band of 2 to 10, or "infinite").
    """
    rows = printed() if rows is None else rows
    swa = rows[rows["method"] == "SWA"].drop(columns=["method", "low", "high"])
    found = []
    for method, other in rows[rows["method"] != "SWA"].groupby("method", sort=False):
        on = ["task", "context_tokens"] + ([] if other["window"].isna().all() else ["window"])
        pair = swa.merge(other[[*on, "value"]], on=on, suffixes=("", "_other"))
        found.append(pair.assign(method=method))
    table = pd.concat(found, ignore_index=True).rename(columns={"value": "swa", "value_other": "other"})
    return table.assign(**_ratio(table["swa"].to_numpy(), table["other"].to_numpy()))


def _ratio(swa: np.ndarray, other: np.ndarray) -> dict[str, np.ndarray]:
    hits = other > 0
    safe = np.where(hits, other, 1.0)
    ratio = np.where(hits, swa / safe, np.inf)
    spread = np.exp(Z95 * np.sqrt((1 / np.maximum(swa, 1 / SAMPLES) - 1 + 1 / safe - 1) / SAMPLES))
    least = swa / (1 - 0.05 ** (1 / SAMPLES))
    low, high = np.where(hits, ratio / spread, least), np.where(hits, ratio * spread, np.inf)
    names = np.select(
        [~hits, ratio < BAND[0], ratio <= BAND[1]], ["infinite", "below", "within"], default="above"
    )
    return {"ratio": ratio, "low": low, "high": high, "place": names}


def counted(table: pd.DataFrame) -> pd.DataFrame:
    """How many cells of `ratios` lie where: below, within, above, infinite, cells; by method, "all" last."""
    linear = table[table["method"] != FULL]
    counts = pd.crosstab(linear["method"], linear["place"])
    counts = counts.reindex(linear["method"].unique())
    counts = counts.reindex(columns=["below", "within", "above", "infinite"], fill_value=0)
    counts.loc["all"] = counts.sum()
    return counts.assign(cells=counts.sum(axis=1))


# ---- What a window alone finds.


def seen(rows: pd.DataFrame, window: int, sinks: int) -> pd.DataFrame:
    """Which rows' needles one query sees whole under SWA(window, sinks), as `niah.sees` tells.

    Args:
        rows: with needle_start, needle_end, question and prompt_tokens, in tokens.

    Returns:
        bool columns null_from_question (from the last token before the question) and null_from_answer (from
        the prompt's last).
    """
    first = np.maximum(rows["needle_start"], sinks)  # the farthest of its tokens that is no sink
    found = {}
    for name, query in (("question", rows["question"] - 1), ("answer", rows["prompt_tokens"] - 1)):
        near = (query - first < window - sinks) | (first >= rows["needle_end"])
        found[f"null_from_{name}"] = near & (rows["needle_end"] <= query + 1)
    return pd.DataFrame(found)


def null(places: pd.DataFrame, windows: Sequence[int], sinks: Sequence[int]) -> pd.DataFrame:
    """The null model's exact rates over all places.

    Args:
        places: as `swalib.evals.niah_places.measure` returns them.

    Returns:
        model, task, context_tokens, short_haystacks, window, sinks, null_from_question, null_from_answer
        (shares), edge_from_question, edge_from_answer (the least depth from which on the needle is seen; NaN:
        nowhere).
    """
    about, rows = ["model", "task", "context_tokens", "short_haystacks"], []
    for w, s in [(w, s) for w in windows for s in sinks if s < w]:
        for key, part in places.groupby(about, sort=False):
            found, row = seen(part, w, s), dict(zip(about, key, strict=True)) | {"window": w, "sinks": s}
            for where in ("question", "answer"):
                hit = found[f"null_from_{where}"]
                row |= {f"null_from_{where}": float(hit.mean())}
                row |= {f"edge_from_{where}": float(part["depth"][hit].min())}
            rows.append(row)
    return pd.DataFrame(rows)


def above_null(
    table: pd.DataFrame, short: bool = False, method: str = "SWA", rows: pd.DataFrame | None = None
) -> pd.DataFrame:
    """A method's printed scores beside the null model's, counted from before the question (its better count).

    Args:
        table: as `null` returns it, with s = 4.
        short: the null of haystacks as ports make them.

    Returns:
        task, context_tokens, window, value, low, high, null, excess (value − null), above (whether the whole
        interval lies above the null rate).
    """
    rows = printed() if rows is None else rows
    chosen = table[(table["short_haystacks"] == short) & (table["sinks"] == 4)]
    on = ["task", "context_tokens", "window"]
    both = rows[rows["method"] == method].merge(chosen[[*on, "null_from_question"]], on=on)
    both = both.rename(columns={"null_from_question": "null"}).drop(columns="method")
    return both.assign(excess=both["value"] - both["null"], above=both["low"] > both["null"])


def lengths(places: pd.DataFrame) -> pd.DataFrame:
    """How long prompts truly are, and their haystacks without the needle: means over all places, in tokens.

    Returns:
        task, context_tokens, short_haystacks, prompt_tokens, haystack_tokens, needle_tokens.
    """
    needle = places["needle_end"] - places["needle_start"]
    about = ["task", "context_tokens", "short_haystacks"]
    table = places.assign(haystack_tokens=places["haystack_tokens"] - needle, needle_tokens=needle)
    counts = ["prompt_tokens", "haystack_tokens", "needle_tokens"]
    return table.groupby(about, sort=False)[counts].mean().reset_index()


def beyond(
    places: pd.DataFrame, windows: Sequence[int], contexts: Sequence[int], layers: int
) -> pd.DataFrame:
    """What the mechanism allows at lengths that were not built, from the constants of the longest that were.

    A needle stands anywhere in the haystack with equal chance. `null`: it lies whole inside the window of the
    last token before the question. `reach`: its end lies within `layers` windows of the prompt's last token,
    layers·(w − s − 1) tokens back; farther ones cannot change the answer but through the sinks, which see
    only each other.

    Returns:
        task, window, context_tokens, null, reach (fractions); s = 4.
    """
    filled, rows, sinks = places[~places["short_haystacks"]], [], 4
    for task, part in filled.groupby("task", sort=False):
        longest = part[part["context_tokens"] == part["context_tokens"].max()]
        needle = (longest["needle_end"] - longest["needle_start"]).mean()
        after = (longest["prompt_tokens"] - longest["question"]).mean()
        rest = int(longest["context_tokens"].iloc[0]) - longest["haystack_tokens"].mean()
        for w in windows:
            for length in contexts:
                room = length - rest - needle
                inside = (w - sinks - needle) / room
                near = (layers * (w - sinks - 1) - after) / room
                shares = {"null": min(1.0, max(0.0, inside)), "reach": min(1.0, max(0.0, near))}
                rows.append({"task": task, "window": w, "context_tokens": length, **shares})
    return pd.DataFrame(rows)


# ---- In words.


def words(table: pd.DataFrame, rates: pd.DataFrame, true: pd.DataFrame) -> dict[str, float | str]:
    """What a text says of the printed cells, by name: counts, shares in percent, differences in points.

    Of the null model beyond 512 tokens: `over` cells of `over_of` lie above it, by `excess_least` to
    `excess_most`; `ports_` counts in short haystacks, `lolcats_` and `liger_` of these methods.

    Args:
        table: of `ratios`; rates: of `null`; true: of `lengths`.
    """
    counts, full = counted(table), table[table["method"] == FULL]
    at_4k = full[full["context_tokens"] == 4096]["ratio"]
    long = counted(table[table["context_tokens"] > 512]).loc["all"]
    filled, ports = above_null(rates), above_null(rates, short=True)
    linear = table[table["method"] != FULL]
    told = {name: int(counts.loc["all", name]) for name in counts.columns}
    told |= {f"long_{name}": int(long[name]) for name in counts.columns}
    told |= {f"lolcats_{name}": int(counts.loc["LoLCATs", name]) for name in counts.columns}
    told |= {f"liger_{name}": int(counts.loc["Liger-GLA", name]) for name in counts.columns}
    told |= {"kept_least": float(100 * at_4k.min()), "kept_most": float(100 * at_4k.max())}
    told |= {"behind": int((linear["swa"] < linear["other"]).sum())}
    for name in ("LoLCATs", "Liger-GLA"):
        own = above_null(rates, method=name).query("context_tokens > 512")
        told |= {f"{name.split('-')[0].lower()}_over": int(own["above"].sum())}
    longer = ports[ports["context_tokens"] > 512]
    told |= {"ports_over": int(longer["above"].sum())}
    told |= {"ports_excess_most": float(100 * longer["excess"].max())}
    longer = filled[filled["context_tokens"] > 512]
    told |= {"over": int(longer["above"].sum()), "over_of": len(longer)}
    told |= {
        "excess_least": float(100 * longer["excess"].min()),
        "excess_most": float(100 * longer["excess"].max()),
    }
    cut = (true["needle_tokens"] / true["haystack_tokens"])[~true["short_haystacks"]]
    told |= {f"cut_{n}": float(100 * most) for n, most in cut.groupby(true["context_tokens"]).max().items()}
    short = true[true["short_haystacks"] & (true["context_tokens"] == true["context_tokens"].min())]
    for row in short.to_dict("records"):
        told |= {f"{row['task']}_short_prompt": int(row["prompt_tokens"])}
        told |= {f"{row['task']}_short_haystack": int(row["haystack_tokens"])}
    start = printed().query("context_tokens == 512")
    essays = start[start["task"] != "s_niah_1"]["value"]
    told |= {"least_essays": float(100 * essays.min())}
    first = start.query("task == 's_niah_1' and method == 'SWA'").set_index("window")["value"]
    told |= {f"printed_1_{int(w)}": float(100 * value) for w, value in first.items()}
    for name, one in (("filled", filled), ("short", ports)):
        chosen = one[(one["task"] == "s_niah_1") & (one["context_tokens"] == 512)].set_index("window")["null"]
        told |= {f"null_1_{name}_{int(w)}": float(100 * share) for w, share in chosen.items()}
    return told
