"""What attention may look at, as frozen values: `Full()`, `SWA(window, sinks)`, or one of these per layer or
per head."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from numbers import Real
from typing import Any, ClassVar, Literal

POSITIONS = ("text", "cache")
LOCAL = ("keep", "intersect")


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
        local: what becomes of layers that were trained with a local window of their own. "keep": they keep
            it, and SWA goes to the global layers (a wider mask on a layer with a local RoPE breaks it); where
            every layer is local, SWA replaces the mask, with no more recents than the native window.
            "intersect": they see what both masks show, so that a sink too is lost beyond the native window.
        reach: keys at most reach - 1 tokens behind the query, sinks too; None: no such limit. `local`
            "intersect" sets it, layer by layer.
        sink_positions: text positions of the sinks, ascending, `sinks` of them, in place of the first ones.
        sink_logit: a logit without key or value that joins every softmax, so that a head may attend to
            nothing. A number (0.0 is the "zero sink": 1 is added to the denominator), or "learned": a
            parameter per head that starts at 0 (gpt-oss). None, the default: no such logit.

    A table in place of `window` or `sinks` gives each head, or each layer and head, its own; the value is
    then a `PerHead` or `PerLayer`. `SWA([64, 128], 4)` has an entry for each query head; `SWA([[64], [32,
    128]], 4)` a row for each layer, with one entry for all its heads or one for each.

    Raises:
        TypeError: window or sinks is neither an integer nor a table of integers.
        ValueError: a value is out of range, or two tables differ in shape.
    """

    window: int
    sinks: int
    positions: Literal["text", "cache"] = "text"
    local: Literal["keep", "intersect"] = "keep"
    reach: int | None = None
    sink_positions: tuple[int, ...] | None = None
    sink_logit: float | Literal["learned"] | None = None

    def __new__(cls, window: Any = None, sinks: Any = None, *args: Any, **kwargs: Any):
        if isinstance(window, list | tuple) or isinstance(sinks, list | tuple):
            return _from_tables(window, sinks, *args, **kwargs)
        return super().__new__(cls)

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
        for name, value, choices in (("positions", self.positions, POSITIONS), ("local", self.local, LOCAL)):
            if value not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {value!r}")
        if self.reach is not None:
            object.__setattr__(self, "reach", _integer("reach", self.reach))
            if self.reach < 1:
                raise ValueError(f"reach must be at least 1 (a query always sees itself), got {self.reach}")
        self._check_sinks()

    def _check_sinks(self) -> None:
        if self.sink_positions is not None:
            if not isinstance(self.sink_positions, Iterable):
                raise TypeError(f"sink_positions must be a table of positions, got {self.sink_positions!r}")
            chosen = tuple(_integer("a sink position", position) for position in self.sink_positions)
            object.__setattr__(self, "sink_positions", chosen)
            if len(chosen) != self.sinks or sorted(set(chosen)) != list(chosen) or min(chosen, default=0) < 0:
                raise ValueError(
                    f"sink_positions must be {self.sinks} ascending text positions, as many as sinks; "
                    f"got {chosen}"
                )
            if self.positions == "cache":
                raise ValueError('sink_positions go with positions="text" only')
        number = isinstance(self.sink_logit, Real) and not isinstance(self.sink_logit, bool)
        if number and math.isfinite(self.sink_logit):
            object.__setattr__(self, "sink_logit", float(self.sink_logit))
        elif self.sink_logit not in (None, "learned"):
            raise ValueError(f'sink_logit must be a number, "learned" or None, got {self.sink_logit!r}')

    @property
    def recents(self) -> int:
        """Latest keys a query sees, its own included (tokens): window - sinks."""
        return self.window - self.sinks

    def __str__(self) -> str:
        options = [f", {name}={_quoted(value)}" for name, value in self._options().items()]
        return f"SWA({self.window}, {self.sinks}{''.join(options)})"

    def _options(self) -> dict[str, Any]:
        """What is given beyond window and sinks."""
        given = {field.name: getattr(self, field.name) for field in fields(self)[2:]}
        return {
            field.name: given[field.name] for field in fields(self)[2:] if given[field.name] != field.default
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON form, read back by `from_dict`; what is at its default is left out, but for `positions`."""
        base = {"window": self.window, "sinks": self.sinks, "positions": self.positions}
        return {"method": "swa", **base, **self._options()}


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


@dataclass(frozen=True)
class PerHead:
    """One spec for each query head of a layer, first head first. The layer's cache keeps what any head sees.

    Raises:
        TypeError: an entry is neither `Full` nor `SWA`.
        ValueError: no entry, or one with sink_positions.
    """

    heads: tuple[Full | SWA, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", _entries("PerHead", "query head", self.heads, Full | SWA))
        if any(isinstance(head, SWA) and head.sink_positions for head in self.heads):
            raise ValueError("sink_positions can't be combined with a spec for each head")

    @property
    def envelope(self) -> SWA | Full:
        """The narrowest spec that shows whatever one of the heads sees: what the cache has to keep."""
        if any(isinstance(head, Full) for head in self.heads):
            return Full()
        sinks, reaches = max(head.sinks for head in self.heads), [head.reach for head in self.heads]
        reach = None if None in reaches else max(reaches)
        return SWA(sinks + max(head.recents for head in self.heads), sinks, reach=reach)

    def __str__(self) -> str:
        return f"PerHead({', '.join(map(str, self.heads))})"

    def to_dict(self) -> dict[str, Any]:
        """JSON form, read back by `from_dict`."""
        return {"method": "per_head", "heads": [head.to_dict() for head in self.heads]}


LayerSpec = Full | SWA | PerHead


@dataclass(frozen=True)
class MixerConfig:
    """Base of the linear mixers' settings, whose defaults are their papers'. `method` names it in rows and
    files."""

    method: ClassVar[str]

    def __str__(self) -> str:
        return self.method

    def to_dict(self) -> dict[str, Any]:
        """JSON form, read back by `from_dict`."""
        return {"method": self.method, **asdict(self)}


@dataclass(frozen=True)
class PerLayer:
    """One spec per decoder layer, first layer first: hybrids, or windows that grow with depth.

    Raises:
        TypeError: an entry is none of `Full`, `SWA`, `PerHead` and a mixer's config.
        ValueError: no entry.
    """

    layers: tuple[LayerSpec | MixerConfig, ...]

    def __post_init__(self) -> None:
        kinds = LayerSpec | MixerConfig
        object.__setattr__(self, "layers", _entries("PerLayer", "decoder layer", self.layers, kinds))

    def __str__(self) -> str:
        return f"PerLayer({', '.join(map(str, self.layers))})"

    def to_dict(self) -> dict[str, Any]:
        """JSON form, read back by `from_dict`."""
        return {"method": "per_layer", "layers": [layer.to_dict() for layer in self.layers]}


Spec = Full | SWA | PerHead | PerLayer


def _entries(name: str, each: str, given: Iterable, kind: Any) -> tuple:
    if not isinstance(given, Iterable):
        raise TypeError(f"{name} takes one spec for each {each}, in a table; got {given!r}")
    entries = tuple(given)
    if not entries:
        raise ValueError(f"{name} needs one Full() or SWA(window, sinks) for each {each}, got none")
    for entry in entries:
        if not isinstance(entry, kind):
            raise TypeError(f"{name} takes Full() and SWA(window, sinks), got {entry!r}")
    return entries


def _from_tables(window: Any, sinks: Any, *args: Any, **kwargs: Any) -> PerHead | PerLayer:
    """`PerLayer` of a table whose entries are tables, `PerHead` of one whose entries are numbers."""
    length = max(len(table) for table in (window, sinks) if isinstance(table, list | tuple))
    columns = []
    for name, table in (("window", window), ("sinks", sinks)):
        column = list(table) if isinstance(table, list | tuple) else [table]
        column = column * length if len(column) == 1 else column
        if len(column) != length:
            raise ValueError(f"the tables of window and sinks differ in length: {name} has {len(column)}")
        columns.append(column)
    if not length:
        raise ValueError("a table of windows or sinks needs an entry for each head or each layer, got none")
    rows = [SWA(w, s, *args, **kwargs) for w, s in zip(*columns, strict=True)]
    if all(isinstance(row, SWA) for row in rows):
        return PerHead(tuple(rows))
    if any(isinstance(row, PerLayer) for row in rows):
        raise ValueError("a table has one entry for each head, or one row for each layer; got deeper nesting")
    return PerLayer(tuple(r.heads[0] if isinstance(r, PerHead) and len(r.heads) == 1 else r for r in rows))


def from_dict(data: dict[str, Any]) -> Spec:
    """The spec whose `to_dict` gave `data`.

    Raises:
        ValueError: the method is unknown, or has other fields than those given.
    """
    if not isinstance(data, dict):
        raise ValueError(f"a spec's JSON form is an object with a method, got {data!r}")
    given = dict(data)
    method = given.pop("method", None)
    kinds = {"full": Full, "swa": SWA, "per_head": PerHead, "per_layer": PerLayer}
    if method not in kinds:
        from swalib.linear import METHODS, config_class  # mixers need torch, which a spec does not

        if method not in METHODS:
            known = ", ".join([*kinds, *METHODS])
            raise ValueError(f"a spec's method is one of {known}, got {method!r}")
        kinds[method] = config_class(method)
    for name in ("heads", "layers"):
        if isinstance(given.get(name), list | tuple):
            given[name] = tuple(from_dict(entry) for entry in given[name])
    known = {field.name: field for field in fields(kinds[method])}
    missing = {name for name, field in known.items() if field.default is MISSING} - set(given)
    if missing or set(given) - set(known):
        raise ValueError(f"a spec of method {method} has the fields {sorted(known)}, got {sorted(given)}")
    return kinds[method](**given)
