"""What does a student write? Long continuations, beside the teacher's; sums (GSM8K) and programs (HumanEval).

Log-likelihood tasks read the right text and only score it. Here a student goes on from its own words, so that
what falls out of the window has consequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from swalib import data, models, results
from swalib.evals.bench import SECONDS_PER_NEW_TOKEN, SECONDS_PER_TOKEN, proven, resident
from swalib.evals.niah import mean_value
from swalib.evals.perplexity import pieces, spec_columns, token_losses
from swalib.evals.replies import Reader
from swalib.evals.written import TASKS, answered, items
from swalib.models import Loaded
from swalib.results import Measured, Value
from swalib.spec import SWA, Full

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GRAM = 4  # tokens of the n-grams whose repetition is counted


# ---- continuations.


@torch.inference_mode()
def continuation(student: PreTrainedModel, ids: Tensor, new_tokens: int, chunk_tokens: int = 1024) -> Tensor:
    """Greedy continuation of texts [b, t]: [b, new_tokens], no end of text allowed, through the sink cache.

    Raises:
        ValueError: fewer than one new token.
    """
    if new_tokens < 1:
        raise ValueError(f"new_tokens must be at least 1, got {new_tokens}")
    out = student.generate(
        input_ids=ids.to(student.device),
        attention_mask=torch.ones_like(ids).to(student.device),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        prefill_chunk_size=chunk_tokens,
        pad_token_id=0,
    )
    return out[:, ids.shape[1] :].cpu()


def repetition(tokens: np.ndarray, gram: int = GRAM) -> float:
    """Share of n-grams that repeat an earlier one: 0 for a text that never does, towards 1 for a loop.

    Raises:
        ValueError: fewer tokens than an n-gram.
    """
    count = len(tokens) - gram + 1
    if count < 1:
        raise ValueError(f"{len(tokens)} tokens hold no {gram}-gram")
    return 1 - len({tuple(tokens[n : n + gram].tolist()) for n in range(count)}) / count


def agreement(tokens: np.ndarray, other: np.ndarray) -> int:
    """Leading tokens that two continuations share."""
    differ = np.flatnonzero(tokens != other)
    return int(differ[0]) if len(differ) else len(tokens)


# ---- rows.


@dataclass(frozen=True)
class Cell:
    """One run: continuations of pieces of a text ("continuation"), or items of a task, under a spec.

    Args:
        text, context_tokens: pieces to go on from; for the other tasks neither counts.
        n: pieces, or items, the first of the file. new_tokens: of a continuation; a task has its own number.
    """

    model: str
    spec: SWA | Full
    task: str = "continuation"
    text: str = "novel"
    context_tokens: int = 256
    n: int = 8
    new_tokens: int = 512
    dtype: str = "float32"
    impl: str = "sdpa"
    device: str = "cpu"
    batch_size: int = 8

    @property
    def goes_on(self) -> bool:
        """Whether this is a continuation."""
        return self.task == "continuation"

    def config(self) -> dict[str, object]:
        """What identifies the run in the results; see `swalib.results.run_key`."""
        own = {"context_tokens": self.context_tokens, "text": data.text_id(self.text)} if self.goes_on else {}
        return {
            "experiment": "generation",
            "version": 1,
            "model": self.model,
            "weights": models.weights_id(self.model),
            **spec_columns(self.spec),
            "impl": self.impl,
            "dtype": self.dtype,
            "task": self.task,
            "items": self.n,
            "new_tokens": self.new_tokens if self.goes_on else TASKS[self.task].new_tokens,
            **own,
        }

    def compute(self) -> Measured:
        """Run it: the canary first."""
        loaded = resident(self.model, self.device, getattr(torch, self.dtype))
        with proven(loaded, self.spec, self.impl) as student:
            if self.goes_on:
                return self._continued(loaded, student)
            task = TASKS[self.task]
            reader = Reader(loaded, student, task.new_tokens, self.batch_size, decided=task.ends)
            found = answered(self.task, items(self.task)[: self.n], reader)
        shares = [mean_value("right", found["right"], "1")]
        return Measured(
            [*shares, mean_value("answer_loglikelihood", found["loglikelihood"], "nats/item")], found
        )

    def _continued(self, loaded: Loaded, student: PreTrainedModel) -> Measured:
        ids = pieces(loaded, data.text(self.text), self.context_tokens, self.n)
        batches = [continuation(student, rows, self.new_tokens) for rows in ids.split(self.batch_size)]
        tokens = torch.cat(batches)
        whole = torch.cat([ids, tokens], dim=1)
        losses = torch.cat([token_losses(loaded.model, row[None]) for row in whole])
        losses = losses[:, ids.shape[1] - 1 :].numpy()
        repeated = np.array([repetition(row) for row in tokens.numpy()])
        mean = mean_value("loss", losses.mean(1), "nats/token")
        spread = None if mean.stderr is None else mean.stderr * math.exp(mean.value)
        perplexity = Value("teacher_perplexity", math.exp(mean.value), "1", losses.size, spread)
        arrays = {"tokens": tokens.numpy().astype(np.int32), "losses": losses.astype(np.float16)}
        return Measured([mean_value("repetition", repeated, "1"), perplexity], arrays)


def continuations(
    mode: str, model: str, specs: Sequence[SWA | Full], gaps: bool = False, **settings: object
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Continuations under full attention and under each spec.

    Args:
        mode: "stored", "run", "smoke" or "reproduce", see `swalib.results.load_or_run`.
        gaps: in mode "stored", leave out the specs that are not stored, as long as full attention is.
        settings: fields of `Cell`.

    Returns:
        rows: model, method, window, sinks, positions, piece, repetition, loss (of the teacher on what was
        written, nats/token), shared_tokens (leading tokens that are the teacher's own). curves: the same
        columns without the measures, with position (tokens written) and loss, means over the pieces.

    Raises:
        MissingResult: in mode "stored", a spec is not stored; with `gaps`, full attention is not.
    """
    cells = [
        Cell(model, spec, **settings) for spec in [Full(), *(s for s in dict.fromkeys(specs) if s != Full())]
    ]
    _announce(mode, cells)
    cells = _kept(mode, cells) if gaps and not results.missing([cells[0].config()]) else cells
    rows, curves, teacher = [], [], None
    for cell in tqdm(cells, desc=f"continuations, {model}", disable=mode == "stored"):
        found = results.load_or_run(cell.config(), cell.compute, mode).arrays
        teacher = found["tokens"] if teacher is None else teacher
        labels = _labels(cell)
        for piece, (tokens, losses) in enumerate(zip(found["tokens"], found["losses"], strict=True)):
            measures = {"repetition": repetition(tokens), "loss": float(losses.astype(np.float64).mean())}
            shared = agreement(tokens, teacher[piece])
            rows.append({**labels, "piece": piece, **measures, "shared_tokens": shared})
        mean = found["losses"].astype(np.float64).mean(0)
        curves.append(pd.DataFrame({"position": np.arange(len(mean)), "loss": mean}).assign(**labels))
    return pd.DataFrame(rows), pd.concat(curves, ignore_index=True)


