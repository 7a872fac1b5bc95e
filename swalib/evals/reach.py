"""How much does a token change what a model says later, under SWA(w, s)? Measured, distance by distance.

Which tokens can change it at all is exact: `swalib.evals.reachability`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

import swalib
from swalib import data, models, results
from swalib.evals.bench import SECONDS_PER_TOKEN, proven, resident
from swalib.evals.perplexity import pieces, spec_columns
from swalib.evals.reachability import reachable
from swalib.results import Measured, Value
from swalib.spec import SWA, Full, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KINDS = ("shift", "ablate", "gradient")


@torch.no_grad()
def changes(
    student: PreTrainedModel, ids: Tensor, source: int, kind: str = "shift", seed: int = 0
) -> dict[str, Tensor]:
    """How much the outputs at each position change when token `source` is another.

    Args:
        ids: one text, integers [1, t].
        source: the position that is changed.
        kind: "shift" adds noise of a tenth of the embedding's own norm to it; "ablate" replaces it by the
            mean embedding of the text.

    Returns:
        each [t], in the model's dtype: logits, the Euclidean norm of the change of all logits over that of
        the logits; kl, Kullback-Leibler divergence of the changed next-token distribution from the unchanged,
        nats; loss, change of the loss of the token after that position, nats (0 at the last).

    Raises:
        ValueError: more than one text, a source outside it, or an unknown kind.
    """
    _check(ids, [source])
    embedded = student.get_input_embeddings()(ids.to(student.device))
    changed = embedded.clone()
    changed[0, source] = _changed(embedded[0], source, kind, seed)
    before, after = (_logits(student, ids, rows) for rows in (embedded, changed))
    logs_before, logs_after = before.log_softmax(-1), after.log_softmax(-1)
    wanted = ids[0, 1:, None].to(before.device)
    losses = [-logs[:-1].gather(-1, wanted)[:, 0] for logs in (logs_before, logs_after)]
    return {
        "logits": (after - before).norm(dim=-1) / before.norm(dim=-1),
        "kl": (logs_before.exp() * (logs_before - logs_after)).sum(-1),
        "loss": F.pad(losses[1] - losses[0], (0, 1)),
    }


def gradients(student: PreTrainedModel, ids: Tensor, query: int) -> Tensor:
    """Norm of the gradient of the loss at `query` (nats) by each token's embedding: [t], the model's dtype.

    Args:
        ids: one text, integers [1, t].
        query: the position that predicts the token after it, at most t - 2.

    Raises:
        ValueError: more than one text, or a query without a token after it.
    """
    _check(ids, [query, query + 1])
    embedded = student.get_input_embeddings()(ids.to(student.device)).detach().requires_grad_()
    logits = _logits(student, ids, embedded)[query]
    loss = F.cross_entropy(logits[None], ids[0, query + 1 : query + 2].to(logits.device))
    (slope,) = torch.autograd.grad(loss, embedded)
    return slope[0].norm(dim=-1)


def _logits(student: PreTrainedModel, ids: Tensor, embedded: Tensor) -> Tensor:
    """[t, vocabulary], in float32 at least."""
    logits = student(inputs_embeds=embedded, use_cache=False).logits[0]
    return logits if logits.dtype == torch.float64 else logits.float()


def _changed(embedded: Tensor, source: int, kind: str, seed: int) -> Tensor:
    if kind == "ablate":
        return embedded.mean(0)
    if kind != "shift":
        raise ValueError(f'kind is "shift" or "ablate", not {kind!r}')
    noise = torch.randn(embedded.shape[1], generator=torch.Generator().manual_seed(seed))
    noise = noise.to(embedded)
    return embedded[source] + 0.1 * embedded[source].norm() * noise / noise.norm()


def _check(ids: Tensor, positions: Sequence[int]) -> None:
    if ids.ndim != 2 or ids.shape[0] != 1:
        raise ValueError(f"influence is measured on one text at a time, ids [1, t]; got {tuple(ids.shape)}")
    for position in positions:
        if not 0 <= position < ids.shape[1]:
            raise ValueError(f"position {position} lies outside a text of {ids.shape[1]} tokens")


# ---- rows.


@dataclass(frozen=True)
class Cell:
    """One run: the influence of tokens on later ones by distance, a model under a spec, on pieces of a text.

    Args:
        context_tokens: of each piece. n: pieces, one changed token or one query each.
        kind: "shift" or "ablate" a token at a quarter of the piece, and look at all later positions (a
            forward for each piece, twice); "gradient": of the loss at the last query by every token.
    """

    model: str
    spec: SWA | Full
    kind: str = "shift"
    text: str = "novel"
    context_tokens: int = 1024
    n: int = 4
    seed: int = 0
    dtype: str = "float32"
    impl: str = "sdpa"
    device: str = "cpu"

    def config(self) -> dict[str, object]:
        """What identifies the run in the results; see `swalib.results.run_key`."""
        return {
            "experiment": "reach",
            "version": 1,
            "model": self.model,
            "weights": models.weights_id(self.model),
            **spec_columns(self.spec),
            "impl": self.impl,
            "dtype": self.dtype,
            "task": self.kind,
            "text": data.text_id(self.text),
            "context_tokens": self.context_tokens,
            "pieces": self.n,
            "seed": self.seed,
        }

    def compute(self) -> Measured:
        """Run it: the canary first, then every piece."""
        loaded = resident(self.model, self.device, getattr(torch, self.dtype))
        texts = pieces(loaded, data.text(self.text), self.context_tokens, self.n)
        with proven(loaded, self.spec, self.impl) as student:
            rows = [self._by_distance(student, ids[None], n) for n, ids in enumerate(texts)]
            layers = swalib.layer_specs(student, self.spec)
        found = {name: torch.stack([row[name] for row in rows]).float().cpu().numpy() for name in rows[0]}
        return Measured(_values(found, layers, self), found)

    def _by_distance(self, student: PreTrainedModel, ids: Tensor, n: int) -> dict[str, Tensor]:
        """Entry k: the influence over a distance of k tokens."""
        if self.kind == "gradient":
            return {"gradient": gradients(student, ids, self.query).flip(0)[1:]}
        found = changes(student, ids, self.source, self.kind, self.seed + n)
        return {name: values[self.source :] for name, values in found.items()}

    @property
    def source(self) -> int:
        """The position that is changed: far from the sinks, with most of the piece after it."""
        return self.context_tokens // 4

    @property
    def query(self) -> int:
        """The last position that predicts a token."""
        return self.context_tokens - 2


def _values(found: dict[str, np.ndarray], layers: Sequence, cell: Cell) -> list[Value]:
    """Farthest distance with any influence, and the exact limit: how far a token can reach at all."""
    main = next(iter(found.values())).astype(np.float64)  # of the logits, or the gradient
    some, reached = np.abs(main).max(0) > 0, reachable(cell.context_tokens, layers)
    backward = reached[cell.query, : cell.query + 1].flip(0)
    can = (backward if cell.kind == "gradient" else reached[cell.source :, cell.source]).numpy()
    return [
        Value("farthest", float(some.nonzero()[0].max(initial=0)), "tokens", len(main)),
        Value("exact_reach", float(can.nonzero()[0].max(initial=0)), "tokens"),
        Value("largest_beyond", float(np.abs(main[:, ~can]).max(initial=0.0)), "1", len(main)),
    ]


def measure(
    mode: str,
    model: str,
    specs: Sequence[Spec],
    kinds: Sequence[str] = KINDS,
    bins_per_octave: int = 4,
    gaps: bool = False,
    **settings: object,
) -> pd.DataFrame:
    """Influence by distance, under each spec.

    Args:
        mode: "stored", "run", "smoke" or "reproduce", see `swalib.results.load_or_run`.
        kinds: of `Cell`, which `settings` fill.
        gaps: in mode "stored", leave out what is not stored, as long as something is.

    Returns:
        a row for each spec, kind, measure ("logits", "kl", "loss", "gradient": absolute values) and bin of
        distances: model, method, window, sinks, positions, kind, measure, distance (its middle, tokens), mean
        (of all), least, most (of a piece), exact_reach (tokens), pieces. A gradient's sinks have a bin alone.
    """
    cells = [Cell(model, spec, kind, **settings) for spec in dict.fromkeys(specs) for kind in kinds]
    if mode == "run":
        absent = results.missing([cell.config() for cell in cells])
        tokens = sum(3 * config["context_tokens"] * config["pieces"] for config in absent)
        results.estimate(tokens * SECONDS_PER_TOKEN / max(len(absent), 1), len(absent))
    if gaps and mode == "stored":
        cells = [cell for cell in cells if not results.missing([cell.config()])] or cells
    frames = []
    for cell in tqdm(cells, desc=f"reach, {model}", disable=mode == "stored"):
        frames.append(_frame(cell, results.load_or_run(cell.config(), cell.compute, mode), bins_per_octave))
    return pd.concat(frames, ignore_index=True)


def _frame(cell: Cell, found: results.Result, bins_per_octave: int) -> pd.DataFrame:
    labels = {"model": cell.model, "window": pd.NA, "sinks": pd.NA, **spec_columns(cell.spec)}
    rows, sinks = [], getattr(cell.spec, "sinks", 0) if cell.kind == "gradient" else 0
    for measure_, values in found.arrays.items():
        size, length = np.abs(values.astype(np.float64)), values.shape[1]
        steps = np.arange(bins_per_octave * np.log2(length) + 1)
        edges = np.round(2 ** (steps / bins_per_octave)).astype(int)
        edges = np.unique(np.r_[0, edges[edges <= length], length - sinks, length])
        for start, stop in pairwise(edges):
            by_piece = size[:, start:stop].mean(1)
            spread = {"mean": by_piece.mean(), "least": by_piece.min(), "most": by_piece.max()}
            rows.append({"measure": measure_, "distance": (start + stop - 1) / 2, **spread})
    about = {"kind": cell.kind, "exact_reach": found.value("exact_reach"), "pieces": cell.n}
    return pd.DataFrame(rows).assign(**labels, **about)
