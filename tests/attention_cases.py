"""A covering set of attention's cases, and how far from fp64 an implementation may be.

The allowed error is not tuned: it is twice that of plain softmax attention run in the same low precision, an
independent computation, plus one rounding of the largest value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from oracle import double_loop
from torch import Tensor

from swalib.spec import SWA

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LENGTHS = ("1", "7", "w-1", "w", "w+1", "63", "257", "1000")
WINDOWS = (1, 16, 96)
SINKS = ("0", "1", "4", "w-1")
HEADS = ((4, 4), (4, 2))
D, D_V = 20, 20


@dataclass(frozen=True)
class Case:
    """`length` and `sinks` may name the window; `offset`: tokens before the first query, whose keys are there
    too; `padded`: row r has 3r + 1 pads before its text, and NaN lies in what holds no token."""

    dtype: torch.dtype
    length: str
    window: int
    sinks: str
    heads: tuple[int, int]
    padded: bool
    offset: int

    @property
    def spec(self) -> SWA:
        return SWA(self.window, min(self._number(self.sinks), self.window - 1))

    @property
    def tokens(self) -> int:
        return max(1, self._number(self.length))

    def _number(self, name: str) -> int:
        return int(name) if "w" not in name else self.window + int(name[1:] or 0)


def covering(
    dtypes: Sequence[torch.dtype] = DTYPES,
    lengths: Sequence[str] = LENGTHS,
    windows: Sequence[int] = WINDOWS,
    sinks: Sequence[str] = SINKS,
    heads: Sequence[tuple[int, int]] = HEADS,
    padded: Sequence[bool] = (False, True),
    offsets: Sequence[int] = (0, 29),
) -> list[Case]:
    """Cases in which every pair of values of two of these occurs; greedy, always the same."""
    factors = (dtypes, lengths, windows, sinks, heads, padded, offsets)
    places = list(itertools.combinations(range(len(factors)), 2))
    everything = list(itertools.product(*factors))
    pairs = [{(i, j, row[i], row[j]) for i, j in places} for row in everything]
    missing, chosen = set().union(*pairs), []
    while missing:
        best = max(range(len(pairs)), key=lambda row: len(pairs[row] & missing))
        missing -= pairs[best]
        chosen.append(Case(*everything[best]))
    return chosen


def grid(**factors) -> list[Case]:
    """Every case."""
    defaults = (DTYPES, LENGTHS, WINDOWS, SINKS, HEADS, (False, True), (0, 29))
    values = [factors.get(f.name, d) for f, d in zip(fields(Case), defaults, strict=True)]
    return [Case(*row) for row in itertools.product(*values)]


@dataclass(frozen=True)
class Problem:
    """Inputs of a case: q, k, v; positions [t] or [b, t]; which key each query sees [1 or b, t_q, t_k]."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_pos: Tensor
    k_pos: Tensor
    seen: Tensor
    slope: Tensor  # of the loss in o: 0 where a query holds no token


def problem(case: Case, seed: int = 0, d: int = D, d_v: int = D_V) -> Problem:
    (h, h_kv), t_k = case.heads, case.tokens + case.offset
    b = 2 if case.padded else 1
    generator = torch.Generator().manual_seed(seed)
    q, k, v, slope = (
        torch.randn(b, heads, t, size, generator=generator)
        for heads, t, size in ((h, case.tokens, d), (h_kv, t_k, d), (h_kv, t_k, d_v), (h, case.tokens, d_v))
    )
    k_pos = torch.arange(t_k)
    if case.padded:
        k_pos = (k_pos - (3 * torch.arange(b)[:, None] + 1)).clamp(min=-1)
    q_pos = k_pos[..., -case.tokens :]
    whole = double_loop(t_k, case.window, case.spec.sinks)
    at, where = (x.reshape(-1, x.shape[-1]) for x in (q_pos, k_pos))
    seen = whole[at.clamp(min=0)[:, :, None], where.clamp(min=0)[:, None]]
    seen = seen & (at >= 0)[:, :, None] & (where >= 0)[:, None]
    slope = slope * (at >= 0)[:, None, :, None]
    return Problem((2 * q).to(case.dtype), k.to(case.dtype), v.to(case.dtype), q_pos, k_pos, seen, slope)


