"""Which kinds of attention are measured, and how is each made? One table; a new kind is a new row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swalib.linear import METHODS, config_class
from swalib.spec import SWA, Full, MixerConfig
from swalib.systems.cost import Attention


@dataclass(frozen=True)
class Kind:
    """One kind of attention: a name in `FAMILIES` and the settings that it takes.

    Args:
        window, sinks: w and s, tokens. features: F of the state, an even number.

    Raises:
        ValueError: an unknown method, a setting it lacks or does not take, or odd features.
    """

    method: str
    window: int | None = None
    sinks: int | None = None
    features: int | None = None

    def __post_init__(self) -> None:
        family = FAMILIES.get(self.method)
        if family is None:
            raise ValueError(f"no kind is called {self.method!r}: choose from {', '.join(FAMILIES)}")
        given = {name for name in ("window", "sinks", "features") if getattr(self, name) is not None}
        if given != set(family.settings):
            takes = ", ".join(family.settings) or "no settings"
            raise ValueError(f"{self.method} takes {takes}; got {', '.join(sorted(given)) or 'none'}")
        if (self.features or 0) % 2:
            raise ValueError(f"features come in pairs, one of x and one of -x; got {self.features}")
        self.spec(1)

    @property
    def label(self) -> str:
        """What it is called on the page."""
        family = FAMILIES[self.method]
        return family.label.format(w=self.window, s=self.sinks, f=self.features)

    @property
    def attention(self) -> Attention | None:
        """What `cost` needs to know of it; None where only the size of its state is known."""
        describe = FAMILIES[self.method].attention
        return describe and describe(self)

    def spec(self, room_tokens: int) -> SWA | Full | MixerConfig:
        """What a student of the toy model is given, for texts of at most `room_tokens` tokens."""
        return FAMILIES[self.method].spec(self, room_tokens)


@dataclass(frozen=True)
class Family:
    """What kinds of one method share.

    Args:
        label: of a kind, with {w}, {s} and {f}.
        settings: those that a kind of it needs.
        spec: (kind, tokens of the longest text) -> what a student is given.
        attention: kind -> what `cost` needs to know, where it is known.
        native_prefill: whether a prompt is read by the unchanged model, as transformers does it.
    """

    label: str
    settings: tuple[str, ...]
    spec: Callable[[Kind, int], SWA | Full | MixerConfig]
    attention: Callable[[Kind], Attention] | None = None
    native_prefill: bool = False


def _lolcats(kind: Kind, _) -> MixerConfig:
    return config_class("lolcats")(window=kind.window, width=kind.features // 2)


def _hybrid(kind: Kind) -> Attention:
    return Attention(kind.window, -1, kind.features, True, kind.features // 2, mixed=True, positions=True)


def _mixer(method: str) -> Callable[[Kind, int], MixerConfig]:
    return lambda kind, _: config_class(method)()


FAMILIES: dict[str, Family] = {
    # A window as long as the text is full attention, with slots allocated once, as a serving system has them.
    "full": Family("full attention", (), lambda _, room: SWA(room, 0), lambda _: Attention(None), True),
    "full_growing": Family(
        "full attention, cache grown by copying", (), lambda *_: Full(), lambda _: Attention(None), True
    ),
    "swa": Family(
        "SWA({w}, {s})",
        ("window", "sinks"),
        lambda kind, _: SWA(kind.window, kind.sinks),
        lambda kind: Attention(kind.window),
    ),
    "hedgehog": Family(
        "linear (Hedgehog), F = {f}",
        ("features",),
        lambda kind, _: config_class("hedgehog")(width=kind.features // 2),
        lambda kind: Attention(0, 0, kind.features, True, kind.features // 2),
    ),
    "lolcats": Family("LoLCATs, window {w}, F = {f}", ("window", "features"), _lolcats, _hybrid),
}
FAMILIES |= {name: Family(name, (), _mixer(name)) for name in METHODS if name not in FAMILIES}
FAMILIES |= {
    name: Family(label, (), FAMILIES[name].spec)
    for name, label in {
        "gla": "GLA",
        "gated_deltanet": "Gated DeltaNet",
        "liger": "Liger-GLA",
        "supra": "SUPRA",
        "dijiang": "DiJiang",
        "qlinatt": "QLinAtt",
        "mohawk": "MOHAWK",
        "llamba": "Llamba",
        "mamba_in_llama": "Mamba in the Llama",
        "rwkv6": "RWKV-6",
        "rwkv7": "RWKV-7",
        "qrwkv6": "QRWKV6",
        "qrwkv7": "QRWKV7",
        "arwkv": "ARWKV",
    }.items()
}


def kinds(
    windows: Sequence[int],
    sinks: int,
    features: Sequence[int],
    hybrid_windows: Sequence[int],
    mixers: Sequence[str],
) -> list[Kind]:
    """Full attention, SWA(w, sinks), linear attention and LoLCATs at every size given, and other mixers."""
    found = [Kind("full"), *(Kind("swa", w, sinks) for w in windows)]
    found += [Kind("hedgehog", features=f) for f in features]
    found += [Kind("lolcats", w, features=f) for w in hybrid_windows for f in features]
    return found + [Kind(name) for name in mixers]
