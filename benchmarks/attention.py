"""How fast is windowed attention, beside torch's causal SDPA, and is decoding flat in the context?

    OMP_NUM_THREADS=1 python benchmarks/attention.py                          # CPU: fp32, 4 heads × 64
    python benchmarks/attention.py --device cuda --heads 16 --batch 64        # GPU: bf16

Medians of interleaved calls, no gradients. Prefill: every implementation that runs here, positions planned
once, as the layers of a model share a plan. Decoding: one query over the slots that a sink cache holds after
so many tokens. On a GPU, decoding is compared with the copy bandwidth measured in the same run, and prefill
with the best windowed FlashAttention at hand.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from swalib import SWA
from swalib.attention import IMPLEMENTATIONS, available
from swalib.attention.scoring import Scoring
from swalib.slots import live_slots, slot_positions

LEAST_ON_CPU = {4096: 3.5, 32768: 22.0}  # causal SDPA's time over the best of flex and sdpa
MOST_OVER_FLASH = 1.2  # triton's time over the best windowed flash kernel's
LEAST_OF_COPY = 0.7  # bytes per second of decoding over those of a copy, from this batch on
LARGE_BATCH = 64
FLAT = 1.3  # the slowest context's time over the fastest's, once the window is full


def synchronized(device: str) -> float:
    """Seconds on a clock that waits for the device."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.inference_mode()
def interleaved(runs: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Each contender's median seconds; they take turns, after a round that only warms up."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            started = synchronized(device)
            run()
            taken[name].append(synchronized(device) - started)
    return {name: statistics.median(calls[1:]) for name, calls in taken.items()}


def tensors(asked: argparse.Namespace, t_q: int, t_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [batch, heads, t, d] in the dtype of the device."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if asked.device == "cuda" else torch.float32
    return tuple(
        torch.randn(asked.batch, heads, t, asked.head_dim, device=asked.device, dtype=dtype)
        for heads, t in ((asked.heads, t_q), (asked.kv_heads, t_k), (asked.kv_heads, t_k))
    )


def contenders(asked, qkv, spec: SWA, q_pos: Tensor, k_pos: Tensor) -> dict[str, Callable[[], Tensor]]:
    """A call of every implementation that runs here, but the one that forms all scores."""
    scoring = Scoring(asked.head_dim**-0.5)
    runs = {}
    for name, reason in available(asked.device).items():
        interpreted = name == "triton" and asked.device == "cpu"
        if reason is None and name != "reference" and not interpreted:
            implementation = IMPLEMENTATIONS[name]
            plan = implementation.plan(spec, q_pos, k_pos)
            runs[name] = lambda i=implementation, p=plan: i.run(p, *qkv, spec, scoring)[0]
    return runs


def assert_equal(runs: dict[str, Callable[[], Tensor]], names: list[str]) -> None:
    """Whether what is timed is the same function."""
    expected = runs["sdpa"]().float()
    for name in names:
        apart = float((runs[name]().float() - expected).abs().max())
        if not apart < (1e-4 if expected.device.type == "cpu" else 5e-2):
            raise AssertionError(f"{name} is {apart:.1e} from sdpa")


def verdict(ok: bool) -> str:
    return "" if ok else " (aim missed)"


@torch.inference_mode()
def prefill(asked: argparse.Namespace, tokens: int) -> None:
    """One line: milliseconds of causal SDPA and of each implementation, and the ratios."""
    spec, at = SWA(asked.window, asked.sinks), torch.arange(tokens)
    qkv = q, k, v = tensors(asked, tokens, tokens)
    runs = contenders(asked, qkv, spec, at, at)
    assert_equal(runs, list(runs))
    gqa = asked.heads != asked.kv_heads
    runs["causal"] = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
    if "flash" in runs:  # the window without sinks: what a windowed flash kernel can do at best
        runs |= {"flash, no sinks": contenders(asked, qkv, SWA(asked.window, 0), at, at)["flash"]}
    repeats = asked.repeats if tokens <= 8192 else max(3, asked.repeats // 3)
    seconds = interleaved(runs, repeats, asked.device)
    line = f"prefill {tokens:7}  " + "".join(
        f"{name} {1e3 * took:8.2f} ms  " for name, took in seconds.items()
    )
    faster = {name: seconds["causal"] / took for name, took in seconds.items() if name != "causal"}
    line += "causal over " + ", ".join(f"{name} {ratio:.1f}" for name, ratio in faster.items())
    if asked.device == "cpu":
        print(line + verdict(max(faster.values()) >= LEAST_ON_CPU.get(tokens, 0)))
        return
    if "triton" in seconds and "flash, no sinks" in seconds:
        ratio = seconds["triton"] / seconds["flash, no sinks"]
        line += f"  triton/flash {ratio:.2f}" + verdict(ratio <= MOST_OVER_FLASH)
    if {"triton", "flex"} <= seconds.keys():
        line += verdict(seconds["triton"] < seconds["flex"])
    print(line)


def copy_bandwidth(device: str) -> float:
    """Bytes read and written per second by a large copy."""
    source = torch.empty(2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / interleaved({"copy": lambda: target.copy_(source)}, 20, device)["copy"]


@torch.inference_mode()
def decode(asked: argparse.Namespace, contexts: list[int]) -> None:
    """One line a context: microseconds of a token's attention over the cache's slots."""
    spec, taken = SWA(asked.window, asked.sinks), {}
    bandwidth = copy_bandwidth(asked.device) if asked.device == "cuda" else None
    for context in contexts:
        slots = live_slots(context, spec)
        q, k, v = qkv = tensors(asked, 1, slots)
        k_pos = slot_positions(torch.tensor(context), spec, slots)
        runs = contenders(asked, qkv, spec, torch.tensor([context - 1]), k_pos)
        assert_equal(runs, list(runs))
        seconds = interleaved(runs, 30 * asked.repeats, asked.device)
        taken[context] = seconds
        line = f"decode  {context:7}  " + "".join(
            f"{n} {1e6 * took:8.1f} µs  " for n, took in seconds.items()
        )
        if bandwidth is not None and "triton" in seconds:
            moved = sum(x.numel() * x.element_size() for x in (q, q, k, v))
            share = moved / seconds["triton"] / bandwidth
            line += f"triton at {share:.0%} of copy" + verdict(
                asked.batch < LARGE_BATCH or share >= LEAST_OF_COPY
            )
        print(line)
    for name in taken[contexts[0]]:
        times = [seconds[name] for context, seconds in taken.items() if context >= asked.window]
        ratio = max(times) / min(times)
        print(f"{name}: slowest context over fastest {ratio:.2f}" + verdict(ratio <= FLAT))


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs="*", default=[4096, 32768])
    parser.add_argument("--contexts", type=int, nargs="*", default=[1024, 4096, 16384, 65536, 262144])
    parser.add_argument("--repeats", type=int, default=9)
    return parser.parse_args()


def main() -> None:
    """Measure and print, one line a measurement."""
    asked = options()
    asked.kv_heads = asked.kv_heads or asked.heads
    torch.set_num_threads(1)
    for name, reason in available(asked.device).items():
        if reason is not None:
            print(f"{name}: not here: {reason}")
    for tokens in asked.tokens:
        prefill(asked, tokens)
    if asked.contexts:
        decode(asked, asked.contexts)


if __name__ == "__main__":
    main()
