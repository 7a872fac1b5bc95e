"""How long does a token take, and how much memory? Decode and prefill of the paper's 4-layer model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import torch
from tqdm import tqdm

from swalib.results import Measured, Value
from swalib.spec import MixerConfig
from swalib.systems import counters, toy
from swalib.systems.cost import Attention, Shape, state_bytes, weight_bytes
from swalib.systems.kinds import FAMILIES, Kind
from swalib.systems.machine import available_bytes, seconds

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TASKS = ("decode", "prefill")
WARM_UP = {"decode": 3, "prefill": 0}  # beside the call that memory is measured in
HEADROOM = 0.8  # of what is available, so that whatever else runs has some


@dataclass(frozen=True)
class Cell:
    """One measurement of the toy model.

    Args:
        task: "decode", the `context_tokens`-th token of every row on top of the others; or "prefill", that
            many tokens read at once.
        repeats: timed calls, after a warm-up, by `machine.clock`.
        graph: whether the step is captured in a CUDA graph and replayed.

    Raises:
        ValueError: another task, sizes below what a step needs, or a graph of anything but a GPU's decode.
    """

    kind: Kind
    task: str
    context_tokens: int
    batch: int = 1
    shape: Shape = field(default_factory=Shape)
    dtype: str = "float32"
    device: str = "cpu"
    impl: str = "sdpa"
    graph: bool = False
    repeats: int = 11

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, got {self.task!r}")
        if self.context_tokens < 2 or self.batch < 1 or self.repeats < 1:
            raise ValueError(
                "a step needs at least 2 tokens, 1 row and 1 repeat; got "
                f"{self.context_tokens}, {self.batch} and {self.repeats}"
            )
        if self.graph and (self.task != "decode" or torch.device(self.device).type != "cuda"):
            raise ValueError("graph=True captures a decode step on a CUDA device, and nothing else")

    @property
    def native(self) -> bool:
        """Whether the unchanged transformers model does this."""
        return self.task == "prefill" and FAMILIES[self.kind.method].native_prefill

    def config(self) -> dict[str, object]:
        """What identifies the measurement in the results, but for the hardware."""
        mixer = isinstance(self.kind.spec(self.context_tokens), MixerConfig)
        return {
            "experiment": "systems",
            "version": 1,
            "model": "toy",
            "weights": toy.model_id(self.shape),
            "shape": asdict(self.shape),
            **asdict(self.kind),
            "impl": "transformers" if self.native else None if mixer else self.impl,
            "dtype": self.dtype,
            "device": self.device,
            "task": self.task,
            "context_tokens": self.context_tokens,
            "batch": self.batch,
            "graph": self.graph,
            "repeats": self.repeats,
        }

    @property
    def attention(self) -> Attention:
        """As `Kind.attention`; where only the state is known, a plain linear attention of the same size."""
        return self.kind.attention or Attention(0, features=self.shape.head_dim)

    @property
    def needed_bytes(self) -> int:
        """Memory that weights and state will take, and the activations of a prompt, predicted."""
        longest = max(self.context_tokens, self.attention.window or 0)  # slots are there whatever the text
        held = state_bytes(self.attention, self.shape, longest, self.batch, self.dtype)
        tokens = self.batch * (self.context_tokens if self.task == "prefill" else 1)
        activations = 4 * tokens * (4 * self.shape.hidden + 3 * self.shape.intermediate)
        return weight_bytes(self.attention, self.shape, self.dtype) + held + activations

    @property
    def seconds(self) -> float:
        """What it will take on a core of 40 GFLOP/s and 8 GB/s; only for the estimate."""
        calls = WARM_UP[self.task] + 1 + self.repeats
        if self.task == "prefill":
            return calls * self.batch * self.context_tokens * (0.003 + 2e-7 * self.context_tokens)
        return 0.5 + calls * (0.02 + self.needed_bytes / 8e9 + 0.002 * self.batch)

    def compute(self) -> Measured:
        """Run it; or say that it won't fit, before anything of its size is allocated."""
        needed, free = self.needed_bytes, available_bytes(self.device)
        fits = needed <= HEADROOM * free
        values = [Value("fits", fits, "bool"), Value("needed_bytes", needed, "bytes")]
        if not fits:
            tqdm.write(f"does not fit: {self.kind.label}, {self.context_tokens} tokens, batch {self.batch}")
            return Measured([*values, Value("available_bytes", free, "bytes resident")])
        student = _student(self)
        step, held = (_decode if self.task == "decode" else _prefill)(self, student)
        weights = sum(parameter.nbytes for parameter in student.parameters())
        before = held()
        values.append(
            Value("peak_bytes", weights + before + counters.peak_bytes(step, self.device), "bytes resident")
        )
        values.append(Value("state_bytes", held(), "bytes"))
        if self.task == "decode":
            values.append(Value("ops", counters.operations(step), "1"))
        if self.graph:
            step = counters.graphed(step)
        for _ in range(WARM_UP[self.task]):
            step()
        times = [seconds(step, self.device) for _ in range(self.repeats)]
        tokens = self.batch * (1 if self.task == "decode" else self.context_tokens)
        return Measured([*values, *counters.timings(times, tokens)])


_students: dict[tuple, PreTrainedModel] = {}


def _student(cell: Cell) -> PreTrainedModel:
    """The last one made is kept: a method's own copies of weights serve its next cell, and no longer."""
    teacher = toy.model(cell.shape, cell.dtype, cell.device)
    if cell.native:
        return teacher
    key = (cell.shape, cell.dtype, cell.device, cell.impl, cell.kind.spec(cell.context_tokens))
    if key not in _students:
        _students.clear()
        _students[key] = toy.student(teacher, cell.kind, cell.context_tokens, cell.impl)
    return _students[key]


Step = tuple[Callable[[], object], Callable[[], int]]  # a call, and the bytes that its cache has allocated


def _decode(cell: Cell, student: PreTrainedModel) -> Step:
    """Full attention has slots for `context_tokens` and then evicts, so that every step sees as many keys."""
    cache = toy.filled_cache(student, cell.context_tokens - 1, cell.batch)
    token = torch.zeros(cell.batch, 1, dtype=torch.long, device=cell.device)

    def step() -> None:
        student(input_ids=token, cache=cache, use_cache=True)

    return torch.inference_mode()(step), lambda: counters.cache_bytes(cache)


def _prefill(cell: Cell, student: PreTrainedModel) -> Step:
    generator = torch.Generator(cell.device).manual_seed(1)
    sizes = (cell.batch, cell.context_tokens)
    ids = torch.randint(cell.shape.vocab, sizes, generator=generator, device=cell.device)
    made = []

    def read() -> None:
        made.clear()
        made.append(student(input_ids=ids, use_cache=True, logits_to_keep=1).cache)

    return torch.inference_mode()(read), lambda: counters.cache_bytes(made[0]) if made else 0
