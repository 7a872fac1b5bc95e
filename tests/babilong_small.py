"""Made-up items of BABILong: two models, two specs, gaps, and a gap between the scorers."""

import numpy as np
import pandas as pd

from swalib.evals.babi import TASKS
from swalib.evals.babilong_items import LABELS

SKILL = {"qa1": 0.8, "qa2": 0.3, "qa3": 0.15, "qa4": 0.7, "qa5": 0.5}
SPECS = ((None, None), (256, 4), (256, 0))
LENGTHS = (512, 1024)


def items(n: int = 40, models: tuple[str, ...] = ("m1", "m2")) -> pd.DataFrame:
    """Rows as `babilong.measure` returns them. SWA(256, 0) lacks 1,024 tokens, m2 has no SWA at all."""
    rng, parts = np.random.default_rng(6), []
    for model in models:
        for window, sinks in SPECS[: 1 if model == "m2" else 3]:
            for length in LENGTHS[: 1 if (window, sinks) == (256, 0) else 2]:
                for task in TASKS:
                    skill = SKILL[task] * (1 if window is None else 0.3)
                    parts.append(_part(rng, n, model, window, sinks, task, length, skill))
    return pd.concat(parts, ignore_index=True)


def _part(rng, n, model, window, sinks, task, length, skill) -> pd.DataFrame:
    right = rng.random(n) < skill
    listed = ~right & (rng.random(n) < 0.25)
    return pd.DataFrame(
        {
            "model": model,
            "method": "full" if window is None else "swa",
            "window": pd.NA if window is None else window,
            "sinks": pd.NA if sinks is None else sinks,
            "positions": "text",
            "task": task,
            "context_tokens": length,
            "item": np.arange(n),
            "answer": rng.choice(LABELS[task], n),
            "official": right,
            "substring": right | listed,
            "invalid": listed | (~right & (rng.random(n) < 0.5)),
            "loglikelihood": rng.normal(-4, 1, n),
            "prompt_tokens": length + 300,
            "first_fact": 200,
            "last_fact": 300,
        }
    )


def facts(n: int = 40, models: tuple[str, ...] = ("m1", "m2")) -> pd.DataFrame:
    """Rows as `babilong_facts.distances` returns them: distances uniform over the context."""
    rng = np.random.default_rng(7)
    parts = []
    for model in models:
        for length in LENGTHS:
            for task in TASKS:
                first = rng.integers(20, length, n)
                last = np.minimum(first, rng.integers(20, length, n))
                about = {"model": model, "task": task, "context_tokens": length, "item": np.arange(n)}
                parts.append(pd.DataFrame({**about, "first": first, "last": last}))
    return pd.concat(parts, ignore_index=True)
