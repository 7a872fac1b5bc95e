"""What queries and keys go through before a linear recurrence: phi(x), [b, h, t, d] -> [b, h, t, features].

`feature_map(name, heads, head_dim, ...)` builds any of `FEATURE_MAPS`, each a module for these sizes.
Whether a method maps before or after RoPE, and whether it scales phi(k), is its mixer's business.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FeatureMap(nn.Module, ABC):
    """phi. A subclass writes `phi`; `features` is the size of its last axis.

    Raises:
        ValueError: from a call, if x is not [b, heads, t, head_dim].
    """

    def __init__(self, heads: int, head_dim: int, features: int | None = None) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.features = head_dim if features is None else features
        if min(heads, head_dim, self.features) < 1:
            raise ValueError(f"sizes must be positive: {heads} heads of {head_dim}, {self.features} features")

    def forward(self, x: Tensor, *args) -> Tensor:
        if x.ndim != 4 or (x.shape[1], x.shape[-1]) != (self.heads, self.head_dim):
            takes = f"[b, {self.heads}, t, {self.head_dim}]"
            raise ValueError(f"{type(self).__name__} was made for x {takes}, got {tuple(x.shape)}")
        return self.phi(x, *args)

    @abstractmethod
    def phi(self, x: Tensor) -> Tensor:
        """phi(x) for x [b, heads, t, head_dim]: [b, heads, t, features]."""

    def extra_repr(self) -> str:
        return f"heads={self.heads}, head_dim={self.head_dim}, features={self.features}"


class Identity(FeatureMap):
    """phi(x) = x: QLinAtt, GLA and whatever keeps its keys as they are."""

    def phi(self, x: Tensor) -> Tensor:
        return x


class Relu(FeatureMap):
    """phi(x) = max(x, 0) (Kasai 2021, 2103.13076)."""

    def phi(self, x: Tensor) -> Tensor:
        return F.relu(x)


class EluPlusOne(FeatureMap):
    """phi(x) = elu(x) + 1, that is exp(x) below 0 and x + 1 above (Katharopoulos 2020, 2006.16236)."""

    def phi(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


class Softmax(FeatureMap):
    """phi(x) = softmax of x over the head (Liger, 2503.01496); before RoPE there."""

    def phi(self, x: Tensor) -> Tensor:
        return x.softmax(-1)


class Hedgehog(FeatureMap):
    """Hedgehog's learned map with both signs (2402.04347), as LoLCATs releases it; after RoPE. With y = xW,

        activation="softmax": phi(x) = [softmax(y), softmax(-y)]
        activation="exp":     phi(x) = [exp(y - max y), exp(min y - y)]

    each clamped from below at 1e-12.

    `weight`, W: [heads, head_dim, width], learned, no bias; initially uniform within
    ±sqrt(6/(head_dim·width)), which is what kaiming_uniform_, as released, gives an array of these axes.
    `features` is 2·width. As released, the k map starts as a copy of the q map.

    Args:
        width: default half of head_dim (64 of 128 in the 8B models), so that features = head_dim.
    """

    EPS = 1e-12

    def __init__(
        self, heads: int, head_dim: int, width: int | None = None, activation: str = "softmax"
    ) -> None:
        if activation not in ("softmax", "exp"):
            raise ValueError(f'activation must be "softmax" or "exp", got {activation!r}')
        if width is None and head_dim % 2:
            raise ValueError(f"half of head_dim {head_dim} is no width: pass width=")
        width = head_dim // 2 if width is None else width
        super().__init__(heads, head_dim, 2 * width)
        self.activation = activation
        self.weight = nn.Parameter(torch.empty(heads, head_dim, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew."""
        bound = math.sqrt(6 / (self.weight.shape[1] * self.weight.shape[2]))
        nn.init.uniform_(self.weight, -bound, bound)

    def phi(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        if self.activation == "softmax":
            both = [y.softmax(-1), (-y).softmax(-1)]
        else:
            both = [(y - y.amax(-1, keepdim=True)).exp(), (y.amin(-1, keepdim=True) - y).exp()]
        return torch.cat(both, dim=-1).clamp(min=self.EPS)


def dct_matrix(size: int) -> Tensor:
    """The orthonormal DCT-II, fp64 [size, size]: C x is the transform of x.

    C_kn = sqrt(2/size) cos(pi (2n + 1) k / (2 size)), row 0 divided by sqrt(2).
    """
    k, n = torch.arange(size, dtype=torch.float64)[:, None], torch.arange(size, dtype=torch.float64)
    matrix = math.sqrt(2 / size) * torch.cos(math.pi * (2 * n + 1) * k / (2 * size))
    matrix[0] /= math.sqrt(2)
    return matrix


class DiJiang(FeatureMap):
    """DiJiang's cosine-transform map (2403.19928); after partial RoPE. With C the orthonormal DCT-II,

        version="released": phi(x) = softmax(x P), P = C diag(t) frozen: x meets the rows of C, its inverse
        version="paper":    phi(x) = D exp(T C x), D and T diagonal

    t is the normal quantile of a uniform draw, frozen; a draw of exactly 0 counts as t = 0, as released.
    `projection` [head_dim, head_dim] is a buffer, shared by the heads. D is `weight` [head_dim], learned and
    initially 1, in the paper's version only.
    """

    def __init__(self, heads: int, head_dim: int, version: str = "released") -> None:
        if version not in ("released", "paper"):
            raise ValueError(f'version must be "released" or "paper", got {version!r}')
        super().__init__(heads, head_dim)
        self.version = version
        quantile = torch.special.ndtri(torch.rand(head_dim, dtype=torch.float64))
        quantile = quantile.masked_fill(quantile.isinf(), 0)
        transform = dct_matrix(head_dim) if version == "released" else dct_matrix(head_dim).mT
        self.register_buffer("projection", (transform * quantile).float())
        self.weight = nn.Parameter(torch.ones(head_dim)) if version == "paper" else None

    def phi(self, x: Tensor) -> Tensor:
        y = x @ self.projection
        return y.softmax(-1) if self.version == "released" else self.weight * y.exp()


class Supra(FeatureMap):
    """SUPRA's map (2405.06640): phi(x) = rotation(relu(W x + b)), x and W over the concatenated heads.

    `linear`: W [heads·head_dim, heads·head_dim] and b, learned; initially as nn.Linear's, the paper gives
    no other. One map serves q and k where they have as many heads; else each has its own.
    """

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__(heads, head_dim)
        self.linear = nn.Linear(heads * head_dim, heads * head_dim)

    def phi(self, x: Tensor, rotation: Callable[[Tensor], Tensor]) -> Tensor:
        """`rotation`: RoPE at the tokens' positions, [b, heads, t, head_dim] to the same."""
        mapped = F.relu(self.linear(x.transpose(1, 2).flatten(2)))
        return rotation(mapped.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2))


FEATURE_MAPS: dict[str, type[FeatureMap]] = {
    "identity": Identity,
    "relu": Relu,
    "elu_plus_one": EluPlusOne,
    "softmax": Softmax,
    "hedgehog": Hedgehog,
    "dijiang": DiJiang,
    "supra": Supra,
}


def feature_map(name: str, heads: int, head_dim: int, **options) -> FeatureMap:
    """The map of this name for [b, heads, t, head_dim].

    Args:
        options: Hedgehog's `width`, `activation`; DiJiang's `version`.

    Raises:
        ValueError: no map has this name, or it cannot take this head size.
    """
    if name not in FEATURE_MAPS:
        raise ValueError(f"feature map must be one of {sorted(FEATURE_MAPS)}, got {name!r}")
    return FEATURE_MAPS[name](heads, head_dim, **options)
