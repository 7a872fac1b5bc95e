"""The collapse on a reader's own text, computed on the spot: what the panel in JupyterLab calls."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from swalib import models
from swalib.evals.bench import proven, resident
from swalib.evals.perplexity import curve, token_losses
from swalib.spec import SWA, Full

MIN_TOKENS, MAX_TOKENS = 32, 2048


def collapse(model: str, device: str = "cpu") -> Callable[[str, int, int, str], pd.DataFrame]:
    """A function (text, window, sinks, positions) -> curves of full attention, SWA(w, 0) and SWA(w, s).

    The model is loaded at the first call. Texts are cut to `MAX_TOKENS` tokens. The function raises
    ValueError for a text of fewer than `MIN_TOKENS` tokens or a spec that can't be.
    """

    def compute(text: str, window: int, sinks: int, positions: str = "text") -> pd.DataFrame:
        specs = [Full(), *dict.fromkeys([SWA(window, 0, positions), SWA(window, sinks, positions)])]
        loaded = resident(model, device)
        ids = models.encode(loaded, text)[:, :MAX_TOKENS]
        if ids.shape[1] < MIN_TOKENS:
            raise ValueError(f"this text has {ids.shape[1]} tokens; give it at least {MIN_TOKENS}")
        frames = []
        for spec in specs:
            with proven(loaded, spec) as student:
                losses = token_losses(student, ids).numpy()
            numbers = {"window": spec.window, "sinks": spec.sinks} if isinstance(spec, SWA) else {}
            labels = {"model": model, "task": "your text", "window": pd.NA, "sinks": pd.NA, **numbers}
            frames.append(curve(losses).assign(**labels))
        return pd.concat(frames, ignore_index=True)

    return compute
