"""What does the chapter measure? The cells behind its figures, from a few lists of settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swalib.systems.cost import Shape
from swalib.systems.kinds import Kind, kinds
from swalib.systems.machine import Limits
from swalib.systems.measure import Cell


@dataclass(frozen=True)
class Plan:
    """Settings of the measurements.

    Args:
        windows, sinks: of SWA(w, s). features: of linear attention and of LoLCATs, whose windows are
            `hybrid_windows`. mixers: other methods, by their names in `swalib.linear.METHODS`.
        contexts: tokens at which every kind decodes, batch 1. prefill: tokens of the prompts that `few` read.
        batches, batch_context: where `few` decode in batches.
        widths, width_context: D at which some kinds decode, see `Shape.wide`.
    """

    windows: Sequence[int]
    sinks: int
    features: Sequence[int]
    hybrid_windows: Sequence[int]
    mixers: Sequence[str]
    contexts: Sequence[int]
    prefill: Sequence[int]
    batches: Sequence[int]
    batch_context: int
    widths: Sequence[int]
    width_context: int
    shape: Shape
    repeats: int = 11

    @property
    def few(self) -> list[Kind]:
        """Full attention, the narrowest and the widest SWA, linear attention and LoLCATs at their most."""
        swa = [Kind("swa", w, self.sinks) for w in dict.fromkeys((self.windows[0], self.windows[-1]))]
        features = self.features[-1]
        hybrid = Kind("lolcats", self.hybrid_windows[0], features=features)
        return [Kind("full"), *swa, Kind("hedgehog", features=features), hybrid]

    def cells(
        self, dtype: str = "float32", device: str = "cpu", impl: str = "sdpa", graph: bool = False
    ) -> list[Cell]:
        """All cells, on one device. With graphs only those that decode."""
        setting = {
            "dtype": dtype,
            "device": device,
            "impl": impl,
            "repeats": self.repeats,
            "shape": self.shape,
        }
        all_kinds = kinds(self.windows, self.sinks, self.features, self.hybrid_windows, self.mixers)
        decode = setting | {"task": "decode", "graph": graph}
        found = [Cell(kind, context_tokens=n, **decode) for n in self.contexts for kind in all_kinds]
        found += [
            Cell(kind, context_tokens=self.batch_context, batch=batch, **decode)
            for batch in self.batches
            for kind in self.few
        ]
        growing = [n for n in self.contexts if n <= self.batch_context]  # its copies would take twice as much
        found += [Cell(Kind("full_growing"), context_tokens=n, **decode) for n in growing if not graph]
        found += self._at_widths(decode)
        if not graph:
            prompts = setting | {"task": "prefill", "repeats": 2}
            found += [Cell(kind, context_tokens=n, **prompts) for n in self.prefill for kind in self.few]
        return list(dict.fromkeys(found))

    def on(self, device: str, impl: str = "sdpa") -> list[Cell]:
        """All cells in the device's own dtype: fp32 on a CPU; fp16 on a GPU, with and without graphs."""
        if device == "cpu":
            return self.cells("float32", device, impl)
        return [*self.cells("float16", device, impl), *self.cells("float16", device, impl, graph=True)]

    def limits(self, device: str) -> Limits:
        """Of the machine, in the same dtype."""
        probe = {"copied_bytes": 1 << 20, "side": 64} if self.shape.hidden < 256 else {}
        return Limits("float32" if device == "cpu" else "float16", device, **probe)

    def _at_widths(self, decode: dict) -> list[Cell]:
        features = self.features[0]
        chosen = [
            Kind("swa", self.windows[0], self.sinks),
            Kind("hedgehog", features=features),
            Kind("lolcats", self.hybrid_windows[0], features=features),
        ]
        return [
            Cell(
                kind,
                context_tokens=self.width_context,
                **{**decode, "shape": Shape.wide(width, self.shape.heads, self.shape.layers)},
            )
            for width in self.widths
            for kind in chosen
        ]
