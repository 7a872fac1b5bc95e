"""What do our own S-NIAH items say? Shares found and log-likelihoods by length and depth, in words too.

Scores are fractions, intervals 95 %.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

import numpy as np
import pandas as pd

from swalib.evals import niah
from swalib.evals.niah_printed import TASKS
from swalib.evals.resampling import Z95, wilson
from swalib.results import MissingResult
from swalib.spec import SWA, Full

UNKNOWN = "not measured yet"


# ---- Items and their means.


def gather(
    mode: str,
    model: str,
    specs: Sequence[SWA],
    tasks: Sequence[str],
    context_tokens: Sequence[int],
    limit: int,
    **settings: object,
) -> pd.DataFrame:
    """Items of full attention and of every spec, as `niah.measure` returns them; in mode "stored", what is.

    Where w holds the whole length, SWA is full attention: such items are copied, not computed, and column
    `defined` is true.

    Raises:
        MissingResult: nothing is stored; the message says how to measure it.
        ValueError: as `niah.measure`.
    """
    found, absent = [], None
    for length in context_tokens:
        chosen = [Full(), *(spec for spec in specs if spec.window < length)]
        try:
            rows = niah.measure(mode, model, chosen, tasks, [length], limit, gaps=True, **settings)
        except MissingResult as error:
            absent = error
            continue
        full = rows[rows["window"].isna()]
        same = [_defined(full, spec) for spec in specs if spec.window >= length and len(full)]
        found.append(pd.concat([rows.assign(defined=False), *same]))
    if not found:
        raise absent
    return pd.concat(found, ignore_index=True)


def _defined(full: pd.DataFrame, spec: SWA) -> pd.DataFrame:
    about = {"method": "swa", "window": spec.window, "sinks": spec.sinks, "positions": spec.positions}
    return full.assign(**about, defined=True, null_from_question=True, null_from_answer=True)


def gather_all(
    mode: str, model: str, others: Sequence[str], *asked: object, **settings: object
) -> pd.DataFrame:
    """`gather` for `model`, and what is stored of the `others`, if anything is. Raises as `gather`."""
    found = [gather(mode, model, *asked, **settings)]
    for other in others:
        try:
            found.append(gather("stored", other, *asked, **settings))
        except MissingResult:
            continue
    return pd.concat(found, ignore_index=True)


def command(task: str, model: str, positions: str, window: int, sinks: int, lengths: Sequence[int]) -> str:
    """What measures one spec at some lengths."""
    kind = "cache_windows" if positions == "cache" else "windows" if sinks else "bare_windows"
    given = {"tasks": [task], "windows": [], "bare_windows": [], "cache_windows": []}
    given |= {kind: [window], "lengths": list(lengths)} | ({"sinks": sinks} if sinks else {})
    told = [f"-p {name} {shlex.quote(json.dumps(value))}" for name, value in given.items()]
    return " ".join(["swa measure niah -p model", model, *told])


def scores(items: pd.DataFrame) -> pd.DataFrame:
    """Shares found and mean log-likelihoods by model, spec, task and length.

    Args:
        items: as `gather` returns them.

    Returns:
        model, window, sinks (missing: full attention), positions, task, context_tokens, defined, n, found,
        found_low, found_high (Wilson), loglikelihood, loglikelihood_low, loglikelihood_high (nats a token of
        the answer, mean ± 1.96 standard errors), null_from_question, null_from_answer (shares of the same
        items), inside, inside_n, outside, outside_n (needles found, and all, of those that the null model
        finds from before the question, and of the others), signal (whether full attention is known to find
        any needle at that length).
    """
    about = ["model", "window", "sinks", "positions", "task", "context_tokens", "defined"]
    keyed = items.groupby(about, sort=False, dropna=False)
    table = pd.DataFrame([dict(zip(about, key, strict=True)) | _means(part) for key, part in keyed])
    spec = {name: pd.to_numeric(table[name], errors="coerce").astype(float) for name in ("window", "sinks")}
    table, cell = table.assign(**spec), ["model", "task", "context_tokens"]
    full = table[table["window"].isna()].groupby(cell)["found"].max()
    found = full.reindex(pd.MultiIndex.from_frame(table[cell])).to_numpy()
    return table.assign(signal=found > 0)


def _means(part: pd.DataFrame) -> dict[str, float | int]:
    hits, n = part["hit"].to_numpy(bool), len(part)
    _, low, high = wilson(hits.mean(), n)
    each = (part["loglikelihood"] / part["answer_tokens"]).to_numpy(float)
    half = Z95 * float(each.std(ddof=1)) / np.sqrt(n) if n > 1 else np.nan
    inside = part["null_from_question"].to_numpy(bool)
    return {
        "n": n,
        "found": float(hits.mean()),
        "found_low": low,
        "found_high": high,
        "loglikelihood": float(each.mean()),
        "loglikelihood_low": float(each.mean()) - half,
        "loglikelihood_high": float(each.mean()) + half,
        "null_from_question": float(inside.mean()),
        "null_from_answer": float(part["null_from_answer"].mean()),
        "inside": int(hits[inside].sum()),
        "inside_n": int(inside.sum()),
        "outside": int(hits[~inside].sum()),
        "outside_n": int((~inside).sum()),
    }


def by_depth(items: pd.DataFrame, bins: int = 5) -> pd.DataFrame:
    """As `scores`, split by depth into equal bins: without `signal`, and with `step` (0: the shallowest)."""
    step = np.minimum((items["depth"] * bins).astype(int), bins - 1)
    found = [scores(items[step == one]).assign(step=one) for one in sorted(set(step))]
    return pd.concat(found, ignore_index=True).drop(columns="signal")


# ---- In words.


def words(table: pd.DataFrame, model: str, window: int, sinks: int) -> dict[str, str]:
    """What a text says of one model and SWA(window, sinks) in text positions, by name, or "not measured yet".

    Args:
        table: of `scores`.

    Returns:
        `full` and `student` (needles found, all tasks together, by length, where all are measured), `inside`
        and `outside` (of the needles that the window shows, and of the others, at lengths above w), `found`
        and `null_from_answer` (of all at these lengths), `items` (of a task at a length, the fewest and the
        most), `silent` (tasks and lengths without signal), `verdict` (a sentence).
    """
    own = table[(table["model"] == model) & (table["positions"] == "text")]
    full = own[own["window"].isna()]
    student = own[(own["window"] == window) & (own["sinks"] == sinks)]
    longer = student[student["context_tokens"] > window]
    silent = full[~full["signal"].astype(bool)]
    told = {"full": _by_length(full), "student": _by_length(student)}
    for side in ("inside", "outside"):
        told[side] = _of(longer[side].sum(), longer[f"{side}_n"].sum())
    seen = (longer["null_from_answer"] * longer["n"]).sum()
    told["found"] = _of((longer["found"] * longer["n"]).sum(), longer["n"].sum())
    told["null_from_answer"] = _of(seen, longer["n"].sum())
    sizes = sorted({*full["n"], *student["n"]})
    told["items"] = " to ".join(str(n) for n in dict.fromkeys([sizes[0], sizes[-1]])) if sizes else UNKNOWN
    told["silent"] = ", ".join(
        f"{TASKS[row['task']]} at {row['context_tokens']:,} tokens" for row in silent.to_dict("records")
    )
    told["silent"] = told["silent"] or ("none" if len(full) else UNKNOWN)
    return told | {"verdict": _verdict(model, window, sinks, longer, told)}


def _verdict(model: str, window: int, sinks: int, longer: pd.DataFrame, told: dict[str, str]) -> str:
    spec = f"{model} under SWA({window}, {sinks})"
    if longer.empty or not longer["outside_n"].sum():
        return f"{spec} on lengths above its window: {UNKNOWN}."
    past = int(longer["outside"].sum())
    head = f"{spec} finds {told['inside']} needles that its window shows and {told['outside']} of the others"
    if not past:
        return f"{head}: nothing that greedy decoding could use gets past the window of this model."
    of = longer["outside_n"].sum()
    low, high = (100 * end for end in wilson(past / of, of)[1:])
    return f"{head} ({low:.0f} to {high:.0f} %): something gets past the window."


def _of(hits: float, n: int) -> str:
    return f"{round(hits)} of {n}" if n else UNKNOWN


def _by_length(rows: pd.DataFrame) -> str:
    parts, tasks = [], rows.groupby("context_tokens")["task"].transform("nunique")
    for length, own in rows[tasks == tasks.max()].groupby("context_tokens"):
        n, hits = int(own["n"].sum()), float((own["n"] * own["found"]).sum())
        low, high = (100 * end for end in wilson(hits / n, n)[1:])
        parts.append(f"{100 * hits / n:.0f} % ({low:.0f} to {high:.0f}) at {length:,} tokens")
    return ", ".join(parts) or UNKNOWN
