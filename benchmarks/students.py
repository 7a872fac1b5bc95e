"""Is a whole model faster under SWA(w, s)? Prefill and decode of SmolLM2 beside transformers' own.

    OMP_NUM_THREADS=1 python benchmarks/students.py            # all lengths, resumable
    OMP_NUM_THREADS=1 python benchmarks/students.py --lengths 1024 8192

Every figure is the median over `--repeats` medians of interleaved calls, one thread, fp32, logits of the last
token only. Lengths beyond the trained 8,192 tokens are timing only. Rows go to results/speed.csv, one CSV for
all of it; a row that is there is not measured again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM, PreTrainedModel

from swalib import SWA, SinkCache, applied, assert_applied, layer_specs, models, prefill, results
from swalib.provenance import hardware
from swalib.results import Measured, Value

MODEL = "smollm2-135m"
WINDOW, SINKS = 512, 4
CHUNK = 1024
DECODE_STEPS = 16  # calls behind each median
MOST_FULL_TOKENS = 32768  # a full cache beyond this isn't timed
LENGTHS = {"decode": (1024, 8192, 32768, 65536), "native": (8192,), "prefill": (8192, 32768)}


def native_sliding(teacher: PreTrainedModel, window: int) -> PreTrainedModel:
    """The same weights as a Mistral with transformers' own sliding window and sliding cache."""
    given = teacher.config.to_dict()
    sizes = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"]
    heads = ["num_attention_heads", "num_key_value_heads", "hidden_act", "rms_norm_eps", "rope_parameters"]
    kept = {name: given[name] for name in [*sizes, *heads, "tie_word_embeddings"]}
    config = MistralConfig(**kept, sliding_window=window)
    with torch.device("meta"):
        native = MistralForCausalLM(config)
    native.load_state_dict(teacher.state_dict(), assign=True)
    native.tie_weights()
    native.model.rotary_emb = teacher.model.rotary_emb
    return native.eval()


def filled(cache, config, length: int):
    """The cache after `length` tokens of noise: what lies in it does not matter to its speed."""
    generator = torch.Generator().manual_seed(0)
    head = config.hidden_size // config.num_attention_heads
    shape = (1, config.num_key_value_heads, length, head)
    for layer in range(config.num_hidden_layers):
        noise = torch.randn(shape, generator=generator)
        cache.update(noise, noise, layer)
    return cache


