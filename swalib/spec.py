"""What attention may look at, as frozen values: `Full()`, `SWA(window, sinks)`, or one of these per layer."""

from __future__ import annotations

import operator
from dataclasses import asdict, dataclass
from typing import Any, Literal

POSITIONS = ("text", "cache")


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(None if isinstance(value, bool) else value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number of tokens, got {value!r}") from None


@dataclass(frozen=True)
class Full:
    """The layer's own attention, unchanged: causal, or the native local window the model was trained with."""

    def __str__(self) -> str:
        return "Full()"

    def to_dict(self) -> dict[str, Any]:
        """JSON form, read back by `from_dict`."""
        return {"method": "full"}


@dataclass(frozen=True)
class SWA:
    """Sliding-window attention with sinks, arXiv 2608.28444 eq. 2.

    Query i sees key j iff `j <= i and (j < sinks or i - j < window - sinks)`: the row's first `sinks` tokens
    and the latest `window - sinks`, its own included; never more than `window` keys.

    Args:
        window: keys a query attends to, sinks and itself included; >= 1, tokens.
        sinks: leading tokens that are never evicted; 0 <= sinks < window, tokens.
        positions: "text" keeps every key at its place in the text (a pure mask). "cache" numbers the visible
            keys by their place in the cache, as StreamingLLM does: query i stands at min(i, window - 1), sink
            j at j, the recents in order before the query. The two differ from the first eviction on.

    Raises:
        TypeError: window or sinks is not an integer.
        ValueError: a value is out of range.
    """

    window: int
    sinks: int
    positions: Literal["text", "cache"] = "text"

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", _integer("window", self.window))
        object.__setattr__(self, "sinks", _integer("sinks", self.sinks))
        if self.window < 1:
            raise ValueError(f"window must be at least 1 (a query always sees itself), got {self.window}")
        if self.sinks < 0:
            raise ValueError(f"sinks must be at least 0, got {self.sinks}")
        if self.sinks >= self.window:
            raise ValueError(
                f"sinks must be below window, since the window counts them and the query's own key; "
                f"got window={self.window}, sinks={self.sinks}"
            )
        if self.positions not in POSITIONS:
            raise ValueError(f"positions must be one of {POSITIONS}, got {self.positions!r}")

    @property
    def recents(self) -> int:
        """Latest keys a query sees, its own included (tokens): window - sinks."""
        return self.window - self.sinks

    def __str__(self) -> str:
        tail = "" if self.positions == "text" else f', positions="{self.positions}"'
        return f"SWA({self.window}, {self.sinks}{tail})"

    def to_dict(self) -> dict[str, Any]:
        """JSON form, read back by `from_dict`."""
        return {"method": "swa", **asdict(self)}


@dataclass(frozen=True)
class PerLayer:
    """One spec per decoder layer, first layer first: hybrids, or windows that grow with depth.

    Raises:
        TypeError: an entry is neither `Full` nor `SWA`.
        ValueError: no entry.
    """

    layers: tuple[Full | SWA, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers:
            raise ValueError(
                "PerLayer needs one Full() or SWA(window, sinks) for each decoder layer, got none"
            )
        for layer in self.layers:
            if not isinstance(layer, Full | SWA):
                raise TypeError(f"PerLayer takes Full() and SWA(window, sinks), got {layer!r}")

    def __str__(self) -> str:
        return f"PerLayer({', '.join(map(str, self.layers))})"

    def to_dict(self) -> dict[str, Any]:
        """JSON form, read back by `from_dict`."""
        return {"method": "per_layer", "layers": [layer.to_dict() for layer in self.layers]}


Spec = Full | SWA | PerLayer


def from_dict(data: dict[str, Any]) -> Spec:
    """The spec whose `to_dict` gave `data`.

    Raises:
        ValueError: the method is unknown.
    """
    fields = dict(data)
    match fields.pop("method", None):
        case "full":
            return Full()
        case "swa":
            return SWA(**fields)
        case "per_layer":
            return PerLayer(tuple(from_dict(layer) for layer in fields["layers"]))
        case other:
            raise ValueError(f"a spec's method is full, swa or per_layer, got {other!r}")
