"""How far does a needle's influence travel, layer by layer, and how much of it is left at each distance?

The needle's travel is computed in the page (`book/assets/swa-influence.js`): only what a reader starts from
is chosen here. The influence is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from swalib.figures import rows as shape
from swalib.figures.show import Figure

KINDS = {
    ("shift", "logits"): "a token shifted: change of the logits",
    ("shift", "kl"): "a token shifted: KL divergence (nats)",
    ("shift", "loss"): "a token shifted: change of the loss (nats)",
    ("ablate", "logits"): "a token replaced: change of the logits",
    ("ablate", "kl"): "a token replaced: KL divergence (nats)",
    ("ablate", "loss"): "a token replaced: change of the loss (nats)",
    ("gradient", "gradient"): "gradient of the last loss by a token",
}
AXES = {
    "logits": "change of the logits (relative)",
    "kl": "KL divergence (nats)",
    "loss": "change of the loss (nats)",
    "gradient": "norm of the gradient (nats)",
}
_COLUMNS = "model window sinks kind measure distance mean least most limit"


def needle_reach(
    models: Mapping[str, int],
    *,
    caption: str,
    windows: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    distances: Sequence[int] = tuple(1 << power for power in range(6, 18)),
    layers: int = 40,
) -> Figure:
    """Which tokens carry a needle's influence after each layer, and which layer first shows it to the query.

    Args:
        models: layers by model name; a mark for each.
        distances: tokens from the needle to the question. layers: how many the animation goes through.

    Raises:
        ValueError: no model, or a model with more layers than the animation has.
    """
    if not models or max(models.values()) > layers:
        raise ValueError(f"models need layers up to {layers}, got {dict(models)}")
    return Figure(
        id="needle-reach",
        kind="needle-reach",
        title="Which layers have seen the needle?",
        data={
            "models": [{"label": name, "layers": count} for name, count in models.items()],
            "windows": list(windows),
            "sinks": [0, 1, 2, 4, 8],
            "distances": list(distances),
            "layers": layers,
            "initial": {"window": 64, "sinks": 4, "distance": 1024, "layer": 20},
        },
        alt=(
            "A staircase from a needle at the left towards the question at the right, a step a layer: every "
            "layer carries the needle's influence w − s − 1 tokens on, no further. A dot marks the layer "
            f"after which the question has it. Lines mark {_and(models)}."
        ),
        caption=caption,
    )


def _and(models: Mapping[str, int]) -> str:
    return " and ".join(f"the {count} layers of {name}" for name, count in models.items())


def influence_by_distance(
    rows: pd.DataFrame, *, caption: str, command: str, window: int = 64, sinks: int = 4
) -> Figure:
    """Measured influence against distance, both on log axes, for full attention and SWA(w, s), with the range
    over texts.

    Args:
        rows: as `swalib.evals.reach_summary.gather` returns them. Distance 0, the token's own place, and
            exact zeros have no place on log axes.
        command: what measures a cell; [model], [w] and [s] stand for its own.
        window, sinks: where the sliders start.

    Raises:
        ValueError: a column is missing, there is no row with a window, or an unknown kind.
    """
    shape.need(rows, _COLUMNS)
    pairs = list(dict.fromkeys(zip(rows["kind"], rows["measure"], strict=True)))
    if unknown := [pair for pair in pairs if pair not in KINDS]:
        raise ValueError(f"no name is known for the influence {unknown[0]!r}: choose from {list(KINDS)}")
    kinds = [pair for pair in KINDS if pair in pairs]
    start = shape.sliders(rows, window, sinks)
    drawn = rows[(rows["distance"] > 0) & (rows["mean"] > 0)]
    data = {
        "models": list(dict.fromkeys(rows["model"])),
        "kinds": [_kind(drawn, pair) for pair in kinds],
        **start,
        "lines": _lines(drawn),
        "limits": _limits(rows),
        "farthest": float(drawn["distance"].max()),
        "command": command,
    }
    alt = (
        "Lines of measured influence against distance, on log axes. Full attention's falls slowly; SWA's "
        "follows it within the window and falls away steeply beyond, long before the exact limit of what "
        f"can arrive. Measured with {', '.join(KINDS[pair] for pair in kinds)}."
    )
    return Figure(
        id="influence",
        kind="influence",
        title="How much arrives from how far?",
        data=data,
        alt=alt,
        caption=caption,
    )


def _kind(rows: pd.DataFrame, pair: tuple[str, str]) -> dict:
    own = rows[(rows["kind"] == pair[0]) & (rows["measure"] == pair[1])]
    span = [shape.rounded(own["mean"].min()), shape.rounded(own["most"].max())]
    return {"id": "|".join(pair), "label": KINDS[pair], "axis": AXES[pair[1]], "span": span}


def _lines(rows: pd.DataFrame) -> dict[str, dict]:
    found = {}
    for about, part in rows.groupby(
        ["model", "kind", "measure", "window", "sinks"], dropna=False, sort=False
    ):
        part = part.sort_values("distance")
        if part["distance"].duplicated().any():
            raise ValueError(f"{about}: a distance stands more than once in the table.")
        names = {"x": "distance", "y": "mean", "low": "least", "high": "most"}
        line = {name: [shape.rounded(value) for value in part[column]] for name, column in names.items()}
        spec = "full" if pd.isna(about[3]) else shape.key(*about[3:])
        found["|".join([*about[:3], spec])] = line
    return found


def _limits(rows: pd.DataFrame) -> dict[str, int]:
    """By "model|window,sinks": how far influence can travel at all, where that is known."""
    known = shape.slid(rows).dropna(subset=["limit"]).drop_duplicates(["model", "window", "sinks"])
    return {f"{row.model}|{shape.key(row.window, row.sinks)}": int(row.limit) for row in known.itertuples()}
