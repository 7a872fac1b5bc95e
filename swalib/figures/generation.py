"""What does a student write, and what does its teacher make of it?"""

from __future__ import annotations

import pandas as pd

from swalib.figures import rows as shape
from swalib.figures.show import Figure


def continuations(
    curves: pd.DataFrame,
    found: pd.DataFrame,
    *,
    caption: str,
    command: str,
    window: int = 128,
    sinks: int = 4,
) -> Figure:
    """The teacher's perplexity along what was written, over a table of all measured specs.

    Args:
        curves: as `swalib.evals.generation_summary.binned` returns them.
        found: as `swalib.evals.generation_summary.summary` returns them.
        command: what measures a cell; [model], [w] and [s] stand for its own.
        window, sinks: where the sliders start.

    Raises:
        ValueError: a column is missing, or there is no row with a window.
    """
    shape.need(curves, "model window sinks position ppl")
    shape.need(found, "model window sinks n repetition repetition_low repetition_high ppl shared shared_most")
    order = found.sort_values(["window", "sinks"], na_position="first")
    rows = [_row(row) for row in order.to_dict("records")]
    told = "; ".join(
        f"{row['model']}, {row['label']}: repeats {row['repetition'][0]:.0f} %, "
        f"perplexity {row['ppl'][0]:.3g}"
        for row in rows
    )
    return Figure(
        id="continuations",
        kind="continuations",
        title="What becomes of a long continuation?",
        data={
            "models": list(dict.fromkeys(found["model"])),
            **shape.sliders(found, window, sinks),
            "lines": _lines(curves),
            "rows": rows,
            "command": command,
        },
        alt=(
            "Lines of the teacher's perplexity along what was written, full attention and SWA, over a table "
            f"of repetition, perplexity and tokens shared with the teacher's own text. {told}."
        ),
        caption=caption,
    )


def _lines(curves: pd.DataFrame) -> dict[str, dict]:
    """By "model|full" or "model|window,sinks"."""
    lines = {}
    for (model, w, s), part in curves.groupby(["model", "window", "sinks"], dropna=False, sort=False):
        part = part.sort_values("position")
        spec = "full" if pd.isna(w) else shape.key(w, s)
        lines[f"{model}|{spec}"] = {
            "x": part["position"].tolist(),
            "y": [shape.rounded(ppl) for ppl in part["ppl"]],
        }
    return lines


def _row(row: dict) -> dict:
    full = pd.isna(row["window"])
    percents = [
        shape.rounded(100 * row[name]) for name in ("repetition", "repetition_low", "repetition_high")
    ]
    return {
        "model": row["model"],
        "spec": "full" if full else shape.key(row["window"], row["sinks"]),
        "label": "full attention" if full else f"SWA({int(row['window'])}, {int(row['sinks'])})",
        "method": "full" if full else "sinks" if row["sinks"] else "no_sinks",
        "n": int(row["n"]),
        "repetition": percents,
        "ppl": [shape.rounded(row[name]) for name in ("ppl", "ppl_low", "ppl_high")],
        "shared": [shape.rounded(row["shared"]), int(row["shared_most"])],
    }
