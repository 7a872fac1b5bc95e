"""How does each linear mechanism write pairs and read them back? Without a model: recurrences and maps alone.

`MECHANISMS` names them. Each is a function of keys and values, [b, 1, n, d] in fp64: all pairs are written,
in order, then every key is asked for and nothing is written again. Dividing by phi(q)·z would only scale what
is read, which changes neither its nearest value nor its direction, so z is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from swalib.attention import attend
from swalib.linear.feature_maps import FeatureMap, feature_map
from swalib.linear.recurrences import delta_rule, diagonal_decay, linear_attention, rwkv7, scalar_decay
from swalib.spec import SWA, Full

SHARPNESS = 4.0  # of softmax, over 1/sqrt(d)

Read = Callable[[Tensor, Tensor], Tensor]


def unit(k: Tensor) -> Tensor:
    """k at norm 1."""
    return k / k.norm(dim=-1, keepdim=True)


def mapped(name: str, scale: float) -> Read:
    """A plain sum of phi(scale·k)^T v, with a map drawn anew for each row of the batch.

    Hedgehog's W gets orthonormal columns, d/2 of them, and so F = d features as the others have.
    """

    def read(k: Tensor, v: Tensor) -> Tensor:
        with torch.no_grad():
            features = torch.cat(
                [_drawn(name, k.shape[-1], seed)(scale * k[[seed]]) for seed in range(len(k))]
            )
        return features @ linear_attention(features, features, v)[1].S

    return read


def _drawn(name: str, d: int, seed: int) -> FeatureMap:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return orthonormal_hedgehog(d) if name == "hedgehog" else feature_map(name, 1, d).double()


def orthonormal_hedgehog(d: int) -> FeatureMap:
    """Hedgehog's map of one head with random orthonormal columns in W [d, d/2], in fp64."""
    phi = feature_map("hedgehog", 1, d).double()
    columns, triangle = torch.linalg.qr(torch.randn(d, d // 2, dtype=torch.float64))
    phi.weight.data[0] = columns * triangle.diagonal().sign()  # which makes them unique
    return phi


def _slow(d: int) -> Tensor:
    """One log decay for a head, exp(-1/4d) a token."""
    return torch.full((1, 1, 1), -1 / (4 * d), dtype=torch.float64)


def _by_channel(d: int) -> Tensor:
    """One log decay a channel, from exp(-1/d) to exp(-1/16d) a token."""
    return -1 / torch.logspace(math.log10(d), math.log10(16 * d), d, dtype=torch.float64).view(1, 1, 1, d)


def _decayed(k: Tensor, v: Tensor) -> Tensor:
    k = unit(k)
    return k @ scalar_decay(k, k, v, _slow(k.shape[-1]))[1].S


def _channelwise(k: Tensor, v: Tensor) -> Tensor:
    k = unit(k)
    return k @ diagonal_decay(k, k, v, _by_channel(k.shape[-1]))[1].S


def _delta(k: Tensor, v: Tensor) -> Tensor:
    k = unit(k)
    return k @ delta_rule(k, k, v, torch.ones(1, 1, 1, dtype=k.dtype))[1].S


def _gated_delta(k: Tensor, v: Tensor) -> Tensor:
    k = unit(k)
    return k @ delta_rule(k, k, v, torch.ones(1, 1, 1, dtype=k.dtype), _slow(k.shape[-1]))[1].S


def _rwkv7(k: Tensor, v: Tensor) -> Tensor:
    k, log_decay = unit(k), _by_channel(k.shape[-1])
    rate = torch.full_like(k, 0.5)
    written = k * (rate - log_decay.expm1())
    return k @ rwkv7(k, log_decay, written, v, k, rate)[1].S


def softmax(spec: SWA | Full) -> Read:
    """Softmax over what a query sees at the place of the last pair, which it doesn't write again."""

    def read(k: Tensor, v: Tensor) -> Tensor:
        last = torch.full((k.shape[2],), k.shape[2] - 1)
        return attend(k, k, v, spec, "reference", q_pos=last, scale=SHARPNESS / math.sqrt(k.shape[-1]))

    return read


@dataclass(frozen=True)
class Mechanism:
    """label: its name on the page; setting: what was chosen for it, for d = head_dim; read: see above."""

    label: str
    setting: str
    read: Read


# Scales: the best of 1, 2, 4, 8 and 16 for 128 random pairs at d = 64 (a test).
MECHANISMS = {
    "identity": Mechanism("plain sum", "φ(k) = k", mapped("identity", 1)),
    "elu_plus_one": Mechanism("ELU + 1", "keys × 16", mapped("elu_plus_one", 16)),
    "softmax": Mechanism("softmax over d (Liger)", "keys × 2", mapped("softmax", 2)),
    "hedgehog": Mechanism("Hedgehog", "keys × 16, W orthonormal", mapped("hedgehog", 16)),
    "dijiang": Mechanism("DiJiang", "keys × 8, released version", mapped("dijiang", 8)),
    "scalar_decay": Mechanism("scalar decay", "a factor exp(−1/4d) a token", _decayed),
    "diagonal_decay": Mechanism("diagonal decay", "exp(−1/d) to exp(−1/16d) by channel", _channelwise),
    "delta_rule": Mechanism("delta rule", "β = 1", _delta),
    "gated_delta": Mechanism("gated delta rule", "β = 1, exp(−1/4d) a token", _gated_delta),
    "rwkv7": Mechanism("RWKV-7", "a = 0.5, decays as diagonal", _rwkv7),
}
