"""What the figures of costs and timings are made of: looks, controls, axes, curves by their settings."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from swalib.figures import rows as shape

# method -> colour, marker, and its name where there is little room
LOOKS = {
    "full": ("full", "circle", "full"),
    "full_growing": ("full", "circle-open", "full, copied"),
    "swa": ("sinks", "circle", "SWA"),
    "hedgehog": ("other", "square", "linear"),
    "lolcats": ("lolcats", "diamond", "LoLCATs"),
    "gla": ("gla", "triangle-up", "GLA"),
    "gated_deltanet": ("gated_deltanet", "triangle-down", "GDN"),
    "qrwkv6": ("rwkv", "x", "QRWKV6"),
}
LABELS = {
    "full": "full attention",
    "full_growing": "full, cache copied",
    "swa": "SWA({w}, {s})",
    "hedgehog": "linear, F = {f}",
    "lolcats": "LoLCATs, F = {f}",
}
FIELDS = {"full": (), "swa": ("window",), "hedgehog": ("features",), "lolcats": ("features",)}


def distinct(column: pd.Series) -> list:
    found = sorted(column.dropna().unique().tolist())
    return [int(value) if isinstance(value, float) else value for value in found]


def key(name: str, *values: object) -> str:
    return "|".join([name, *(str(int(v)) if isinstance(v, float) else str(v) for v in values)])


def curves(rows: pd.DataFrame, fields: dict[str, Sequence[str]], *bounds: str, prefix: str = "") -> dict:
    """Curves of column "value" against "x" (default: the context) by key."""
    rows, found = rows if "x" in rows else rows.assign(x=rows["context_tokens"]), {}
    for name, own in fields.items():
        part = rows[rows["method"] == name]
        groups = part.groupby(list(own), sort=False) if own else [((), part)]
        for values, one in groups:
            one = one.drop_duplicates("x").sort_values("x")
            curve = {"x": [int(x) for x in one["x"]], "y": [shape.rounded(y) for y in one["value"]]}
            curve |= {bound: [shape.rounded(y) for y in one[bound]] for bound in bounds}
            found[key(prefix + name, *values)] = curve
    return found


def line(name: str, fields: Sequence[str], layer: str) -> dict:
    method, symbol, short = LOOKS[name]
    looks = {"method": method, "symbol": symbol, "short": short, "layer": layer}
    return {"name": name, "label": LABELS.get(name, short), "fields": list(fields), **looks}


def control(name, label, values, initial, text=str, kind="range") -> dict:
    start = initial if initial in values else values[0]
    texts = [text(value) for value in values]
    return {"name": name, "label": label, "values": values, "initial": start, "texts": texts, "type": kind}


def data_of(controls, lines, values, x, y, *, tells, fixed=None, scale=None, marks=None) -> dict:
    """A single value needs no control: it is fixed."""
    alone = {one["name"]: one["values"][0] for one in controls if len(one["values"]) == 1}
    kept = [one for one in controls if len(one["values"]) > 1]
    data = {"controls": kept, "fixed": {**(fixed or {}), **alone}, "lines": lines, "values": values}
    return {**data, "x": x, "y": y, "tells": tells, "scale": scale, "marks": marks}


def context_axis(column: pd.Series) -> dict:
    contexts = distinct(column)
    powers = [1 << power for power in range(contexts[0].bit_length() - 1, contexts[-1].bit_length())]
    ticks = [[n, f"{n // 1024}K" if n >= 1024 else str(n)] for n in powers]
    return {"title": "context (tokens)", "ticks": ticks, "span": [contexts[0], contexts[-1]]}
