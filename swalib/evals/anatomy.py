"""What goes on inside a linear attention, in numbers small enough to look at? Nothing is trained or stored.

`states`: a state as a few tokens write it, under four rules. `kernels`: the weight a feature map gives a
key, by its angle to the query. `mixing`: which token's value is in which output.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor

from swalib.evals.mechanisms import orthonormal_hedgehog, unit
from swalib.linear.feature_maps import FeatureMap, feature_map
from swalib.linear.recurrences import State, delta_rule, diagonal_decay, linear_attention, scalar_decay

TOKENS = "ABCDEAFGBHCA"  # the key of each token: A, B and C are written again
LOGITS = (1, 2, 4, 8, 16, 32)

Rule = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, State]]


def _constant(gate: float, q: Tensor) -> Tensor:
    return torch.full((1, 1, 1), gate, dtype=q.dtype)


def _by_channel(q: Tensor) -> Tensor:
    """Log decays from 0.5 to 0.99 a token, one a channel."""
    return torch.linspace(0.5, 0.99, q.shape[-1], dtype=q.dtype).log().view(1, 1, 1, -1)


RULES: dict[str, tuple[str, Rule]] = {
    "plain": ("plain sum, normalised", lambda q, k, v: linear_attention(q, k, v, normalised=True)),
    "scalar": ("scalar decay 0.8", lambda q, k, v: scalar_decay(q, k, v, _constant(math.log(0.8), q))),
    "diagonal": ("diagonal decay 0.5 to 0.99", lambda q, k, v: diagonal_decay(q, k, v, _by_channel(q))),
    "delta": ("delta rule, β = 1", lambda q, k, v: delta_rule(q, k, v, _constant(1.0, q))),
}


def states(tokens: str = TOKENS, size: int = 8, seed: int = 33) -> dict:
    """A text whose token t writes a new value under the key of its letter, and the state after each token.

    Keys are what Liger's map makes of random ones (softmax), at norm 1; values are random, at norm 1.

    Args:
        size: of keys and of values.

    Returns:
        tokens, and letters, each once; k and v [t][size]; rules: by name a label, S [t][size][size], z
        [t][size] or None, and for each letter what is read with its key, read [t][letter][size], and its
        cosine with the value last written under it, cosine [t][letter], None before the first.
    """
    letters = sorted(set(tokens))
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(len(letters) + len(tokens), size, generator=generator, dtype=torch.float64)
    keys = unit((2.5 * drawn[: len(letters)]).softmax(-1))
    k, v = keys[[letters.index(token) for token in tokens]], unit(drawn[len(letters) :])
    rules = {name: _run(rule, tokens, letters, keys, k, v) for name, (_, rule) in RULES.items()}
    words = {name: {"label": label, **rules[name]} for name, (label, _) in RULES.items()}
    return {"tokens": list(tokens), "letters": letters, "k": _short(k), "v": _short(v), "rules": words}


def _run(rule: Rule, tokens: str, letters: list[str], keys: Tensor, k: Tensor, v: Tensor) -> dict:
    found: dict = {"S": [], "z": [], "read": [], "cosine": []}
    for t in range(1, len(tokens) + 1):
        _, state = rule(*(x[None, None, :t] for x in (k, k, v)))
        S, z = state.S[0, 0], None if state.z is None else state.z[0, 0]  # noqa: N806
        read = keys @ S if z is None else keys @ S / (keys @ z)[:, None]
        latest = [tokens.rfind(letter, 0, t) for letter in letters]
        cosines = torch.cosine_similarity(read, v[latest], dim=-1).tolist()
        found["S"].append(_short(S))
        found["z"].append(None if z is None else _short(z))
        found["read"].append(_short(read))
        pairs = zip(cosines, latest, strict=True)
        found["cosine"].append([None if place < 0 else round(one, 3) for one, place in pairs])
    return found


def _short(x: Tensor) -> list:
    return (x.round(decimals=3) + 0.0).tolist()


# ---- Feature maps by angle.


def _named(name: str) -> Callable[[int], FeatureMap]:
    return lambda d: feature_map(name, 1, d).double()


MAPS: dict[str, tuple[str, Callable[[int], FeatureMap]]] = {
    "identity": ("identity (QLinAtt)", _named("identity")),
    "relu": ("ReLU", _named("relu")),
    "elu_plus_one": ("ELU + 1", _named("elu_plus_one")),
    "supra": ("SUPRA, as it starts", _named("supra")),
    "softmax": ("softmax (Liger)", _named("softmax")),
    "dijiang": ("DiJiang, released", _named("dijiang")),
    "hedgehog": ("Hedgehog, as it starts", _named("hedgehog")),
    "hedgehog_orthonormal": ("Hedgehog, WᵀW = 1", orthonormal_hedgehog),
}


@torch.no_grad()
def kernels(head_dim: int = 64, draws: int = 64, points: int = 33, seed: int = 0) -> pd.DataFrame:
    """phi(q)·phi(k) / phi(q)·phi(q) for q and k of one norm, by their cosine.

    The norm is such that softmax attention's logit q·k/sqrt(d) is `logit` for k = q.

    Args:
        draws: random q, each with a random direction for the part of k that is not along q.

    Returns:
        map, label, logit, cosine, and over the draws low (10 %), middle (50 %) and high (90 %).
    """
    generator = torch.Generator().manual_seed(seed)
    q, other = torch.randn(2, draws, head_dim, generator=generator, dtype=torch.float64)
    q = unit(q)
    other = unit(other - (other * q).sum(-1, keepdim=True) * q)
    cosine = torch.linspace(-1, 1, points, dtype=torch.float64)
    k = cosine[:, None, None] * q + (1 - cosine**2).sqrt()[:, None, None] * other
    parts = []
    for name, (label, build) in MAPS.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            phi = build(head_dim)
        for logit in LOGITS:
            norm = math.sqrt(logit * math.sqrt(head_dim))
            weights = _weights(phi, norm * q, norm * k)
            low, middle, high = weights.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), dim=1)
            part = pd.DataFrame({"cosine": cosine, "low": low, "middle": middle, "high": high})
            parts.append(part.assign(map=name, label=label, logit=logit))
    return pd.concat(parts, ignore_index=True)


def at_right_angle(kernels: pd.DataFrame, logit: int) -> dict[str, float]:
    """The median weight of a key at a right angle to the query, by map; "exp" is softmax attention's."""
    here = kernels[(kernels["logit"] == logit) & (kernels["cosine"].abs() < 1e-9)]
    medians = dict(zip(here["map"], here["middle"].astype(float), strict=True))
    return {**medians, "exp": math.exp(-logit)}


def _weights(phi: FeatureMap, q: Tensor, k: Tensor) -> Tensor:
    """[points, draws], 1 where k = q."""
    rotation = [lambda x: x] if type(phi).__name__ == "Supra" else []
    of_q, of_k = (phi(x.flatten(0, -2)[None, None], *rotation)[0, 0] for x in (q, k))
    products = (of_k.unflatten(0, k.shape[:2]) * of_q).sum(-1)
    return products / (of_q**2).sum(-1)


# ---- Whose value is in which output.


def mixing(rule: str, length: int = 12, seed: int = 2) -> list[list[float]]:
    """|M| with o = M v, which every rule is linear in; each row over its largest: [length][length].

    Args:
        rule: a name in RULES; keys as in `states`, but less sharp and one a token.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k = unit(torch.randn(2, length, 8, generator=generator, dtype=torch.float64).softmax(-1))
    each = torch.eye(length, dtype=torch.float64)
    o, _ = RULES[rule][1](*(x[None, None] for x in (q, k, each)))
    size = o[0, 0].abs()
    return _short(size / size.amax(-1, keepdim=True))
