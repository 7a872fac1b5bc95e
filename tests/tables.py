"""Small made-up tables for tests of figures; values differ, so that none can stand in for another."""

from itertools import product

import numpy as np
import pandas as pd

WINDOWS, SINKS = (16, 32, 64), (0, 1, 4, 16)
SPECS = [(None, None), *((w, s) for w, s in product(WINDOWS, SINKS) if s < w)]


def curves() -> pd.DataFrame:
    """Loss along two texts at 12 shared positions, for full attention and every SWA(w, s)."""
    x = np.unique(np.geomspace(2, 500, 12).round())
    parts = []
    for (text, task), (nth, (window, sinks)) in product(enumerate(["essay", "novel"]), enumerate(SPECS)):
        slid = 0 if window is None else np.clip(x / window - 1, 0, 1) * (4 if sinks == 0 else 0.5)
        loss = 3 + text / 7 + nth / 97 + slid + np.sin(x) / 50
        spec = {"model": "m1", "task": task, "window": window, "sinks": sinks}
        parts.append(pd.DataFrame({**spec, "position": x, "loss": loss}))
    return pd.concat([part.astype({"window": float, "sinks": float}) for part in parts], ignore_index=True)


def grid() -> pd.DataFrame:
    """Perplexities of every SWA(w, s) and of full attention; SWA(64, 16) is not measured yet."""
    rows = [
        {
            "window": w,
            "sinks": s,
            "ppl": 20 + 1.7 * nth + (3000 / w if s == 0 else 0),
            "stderr": 0.3 + nth / 50,
        }
        for nth, (w, s) in enumerate(SPECS)
    ]
    table = pd.DataFrame(rows).assign(model="m1", task="essay", n=512, command="swa run grid")
    table.loc[(table["window"] == 64) & (table["sinks"] == 16), ["ppl", "stderr"]] = np.nan
    return table


def position_rows() -> pd.DataFrame:
    """The grid's rows with four sinks under text and under cache positions, and full attention."""
    table = grid()
    four = table[table["sinks"] == 4]
    cache = four.assign(positions="cache", ppl=four["ppl"] * 1.07)
    return pd.concat(
        [table[table["window"].isna()].assign(positions=""), four.assign(positions="text"), cache]
    )


def prefill_rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Loss after a prompt under the three variants, and the three perplexities."""
    x = np.arange(8, 200, 16)
    names = {"full": 0.0, "masked": 0.3, "dense": 0.1}
    spec = {
        name: {"window": None if name == "full" else 64, "sinks": None if name == "full" else 4}
        for name in names
    }
    about = {"model": "m1", "task": "essay"}
    parts = [
        pd.DataFrame(
            {**about, "variant": name, **spec[name], "position": x, "loss": 3 + gap + np.cos(x) / 20}
        )
        for name, gap in names.items()
    ]
    rows = pd.concat([part.astype({"window": float, "sinks": float}) for part in parts], ignore_index=True)
    perplexities = [
        {**about, "variant": name, **spec[name], "ppl": float(np.exp(3 + gap)), "n": 192, "stderr": 0.5}
        for name, gap in names.items()
    ]
    return rows, pd.DataFrame(perplexities)


def mass() -> pd.DataFrame:
    """Attention mass of 3 layers × 5 heads on the first 1 and 4 tokens."""
    return pd.DataFrame(
        {"model": "m1", "layer": layer, "head": head, "sinks_counted": counted, "uniform": 0.02 * counted}
        | {"mass": (layer + 1) * (head + 2) / 30 * (0.8 if counted == 1 else 1)}
        for layer, head, counted in product(range(3), range(5), (1, 4))
    )


def kind_rows() -> pd.DataFrame:
    """Three kinds of sink at two windows on two texts, one of them drawn three times, and full attention."""
    kinds = [("none", "nothing", 0, [""]), ("random", "two at random", 2, ["1, 5", "3, 9", "2, 4"])]
    kinds += [("first_one", "the first token", 1, [""])]
    rows = [
        {"task": task, "kind": kind, "label": label, "window": w, "sinks": s, "positions": positions}
        | {"ppl": 20 + text + 900 / w / (s * 7 + 1) + nth, "stderr": 0.3 + nth / 9 + w / 300, "n": 512}
        for (text, task), w, (kind, label, s, drawn) in product(
            enumerate(["essay", "novel"]), (64, 256), kinds
        )
        for nth, positions in enumerate(drawn)
    ]
    full = {"kind": "full", "label": "full attention", "positions": "", "stderr": 0.4, "n": 512}
    rows += [{**full, "task": task, "ppl": 19.5 + text} for text, task in enumerate(["essay", "novel"])]
    return pd.DataFrame(rows).assign(model="m1")


def stream_rows() -> pd.DataFrame:
    """Six bins of a stream at two windows with sinks, under both kinds of positions, and without, and three
    bins of full attention."""
    specs, parts = [(4, "text"), (4, "cache"), (0, "text")], []
    for nth, (w, (s, where)) in enumerate([*product((64, 512), specs), (None, (None, "text"))]):
        ends = np.arange(1, 4 if w is None else 7) * 2048
        ppl = 24 + nth / 3 + np.sin(ends) + (ends > 4096) * 400 * (w is None)
        held = ends * 46080 if w is None else w * 46080
        spec = {"window": w, "sinks": s, "positions": where}
        about = {**spec, "start": ends - 2048, "end": ends, "ppl": ppl, "stderr": 0.5 + nth / 50, "n": 2048}
        parts.append(pd.DataFrame({**about, "cache_bytes": held}).astype({"window": float, "sinks": float}))
    return pd.concat(parts, ignore_index=True).assign(model="m1", task="novel", trained_tokens=4096)
