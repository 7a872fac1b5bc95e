"""Made-up S-NIAH items and places: every spec of one model, some of it left unmeasured."""

import numpy as np
import pandas as pd

from swalib.evals import niah_printed, niah_summary
from swalib.evals.niah_printed import seen

LENGTHS, WINDOWS, SINKS = (512, 1024, 2048), (256, 512), (0, 4)
NEEDLE, QUESTION = 20, 30


def places() -> pd.DataFrame:
    """Every place of three tasks in haystacks of two kinds; short ones are empty at 512 tokens."""
    parts = []
    for task in niah_printed.TASKS:
        for length in (512, 1024, 2048, 4096):
            for short in (False, True):
                bare = length - 128 - 30 - NEEDLE - QUESTION - (7 if not short else min(200, length - 240))
                bare = 0 if short and length == 512 and task != "s_niah_1" else bare
                parts.append(_places(task, length, short, bare))
    return pd.concat(parts, ignore_index=True)


def _places(task: str, length: int, short: bool, bare: int) -> pd.DataFrame:
    depth = np.linspace(0, 1, 40)
    start = 30 + (depth * bare).astype(int)
    return pd.DataFrame(
        {
            "model": "m1",
            "task": task,
            "context_tokens": length,
            "short_haystacks": short,
            "depth": depth,
            "needle_start": start,
            "needle_end": start + NEEDLE,
            "question": 30 + bare + NEEDLE,
            "prompt_tokens": 30 + bare + NEEDLE + QUESTION,
            "haystack_tokens": bare + NEEDLE,
        }
    )


def items(n: int = 30) -> pd.DataFrame:
    """Rows as `niah_summary.gather` returns them.

    Full attention finds 9 of 10 in S-NIAH-1 and -2, none in S-NIAH-3 at 2048 tokens. SWA finds what its
    window shows, and a tenth of the rest. SWA(256, 0) has no S-NIAH-2; of cache positions only
    SWA(256, 4) is known.
    """
    parts = []
    for task in niah_printed.TASKS:
        for length in LENGTHS:
            rng = np.random.default_rng([5, len(parts)])
            known = _places(task, length, False, length - 215).sample(
                n, replace=True, random_state=len(parts)
            )
            known = known.reset_index(drop=True).assign(item=np.arange(n), answer_tokens=5)
            hit = np.arange(n) % 10 > 0
            if (task, length) == ("s_niah_3", 2048):
                hit[:] = False
            parts.append(_spec(known, rng, hit, None, None, "text"))
            for w, s, where in [(w, s, "text") for w in WINDOWS for s in SINKS] + [(256, 4, "cache")]:
                if (task, w, s) != ("s_niah_2", 256, 0):
                    found = hit & (seen(known, w, s)["null_from_question"] | (rng.random(n) < 0.1))
                    parts.append(_spec(known, rng, hit if w >= length else found, w, s, where))
    return pd.concat(parts, ignore_index=True)


def _spec(known: pd.DataFrame, rng: np.random.Generator, hit, w, s, positions: str) -> pd.DataFrame:
    full = w is None
    defined = not full and bool(w >= known["context_tokens"].iloc[0])
    null = {"null_from_question": True, "null_from_answer": True} if full or defined else seen(known, w, s)
    return known.assign(
        method="full" if full else "swa",
        window=pd.NA if full else w,
        sinks=pd.NA if full else s,
        positions=positions,
        defined=defined,
        hit=hit,
        loglikelihood=np.where(hit, -1.0, -30.0) + rng.normal(0, 0.5, len(known)),
        **null,
    )


def scores() -> pd.DataFrame:
    return niah_summary.scores(items())
