"""Does a student reason over facts scattered in a book? BABILong's qa1 to qa5, item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch

from swalib import data, models
from swalib.evals import babi, parts
from swalib.evals.babilong_items import LABELS, Prompt, baselines, build, named, official, substring
from swalib.evals.bench import proven, resident
from swalib.evals.niah import mean_value, packed
from swalib.evals.parts import PART
from swalib.evals.perplexity import spec_columns
from swalib.evals.replies import Question, Reader, Reply
from swalib.models import Loaded
from swalib.results import Measured, Value
from swalib.spec import SWA, Full

NEW_TOKENS = 20  # as released

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Cell:
    """One run: up to PART items of a task at a length, under a spec.

    Args:
        context_tokens, seed, text: as in `build`. template: the chat template, `template_` there.
        beyond, batch_size, chunk_tokens: as in `swalib.evals.replies.Reader`.
    """

    model: str
    spec: SWA | Full
    task: str
    context_tokens: int
    first: int = 0
    count: int = PART
    seed: int = 0
    text: str = "novel"
    template: bool = False
    beyond: bool = False
    dtype: str = "float32"
    impl: str = "sdpa"
    device: str = "cpu"
    batch_size: int = 8
    chunk_tokens: int = 1024

    def config(self) -> dict[str, object]:
        """What identifies the run in the results; see `swalib.results.run_key`."""
        return {
            "experiment": "babilong",
            "version": 1,
            "model": self.model,
            "weights": models.weights_id(self.model),
            **spec_columns(self.spec),
            "impl": self.impl,
            "dtype": self.dtype,
            "task": self.task,
            "text": data.text_id(self.text),
            "context_tokens": self.context_tokens,
            "seed": self.seed,
            "first_item": self.first,
            "items": self.count,
            "template": self.template or None,
            "new_tokens": NEW_TOKENS,
        }

    def asked(self, loaded: Loaded) -> list[Prompt]:
        """The prompts of the run, in their order."""
        return [
            build(loaded, self.task, self.context_tokens, number, self.seed, self.text, self.template)
            for number in range(self.first, self.first + self.count)
        ]

    def compute(self) -> Measured:
        """Run it: the canary first, then every prompt."""
        loaded = resident(self.model, self.device, getattr(torch, self.dtype))
        asked = self.asked(loaded)
        with proven(loaded, self.spec, self.impl) as student:
            reader = Reader(
                loaded, student, NEW_TOKENS, self.batch_size, self.chunk_tokens, beyond=self.beyond
            )
            replies = reader.read([Question(prompt.text, prompt.reply) for prompt in asked])
        found = arrays(self.task, asked, replies)
        return Measured(values(self.task, asked, found), found)


def arrays(task: str, asked: Sequence[Prompt], replies: Sequence[Reply]) -> dict[str, np.ndarray]:
    """What is stored of each item; `answer` is an index into `LABELS`, `facts` is padded with -1."""
    stories = [(prompt.item.question, prompt.item.answer) for prompt in asked]
    pairs = list(zip(stories, [reply.text for reply in replies], strict=True))
    facts = np.full((len(asked), max(len(prompt.facts) for prompt in asked), 2), -1, np.int32)
    for n, prompt in enumerate(asked):
        facts[n, : len(prompt.facts)] = prompt.facts
    return {
        "answer": np.array([LABELS[task].index(prompt.item.answer) for prompt in asked], np.int8),
        "context_tokens": np.array([prompt.context_tokens for prompt in asked], np.int32),
        "prompt_tokens": np.array([prompt.tokens for prompt in asked], np.int32),
        "facts": facts,
        "official": np.array([official(task, *story, text) for story, text in pairs], bool),
        "substring": np.array([substring(answer, text) for (_, answer), text in pairs], bool),
        "invalid": np.array([len(named(task, question, text)) != 1 for (question, _), text in pairs], bool),
        "loglikelihood": np.array([reply.loglikelihood for reply in replies], np.float32),
        "generated": packed([reply.text for reply in replies]),
    }


def values(task: str, asked: Sequence[Prompt], found: Arrays) -> list[Value]:
    """The numbers of a run: both scores, the share of invalid answers (first sentences that name no label, or
    several), the log-likelihood of the right answer in the examples' form, and the baselines."""
    shares = [mean_value(name, found[name], "1") for name in ("official", "substring", "invalid")]
    baseline = baselines(task, [prompt.item for prompt in asked])
    return [
        *shares,
        mean_value("answer_loglikelihood", found["loglikelihood"], "nats/item"),
        mean_value("prompt_tokens", found["prompt_tokens"], "tokens"),
        *(Value(f"baseline_{name}", value, "1", len(asked)) for name, value in vars(baseline).items()),
    ]


def measure(
    mode: str,
    model: str,
    specs: Sequence[SWA | Full],
    tasks: Sequence[str] = babi.TASKS,
    context_tokens: Sequence[int] = (512, 1024, 2048),
    limit: int = 50,
    gaps: bool = False,
    **settings: object,
) -> pd.DataFrame:
    """Items of BABILong by length, under each spec; the items are the same for all of them.

    Args:
        mode: "stored", "run", "smoke" or "reproduce", see `swalib.results.load_or_run`.
        limit: items of each task and length.
        gaps: in mode "stored", leave out what is not stored, as long as something is.
        settings: fields of `Cell`.

    Returns:
        One row for each item, spec and length: model, method, window, sinks, positions, task, context_tokens
        (asked for), item, answer, official, substring, invalid, loglikelihood (nats), prompt_tokens,
        first_fact, last_fact (text positions of where they begin, tokens).

    Raises:
        ValueError: a limit below 1, or what `build` and `Reader` refuse; finished runs are kept.
    """
    make = partial(Cell, model, **settings)
    cells = parts.cut(make, specs, context_tokens, tasks, limit)
    return parts.table(mode, cells, _frame, f"BABILong, {model}", gaps)


def _frame(cell: Cell, found: Arrays) -> pd.DataFrame:
    labels = {"model": cell.model, "window": pd.NA, "sinks": pd.NA, **spec_columns(cell.spec)}
    same = ("official", "substring", "invalid", "loglikelihood", "prompt_tokens")
    return pd.DataFrame(
        {
            **labels,
            "task": cell.task,
            "context_tokens": cell.context_tokens,
            "item": np.arange(cell.first, cell.first + cell.count),
            "answer": np.array(LABELS[cell.task])[found["answer"]],
            **{name: found[name] for name in same},
            "first_fact": found["facts"][:, 0, 0],
            "last_fact": found["facts"][:, :, 0].max(1),
        }
    )
