"""How much faster are the chunked forms than a loop over tokens, and than flash-linear-attention's own?

    OMP_NUM_THREADS=1 python benchmarks/recurrences.py                  # chunked against recurrent
    OMP_NUM_THREADS=1 python benchmarks/recurrences.py --fla            # and against fla's naive chunk forms

One thread, fp32, no gradients; the heads are SmolLM2-135M's. Contenders take turns, and the median of the
process's own seconds counts, so that others on the machine count for less. fla's naive modules run on a CPU
and need einops only, while the package itself imports triton, so they are loaded file by file.

Before the ratios: how fast this machine multiplies matrices of these sizes, and what plain linear attention,
chunked, would take if it were nothing but its products.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from swalib.linear import recurrences

NAMES = ("plain", "scalar decay", "delta rule", "gated delta rule", "gla", "rwkv6", "rwkv7")
LEAST = {"plain": 10, "scalar decay": 10, "delta rule": 10, "gated delta rule": 10, "gla": 3, "rwkv6": 3}
MOST_OF_FLA = 1.5  # our time over theirs
ROUNDING = 1e-3  # how far apart two right fp32 results may lie here, over the largest output


def inputs(heads: int, tokens: int, head_dim: int) -> dict[str, Tensor]:
    """Gates as trained models have them: most of the state is kept, a little is forgotten."""
    torch.manual_seed(0)
    q, k, v, a = torch.randn(4, 1, heads, tokens, head_dim)
    gates = -torch.rand(1, heads, tokens, head_dim) * 0.3
    x = {"q": q, "k": normalize(k, dim=-1), "v": v, "a": a.sigmoid(), "gates": gates}
    x |= {"g": gates[..., 0].contiguous(), "beta": torch.rand(1, heads, tokens)}
    return x | {"u": torch.randn(heads, head_dim)}


def ours(x: dict[str, Tensor]) -> dict[str, Callable[..., tuple[Tensor, recurrences.State]]]:
    """Each recurrence, to be called with a form."""
    q, k, v, g, gates, beta = (x[name] for name in ("q", "k", "v", "g", "gates", "beta"))
    return {
        "plain": lambda **o: recurrences.linear_attention(q, k, v, **o),
        "scalar decay": lambda **o: recurrences.scalar_decay(q, k, v, g, **o),
        "delta rule": lambda **o: recurrences.delta_rule(q, k, v, beta, **o),
        "gated delta rule": lambda **o: recurrences.delta_rule(q, k, v, beta, g, **o),
        "gla": lambda **o: recurrences.diagonal_decay(q, k, v, gates, **o),
        "rwkv6": lambda **o: recurrences.diagonal_decay(q, k, v, gates, bonus=x["u"], output="before", **o),
        "rwkv7": lambda **o: recurrences.rwkv7(q, gates, k, v, k, x["a"], **o),
    }


def theirs(x: dict[str, Tensor]) -> dict[str, Callable[[], Tensor]]:
    """fla's naive chunk forms of the same inputs, giving o [b, h, t, d_v]. Where it scales q by d^(-1/2)
    unasked, q comes multiplied by sqrt(d).

    Raises:
        SystemExit: fla is not installed.
    """
    found = importlib.util.find_spec("fla")
    if found is None:
        raise SystemExit("--fla needs flash-linear-attention's sources: pip install fla-core einops")
    folder = Path(found.submodule_search_locations[0])

    def naive(path: str, name: str):
        spec = importlib.util.spec_from_file_location(name, folder / "ops" / path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)

    turned = {name: y.transpose(1, 2).contiguous() for name, y in x.items() if name != "u"}
    q, k, v, g, beta = (turned[name] for name in ("q", "k", "v", "g", "beta"))
    unscaled = x["q"] * x["q"].shape[-1] ** 0.5
    plain = naive("linear_attn/naive.py", "naive_chunk_linear_attn")
    scalar = naive("simple_gla/naive.py", "naive_chunk_simple_gla")
    delta = naive("delta_rule/naive.py", "delta_rule_chunkwise")
    gated = naive("gated_delta_rule/naive.py", "naive_chunk_gated_delta_rule")
    rwkv6 = naive("rwkv6/chunk_naive.py", "naive_chunk_rwkv6")
    dplr = naive("generalized_delta_rule/dplr/naive.py", "dplr_chunkwise")
    erasing = x["a"] * x["k"]
    return {
        "plain": lambda: plain(q, k, v, scale=1.0).transpose(1, 2),
        "scalar decay": lambda: scalar(q, k, v, g, scale=1.0)[0].transpose(1, 2),
        "delta rule": lambda: delta(unscaled, x["k"], x["v"], x["beta"])[0],
        "gated delta rule": lambda: gated(q, k, v, g, beta, scale=1.0)[0].transpose(1, 2),
        "rwkv6": lambda: rwkv6(x["q"], x["k"], x["v"], x["gates"], x["u"]),
        "rwkv7": lambda: dplr(unscaled, x["k"], x["v"], -x["k"], erasing, x["gates"])[0],
    }


@torch.inference_mode()
def interleaved(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Each contender's median seconds. They take turns: a machine that is busy is busy for all of them."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            started = time.process_time()
            run()
            taken[name].append(time.process_time() - started)
    return {name: statistics.median(calls[1:]) for name, calls in taken.items()}


@torch.inference_mode()
def assert_equal(name: str, runs: dict[str, Callable[[], object]]) -> None:
    """Whether what is timed is the same function."""
    outputs = {
        label: o if isinstance(o, Tensor) else o[0] for label, o in ((n, run()) for n, run in runs.items())
    }
    for label, o in outputs.items():
        apart = float((o - outputs["recurrent"]).abs().max() / outputs["recurrent"].abs().max())
        if not apart < ROUNDING:
            raise AssertionError(f"{name}: {label} is {apart:.1e} from recurrent")


def compare(name: str, form: Callable[..., object], fla: Callable[[], Tensor] | None, repeats: int) -> str:
    """One line: seconds and ratios, and a mark where a ratio misses its aim."""
    runs: dict[str, Callable[[], object]] = {"chunked": form, "recurrent": lambda: form(form="recurrent")}
    runs |= {} if fla is None else {"fla": fla}
    assert_equal(name, runs)
    seconds = interleaved(runs, repeats)
    faster = seconds["recurrent"] / seconds["chunked"]
    line = f"{name:18}" + "".join(f"{label} {1e3 * took:7.1f} ms  " for label, took in seconds.items())
    line += f" recurrent/chunked {faster:5.1f}" + (" (aim missed)" if faster < LEAST.get(name, 0) else "")
    if fla is not None:
        ratio = seconds["chunked"] / seconds["fla"]
        line += f"  chunked/fla {ratio:4.2f}" + (" (aim missed)" if ratio > MOST_OF_FLA else "")
    return line


@torch.inference_mode()
def bound(heads: int, tokens: int, head_dim: int, chunk: int = 64) -> str:
    """The line on what products alone would take: per token and head 4·chunk·d for the scores and what they
    weight, 4·d² for reading the state and writing it."""
    q, k = torch.randn(2, heads, chunk, head_dim)
    state = torch.randn(heads, head_dim, head_dim)
    flops = 2 * heads * chunk * head_dim * (chunk + head_dim)

    def products() -> None:
        for _ in range(100):
            torch.bmm(q, k.mT)
            torch.bmm(q, state)

    rate = 100 * flops / interleaved({"products": products}, 7)["products"]
    least = heads * tokens * 4 * head_dim * (chunk + head_dim) / rate
    return f"products: {rate / 1e9:.0f} GFLOP/s, so plain, chunked, takes at least {1e3 * least:.1f} ms"


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--fla", action="store_true", help="against flash-linear-attention's naive chunk forms"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES)
    return parser.parse_args()


def main() -> None:
    """Measure and print, one recurrence a line."""
    asked = options()
    torch.set_num_threads(1)
    x = inputs(asked.heads, asked.tokens, asked.head_dim)
    forms, rivals = ours(x), theirs(x) if asked.fla else {}
    print(bound(asked.heads, asked.tokens, asked.head_dim), flush=True)
    for name in asked.only:
        print(compare(name, forms[name], rivals.get(name), asked.repeats), flush=True)


if __name__ == "__main__":
    main()
