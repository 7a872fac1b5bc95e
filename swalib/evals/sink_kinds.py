"""Which property of the first tokens makes them sinks: their place, their meaning, their key, their value?

Every kind of sink is measured on the same pieces and scored on the same tokens. Kinds that are plain SWA(w,
s) are the very runs of the experiment "sinks" and are not measured twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from swalib import data, results
from swalib.evals import perplexity
from swalib.evals.bench import SECONDS_PER_TOKEN, proven, resident
from swalib.families import attention_modules
from swalib.models import Loaded
from swalib.results import Measured
from swalib.spec import SWA, Full

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EARLY_TOKENS = 64  # random sinks are drawn from the first so many, the very first excluded


def as_is(_: Loaded, ids: Tensor) -> Tensor:
    """The pieces themselves."""
    return ids


def with_bos(loaded: Loaded, ids: Tensor) -> Tensor:
    """One token more at the head of each piece, the tokenizer's BOS; the pieces themselves where the model
    was trained with one, which they begin with. ValueError where the tokenizer has none."""
    if loaded.bos is not None:
        return ids
    bos = loaded.tokenizer.bos_token_id
    if bos is None:
        raise ValueError(f'the tokenizer of {loaded.name} has no BOS token: leave out the kind "bos"')
    return torch.cat([ids.new_full((len(ids), 1), bos), ids], dim=1)


def newlines_first(loaded: Loaded, ids: Tensor) -> Tensor:
    """The first four tokens of each piece replaced by newlines, as StreamingLLM's authors did.

    Raises:
        ValueError: the tokenizer has no token that is one newline.
    """
    newline = loaded.tokenizer("\n", add_special_tokens=False)["input_ids"]
    if len(newline) != 1:
        raise ValueError(
            f'a newline is not one token for {loaded.name}, but {len(newline)}: leave out the kind "newlines"'
        )
    return torch.cat([ids.new_full((len(ids), 4), newline[0]), ids[:, 4:]], dim=1)


@contextmanager
def first_value_zeroed(student: PreTrainedModel) -> Iterator[None]:
    """In every layer, later tokens find the first token's key with a value of zeros. The first token itself
    attends to its own value as ever, so that its keys stay what they were. For forwards without a cache.

    Raises:
        ValueError: a family whose values have no projection of their own.
    """
    hooks = []
    try:
        for attention in attention_modules(student):
            if not hasattr(attention, "v_proj") or not hasattr(attention, "o_proj"):
                raise ValueError(
                    f"the values of {student.config.model_type} have no projection of their own: leave out "
                    'the kind "no_value"'
                )
            kept: list[Tensor] = []  # one layer's, from its value projection to its output projection
            hooks.append(attention.v_proj.register_forward_hook(_zero_first(kept)))
            hooks.append(attention.o_proj.register_forward_pre_hook(_restore_first(kept, attention.head_dim)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _zero_first(kept: list[Tensor]) -> Callable:
    def hook(module, args, values: Tensor) -> Tensor:
        kept[:] = [values[:, :1].clone()]
        return torch.cat([torch.zeros_like(values[:, :1]), values[:, 1:]], dim=1)

    return hook


def _restore_first(kept: list[Tensor], d: int) -> Callable:
    def hook(module, args) -> tuple[Tensor]:
        (heads,) = args
        own = kept[0].unflatten(-1, (-1, d))
        own = own.repeat_interleave(heads.shape[-1] // kept[0].shape[-1], dim=-2).flatten(-2)
        return (torch.cat([own, heads[:, 1:]], dim=1),)

    return hook


@dataclass(frozen=True)
class Kind:
    """What is kept in sight besides the latest tokens.

    label: in words. spec: the spec for a window, given drawn positions. feed: what is fed in place of the
    pieces. plain: whether the experiment "sinks" has it. drawn: positions drawn anew for each seed. around:
    what holds during the forward.
    """

    label: str
    spec: Callable[[int, tuple[int, ...]], SWA]
    feed: Callable[[Loaded, Tensor], Tensor] = as_is
    plain: bool = False
    drawn: int = 0
    around: Callable | None = None


KINDS = {
    "none": Kind("nothing", lambda w, _: SWA(w, 0), plain=True),
    "random": Kind(
        "four random early tokens", lambda w, chosen: SWA(w, len(chosen), sink_positions=chosen), drawn=4
    ),
    "next_four": Kind("the next four tokens", lambda w, _: SWA(w, 4, sink_positions=(4, 5, 6, 7))),
    "zero_sink": Kind("no key, a logit of 0", lambda w, _: SWA(w, 0, sink_logit=0.0)),
    "first_four": Kind("the first four tokens", lambda w, _: SWA(w, 4), plain=True),
    "newlines": Kind("first four, made newlines", lambda w, _: SWA(w, 4), newlines_first),
    "first_one": Kind("the first token", lambda w, _: SWA(w, 1), plain=True),
    "bos": Kind("a BOS put in front", lambda w, _: SWA(w, 1), with_bos),
    "no_value": Kind("first token, value zeroed", lambda w, _: SWA(w, 1), around=first_value_zeroed),
}


@dataclass(frozen=True)
class Cell(perplexity.Cell):
    """One measurement: as in `swalib.evals.perplexity`, with what `kind` feeds and keeps."""

    kind: str = "bos"
    seed: int | None = None

    def config(self) -> dict[str, object]:
        """What identifies the measurement in the results; see `swalib.results.run_key`."""
        if KINDS[self.kind].plain:
            return super().config()
        return super().config() | {"experiment": "sink_kinds", "kind": self.kind, "seed": self.seed}

    def compute(self) -> Measured:
        """Run it: the canary first, then the losses of every piece's own tokens."""
        loaded, kind = resident(self.model, self.device), KINDS[self.kind]
        ids = perplexity.pieces(loaded, data.text(self.text), self.context_tokens, self.n)
        with proven(loaded, self.spec, self.impl) as student:
            losses = losses_of(student, loaded, ids, kind)
        values = perplexity.summarise(losses, self.first_scored)
        return Measured(values, {"losses": losses.astype(np.float16)})


