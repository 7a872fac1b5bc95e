"""A text far longer than the trained length, read in one go: does the model hold out, and does memory?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from swalib import data, models, results
from swalib.evals.bench import proven, resident
from swalib.evals.perplexity import head_losses, spec_columns, summarise
from swalib.results import Measured, Value
from swalib.spec import SWA, Full

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Stream(NamedTuple):
    """losses: fp32 [tokens]. By bin: cache_bytes and peak_bytes [bins] int64, seconds [bins] float64."""

    losses: np.ndarray
    cache_bytes: np.ndarray
    peak_bytes: np.ndarray
    seconds: np.ndarray


@torch.inference_mode()
def read(student: PreTrainedModel, ids: Tensor, chunk_tokens: int, bin_tokens: int) -> Stream:
    """Read a text chunk by chunk through one cache, and note the state of things at the end of every bin.

    Args:
        ids: integers [1, t + 1]: t tokens are read, and each of them predicts the next.
        chunk_tokens: tokens a forward takes at once; the losses do not depend on it.
        bin_tokens: a multiple of `chunk_tokens` that divides t.

    Returns:
        losses[p] is that of the token at text position p + 1. cache_bytes is what the cache has allocated,
        peak_bytes the peak of `Peak` within the bin (0 where the system can't tell).

    Raises:
        ValueError: chunks, bins and the text do not fit together.
    """
    tokens = ids.shape[1] - 1
    check_sizes(tokens, chunk_tokens, bin_tokens)
    ids, cache, losses, found = ids.to(student.device), None, [], []
    peak, started = Peak(student.device), time.perf_counter()
    for start in range(0, tokens, chunk_tokens):
        if start % bin_tokens == 0:
            peak.reset()
        chunk = slice(start, start + chunk_tokens)
        output = student.base_model(input_ids=ids[:, :-1][:, chunk], cache=cache, use_cache=True)
        cache = output.cache
        losses.append(head_losses(student, output.last_hidden_state, ids[:, 1:][:, chunk])[0])
        if chunk.stop % bin_tokens == 0:
            found.append((cache.allocated_bytes, peak.bytes(), time.perf_counter() - started))
            started = time.perf_counter()
    cache_bytes, peak_bytes, seconds = map(np.array, zip(*found, strict=True))
    return Stream(torch.cat(losses).numpy(), cache_bytes, peak_bytes, seconds)


def check_sizes(tokens: int, chunk_tokens: int, bin_tokens: int) -> None:
    """Refuse a stream that chunks and bins do not divide: ValueError."""
    whole = min(tokens, chunk_tokens, bin_tokens) >= 1 and not bin_tokens % chunk_tokens
    if not whole or tokens % bin_tokens:
        raise ValueError(
            f"a stream is made of whole bins and a bin of whole chunks: {tokens} tokens, bins of "
            f"{bin_tokens} and chunks of {chunk_tokens} do not fit together"
        )


class Peak:
    """Peak memory since the last `reset`: what torch allocated on a GPU, else the resident set of the whole
    process (weights, activations, allocator's reserve; Linux's VmHWM). 0 where neither can be had."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._writable = True

    def reset(self) -> None:
        """Forget the peak so far."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:  # another system, or one that does not allow it
            self._writable = False

    def bytes(self) -> int:
        """The peak."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if not self._writable:
            return 0
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


@dataclass(frozen=True)
class Cell:
    """One measurement: the first tokens of a text, `stream_tokens` of them, under one spec."""

    model: str
    text: str
    spec: SWA | Full
    stream_tokens: int = 51_200
    chunk_tokens: int = 1024
    bin_tokens: int = 2048
    device: str = "cpu"

    def config(self) -> dict[str, object]:
        """What identifies the measurement in the results; see `swalib.results.run_key`."""
        return {
            "experiment": "stream",
            "version": 1,
            "model": self.model,
            "weights": models.weights_id(self.model),
            **spec_columns(self.spec),
            "impl": "sdpa",
            "dtype": "float32",
            "task": self.text,
            "text": data.text_id(self.text),
            "context_tokens": self.stream_tokens,
            "chunk_tokens": self.chunk_tokens,
            "bin_tokens": self.bin_tokens,
        }

    def compute(self) -> Measured:
        """Run it: the canary first."""
        check_sizes(self.stream_tokens, self.chunk_tokens, self.bin_tokens)
        loaded = resident(self.model, self.device)
        ids = models.encode(loaded, data.text(self.text))[:, : self.stream_tokens + 1]
        if ids.shape[1] <= self.stream_tokens:
            raise ValueError(f"the text has {ids.shape[1]} tokens, too few to stream {self.stream_tokens}")
        with proven(loaded, self.spec) as student:
            stream = read(student, ids, self.chunk_tokens, self.bin_tokens)
        arrays = {**stream._asdict(), "losses": stream.losses.astype(np.float16)}
        trained = loaded.model.config.get_text_config().max_position_embeddings
        return Measured(
            [*summary(stream, self.bin_tokens), Value("trained_tokens", trained, "tokens")], arrays
        )

    @property
    def seconds(self) -> float:
        """What it will take, of one core, for a model of about 135M parameters; only for the estimate."""
        tokens = self.stream_tokens
        if isinstance(self.spec, Full):
            return tokens * (0.006 + 0.6e-6 * tokens)
        return tokens * (0.010 if self.spec.positions == "cache" else 0.006)


def summary(stream: Stream, bin_tokens: int) -> list[Value]:
    """Loss and perplexity of the whole stream; perplexity and cache bytes of each bin, named by the text
    position at which it ends; peak memory in the first bin and in the last; tokens per second."""
    values = summarise(stream.losses[None], first=0)
    for index, losses in enumerate(stream.losses.reshape(-1, bin_tokens)):
        end = (index + 1) * bin_tokens
        perplexity = summarise(losses[None], first=0)[1]
        values.append(Value(f"perplexity_{end}", perplexity.value, "1", bin_tokens, perplexity.stderr))
        values.append(Value(f"cache_bytes_{end}", int(stream.cache_bytes[index]), "bytes"))
    if stream.peak_bytes.all():
        for name, index in (("first", 0), ("last", -1)):
            values.append(Value(f"peak_bytes_{name}_bin", int(stream.peak_bytes[index]), "bytes resident"))
    tokens = len(stream.losses)
    return [*values, Value("speed", tokens / float(stream.seconds.sum()), "tokens/s", tokens)]


def measure(
    mode: str,
    models: Sequence[str],
    texts: Sequence[str],
    windows: Sequence[int],
    sinks: int = 4,
    stream_tokens: int = 51_200,
    full_tokens: int = 16_384,
    device: str = "cpu",
    **sizes: int,
) -> pd.DataFrame:
    """Perplexity and memory along each text: SWA(w, sinks) under text and under cache positions, SWA(w, 0),
    and full attention as far as `full_tokens`, which costs the square of it.

    Args:
        sizes: `chunk_tokens` and `bin_tokens`, where they are not the defaults.

    Returns:
        A row for each bin: model, task, method, window, sinks, positions, start and end of the bin (text
        positions), ppl, stderr, n, cache_bytes; and the same in each row of a stream: speed (tokens/s),
        peak_first and peak_last (bytes, NaN where not measured), trained_tokens (the model's own length).
    """
    specs = [spec for w in windows for spec in (SWA(w, sinks), SWA(w, sinks, "cache"), SWA(w, 0))]
    cells = [
        Cell(m, t, spec, full_tokens if isinstance(spec, Full) else stream_tokens, device=device, **sizes)
        for m in models
        for t in texts
        for spec in (*specs, Full())
    ]
    if mode == "run":
        absent = [cell for cell in cells if results.missing([cell.config()])]
        results.estimate(sum(cell.seconds for cell in absent) / max(len(absent), 1), len(absent))
    return pd.concat(
        [_tidy(cell, results.load_or_run(cell.config(), cell.compute, mode)) for cell in cells],
        ignore_index=True,
    )


def numbers(rows: pd.DataFrame, window: int) -> dict[str, float]:
    """What there is to say of `measure`'s rows, for SWA at one window and for full attention.

    Returns:
        For each kind of stream (full, text, cache, none: without sinks) `<kind>_within` and `<kind>_beyond`,
        the perplexity up to the trained length and after it (NaN where the stream ends before);
        `<kind>_cache_mb` at its end; `<kind>_growth_mb`, the peak memory of the last bin less that of the
        first. `drift` as `drift_starts`. `swa_growth_mb`: the most that any SWA stream of the rows grew.
    """
    found, growth = {"drift": drift_starts(rows, window)}, []
    for (w, sinks, positions), part in rows.groupby(["window", "sinks", "positions"], dropna=False):
        kind = "full" if pd.isna(w) else positions if sinks else "none"
        about = _about(part)
        if kind == "full" or w == window:
            found |= {f"{kind}_{name}": value for name, value in about.items()}
        if kind != "full":
            growth.append(about["growth_mb"])
    return found | {"swa_growth_mb": max(growth)}


def _about(stream: pd.DataFrame) -> dict[str, float]:
    inside, loss = stream["end"] <= stream["trained_tokens"], np.log(stream["ppl"])
    last = stream.loc[stream["end"].idxmax()]
    return {
        "within": float(np.exp(loss[inside].mean())),
        "beyond": float(np.exp(loss[~inside].mean())),
        "cache_mb": float(last["cache_bytes"]) / 1e6,
        "growth_mb": float(last["peak_last"] - last["peak_first"]) / 1e6,
    }


def drift_starts(rows: pd.DataFrame, window: int, tolerance: float = 0.1) -> float:
    """Text position where the first bin begins in which text positions cost more than `tolerance`, as a share
    of the perplexity, over cache positions on the same tokens; NaN if there is none."""
    slid = rows[rows["window"].notna()]
    at = slid[(slid["window"] == window) & (slid["sinks"] > 0)]
    text, cache = (at[at["positions"] == kind].set_index("start")["ppl"] for kind in ("text", "cache"))
    drifted = text.index[text > (1 + tolerance) * cache]
    return float(drifted.min())


def _tidy(cell: Cell, found: results.Result) -> pd.DataFrame:
    rows = found.rows.set_index("metric")
    ends = np.arange(cell.bin_tokens, cell.stream_tokens + 1, cell.bin_tokens)
    perplexity = rows.loc[[f"perplexity_{end}" for end in ends]]
    labels = {"model": cell.model, "task": cell.text, "window": pd.NA, "sinks": pd.NA}
    peaks = rows["value"].reindex(["peak_bytes_first_bin", "peak_bytes_last_bin"])
    return pd.DataFrame(
        {
            **labels,
            **spec_columns(cell.spec),
            "start": ends - cell.bin_tokens,
            "end": ends,
            "ppl": perplexity["value"].to_numpy(),
            "stderr": perplexity["stderr"].to_numpy(),
            "n": perplexity["n"].to_numpy(),
            "cache_bytes": rows.loc[[f"cache_bytes_{end}" for end in ends], "value"].to_numpy(),
            "speed": rows.loc["speed", "value"],
            "peak_first": peaks.iloc[0],
            "peak_last": peaks.iloc[1],
            "trained_tokens": int(rows.loc["trained_tokens", "value"]),
        }
    )
