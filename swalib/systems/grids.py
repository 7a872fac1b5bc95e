"""What do the costs come to at every stand of a figure's sliders? Tables of `cost`, nothing measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pandas as pd

from swalib.systems import cost
from swalib.systems.cost import Shape
from swalib.systems.kinds import Kind


def _kinds(windows: Sequence[int], features: Sequence[int], hybrid_window: int) -> list[Kind]:
    found = [Kind("full"), *(Kind("swa", w, 0) for w in windows)]
    found += [Kind("hedgehog", features=f) for f in features]
    return found + [Kind("lolcats", hybrid_window, features=f) for f in features]


def memory(
    shape: Shape,
    contexts: Sequence[int],
    windows: Sequence[int],
    features: Sequence[int],
    groups: Sequence[int],
    dtypes: Sequence[str],
    hybrid_window: int = 64,
) -> pd.DataFrame:
    """State bytes of one sequence, in all layers.

    Args:
        groups: query heads that share a key and value head. dtypes: of keys and values, and of states.

    Returns:
        Columns method, window, features, group, dtype, state_dtype, context_tokens, bytes; and equal_window,
        w* of linear attention with those features.
    """
    rows = []
    for kind, group, dtype, state_dtype in product(
        _kinds(windows, features, hybrid_window), groups, dtypes, dtypes
    ):
        one = replace(shape, kv_heads=shape.heads // group)
        equal = cost.equal_window(one, kind.features or 0, dtype, state_dtype)
        labels = {"method": kind.method, "window": kind.window, "features": kind.features, "group": group}
        labels |= {"dtype": dtype, "state_dtype": state_dtype, "equal_window": equal}
        for n in contexts:
            held = cost.state_bytes(kind.attention, one, n, 1, dtype, state_dtype)
            rows.append({**labels, "context_tokens": n, "bytes": held})
    return pd.DataFrame(rows)


def flops(
    shape: Shape,
    contexts: Sequence[int],
    windows: Sequence[int],
    features: Sequence[int],
    hybrid_window: int = 64,
) -> pd.DataFrame:
    """FLOPs of one sequence: of the last token's decode step, and of the whole prompt.

    Returns:
        Columns method, window, features, context_tokens, task ("decode" or "prefill"), attention (maps,
        softmax and linear part) and all (the decoder's own included), FLOPs.
    """
    rows = []
    for kind, n in product(_kinds(windows, features, hybrid_window), contexts):
        labels = {"method": kind.method, "window": kind.window, "features": kind.features}
        for task, count in (("decode", cost.decode_flops), ("prefill", cost.prefill_flops)):
            found = count(kind.attention, shape, n)
            own = {"attention": found.total - found.decoder, "all": found.total}
            rows.append({**labels, "context_tokens": n, "task": task, **own})
    return pd.DataFrame(rows)


def floors(rows: pd.DataFrame, limits: pd.DataFrame) -> pd.DataFrame:
    """Decode rows of `table.measure` with the least time their machine could take, by its measured limits.

    Args:
        limits: of `table.limits`; the faster of copy and read counts as the bandwidth.

    Returns:
        The rows that have costs, with floor_ms, the roofline; bytes_ms, its part for bytes; launch_ms, the
        operations times the least that one takes; and reached, floor_ms / step_ms.
    """
    decoded = rows[rows["task"].eq("decode") & rows["moved_bytes"].notna() & rows["fits"]]
    both = decoded.merge(limits, on=["dtype", "device", "hardware"])
    bandwidth = 1e9 * both[["copy", "read"]].max(axis=1)
    bytes_ms = 1e3 * both["moved_bytes"] / bandwidth
    flops_ms = 1e3 * both["flops"] / (1e9 * both["matrix"])
    floor = pd.concat([bytes_ms, flops_ms], axis=1).max(axis=1)
    own = {"floor_ms": floor, "bytes_ms": bytes_ms, "launch_ms": 1e-3 * both["ops"] * both["op"]}
    return both.assign(**own, reached=floor / both["step_ms"])
