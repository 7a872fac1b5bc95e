"""Made-up items of the six tasks: two models, every spec, some of it left unmeasured."""

import numpy as np
import pandas as pd

from swalib.evals.recovery import CHANCE

WINDOWS, SINKS = (16, 64, 256), (0, 1, 4)
SPECS = [(None, None), *((w, s) for w in WINDOWS for s in SINKS if s != 1 or w == 64)]
SKILL = {"mmlu": 0.0, "arc_challenge": 0.0, "arc_easy": 0.5, "hellaswag": 0.3, "piqa": 0.5, "winogrande": 0.0}


def items(n: int = 60, models: tuple[str, ...] = ("m1", "m2")) -> pd.DataFrame:
    """Rows as `harness.short` returns them. SWA keeps more answers the larger w, and with sinks.

    Model m2 has no WinoGrande and only five shots; SWA(256, 0) lacks PIQA; items that fit keep their choice.
    """
    parts = []
    for nth, model in enumerate(models):
        for shots in (0, 5) if nth == 0 else (5,):
            for task in CHANCE if nth == 0 else list(CHANCE)[:-1]:
                parts += _parts(model, task, shots, n, np.random.default_rng([8, nth, shots, len(task)]))
    return pd.concat(parts, ignore_index=True)


def _parts(model: str, task: str, shots: int, n: int, rng: np.random.Generator) -> list[pd.DataFrame]:
    options = round(1 / CHANCE[task])
    gold = rng.integers(options, size=n)
    wrong = (gold + rng.integers(1, options, size=n)) % options
    right = rng.random(n) < CHANCE[task] + SKILL[task] * (1 - CHANCE[task])
    teacher = np.where(right, gold, wrong)
    tokens = rng.integers(10, 120, size=n) + 200 * shots // 5
    parts = []
    for window, sinks in SPECS:
        if (task, window, sinks) == ("piqa", 256, 0):
            continue
        kept = (
            np.ones(n, bool) if window is None else rng.random(n) < 0.4 + window / 500 + 0.08 * min(sinks, 1)
        )
        choice = np.where(kept | (tokens - 1 <= (window or 10**6)), teacher, rng.integers(options, size=n))
        parts.append(
            pd.DataFrame(
                {
                    "model": model,
                    "method": "full" if window is None else "swa",
                    "window": window if window else pd.NA,
                    "sinks": sinks if window else pd.NA,
                    "positions": "text",
                    "task": task,
                    "shots": shots,
                    "place": np.arange(n),
                    "gold": gold,
                    "choice": choice,
                    "teacher": teacher,
                    "correct": choice == gold,
                    "gold_loglikelihood": rng.normal(-5, 1, n),
                    "tokens": tokens,
                }
            )
        )
    return parts


def perplexities() -> pd.DataFrame:
    """Perplexities of m1 on a text under the same specs; m2 has none."""
    rows = [
        {"window": w, "sinks": s, "ppl": 20 + 1.3 * nth + (800 / w if s == 0 else 0), "stderr": 0.4}
        for nth, (w, s) in enumerate(SPECS)
    ]
    return pd.DataFrame(rows).assign(model="m1", task="essay", n=512)
