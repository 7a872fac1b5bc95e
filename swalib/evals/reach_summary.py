"""Reach is not use: what can arrive from far, exactly, beside how much does. Tables, and words for a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from swalib.evals import reach, reachability
from swalib.results import MissingResult
from swalib.spec import SWA, Full

UNKNOWN = "not measured yet"
# Attention layers, from the models' configurations. In Gemma 3 most are local: it has no single reach.
LAYERS = {"smollm2-135m": 30, "qwen2.5-coder-0.5b": 24, "qwen2.5-coder-1.5b": 28, "Llama-3.1-8B": 32}
_ASIDE = 2 ** (1 / 4)  # how far from a distance a bin's middle may lie and still speak for it


# ---- exactly.


def relays(specs: Sequence[SWA], layers: int, length: int) -> pd.DataFrame:
    """Do sinks pass on what they saw? Pairs of query and token that are reachable, and how many of them no
    longer are when no path may pass through a sink, counted by `reachability.reachable`.

    Returns:
        A row for each spec: what (which sinks), layers, tokens, pairs, differing.
    """
    rows = []
    for spec in dict.fromkeys(specs):
        with_relays, without = (
            reachability.reachable(length, [spec] * layers, through) for through in (True, False)
        )
        placed = spec.sink_positions
        where = f"sinks at {', '.join(map(str, placed))}" if placed else "the first tokens as sinks"
        counts = {"pairs": int(with_relays.sum()), "differing": int((with_relays != without).sum())}
        name = f"SWA({spec.window}, {spec.sinks}), {where}"
        rows.append({"what": name, "layers": layers, "tokens": length, **counts})
    return pd.DataFrame(rows)


def layers_table(
    windows: Sequence[int], sinks: int, distances: Sequence[int], depths: Sequence[int] = (32, 80)
) -> pd.DataFrame:
    """The fewest layers that see each distance back, by window, beside how far models of some depths see.

    Args:
        distances: in tokens. depths: numbers of layers.

    Returns:
        As text: a row for each window above `sinks`, a column for each distance ("never" where the window
        shows no token but the last) and, in tokens, for the reach of each number of layers.
    """
    rows = {}
    for w in windows:
        spec = SWA(w, sinks)
        needed = {tokens: reachability.layers_to_see(tokens, spec) for tokens in distances}
        cells = {_k(tokens): "never" if n is None else f"{n:,}" for tokens, n in needed.items()}
        far = {f"reach of {n}": f"{reachability.window_reach(n, spec):,}" for n in depths}
        rows[f"SWA({w}, {sinks})"] = cells | far
    return pd.DataFrame(rows).T


def _k(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


# ---- measured.


def specs(windows: Sequence[int], sinks: Sequence[int]) -> list[SWA | Full]:
    """Full attention, and SWA(w, s) wherever s < w."""
    return [Full(), *(SWA(w, s) for w in windows for s in sinks if s < w)]


def gather(
    mode: str, model: str, others: Sequence[str], asked: Sequence[SWA | Full], **settings: object
) -> pd.DataFrame:
    """`reach.measure` of `model`, in mode "stored" with gaps, and what is stored of the `others`.

    Returns:
        The rows, and `limit`: how far any influence can travel back through the windows of all layers,
        tokens, whatever the text's length; NaN for full attention and for a model not in `LAYERS`.

    Raises:
        MissingResult: in mode "stored", nothing is stored of `model`.
    """
    found = [reach.measure(mode, model, asked, gaps=True, **settings)]
    for other in dict.fromkeys(others):
        try:
            if other != model:
                found.append(reach.measure("stored", other, asked, gaps=True, **settings))
        except MissingResult:
            continue
    rows = pd.concat(found, ignore_index=True)
    steps = (rows["window"] - rows["sinks"]).astype("Float64").to_numpy(dtype=float, na_value=np.nan) - 1
    return rows.assign(limit=rows["model"].map(LAYERS).astype(float) * steps)


def at(rows: pd.DataFrame, distance: float, window: int | None = None, sinks: int = 0) -> float:
    """The mean influence at a distance, of rows of one model and measure; NaN if none is measured there."""
    chosen = rows["window"].isna() if window is None else _is(rows, window, sinks)
    own = rows[chosen & (rows["distance"] > 0)]
    if own.empty:
        return float("nan")
    away = np.abs(np.log(own["distance"].to_numpy(dtype=float) / distance))
    nearest = int(away.argmin())
    return float(own["mean"].iloc[nearest]) if away[nearest] <= np.log(_ASIDE) else float("nan")


def _is(rows: pd.DataFrame, window: int, sinks: int) -> pd.Series:
    return ((rows["window"] == window) & (rows["sinks"] == sinks)).fillna(False).astype(bool)


def words(
    rows: pd.DataFrame, model: str, window: int, sinks: int, kind: str = "shift", measure: str = "logits"
) -> dict[str, str]:
    """What a text says of one model under SWA(window, sinks), by name, or "not measured yet".

    `above`: how many times larger the influence half a window back is than full attention's there. N windows
    back, N = 2, 3 and 4: `fall_N`, how many times smaller it is than half a window back; `full_fall_N`, the
    same under full attention; `below_N`, how many times smaller than full attention's there; `sinkless_N`,
    the influence under SWA(window, 0) over that under SWA(window, sinks), same distance, and
    `sinkless`, two of these in one. And `pieces`, `tokens` (the farthest distance), `limit`.
    """
    own = rows[(rows["model"] == model) & (rows["kind"] == kind) & (rows["measure"] == measure)]
    told = {"pieces": str(int(own["pieces"].max())) if len(own) else UNKNOWN}
    told["tokens"] = f"{own['distance'].max():,.0f}" if len(own) else UNKNOWN
    limit = own.loc[_is(own, window, sinks), "limit"]
    told["limit"] = f"{limit.iloc[0]:,.0f}" if limit.notna().any() else UNKNOWN
    inside, full_inside = at(own, window / 2, window, sinks), at(own, window / 2)
    told["above"] = times(inside, full_inside)
    for n in (2, 3, 4):
        here, full = at(own, n * window, window, sinks), at(own, n * window)
        told[f"fall_{n}"], told[f"full_fall_{n}"] = times(inside, here), times(full_inside, full)
        told[f"below_{n}"] = times(full, here)
        told[f"sinkless_{n}"] = times(at(own, n * window, window, 0), here)
    told["sinkless"] = UNKNOWN
    if told["sinkless_2"] != UNKNOWN:
        told["sinkless"] = f"{told['sinkless_2']} at 2w, {told['sinkless_3']} at 3w"
    return told


def times(large: float, small: float) -> str:
    """A ratio in words, two significant digits."""
    if np.isnan(large) or np.isnan(small):
        return UNKNOWN
    if small == 0:
        return "infinitely many times"
    ratio = float(f"{large / small:.2g}")
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:g} times"
