"""Does a student find a needle in a haystack longer than its window? S-NIAH by length and depth, item by
item, beside the null model that finds what lies wholly inside the window."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch

from swalib import data, masks, models
from swalib.evals import needles, parts
from swalib.evals.bench import proven, resident
from swalib.evals.needles import NEW_TOKENS, TASKS, Prompt, prompts
from swalib.evals.parts import PART
from swalib.evals.perplexity import spec_columns
from swalib.evals.replies import Question, Reader, Reply
from swalib.models import Loaded
from swalib.results import Measured, Value
from swalib.spec import SWA, Full

Arrays = Mapping[str, np.ndarray]


def string_match(question: Question, text: str) -> bool:
    """RULER's `string_match_all` with its one reference: whether `text` holds the value, in any case."""
    return question.answer.strip().lower() in text.lower()


@dataclass(frozen=True)
class Cell:
    """One run: up to PART items of a task at a length, under a spec.

    Args:
        context_tokens: that prompt and new tokens take at most.
        depths, text, short_haystacks, new_tokens: as in `swalib.evals.needles`.
        beyond: as in `swalib.evals.replies.Reader`.
        batch_size, chunk_tokens: how prompts are read; scores depend on neither.
    """

    model: str
    spec: SWA | Full
    task: str
    context_tokens: int
    first: int = 0
    count: int = PART
    seed: int = 0
    depths: str | tuple[float, ...] = "ruler"
    text: str = "essay"
    short_haystacks: bool = False
    new_tokens: int = NEW_TOKENS
    beyond: bool = False
    dtype: str = "float32"
    impl: str = "sdpa"
    device: str = "cpu"
    batch_size: int = 8
    chunk_tokens: int = 1024

    def config(self) -> dict[str, object]:
        """What identifies the run in the results; see `swalib.results.run_key`."""
        essays = needles.task_of(self.task).essays
        return {
            "experiment": "niah",
            "version": 1,
            "model": self.model,
            "weights": models.weights_id(self.model),
            **spec_columns(self.spec),
            "impl": self.impl,
            "dtype": self.dtype,
            "task": self.task,
            "text": data.text_id(self.text) if essays else None,
            "context_tokens": self.context_tokens,
            "seed": self.seed,
            "first_item": self.first,
            "items": self.count,
            "depths": self.depths if isinstance(self.depths, str) else list(self.depths),
            "short_haystacks": self.short_haystacks or None,
            "new_tokens": self.new_tokens,
        }

    def asked(self, loaded: Loaded) -> list[Prompt]:
        """The prompts of the run, in their order."""
        settings = {"text": self.text, "short_haystacks": self.short_haystacks, "new_tokens": self.new_tokens}
        return prompts(
            loaded, self.task, self.context_tokens, self.first, self.count, self.seed, self.depths, **settings
        )

    def compute(self) -> Measured:
        """Run it: the canary first, then every prompt."""
        loaded = resident(self.model, self.device, getattr(torch, self.dtype))
        asked = self.asked(loaded)
        with proven(loaded, self.spec, self.impl) as student:
            reader = Reader(
                loaded,
                student,
                self.new_tokens,
                self.batch_size,
                self.chunk_tokens,
                string_match,  # what holds the value goes on to hold it
                self.beyond,
            )
            replies = reader.read([prompt.ask() for prompt in asked])
        found = arrays(asked, replies)
        return Measured(values(found, self.spec), found)


def arrays(asked: Sequence[Prompt], replies: Sequence[Reply]) -> dict[str, np.ndarray]:
    """What is stored of each item; texts as UTF-8 bytes, padded with zeros."""
    hits = [string_match(p.ask(), reply.text) for p, reply in zip(asked, replies, strict=True)]
    return {
        "depth": np.array([prompt.depth for prompt in asked], np.float32),
        "units": np.array([prompt.units for prompt in asked], np.int32),
        "prompt_tokens": np.array([prompt.tokens for prompt in asked], np.int32),
        "haystack_tokens": np.array([prompt.haystack_tokens for prompt in asked], np.int32),
        "needle": np.array([prompt.span for prompt in asked], np.int32),
        "question": np.array([prompt.asked for prompt in asked], np.int32),
        "hit": np.array(hits, bool),
        "loglikelihood": np.array([reply.loglikelihood for reply in replies], np.float32),
        "answer_tokens": np.array([reply.answer_tokens for reply in replies], np.int16),
        "new_tokens": np.array([reply.tokens for reply in replies], np.int16),
        "generated": packed([reply.text for reply in replies]),
    }


