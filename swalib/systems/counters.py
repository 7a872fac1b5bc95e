"""What does one call use? Memory at its peak, operations it dispatches, the spread of its times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from swalib.results import Value


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """The most that `call` has allocated at once beyond what was there before it, in bytes."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


class _Operations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def operations(call: Callable[[], object]) -> int:
    """Operations that `call` hands to torch; most are a launch on a GPU, views and bookkeeping are not."""
    with _Operations() as counter:
        call()
    return counter.count


def cache_bytes(cache) -> int:
    """Bytes that a cache of ours or of transformers has allocated."""
    if hasattr(cache, "allocated_bytes"):
        return cache.allocated_bytes
    held = [x.untyped_storage() for layer in cache.layers for x in (layer.keys, layer.values)]
    return sum(storage.nbytes() for storage in held)


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """`call` captured in a CUDA graph, as the replay of it. A replay does the same work on the same memory: a
    decode step writes the same slot again.

    Raises:
        RuntimeError: it can't be captured (it waits for the device, or moves something to it).
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError as error:
        raise RuntimeError(f"this step can't be captured in a CUDA graph: {error}") from error
    return graph.replay


def timings(times: Sequence[float], tokens: int) -> list[Value]:
    """Median and quartiles of a call's times (given in seconds) in ms, and its `tokens` a second."""
    middle = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else 3 * [middle]
    return [
        Value("step_ms", 1000 * middle, "ms", len(times)),
        Value("step_low_ms", 1000 * low, "ms", len(times)),
        Value("step_high_ms", 1000 * high, "ms", len(times)),
        Value("speed", tokens / middle, "tokens/s", len(times)),
    ]