@torch.inference_mode()
def seconds(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def interleaved(runs: dict[str, Callable[[], object]], repeats: int, steps: int) -> dict[str, list[float]]:
    """Each contender's medians over `steps` calls, one for each repeat. They take turns call by call: a
    machine that is busy for a while is busy for all of them."""
    medians: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(steps):
            for name, run in runs.items():
                taken[name].append(seconds(run))
        for name, calls in taken.items():
            medians[name].append(statistics.median(calls))
    return medians


def prefill_runs(teacher, student, length: int) -> dict[str, Callable[[], object]]:
    """Full causal prefill in one forward, as transformers does it, against chunks under SWA."""
    ids = torch.randint(teacher.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(1))
    return {
        "full": lambda: teacher(input_ids=ids, use_cache=True, logits_to_keep=1),
        "swa": lambda: prefill(student, ids, chunk_tokens=CHUNK),
    }


def decoder(model: PreTrainedModel, cache) -> Callable[[], object]:
    """A call that decodes one token on top of `cache`, warmed up."""
    token = torch.tensor([[42]])

    def step() -> None:
        model(input_ids=token, cache=cache, use_cache=True)

    seconds(step), seconds(step)
    return step


def decode_runs(teacher, student, spec: SWA, length: int) -> dict[str, Callable[[], object]]:
    """One token on top of a full cache of `length`, against one on top of w slots."""
    config = teacher.config
    cache = filled(SinkCache(layer_specs(student, spec)), config, length)
    head = config.hidden_size // config.num_attention_heads
    expected = config.num_hidden_layers * 2 * config.num_key_value_heads * spec.window * head * 4
    if cache.allocated_bytes != expected:
        raise AssertionError(f"the cache holds {cache.allocated_bytes} bytes, not {expected}")
    runs = {"swa": decoder(student, cache)}
    if length <= MOST_FULL_TOKENS:
        runs["full"] = decoder(teacher, filled(DynamicCache(config=config), config, length))
    return runs


def native_runs(teacher, length: int) -> dict[str, Callable[[], object]]:
    """At s = 0: our cache against transformers' own sliding cache, the same window, the same weights."""
    native, spec = native_sliding(teacher, WINDOW), SWA(WINDOW, 0)
    student = models_under(teacher, spec)
    return {
        "swa": decoder(student, filled(SinkCache(layer_specs(student, spec)), teacher.config, length)),
        "native sliding": decoder(native, filled(DynamicCache(config=native.config), teacher.config, length)),
    }


def models_under(teacher, spec: SWA):
    """A student that outlives a block."""
    with applied(teacher, spec) as student:
        assert_applied(student, spec)
    return student


def measured(medians: dict[str, list[float]]) -> Measured:
    """Median and spread (half the range over the median) of each contender, and its ratio to SWA's."""
    values = []
    for name, runs in medians.items():
        label = name.replace(" ", "_")
        middle = statistics.median(runs)
        values += [
            Value(f"{label}_ms", 1000 * middle, "ms", len(runs)),
            Value(f"{label}_spread_pct", 50 * (max(runs) - min(runs)) / middle, "%", len(runs)),
        ]
    ours = statistics.median(medians["swa"])
    return Measured(
        values
        + [
            Value(f"{name.replace(' ', '_')}_over_swa", statistics.median(runs) / ours, "ratio", len(runs))
            for name, runs in medians.items()
            if name != "swa"
        ]
    )


def config(task: str, length: int, repeats: int) -> dict[str, object]:
    """What identifies one comparison in the results."""
    return {
        "experiment": "speed",
        "version": 1,
        "model": MODEL,
        "weights": models.weights_id(MODEL),
        "method": "swa",
        "window": WINDOW,
        "sinks": 0 if task == "native" else SINKS,
        "positions": "text",
        "impl": "sdpa",
        "dtype": "float32",
        "task": task,
        "context_tokens": length,
        "hardware": hardware(),
        "repeats": repeats,
        "chunk_tokens": CHUNK if task == "prefill" else None,
    }


def expected_seconds(task: str, length: int) -> float:
    """One round of a comparison on one core at 60 GFLOP/s, for the estimate."""
    return 0.008 * length + 5.8e-7 * length**2 if task == "prefill" else 10 + 5e-4 * length


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tasks", nargs="*", choices=list(LENGTHS), default=list(LENGTHS))
    parser.add_argument("--lengths", type=int, nargs="*", help="only these context lengths")
    return parser.parse_args()


def main() -> None:
    """Measure what is missing, and print every row."""
    asked = options()
    torch.set_num_threads(1)
    plans = [(task, n) for task in asked.tasks for n in LENGTHS[task] if n in (asked.lengths or [n])]
    absent = [plan for plan in plans if results.missing([config(*plan, asked.repeats)])]
    total = asked.repeats * sum(expected_seconds(*plan) for plan in absent)
    results.estimate(total / max(len(absent), 1), len(absent))
    teacher, spec = models.load(MODEL).model, SWA(WINDOW, SINKS)
    student = models_under(teacher, spec)
    runs = {
        "decode": lambda n: decode_runs(teacher, student, spec, n),
        "native": lambda n: native_runs(teacher, n),
        "prefill": lambda n: prefill_runs(teacher, student, n),
    }
    for task, length in plans:
        found = results.load_or_run(
            config(task, length, asked.repeats),
            lambda task=task, n=length: measured(
                interleaved(runs[task](n), asked.repeats, 1 if task == "prefill" else DECODE_STEPS)
            ),
            "run",
        )
        numbers = ", ".join(f"{row.metric} {row.value:.3g}" for row in found.rows.itertuples())
        print(f"{task}, {length} tokens: {numbers}", flush=True)


if __name__ == "__main__":
    main()