def packed(texts: Sequence[str]) -> np.ndarray:
    """Texts as UTF-8 bytes, uint8 [n, longest], padded with zeros."""
    coded = [text.encode() for text in texts]
    found = np.zeros((len(coded), max(map(len, coded), default=0)), np.uint8)
    for n, text in enumerate(coded):
        found[n, : len(text)] = np.frombuffer(text, np.uint8)
    return found


def texts(found: Arrays) -> list[str]:
    """The generated texts out of stored arrays."""
    return [bytes(row).rstrip(b"\0").decode() for row in found["generated"]]


def values(found: Arrays, spec: SWA | Full) -> list[Value]:
    """The numbers of a run: shares of items found, mean log-likelihood, mean true length."""
    per_item = {
        "string_match": (found["hit"], "1"),
        "answer_loglikelihood": (found["loglikelihood"], "nats/item"),
        "prompt_tokens": (found["prompt_tokens"], "tokens"),
        **{f"null_from_{where}": (seen, "1") for where, seen in null(found, spec).items()},
    }
    return [mean_value(metric, *numbers) for metric, numbers in per_item.items()]


def mean_value(metric: str, per_item: np.ndarray, unit: str) -> Value:
    """The mean over items with its standard error."""
    scores = per_item.astype(np.float64)
    stderr = float(scores.std(ddof=1) / math.sqrt(len(scores))) if len(scores) > 1 else None
    return Value(metric, float(scores.mean()), unit, len(scores), stderr)


def null(found: Arrays, spec: SWA | Full) -> dict[str, np.ndarray]:
    """Which items the window-only null model finds: those whose needle's tokens one query all sees.

    Returns:
        bool [n] for each way to count: "question", from the last token before the question; "answer", from
        the last token of the prompt, which predicts the first one of the answer.
    """
    queries = {"question": found["question"] - 1, "answer": found["prompt_tokens"] - 1}
    return {
        where: np.array(
            [sees(int(query), *map(int, span), spec) for query, span in zip(at, found["needle"], strict=True)]
        )
        for where, at in queries.items()
    }


def sees(query: int, start: int, end: int, spec: SWA | Full) -> bool:
    """Whether the query at text position `query` sees all tokens [start, end)."""
    return bool(masks.visible(torch.tensor(query), torch.arange(start, end), spec).all())


def measure(
    mode: str,
    model: str,
    specs: Sequence[SWA | Full],
    tasks: Sequence[str] = tuple(TASKS),
    context_tokens: Sequence[int] = (512, 1024, 2048, 4096),
    limit: int = 50,
    gaps: bool = False,
    **settings: object,
) -> pd.DataFrame:
    """Items of S-NIAH by length, under each spec; needles and depths are the same for all of them.

    Args:
        mode: "stored", "run", "smoke" or "reproduce", see `swalib.results.load_or_run`.
        limit: items of each task and length.
        gaps: in mode "stored", leave out what is not stored, as long as something is.
        settings: fields of `Cell`.

    Returns:
        One row for each item, spec and length: model, method, window, sinks, positions, task, context_tokens,
        item, depth, prompt_tokens, haystack_tokens, needle_start, needle_end, question (text positions, in
        tokens), hit, null_from_question, null_from_answer, loglikelihood (nats), answer_tokens, new_tokens.

    Raises:
        ValueError: a limit below 1, or what `needles.prompts` and `Reader` refuse; finished runs are kept.
    """
    make = partial(Cell, model, **settings)
    cells = parts.cut(make, specs, context_tokens, tasks, limit)
    return parts.table(mode, cells, _frame, f"S-NIAH, {model}", gaps)


def _frame(cell: Cell, found: Arrays) -> pd.DataFrame:
    labels = {"model": cell.model, "window": pd.NA, "sinks": pd.NA, **spec_columns(cell.spec)}
    same = (
        "depth",
        "prompt_tokens",
        "haystack_tokens",
        "question",
        "hit",
        "loglikelihood",
        "answer_tokens",
        "new_tokens",
    )
    return pd.DataFrame(
        {
            **labels,
            "task": cell.task,
            "context_tokens": cell.context_tokens,
            "item": np.arange(cell.first, cell.first + cell.count),
            **{name: found[name] for name in same},
            "needle_start": found["needle"][:, 0],
            "needle_end": found["needle"][:, 1],
            **{f"null_from_{where}": seen for where, seen in null(found, cell.spec).items()},
        }
    )
