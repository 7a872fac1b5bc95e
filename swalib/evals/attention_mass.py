"""Where does attention go? Each head's share on the first tokens of a text, under full attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from swalib import data, models, results
from swalib.evals.bench import proven, resident
from swalib.evals.perplexity import pieces
from swalib.results import Measured, Value
from swalib.spec import Full

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COUNTED = (1, 2, 4, 8, 16)  # how many first tokens are counted as sinks


@torch.inference_mode()
def mass_on_first(student: PreTrainedModel, ids: Tensor, first_query: int) -> np.ndarray:
    """Attention weight on the first 1, 2, 4, 8, 16 tokens, mean over rows and queries from `first_query` on.

    Args:
        student: made with impl="reference", which alone forms the weights.
        ids: integers [b, t], t > first_query >= 16.

    Returns:
        float64 [counts, layers, heads], each in [0, 1].
    """
    mass = []
    for row in ids:  # one row at a time: the weights of all layers are held at once
        weights = student(row[None].to(student.device), output_attentions=True, use_cache=False).attentions
        heads = torch.stack([layer[0, :, first_query:, : max(COUNTED)].double().mean(1) for layer in weights])
        mass.append(heads.cumsum(-1)[..., [count - 1 for count in COUNTED]])
    return torch.stack(mass).mean(0).permute(2, 0, 1).cpu().numpy()


@dataclass(frozen=True)
class Cell:
    """One measurement: a model on `n` pieces of a named text."""

    model: str
    text: str
    context_tokens: int = 512
    n: int = 4
    device: str = "cpu"

    @property
    def first_query(self) -> int:
        """The queries counted are those in the second half of each piece."""
        return self.context_tokens // 2

    def config(self) -> dict[str, object]:
        """What identifies the measurement in the results; see `swalib.results.run_key`."""
        return {
            "experiment": "attention_mass",
            "version": 1,
            "model": self.model,
            "weights": models.weights_id(self.model),
            "method": "full",
            "impl": "reference",
            "dtype": "float32",
            "task": self.text,
            "text": data.text_id(self.text),
            "context_tokens": self.context_tokens,
            "pieces": self.n,
            "first_query": self.first_query,
        }

    def compute(self) -> Measured:
        """Run it."""
        loaded = resident(self.model, self.device)
        ids = pieces(loaded, data.text(self.text), self.context_tokens, self.n)
        with proven(loaded, Full(), "reference") as student:
            mass = mass_on_first(student, ids, self.first_query)
        n = self.n * (self.context_tokens - self.first_query)
        values = [
            Value(f"mass_first_{count}", float(heads.mean()), "1", n)
            for count, heads in zip(COUNTED, mass, strict=True)
        ]
        return Measured(values, {"mass": mass.astype(np.float32)})


def measure(
    mode: str,
    models: Sequence[str],
    texts: Sequence[str],
    context_tokens: int = 512,
    n: int = 4,
    device: str = "cpu",
) -> pd.DataFrame:
    """The mass on the first tokens by model, text, layer and head.

    Returns:
        DataFrame with columns model, task, layer, head, sinks_counted, mass, uniform (what a query that
        attends evenly would give), context_tokens, first_query.
    """
    cells = [Cell(m, t, context_tokens, n, device) for m in models for t in texts]
    frames = []
    for cell in tqdm(cells, desc="attention mass", disable=mode == "stored"):
        mass = results.load_or_run(cell.config(), cell.compute, mode).arrays["mass"]
        frames.append(_tidy(cell, mass))
    return pd.concat(frames, ignore_index=True)


def _tidy(cell: Cell, mass: np.ndarray) -> pd.DataFrame:
    seen = np.arange(cell.first_query, cell.context_tokens) + 1
    index = pd.MultiIndex.from_product(
        [COUNTED, range(mass.shape[1]), range(mass.shape[2])], names=["sinks_counted", "layer", "head"]
    )
    frame = pd.DataFrame({"mass": mass.ravel()}, index=index).reset_index()
    frame["uniform"] = [float(np.mean(count / seen)) for count in frame["sinks_counted"]]
    labels = {"model": cell.model, "task": cell.text, "context_tokens": cell.context_tokens}
    return frame.assign(**labels, first_query=cell.first_query)