def plain(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Softmax attention with every score formed in q's dtype, the weights by a log-sum-exp, as kernels that
    keep one for the gradients must have them; zeros for a query that sees nothing."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    blind = ~seen.any(-1)[:, None, :, None]
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen[:, None], -torch.inf)
    scores = scores.masked_fill(blind, 0)
    return (scores - scores.logsumexp(-1, keepdim=True)).exp().masked_fill(blind, 0) @ v


def poisoned(x: Tensor, positions: Tensor) -> Tensor:
    """x [b, h, t, d] with NaN where there is no token."""
    return x.masked_fill((positions.reshape(-1, positions.shape[-1]) < 0)[:, None, :, None], torch.nan)


def results(attention: Callable[..., Tensor], tensors: Sequence[Tensor], slope: Tensor, learns: bool):
    """[o, d q, d k, d v], or [o]."""
    leaves = [x.detach().clone().requires_grad_(learns) for x in tensors]
    o = attention(*leaves)
    if not learns:
        return [o]
    return [o.detach(), *torch.autograd.grad(o, leaves, slope.to(o.dtype))]


def worst(case: Case, attention: Callable[..., Tensor], learns: bool, device="cpu", **sizes) -> float:
    """The largest error of `attention(q, k, v, q_pos, k_pos)` and its gradients over what is allowed."""
    given = problem(case, **sizes)
    tensors = (given.q, given.k, given.v)
    exact = results(
        lambda q, k, v: plain(q, k, v, given.seen), [x.double() for x in tensors], given.slope, learns
    )
    rough = results(lambda q, k, v: plain(q, k, v, given.seen), tensors, given.slope, learns)
    bad = [
        poisoned(x, at).to(device) for x, at in zip(tensors, (given.q_pos, *[given.k_pos] * 2), strict=True)
    ]
    slope = given.slope.to(device)
    got = results(lambda q, k, v: attention(q, k, v, given.q_pos, given.k_pos), bad, slope, learns)
    alive = (given.q_pos >= 0).reshape(-1, case.tokens)[:, None, :, None]
    ratios = []
    for place, (ours, right, low) in enumerate(zip(got, exact, rough, strict=True)):
        assert ours.dtype == case.dtype
        ours = torch.where(alive, ours.cpu(), 0) if place == 0 else ours.cpu()
        band = torch.finfo(case.dtype).eps * right.abs().max()
        allowed = 2 * (low.double() - right).abs().max() + band
        ratios.append(float((ours.double() - right).abs().max() / allowed.clamp(min=1e-30)))
    return max(ratios)  # a NaN fails the comparison that follows


def failures(
    cases: Sequence[Case], attention_of: Callable[[Case], Callable], learns: bool, **options
) -> list:
    """The cases whose error is more than allowed, each with the ratio."""
    ratios = [(worst(case, attention_of(case), learns, **options), case) for case in cases]
    return [(ratio, case) for ratio, case in ratios if not ratio <= 1]


@torch.no_grad()
def check_student(impl: str, device: str = "cpu") -> None:
    """A padded batch read and decoded through a cache: as near to fp64 as `sdpa` is, within a factor of 4."""
    from swalib import applied
    from swalib.tiny import tiny

    ids = torch.randint(5, 60, (2, 23), generator=torch.Generator().manual_seed(0)).to(device)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    found = {}
    for name, dtype in (("reference", torch.float64), ("sdpa", torch.float32), (impl, torch.float32)):
        with applied(tiny("llama").to(device, dtype), SWA(8, 2), name) as student:
            begun = student(ids[:, :20], attention_mask=mask[:, :20], use_cache=True)
            logits = [begun.logits[1]]
            for t in range(20, 23):
                step = student(ids[:, t : t + 1], attention_mask=mask[:, : t + 1], cache=begun.cache)
                logits.append(step.logits.flatten(0, 1))
        found[name] = torch.cat(logits).double()
    error, allowed = ((found[name] - found["reference"]).abs().max() for name in (impl, "sdpa"))
    assert error <= 4 * allowed, f"{impl} is off by {error:.1e}, sdpa by {allowed:.1e}"