def losses_of(student: PreTrainedModel, loaded: Loaded, ids: Tensor, kind: Kind) -> np.ndarray:
    """Losses of the tokens of the pieces `ids` [n, t] after each one's first: fp32 [n, t-1], whatever was
    put in front of them or in their place."""
    fed = kind.feed(loaded, ids)
    extra = fed.shape[1] - ids.shape[1]
    rows = []
    for row in fed:
        with kind.around(student) if kind.around else _nothing():
            rows.append(perplexity.token_losses(student, row[None])[:, extra:])
    return torch.cat(rows).numpy()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def random_positions(seed: int, count: int, below: int) -> tuple[int, ...]:
    """`count` text positions from 1 to below - 1, ascending, the same for the same seed."""
    return tuple(sorted(random.Random(seed).sample(range(1, below), count)))


def measure(
    mode: str,
    models: Sequence[str],
    texts: Sequence[str],
    windows: Sequence[int],
    kinds: Sequence[str] = tuple(KINDS),
    seeds: int = 3,
    context_tokens: int = 2048,
    n: int = 2,
    device: str = "cpu",
) -> pd.DataFrame:
    """Perplexity of every model and text: full attention, and each kind of sink at each window.

    Args:
        kinds: names in KINDS. seeds: draws of the random kind.

    Returns:
        columns model, task, kind, label, window, sinks, seed, positions (of chosen sinks, or ""), ppl,
        stderr, n. Full attention's row has the kind "full" and no window.

    Raises:
        ValueError: a kind that is not in KINDS.
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"no kind of sink is called {unknown[0]!r}: choose from {', '.join(KINDS)}")
    sizes = {"context_tokens": context_tokens, "n": n, "device": device}
    full = [perplexity.Cell(m, t, Full(), **sizes) for m, t in product(models, texts)]
    cells = [
        _cell(m, t, w, kind, seed, sizes)
        for m, t, w, kind in product(models, texts, windows, kinds)
        for seed in (range(seeds) if KINDS[kind].drawn else [None])
    ]
    if mode == "run":
        absent = results.missing([cell.config() for cell in (*full, *cells)])
        results.estimate(context_tokens * n * SECONDS_PER_TOKEN, len(absent))
    rows = [
        _row(cell, results.load_or_run(cell.config(), cell.compute, mode))
        for cell in tqdm([*full, *cells], desc="kinds of sink", disable=mode == "stored")
    ]
    return pd.DataFrame(rows)


def _cell(model: str, text: str, window: int, kind: str, seed: int | None, sizes: dict) -> Cell:
    below = min(EARLY_TOKENS, Cell(model, text, Full(), **sizes).first_scored)
    chosen = () if seed is None else random_positions(seed, KINDS[kind].drawn, below)
    return Cell(model, text, KINDS[kind].spec(window, chosen), **sizes, kind=kind, seed=seed)


def _row(cell: perplexity.Cell, found: results.Result) -> dict[str, object]:
    measured = found.rows[found.rows["metric"] == "perplexity"].iloc[0]
    row = {"model": cell.model, "task": cell.text, "kind": "full", "label": "full attention"}
    row |= {"window": pd.NA, "sinks": pd.NA, "seed": None, "positions": ""}
    if isinstance(cell, Cell):
        row |= {"kind": cell.kind, "label": KINDS[cell.kind].label, "seed": cell.seed}
        row |= {"window": cell.spec.window, "sinks": cell.spec.sinks}
        row["positions"] = ", ".join(map(str, cell.spec.sink_positions or ()))
    return row | measured[["stderr", "n"]].to_dict() | {"ppl": measured["value"]}