def measure(
    mode: str,
    model: str,
    specs: Sequence[SWA | Full],
    task: str,
    limit: int = 50,
    gaps: bool = False,
    **settings: object,
) -> pd.DataFrame:
    """Items of "gsm8k" or "humaneval" under each spec.

    Args:
        gaps: in mode "stored", leave out what is not stored, as long as something is.

    Returns:
        One row for each item and spec: model, method, window, sinks, positions, task, item, right,
        loglikelihood (of the right answer, nats), new_tokens.

    Raises:
        ValueError: no such task.
        MissingResult: in mode "stored", a spec is not stored; with `gaps`, none is.
    """
    if task not in TASKS:
        raise ValueError(f"no generated task is called {task!r}: choose from {', '.join(TASKS)}")
    cells = [Cell(model, spec, task, n=limit, **settings) for spec in dict.fromkeys(specs)]
    _announce(mode, cells)
    cells = _kept(mode, cells) if gaps else cells
    frames = []
    for cell in tqdm(cells, desc=f"{task}, {model}", disable=mode == "stored"):
        found = results.load_or_run(cell.config(), cell.compute, mode).arrays
        same = {name: found[name] for name in ("right", "loglikelihood", "new_tokens")}
        frames.append(
            pd.DataFrame({**_labels(cell), "task": task, "item": np.arange(len(found["right"])), **same})
        )
    return pd.concat(frames, ignore_index=True)


def _labels(cell: Cell) -> dict[str, object]:
    return {"model": cell.model, "window": pd.NA, "sinks": pd.NA, **spec_columns(cell.spec)}


def _kept(mode: str, cells: list[Cell]) -> list[Cell]:
    """In mode "stored" those that are, or all where none is."""
    if mode != "stored":
        return cells
    return [cell for cell in cells if not results.missing([cell.config()])] or cells


def _announce(mode: str, cells: Sequence[Cell]) -> None:
    if mode == "run":
        absent = results.missing([cell.config() for cell in cells])
        new = [config["new_tokens"] for config in absent]
        read = [config.get("context_tokens", 200) + config["new_tokens"] for config in absent]
        per_item = [a * SECONDS_PER_NEW_TOKEN + b * SECONDS_PER_TOKEN for a, b in zip(new, read, strict=True)]
        work = sum(config["items"] * seconds for config, seconds in zip(absent, per_item, strict=True))
        results.estimate(work / max(len(absent), 1), len(absent))
