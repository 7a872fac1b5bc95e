"""The paper's teachers: which weights, how to run them, and what six tasks under SWA would take on a GPU box.

Nothing here downloads anything: sizes are those of the published configurations, hours are arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from swalib import items

# Tokens of an item, and of a task's worked examples, once read: means over 100 items, in SmolLM2's tokens.
ITEM_TOKENS = {
    "mmlu": 113,
    "arc_challenge": 50,
    "arc_easy": 38,
    "hellaswag": 78,
    "piqa": 57,
    "winogrande": 27,
}
ITEMS = {
    "mmlu": 14042,
    "arc_challenge": 1172,
    "arc_easy": 2376,
    "hellaswag": 10042,
    "piqa": 1838,
    "winogrande": 1267,
}
HEADER_TOKENS = 57 * 475  # MMLU's five examples of each subject; the other tasks are asked without
LONGEST_TOKENS = 3100  # of a five-shot MMLU item
BATCH = 8
ROOM = 0.9  # the share of a GPU's memory that weights and cache may take


@dataclass(frozen=True)
class Teacher:
    """One of the paper's unchanged models.

    Args:
        hub_id: on the model hub.
        table: of the paper where it is a teacher: 2, or 5 (the paper's own linear students).
        parameters: how many, in all.
        layers, kv_heads, head_dim: of its attention.
        context_tokens: it was made for.
        dtype: its weights are published in.
        gated: whether the hub asks for an account that has accepted a licence.
        instruct: whether it was trained on chats.
        notes: what else to know before running it.
    """

    hub_id: str
    table: int
    parameters: float
    layers: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    dtype: str = "bfloat16"
    gated: bool = False
    instruct: bool = False
    notes: str = ""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in `dtype`, two a parameter."""
        return int(2 * self.parameters)

    def cache_bytes(self, tokens: int = LONGEST_TOKENS, batch: int = BATCH) -> int:
        """Bytes of keys and values of `batch` texts of `tokens` tokens under full attention, in `dtype`."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2 * tokens * batch


# The keys are the names of the paper's tables. The paper does not say whether it used chat templates. Here
# none is: base models know none, and a recovery compares a model with itself on the same prompt. What one
# changes on an Instruct model is measured by `template=True`.
TEACHERS = {
    "Phi-1.5-1.3B": Teacher(
        "microsoft/phi-1_5",
        2,
        1.42e9,
        24,
        32,
        64,
        2048,
        "float16",
        notes="five-shot MMLU items beyond 2,048 tokens are refused: ask those with fewer",
    ),
    "Mistral-7B-v0.1": Teacher(
        "mistralai/Mistral-7B-v0.1",
        2,
        7.24e9,
        32,
        8,
        128,
        32768,
        notes="has a window of its own, 4096 tokens",
    ),
    "Llama2.0-7B": Teacher("meta-llama/Llama-2-7b-hf", 2, 6.74e9, 32, 32, 128, 4096, "float16", gated=True),
    "Llama3.0-8B": Teacher("meta-llama/Meta-Llama-3-8B", 2, 8.03e9, 32, 8, 128, 8192, gated=True),
    "Llama3.0-8B-Instruct": Teacher(
        "meta-llama/Meta-Llama-3-8B-Instruct", 2, 8.03e9, 32, 8, 128, 8192, gated=True, instruct=True
    ),
    "Llama-3.1-8B": Teacher("meta-llama/Llama-3.1-8B", 2, 8.03e9, 32, 8, 128, 131072, gated=True),
    "Llama-3.1-70B": Teacher("meta-llama/Llama-3.1-70B", 2, 70.55e9, 80, 8, 128, 131072, gated=True),
    "Qwen2.5-7B-Instruct": Teacher("Qwen/Qwen2.5-7B-Instruct", 2, 7.62e9, 28, 4, 128, 32768, instruct=True),
    "Qwen2.5-32B-Instruct": Teacher(
        "Qwen/Qwen2.5-32B-Instruct", 2, 32.76e9, 64, 8, 128, 32768, instruct=True
    ),
    "Qwen2.5-72B-Instruct": Teacher(
        "Qwen/Qwen2.5-72B-Instruct", 2, 72.71e9, 80, 8, 128, 32768, instruct=True
    ),
    "QwQ-32B": Teacher(
        "Qwen/QwQ-32B", 2, 32.76e9, 64, 8, 128, 40960, instruct=True, notes="a reasoning model, asked without"
    ),
    "Qwen3-8B": Teacher("Qwen/Qwen3-8B", 5, 8.19e9, 36, 8, 128, 40960, instruct=True),
    "Phi-4-mini-reasoning": Teacher(
        "microsoft/Phi-4-mini-reasoning", 5, 3.84e9, 32, 8, 128, 131072, instruct=True
    ),
    "Phi-4-reasoning-plus": Teacher(
        "microsoft/Phi-4-reasoning-plus", 5, 14.66e9, 40, 10, 128, 32768, instruct=True
    ),
}


@dataclass(frozen=True)
class Plan:
    """What measuring one teacher takes; hours and bytes are expected, not measured.

    Args:
        gpus: that hold one copy of the model; copies: that the box runs side by side.
        memory_bytes: weights, and the cache of a batch under full attention.
        tokens: read in all, under full attention and each window.
        hours: of the whole box.
        command: that does it.
    """

    name: str
    teacher: Teacher
    gpus: int
    copies: int
    memory_bytes: int
    tokens: int
    hours: float
    command: str


def plan(
    name: str,
    windows: Sequence[int] = (64,),
    sinks: int = 4,
    gpus: int = 8,
    gpu_memory_gb: float = 80.0,
    tflops: float = 300.0,
) -> Plan:
    """How to measure a teacher on the six tasks, with the paper's shots, under full attention and SWA.

    Args:
        name: in `TEACHERS`.
        gpus: of the box; gpu_memory_gb: of each, in 10^9 bytes; tflops: that each reaches, 10^12 a second.

    Raises:
        ValueError: no such teacher, no window, or a box that can't hold the model.
    """
    if name not in TEACHERS:
        raise ValueError(f"no teacher is called {name!r}: choose from {', '.join(TEACHERS)}")
    if not windows or min(windows) <= sinks or gpus < 1 or gpu_memory_gb <= 0 or tflops <= 0:
        raise ValueError("a plan needs windows longer than the sinks, and GPUs with memory and speed")
    teacher = TEACHERS[name]
    memory = teacher.weight_bytes + teacher.cache_bytes()
    needed = math.ceil(memory / (ROOM * gpu_memory_gb * 1e9))
    if needed > gpus:
        raise ValueError(
            f"{name} needs {memory / 1e9:.0f} GB, {needed} GPUs of {gpu_memory_gb:.0f} GB; the box has {gpus}"
        )
    tokens = (1 + len(windows)) * tokens_of_a_pass()
    copies = gpus // needed  # of one, a single GPU works at a time: its layers are spread, not split
    hours = 2 * teacher.parameters * tokens / (copies * tflops * 1e12) / 3600
    command = "\n".join(_command(teacher, window, sinks, needed, copies) for window in (None, *windows))
    return Plan(name, teacher, needed, copies, memory, tokens, hours, command)


def tokens_of_a_pass() -> int:
    """Tokens read to score all items of the six tasks once, shared beginnings once."""
    return HEADER_TOKENS + sum(ITEMS[task] * ITEM_TOKENS[task] for task in ITEMS)


def _command(teacher: Teacher, window: int | None, sinks: int, needed: int, copies: int) -> str:
    """One copy a process (data parallel), its layers spread over several GPUs where one can't hold it."""
    mask = "" if window is None else f",window={window},sinks={sinks}"
    launch = f"accelerate launch --num_processes {copies}" if copies > 1 else "python"
    spread = ",parallelize=True" if needed > 1 else ""
    model = f"pretrained={teacher.hub_id},dtype={teacher.dtype}{mask}{spread}"
    zero_shot = ",".join(task for task in ITEMS if not items.task(task).shots)
    run = f"{launch} -m swalib.lm_eval run --model swa --model_args {model} --batch_size {BATCH}"
    return "\n".join((f"{run} --tasks {zero_shot}", f"{run} --tasks mmlu --num_fewshot 5"))
