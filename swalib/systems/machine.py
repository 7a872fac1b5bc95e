"""What can this machine do at most? Its bandwidth, its matrix rate, the least that an operation takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from swalib.provenance import hardware
from swalib.results import Measured, Value
from swalib.systems.cost import dtype_bytes

REPEATS = 15
WARM_UP = 2


def synchronize(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def available_bytes(device: str) -> int:
    """Memory that can still be allocated: of the GPU, or of the system (Linux's MemAvailable).

    Raises:
        RuntimeError: the system does not say.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    found = meminfo.read_text().partition("MemAvailable:")[2].split() if meminfo.exists() else []
    if not found:
        raise RuntimeError("this system does not say how much memory is available: measure on Linux")
    return int(found[0]) * 1024


def clock(device: str) -> Callable[[], float]:
    """On a CPU with one thread, the seconds that this thread has run: what other processes take of its core
    is not counted. Else the wall clock."""
    alone = torch.device(device).type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if alone else time.perf_counter


def seconds(run: Callable[[], object], device: str, calls: int = 1) -> float:
    """Seconds of one of `calls` calls in a row by `clock`, all done when it stops."""
    now = clock(device)
    synchronize(device)
    started = now()
    for _ in range(calls):
        run()
    synchronize(device)
    return (now() - started) / calls


def best_seconds(run: Callable[[], object], device: str, calls: int = 1) -> float:
    """The least of `REPEATS`, after a warm-up: a limit is what the machine can do at its best."""
    times = [seconds(run, device, calls) for _ in range(WARM_UP + REPEATS)]
    return min(times[WARM_UP:])


@dataclass(frozen=True)
class Limits:
    """One measurement of a machine, in one dtype.

    Args:
        copied_bytes: of the tensor that is copied and read, far more than any cache holds.
        side: rows and columns of the matrices that are multiplied.
    """

    dtype: str = "float32"
    device: str = "cpu"
    copied_bytes: int = 1 << 28
    side: int = 2048

    def config(self) -> dict[str, object]:
        """What identifies the measurement in the results."""
        return {
            "experiment": "systems_machine",
            "version": 1,
            "dtype": self.dtype,
            "device": self.device,
            "copied_bytes": self.copied_bytes,
            "side": self.side,
            "hardware": hardware(),
        }

    @torch.inference_mode()
    def compute(self) -> Measured:
        """copy: bytes read and written a second by a copy. read: bytes of a matrix read a second by a product
        with a vector, which is what decoding does. matrix: FLOPs a second of a product of two matrices. op:
        the time of an operation on one number, many in a row; on a GPU, of a launch."""
        rows = self.copied_bytes // dtype_bytes(self.dtype) // 4096
        source = self._random(rows, 4096)
        target, vector = torch.empty_like(source), self._random(4096, 1)
        a, b = self._random(self.side, self.side), self._random(self.side, self.side)
        one = self._random(1, 1)
        times = {
            "copy": best_seconds(lambda: target.copy_(source), self.device),
            "read": best_seconds(lambda: source @ vector, self.device),
            "matrix": best_seconds(lambda: a @ b, self.device),
            "op": best_seconds(lambda: one.mul_(1), self.device, 2000),
        }
        moved, flops = source.numel() * source.element_size(), 2 * self.side**3
        return Measured(
            [
                Value("copy", 2 * moved / times["copy"] / 1e9, "GB/s", REPEATS),
                Value("read", moved / times["read"] / 1e9, "GB/s", REPEATS),
                Value("matrix", flops / times["matrix"] / 1e9, "GFLOP/s", REPEATS),
                Value("op", 1e6 * times["op"], "us", REPEATS),
            ]
        )

    def _random(self, *sizes: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(0)
        like = {"dtype": getattr(torch, self.dtype), "device": self.device}
        return torch.empty(sizes, **like).normal_(generator=generator)
