"""How well does a model predict a real text, token by token, when its attention sees less of it?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from swalib import data, models, results
from swalib.evals.bench import SECONDS_PER_TOKEN, proven, resident
from swalib.models import Loaded
from swalib.results import Measured, Value
from swalib.spec import SWA, Full

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FIRST_SCORED = (
    256  # tokens of a piece that only serve as context, so that every window up to 256 has begun to slide
)
_BLOCK = (
    64  # losses of neighbouring tokens are correlated: standard errors come from means over blocks this long
)


@torch.inference_mode()
def token_losses(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Loss of each token given those before it, nats: fp32 [b, t-1] on the CPU, from one masked forward.

    Args:
        ids: token ids, integers [b, t].

    Raises:
        ValueError: fewer than two tokens, so that there is nothing to score.
    """
    if ids.ndim != 2 or ids.shape[1] < 2:
        raise ValueError(
            f"nothing to score: a text needs at least two tokens, got ids of shape {tuple(ids.shape)}"
        )
    ids = ids.to(model.device)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return head_losses(model, hidden[:, :-1], ids[:, 1:])


def head_losses(model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """Loss of each target given the hidden state that predicts it, nats: fp32 [b, t] on the CPU."""
    return torch.cat([_losses(model, h, t) for h, t in _slices(hidden, targets)], dim=1)


def _slices(hidden: Tensor, targets: Tensor, length: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
    """Few positions at a time: a vocabulary of 262,144 times a long text would not fit in memory."""
    yield from zip(hidden.split(length, dim=1), targets.split(length, dim=1), strict=True)


def _losses(model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> Tensor:
    logits = model.get_output_embeddings()(hidden).float()
    cap = getattr(model.config, "final_logit_softcapping", None)
    if cap:
        logits = cap * torch.tanh(logits / cap)
    return (
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape).cpu()
    )


def pieces(loaded: Loaded, text: str, context_tokens: int, count: int) -> Tensor:
    """`count` pieces of a text, evenly spread over it: integers [count, context_tokens].

    A model that was trained with a BOS token gets it at the head of every piece, as part of its length.

    Raises:
        ValueError: a length below two tokens, or a text too short for one piece of each.
    """
    if context_tokens < 2 or count < 1:
        raise ValueError(f"nothing to score: {count} pieces of {context_tokens} tokens")
    ids = models.encode(loaded, text)[0]
    bos = ids[: loaded.bos is not None]
    body, room = ids[len(bos) :], context_tokens - len(bos)
    if len(body) < room:
        raise ValueError(f"the text has {len(body)} tokens, too short for a piece of {room}")
    starts = np.linspace(0, len(body) - room, count + 1, dtype=int)[:-1] if count > 1 else [0]
    return torch.stack([torch.cat([bos, body[start : start + room]]) for start in starts])


def summarise(losses: np.ndarray, first: int = FIRST_SCORED) -> list[Value]:
    """Mean loss (nats/token) and perplexity, with standard errors, of losses [pieces, t-1] from `first` on.

    Raises:
        ValueError: no position is left to score.
    """
    scored = losses[:, max(first - 1, 0) :].astype(np.float64)
    if not scored.size:
        raise ValueError(f"nothing to score: the pieces end before token {first}")
    length = min(_BLOCK, scored.shape[1])
    blocks = scored[:, : scored.shape[1] // length * length].reshape(-1, length).mean(1)
    mean = float(scored.mean())
    stderr = float(blocks.std(ddof=1) / math.sqrt(len(blocks))) if len(blocks) > 1 else None
    perplexity = math.exp(mean)
    return [
        Value("loss", mean, "nats/token", scored.size, stderr),
        Value("perplexity", perplexity, "1", scored.size, None if stderr is None else stderr * perplexity),
    ]


@dataclass(frozen=True)
class Cell:
    """One measurement: a model under a spec on `n` pieces of a named text."""

    model: str
    text: str
    spec: SWA | Full
    context_tokens: int = 2048
    n: int = 2
    impl: str = "sdpa"
    device: str = "cpu"

    @property
    def first_scored(self) -> int:
        """First scored token of a piece: `FIRST_SCORED`, or half of a shorter piece."""
        return min(FIRST_SCORED, self.context_tokens // 2)

    def config(self) -> dict[str, object]:
        """What identifies the measurement in the results; see `swalib.results.run_key`."""
        return {
            "experiment": "sinks",
            "version": 1,
            "model": self.model,
            "weights": models.weights_id(self.model),
            **spec_columns(self.spec),
            "impl": self.impl,
            "dtype": "float32",
            "task": self.text,
            "text": data.text_id(self.text),
            "context_tokens": self.context_tokens,
            "pieces": self.n,
            "first_scored": self.first_scored,
        }

    def compute(self) -> Measured:
        """Run it: the canary first, then the losses of every piece."""
        loaded = resident(self.model, self.device)
        ids = pieces(loaded, data.text(self.text), self.context_tokens, self.n)
        with proven(loaded, self.spec, self.impl) as student:
            losses = torch.cat([token_losses(student, row[None]) for row in ids]).numpy()
        return Measured(summarise(losses, self.first_scored), {"losses": losses.astype(np.float16)})


def spec_columns(spec: SWA | Full) -> dict[str, object]:
    """The result columns that name a spec: method, window, sinks, positions, and whatever else it sets."""
    return {"positions": "text", **spec.to_dict()}


class Grid(NamedTuple):
    """rows: one per cell, its perplexity. curves: loss along the text, means over bins of tokens."""

    rows: pd.DataFrame
    curves: pd.DataFrame

    def ppl(
        self, model: str, text: str, window: int | None = None, sinks: int = 0, positions: str = "text"
    ) -> float:
        """Perplexity of SWA(window, sinks), or of full attention where window is None."""
        rows = self.rows[(self.rows["model"] == model) & (self.rows["task"] == text)]
        if window is None:
            return float(rows.loc[rows["method"] == "full", "ppl"].iloc[0])
        cell = (rows["window"] == window) & (rows["sinks"] == sinks) & (rows["positions"] == positions)
        return float(rows.loc[cell.fillna(False), "ppl"].iloc[0])

    def fill(self, windows: Sequence[int], sinks: Sequence[int], command: str) -> Grid:
        """With a row without numbers for every cell that wasn't measured; `command` would measure it."""
        nothing = {"ppl": np.nan, "stderr": np.nan, "loss": np.nan, "n": 0}
        labels = {"method": "swa", "positions": "text", "command": command, **nothing}
        measured = set(self.rows[["model", "task", "window", "sinks"]].itertuples(index=False, name=None))
        absent = [
            {"model": model, "task": task, "window": w, "sinks": s, **labels}
            for model, task in self.rows[["model", "task"]].drop_duplicates().itertuples(index=False)
            for w in windows
            for s in sinks
            if s < w and (model, task, w, s) not in measured
        ]
        return Grid(pd.concat([self.rows, pd.DataFrame(absent)], ignore_index=True), self.curves)

    def join(self, other: Grid) -> Grid:
        """Both grids as one."""
        return Grid(*(pd.concat(pair, ignore_index=True) for pair in zip(self, other, strict=True)))


def grid(
    mode: str,
    models: Sequence[str],
    texts: Sequence[str],
    windows: Sequence[int],
    sinks: Sequence[int],
    positions: Sequence[str] = ("text",),
    context_tokens: int = 2048,
    n: int = 2,
    impl: str = "sdpa",
    device: str = "cpu",
) -> Grid:
    """Perplexity of every model, text and spec of a grid: full attention, and SWA(w, s) wherever s < w.

    Args:
        mode: "stored", "run", "smoke" or "reproduce", see `swalib.results.load_or_run`.
        n: pieces of `context_tokens` tokens per text.

    Returns:
        rows with columns model, task, method, window, sinks, positions, ppl, stderr, loss, n (scored tokens);
        curves with model, task, method, window, sinks, positions, position (centre of the bin, tokens), loss
        (nats).
    """
    specs: list[SWA | Full] = [Full()]
    specs += [SWA(w, s, where) for where in positions for w in windows for s in sinks if s < w]
    cells = [
        Cell(m, t, spec, context_tokens, n, impl, device) for m in models for spec in specs for t in texts
    ]
    if mode == "run":
        absent = results.missing([cell.config() for cell in cells])
        results.estimate(context_tokens * n * SECONDS_PER_TOKEN, len(absent))
    rows, curves = [], []
    for cell in tqdm(cells, desc="perplexity", disable=mode == "stored"):
        found = results.load_or_run(cell.config(), cell.compute, mode)
        labels = {
            "model": cell.model,
            "task": cell.text,
            "window": pd.NA,
            "sinks": pd.NA,
            **spec_columns(cell.spec),
        }
        loss = found.rows[found.rows["metric"] == "loss"].iloc[0]
        perplexity = found.rows[found.rows["metric"] == "perplexity"].iloc[0]
        numbers = {"ppl": perplexity["value"], "stderr": perplexity["stderr"], "loss": loss["value"]}
        rows.append(labels | numbers | {"n": loss["n"]})
        curves.append(curve(found.arrays["losses"]).assign(**labels))
    return Grid(pd.DataFrame(rows), pd.concat(curves, ignore_index=True))


def curve(losses: np.ndarray, bins_per_octave: int = 4) -> pd.DataFrame:
    """Loss along the text, of losses [pieces, t-1]: means over pieces and over bins that grow along it.

    Returns:
        columns position (mean of the bin's tokens) and loss (nats). The first bin has 8 tokens; edges then
        grow by a factor of 2^(1 / bins_per_octave), so that a log axis shows bins of equal width.
    """
    mean, count = losses.astype(np.float64).mean(0), losses.shape[1]
    steps = np.arange(bins_per_octave * max(np.log2(count / 8), 0))
    edges = np.unique([0, *np.round(8 * 2 ** (steps / bins_per_octave)).astype(int), count])
    edges = edges[edges <= count]
    bins = [slice(*pair) for pair in pairwise(edges)]
    position = 1 + np.arange(count)
    means = {"position": [position[b].mean() for b in bins], "loss": [mean[b].mean() for b in bins]}
    return pd.DataFrame(means)
