"""How does a student score on the paper's six short tasks? lm-eval's prompts and metrics, item by item."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from swalib import items, models, results
from swalib.evals.bench import SECONDS_PER_TOKEN, proven, resident
from swalib.evals.likelihood import Scorer
from swalib.evals.perplexity import spec_columns
from swalib.evals.prompts import HARNESS, Prompt, prompts, tokens
from swalib.models import Loaded
from swalib.results import Measured, Value
from swalib.spec import SWA, Full

PART = 100  # items of one run: what a stop can cost, and how finely `limit` is kept
_TOKENS = {
    0: 60,
    5: 100,
}  # read for an item, on average over the tasks, headers shared; only for the estimate

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Cell:
    """One run: up to PART items of a task, under a spec.

    Args:
        first, count: which items, in the order that `seed` draws.
        source: where the items come from; None is the task's own.
        template: whether the tokenizer's chat template wraps the prompt, as lm-eval applies it.
        bos: whether a text begins with the model's BOS; None is as the model was trained.
    """

    model: str
    spec: SWA | Full
    task: str
    shots: int
    first: int = 0
    count: int = PART
    seed: int = 0
    source: str | None = None
    dtype: str = "float32"
    impl: str = "sdpa"
    template: bool = False
    bos: bool | None = None
    device: str = "cpu"

    def config(self) -> dict[str, object]:
        """What identifies the run in the results; see `swalib.results.run_key`."""
        source = "toy" if self.source == "toy" else items.source_of(self.task, self.source)
        return {
            "experiment": "short",
            "version": 1,
            "model": self.model,
            "weights": models.weights_id(self.model),
            **spec_columns(self.spec),
            "impl": self.impl,
            "dtype": self.dtype,
            "task": self.task,
            "shots": self.shots,
            "seed": self.seed,
            "first_item": self.first,
            "items": self.count,
            "items_id": source if source in ("hub", "toy") else items.items_id(self.task),
            "lm_eval": HARNESS,
            "template": self.template or None,
            "bos": self.bos,
        }

    def compute(self, scorer: Scorer, loaded: Loaded, full: Arrays | None = None) -> Measured:
        """Score the items; those that fit in the window are taken from `full`, full attention's own arrays.

        Up to w tokens SWA(w, s) is full attention (its masks are equal), so nothing is computed twice.
        """
        words = partial(prompts, template=template(loaded)) if self.template else _plain
        asked = words(self.task, self.shots, self.first, self.count, self.seed, self.source)
        found = {"loglikelihood": _empty(asked), **_labels(loaded, asked)}
        todo = list(range(len(asked)))
        if full is not None and isinstance(self.spec, SWA):
            if not np.array_equal(full["place"], found["place"]):
                raise ValueError("full attention was scored on other items")
            todo = [n for n in todo if binds(found["tokens"][n], self.spec.window)]
            found["loglikelihood"][:] = full["loglikelihood"]
        scores = scorer.score([tokens(loaded, asked[n]) for n in todo])
        for n, row in zip(todo, scores, strict=True):
            found["loglikelihood"][n, : len(row)] = [score.loglikelihood for score in row]
        return Measured(_values(found), found)


_plain = lru_cache(maxsize=128)(prompts)  # worded once for all specs


def binds(tokens: np.ndarray | int, window: int) -> np.ndarray | bool:
    """Whether a text of `tokens` tokens is scored otherwise under SWA(window, s) than under full attention.

    Its last token is only predicted, so tokens - 1 of them attend.
    """
    return tokens - 1 > window


def template(loaded: Loaded) -> Callable[[list[dict]], str]:
    """The tokenizer's chat template, messages to text that ends where the answer begins.

    Raises:
        ValueError: it has none.
    """
    if not loaded.tokenizer.chat_template:
        raise ValueError(f"the tokenizer of {loaded.name} has no chat template: leave template out")

    def render(messages: list[dict]) -> str:
        return loaded.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    return render


def with_bos(loaded: Loaded, bos: bool) -> Loaded:
    """The model with or without its BOS in front of every text, whatever it was trained with.

    Raises:
        ValueError: its tokenizer has none.
    """
    token = loaded.tokenizer.bos_token_id
    if bos and token is None:
        raise ValueError(f"the tokenizer of {loaded.name} has no BOS token: leave bos out")
    return replace(loaded, bos=token if bos else None)


def choices(arrays: Arrays, metric: str) -> np.ndarray:
    """Which choice each item's student prefers, int [n]: the likeliest, per character for acc_norm."""
    scores = arrays["loglikelihood"].astype(np.float64)
    if metric == "acc_norm":
        scores = scores / np.maximum(arrays["chars"], 1)
    return np.nanargmax(scores, axis=1)


def _empty(asked: Sequence[Prompt]) -> np.ndarray:
    return np.full((len(asked), max(len(prompt.chars) for prompt in asked)), np.nan, np.float32)


