"""What else changes a score? Each setting's effect beside its interval, under full attention and SWA."""

from __future__ import annotations

import pandas as pd

from swalib.figures import rows as shape
from swalib.figures.show import Figure

_COLUMNS = "variant label window sinks n score difference low high changed moved"


def short_variants(
    effects: pd.DataFrame,
    *,
    caption: str,
    command: str,
    id: str = "short-variants",
    title: str = "Which setting moves a score?",
) -> Figure:
    """Change of the score by setting, in points, with 95 % intervals, over a table of all that was compared.

    Args:
        effects: as `swalib.evals.variants.effects` returns them; rows with n = 0 are not measured yet.
        command: what measures them.

    Raises:
        ValueError: a column is missing.
    """
    shape.need(effects, _COLUMNS)
    rows = [_row(row) for row in effects.to_dict("records")]
    told = "; ".join(
        f"{row['label']} {row['difference']:+.1f} ({row['spec']})"
        for row in rows
        if row["n"] and row["moved"]
    )
    alt = (
        "Dot chart of the change of the mean score, in points, by setting of the evaluation, for full "
        f"attention and SWA, with 95 % intervals. {told or 'Nothing is measured yet'}."
    )
    data = {"rows": rows, "command": command}
    return Figure(id=id, kind="short-variants", title=title, data=data, alt=alt, caption=caption)


def _row(row: dict) -> dict:
    full = pd.isna(row["window"])
    spec = "full attention" if full else f"SWA({int(row['window'])}, {int(row['sinks'])})"
    percents = ("score", "difference", "low", "high", "changed")
    return {
        "variant": row["variant"],
        "label": row["label"],
        "spec": spec,
        "method": "full" if full else "sinks" if row["sinks"] else "no_sinks",
        "n": int(row["n"]),
        **{name: shape.rounded(100 * row[name]) for name in percents},
        "moved": shape.rounded(row["moved"]),
    }
