"""How many five-shot MMLU items a second, against lm-eval's own model? One thread, fp32, the same run.

    OMP_NUM_THREADS=1 python benchmarks/harness.py

The items of a subject share their worked examples. MMLU has 246 items a subject on average; here --items of
each of --subjects are asked, so the ratio for all of MMLU is larger than the one printed. lm-eval's model is
timed with batches of 1 and of 8 items, and the faster counts.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import defaultdict

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from swalib import SWA, Full, applied, models
from swalib.evals.likelihood import Scorer
from swalib.evals.prompts import Prompt, prompts, tokens

LEAST = 2.0  # ours under full attention over lm-eval's, items a second
CLOSE = 1e-3  # nats, between the log-likelihoods of both


def asked(subjects: int, items: int) -> list[Prompt]:
    """The first items of the subjects that come first with enough of them."""
    groups: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts("mmlu", 5, 0, 60 * items * subjects):
        groups[prompt.contexts[0].partition("\n\n")[0]].append(prompt)
    full = [group[:items] for group in groups.values() if len(group) >= items][:subjects]
    return [prompt for group in full for prompt in group]


def plain(loaded: models.Loaded, questions: list[Prompt], batch_size: int) -> tuple[float, list[float]]:
    """(seconds, log-likelihoods) of lm-eval's own model."""
    lm = HFLM(loaded.model, tokenizer=loaded.tokenizer, batch_size=batch_size, device="cpu")
    pairs = [pair for q in questions for pair in zip(q.contexts, q.continuations, strict=True)]
    requests = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(pairs)]
    started = time.perf_counter()
    found = lm.loglikelihood(requests, disable_tqdm=True)
    return time.perf_counter() - started, [score for score, _ in found]


def ours(loaded: models.Loaded, questions: list[Prompt], spec: SWA | Full) -> tuple[float, list[float]]:
    """(seconds, log-likelihoods) of a Scorer that has read nothing yet."""
    with applied(loaded.model, spec) as student:
        started = time.perf_counter()
        found = Scorer(student).score([tokens(loaded, question) for question in questions])
        return time.perf_counter() - started, [score.loglikelihood for scores in found for score in scores]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--subjects", type=int, default=2)
    parser.add_argument("--items", type=int, default=10)
    arguments = parser.parse_args()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    loaded = models.load(arguments.model)
    questions = asked(arguments.subjects, arguments.items)
    ours(loaded, questions[:1], Full())  # warm up
    runs = {f"lm-eval hf, batch {size}": plain(loaded, questions, size) for size in (1, 8)}
    runs |= {f"swalib, {spec}": ours(loaded, questions, spec) for spec in (Full(), SWA(64, 4))}
    best = min(seconds for name, (seconds, _) in runs.items() if name.startswith("lm-eval"))
    apart = max(
        abs(a - b) for a, b in zip(runs["lm-eval hf, batch 1"][1], runs[f"swalib, {Full()}"][1], strict=True)
    )
    for name, (seconds, _) in runs.items():
        print(f"{name}: {len(questions) / seconds:.3f} items/s, {best / seconds:.2f} x")
    ratio = best / runs[f"swalib, {Full()}"][0]
    print(f"full attention: {ratio:.2f} x lm-eval's (bar {LEAST}), log-likelihoods within {apart:.1e} nats")
    if ratio < LEAST or apart > CLOSE:
        raise SystemExit("the bar is not met")


if __name__ == "__main__":
    main()
