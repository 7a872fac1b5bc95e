"""When is "sliding-window attention" full attention? Prompts read densely and evicted afterwards.

Evicting only after a dense prefill is a different model: the prompt's keys and values have already seen
everything. An evaluation that scores a text in one dense pass and evicts later has measured full attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

import swalib
from swalib import data, models, results
from swalib.cache import SinkCache
from swalib.evals.bench import proven, resident
from swalib.evals.perplexity import pieces, spec_columns, summarise, token_losses
from swalib.results import Measured
from swalib.spec import SWA, Full

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VARIANTS = ("full", "masked", "dense")  # dense: prefill under full attention, then evict


@torch.inference_mode()
def dense_prefill(teacher: PreTrainedModel, ids: Tensor, spec: SWA) -> SinkCache:
    """The cache of a prompt that was read under full attention and only then cut to what `spec` keeps.

    Args:
        ids: the prompt, integers [b, t].

    Raises:
        ValueError: positions="cache", whose keys are kept unrotated.
    """
    if spec.positions != "text":
        raise ValueError('a dense prefill leaves keys rotated at their text positions: use positions="text"')
    dense = swalib.under(teacher, Full())
    everything = dense.base_model(input_ids=ids, use_cache=True).cache
    kept = SinkCache(swalib.layer_specs(teacher, spec))
    native = swalib.layer_specs(teacher, Full())
    for layer, (local, full) in enumerate(zip(native, everything.layers, strict=True)):
        if isinstance(local, SWA):
            kept.layers[layer] = full
        else:
            kept.update(full.keys, full.values, layer)
    return kept


@torch.inference_mode()
def continuation_losses(
    student: PreTrainedModel, cache: SinkCache, ids: Tensor, prompt_tokens: int
) -> Tensor:
    """Losses in nats of the tokens after `prompt_tokens` + 1, read in one chunk on top of `cache`.

    A chunk equals token-by-token decoding, exactly, so this is what generation with teacher forcing would
    score.
    """
    rest = ids[:, prompt_tokens:].to(student.device)
    logits = student(input_ids=rest[:, :-1], cache=cache).logits.float()
    return torch.nn.functional.cross_entropy(logits.mT, rest[:, 1:], reduction="none").cpu()


@dataclass(frozen=True)
class Cell:
    """One measurement: one way to read prompts of `prompt_tokens`, and the `scored_tokens` that follow."""

    model: str
    text: str
    spec: SWA
    variant: str
    prompt_tokens: int = 1024
    scored_tokens: int = 256
    n: int = 4
    device: str = "cpu"

    def config(self) -> dict[str, object]:
        """What identifies the measurement in the results; see `swalib.results.run_key`."""
        spec = {"method": "full", "positions": "text"} if self.variant == "full" else spec_columns(self.spec)
        return {
            "experiment": "eviction",
            "version": 1,
            "model": self.model,
            "weights": models.weights_id(self.model),
            **spec,
            "impl": "sdpa",
            "dtype": "float32",
            "task": self.text,
            "text": data.text_id(self.text),
            "context_tokens": self.prompt_tokens + self.scored_tokens + 1,
            "prompt_tokens": self.prompt_tokens,
            "pieces": self.n,
            "variant": self.variant,
        }

    def compute(self) -> Measured:
        """Run it."""
        loaded = resident(self.model, self.device)
        length = self.prompt_tokens + self.scored_tokens + 1
        ids = pieces(loaded, data.text(self.text), length, self.n).to(self.device)
        losses = torch.cat([self._losses(loaded, row[None]) for row in ids]).numpy()
        return Measured(summarise(losses, first=0), {"losses": losses.astype(np.float16)})

    def _losses(self, loaded: models.Loaded, ids: Tensor) -> Tensor:
        spec = Full() if self.variant == "full" else self.spec
        with proven(loaded, spec) as student:
            if self.variant == "dense":
                cache = dense_prefill(loaded.model, ids[:, : self.prompt_tokens], self.spec)
                return continuation_losses(student, cache, ids, self.prompt_tokens)
            return token_losses(student, ids)[:, self.prompt_tokens :]


def measure(
    mode: str,
    models: Sequence[str],
    texts: Sequence[str],
    windows: Sequence[int],
    sinks: int = 4,
    prompt_tokens: int = 1024,
    scored_tokens: int = 256,
    n: int = 4,
    device: str = "cpu",
    bin_tokens: int = 16,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What each way of reading the prompt costs the tokens after it.

    Returns:
        (rows, curves). rows: model, task, variant, window, sinks, ppl, stderr, n. curves: model, task,
        variant, window, sinks, position (tokens after the prompt, centre of a bin), loss (nats). Full
        attention's rows stand once for every window.
    """
    sizes = {"prompt_tokens": prompt_tokens, "scored_tokens": scored_tokens, "n": n, "device": device}
    cells = [
        Cell(m, t, SWA(w, sinks), variant, **sizes)
        for m in models
        for w in windows
        for variant in VARIANTS
        for t in texts
    ]
    rows, curves = [], []
    for cell in tqdm(cells, desc="eviction", disable=mode == "stored"):
        found = results.load_or_run(cell.config(), cell.compute, mode)
        perplexity = found.rows[found.rows["metric"] == "perplexity"].iloc[0]
        labels = {"model": cell.model, "task": cell.text, "variant": cell.variant}
        labels |= {"window": cell.spec.window, "sinks": cell.spec.sinks}
        rows.append(labels | {"ppl": perplexity["value"]} | perplexity[["stderr", "n"]].to_dict())
        mean = found.arrays["losses"].astype(np.float64).mean(0)
        bins = mean[: len(mean) // bin_tokens * bin_tokens].reshape(-1, bin_tokens).mean(1)
        centre = bin_tokens * (np.arange(len(bins)) + 0.5)
        curves.append(pd.DataFrame({"position": centre, "loss": bins}).assign(**labels))
    return pd.DataFrame(rows), pd.concat(curves, ignore_index=True)
