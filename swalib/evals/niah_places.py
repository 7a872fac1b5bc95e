"""Where can a needle stand, and how long are the prompts truly? Text positions of every place, by tokenizer.

They need no forward pass, and with them the window-only null model is exact for any w and s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from swalib import data, models, results
from swalib.evals import needles
from swalib.evals.bench import resident
from swalib.evals.needles import DEPTHS, TASKS, Prompt
from swalib.models import Loaded
from swalib.results import Measured, Value


@dataclass(frozen=True)
class Places:
    """One run: the first item's needle at every place that RULER may choose, in a haystack of one length.

    Args:
        context_tokens, text, short_haystacks, new_tokens: as in `swalib.evals.needles.build`.
    """

    model: str
    task: str
    context_tokens: int
    short_haystacks: bool = False
    text: str = "essay"
    new_tokens: int = needles.NEW_TOKENS
    seed: int = 0

    def config(self) -> dict[str, object]:
        """What identifies the run in the results; see `swalib.results.run_key`."""
        return {
            "experiment": "niah_places",
            "version": 1,
            "model": self.model,
            "weights": models.weights_id(self.model),
            "task": self.task,
            "text": data.text_id(self.text) if needles.task_of(self.task).essays else None,
            "context_tokens": self.context_tokens,
            "short_haystacks": self.short_haystacks or None,
            "new_tokens": self.new_tokens,
            "seed": self.seed,
        }

    def prompts(self, loaded: Loaded) -> list[Prompt]:
        """The prompts, by depth: RULER's 40 of a text, every line of noise."""
        needle, _ = needles.draw(self.task, 0, self.seed)
        settings = {
            "text": self.text,
            "short_haystacks": self.short_haystacks,
            "new_tokens": self.new_tokens,
        }
        depths: Sequence[float] = DEPTHS
        if not TASKS[self.task].essays:
            lines = needles.build(loaded, self.task, self.context_tokens, needle, 0.0, **settings).units
            depths = [(line + 0.5) / lines for line in range(lines)] or [0.0]
        build = needles.build
        return [build(loaded, self.task, self.context_tokens, needle, one, **settings) for one in depths]

    def compute(self) -> Measured:
        """Count them."""
        found = self.prompts(resident(self.model))
        arrays = {
            "depth": np.array([one.depth for one in found], np.float32),
            "needle": np.array([one.span for one in found], np.int32),
            "question": np.array([one.asked for one in found], np.int32),
            "prompt_tokens": np.array([one.tokens for one in found], np.int32),
            "haystack_tokens": np.array([one.haystack_tokens for one in found], np.int32),
        }
        lengths = ("prompt_tokens", "haystack_tokens")
        means = [Value(name, float(arrays[name].mean()), "tokens", len(found)) for name in lengths]
        return Measured(means, arrays)


def measure(
    mode: str,
    model: str,
    tasks: Sequence[str] = tuple(TASKS),
    context_tokens: Sequence[int] = (512, 1024, 2048, 4096),
    short: Sequence[bool] = (False, True),
    **settings: object,
) -> pd.DataFrame:
    """Every place of every task and length, in haystacks that fill it and in those of ports.

    Args:
        mode: as in `swalib.results.load_or_run`.
        settings: fields of `Places`.

    Returns:
        One row a place: model, task, context_tokens, short_haystacks, depth, needle_start, needle_end,
        question, prompt_tokens, haystack_tokens (the needle's among them); text positions and counts in
        tokens.

    Raises:
        MissingResult: in mode "stored", a run is not stored.
        ValueError: as `swalib.evals.needles.build`.
    """
    cells = [
        Places(model, task, length, ports, **settings)
        for task in tasks
        for length in context_tokens
        for ports in short
    ]
    if mode == "run":
        absent = results.missing([cell.config() for cell in cells])
        results.estimate(10.0, len(absent))
    found = [(cell, results.load_or_run(cell.config(), cell.compute, mode)) for cell in cells]
    return pd.concat([_frame(cell, one.arrays) for cell, one in found], ignore_index=True)


def _frame(cell: Places, found: dict[str, np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model": cell.model,
            "task": cell.task,
            "context_tokens": cell.context_tokens,
            "short_haystacks": cell.short_haystacks,
            "depth": found["depth"],
            "needle_start": found["needle"][:, 0],
            "needle_end": found["needle"][:, 1],
            **{name: found[name] for name in ("question", "prompt_tokens", "haystack_tokens")},
        }
    )