def _labels(loaded: Loaded, asked: Sequence[Prompt]) -> dict[str, np.ndarray]:
    """What there is to know of the items before a model has read them."""
    chars = np.zeros((len(asked), max(len(prompt.chars) for prompt in asked)), np.int16)
    for n, prompt in enumerate(asked):
        chars[n, : len(prompt.chars)] = prompt.chars
    return {
        "place": np.array([prompt.place for prompt in asked], np.int32),
        "gold": np.array([prompt.gold for prompt in asked], np.int8),
        "shots": np.array([prompt.shots for prompt in asked], np.int8),
        "chars": chars,
        "tokens": np.array([tokens(loaded, prompt).longest for prompt in asked], np.int32),
    }


def _values(found: Arrays) -> list[Value]:
    values = []
    for metric in ("acc", "acc_norm"):
        right = (choices(found, metric) == found["gold"]).astype(float)
        stderr = float(right.std(ddof=1) / math.sqrt(len(right))) if len(right) > 1 else None
        values.append(Value(metric, float(right.mean()), "1", len(right), stderr))
    gold = found["loglikelihood"][np.arange(len(found["gold"])), found["gold"]].astype(np.float64)
    stderr = float(gold.std(ddof=1) / math.sqrt(len(gold))) if len(gold) > 1 else None
    values.append(Value("gold_loglikelihood", float(gold.mean()), "nats/item", len(gold), stderr))
    return values


class _Student:
    """A spec's scorer, made when the first run needs it, so that stored rows need no model."""

    def __init__(self, stack: ExitStack, cell: Cell, batch_size: int) -> None:
        self._stack, self._cell, self._batch_size = stack, cell, batch_size
        self._made: tuple[Scorer, Loaded] | None = None

    def __call__(self) -> tuple[Scorer, Loaded]:
        if self._made is None:
            cell = self._cell
            loaded = resident(cell.model, cell.device, getattr(torch, cell.dtype))
            if cell.bos is not None:
                loaded = with_bos(loaded, cell.bos)
            student = self._stack.enter_context(proven(loaded, cell.spec, cell.impl))
            self._made = Scorer(student, self._batch_size), loaded
        return self._made


def short(
    mode: str,
    model: str,
    specs: Sequence[SWA | Full],
    tasks: Sequence[str] = tuple(items.TASKS),
    shots: Sequence[int] = (0, 5),
    limit: int = 300,
    batch_size: int = 8,
    **settings: object,
) -> pd.DataFrame:
    """Items of tasks, scored by one model under full attention and under each spec.

    Full attention is always among the specs: it is the teacher, and what fits in a window is taken from it.

    Args:
        mode: "stored", "run", "smoke" or "reproduce", see `swalib.results.load_or_run`.
        limit: items of each task, the first in an order drawn with `seed`.
        batch_size: items at once; scores do not depend on it.
        settings: fields of `Cell`: seed, source, dtype, impl, template, bos, device.

    Returns:
        One row for each item, spec and number of shots: method, window, sinks, positions, task, shots, place
        (of the item in its file), gold, choice (by the paper's metric), teacher (its choice), correct,
        gold_loglikelihood (nats), tokens (of its longest row).

    Raises:
        ValueError: a limit below 1 or beyond the items there are, or what `prompts` and `Scorer.score`
            refuse; finished runs are kept.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    specs = [Full(), *(spec for spec in dict.fromkeys(specs) if spec != Full())]
    units = [(task, n, first) for task in tasks for n in shots for first in range(0, limit, PART)]
    make = partial(Cell, model, **settings)
    cells = {(spec, *unit): make(spec, *unit, min(PART, limit - unit[2])) for spec in specs for unit in units}
    if mode == "run":
        _announce([cell.config() for cell in cells.values()])
    full, frames = {}, []
    bar = tqdm(total=len(cells), desc=f"six tasks, {model}", disable=mode == "stored")
    for spec in specs:
        with ExitStack() as stack:
            student = _Student(stack, cells[spec, *units[0]], batch_size)
            for unit in units:
                cell = cells[spec, *unit]
                compute = partial(_compute, cell, student, full.get(unit))
                found = results.load_or_run(cell.config(), compute, mode)
                full.setdefault(unit, found.arrays)
                frames.append(_frame(cell, found.arrays, full[unit]))
                bar.update()
    bar.close()
    return pd.concat(frames, ignore_index=True)


def _announce(configs: Sequence[results.Config]) -> None:
    absent = results.missing(configs)
    work = sum(_TOKENS.get(config["shots"], 100) * config["items"] for config in absent)
    results.estimate(work * SECONDS_PER_TOKEN / max(len(absent), 1), len(absent))


def _compute(cell: Cell, student: _Student, full: Arrays | None) -> Measured:
    return cell.compute(*student(), full)


def _frame(cell: Cell, arrays: Arrays, full: Arrays) -> pd.DataFrame:
    metric = items.task(cell.task).metric
    choice, gold = choices(arrays, metric), arrays["gold"].astype(int)
    labels = {"model": cell.model, "window": pd.NA, "sinks": pd.NA, **spec_columns(cell.spec)}
    return pd.DataFrame(
        {
            **labels,
            "task": cell.task,
            "shots": cell.shots,
            "place": arrays["place"],
            "gold": gold,
            "choice": choice,
            "teacher": choices(full, metric),
            "correct": choice == gold,
            "gold_loglikelihood": arrays["loglikelihood"][np.arange(len(gold)), gold].astype(float),
            "tokens": arrays["tokens"],
        }
    )
