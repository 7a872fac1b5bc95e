"""The linearisation methods: recurrences, feature maps, and a mixer each. `METHODS` names them all."""

from importlib import import_module
from typing import TYPE_CHECKING

from swalib.spec import MixerConfig

if TYPE_CHECKING:
    from swalib.linear.mixer import Mixer

# method -> module and mixer class; imported when first asked for
METHODS = {
    "lolcats": ("lolcats", "LoLCATs"),
    "hedgehog": ("hedgehog", "Hedgehog"),
    "liger": ("liger", "Liger"),
    "supra": ("supra", "SUPRA"),
    "dijiang": ("dijiang", "DiJiang"),
    "mohawk": ("mamba2", "Mohawk"),
    "llamba": ("mamba2", "Llamba"),
    "mamba_in_llama": ("mamba_in_llama", "MambaInLlama"),
    "gla": ("gla", "GLA"),
    "gated_deltanet": ("gated_deltanet", "GatedDeltaNet"),
    "rwkv6": ("rwkv6", "RWKV6"),
    "qrwkv6": ("qrwkv6", "QRWKV6"),
    "rwkv7": ("rwkv7", "RWKV7"),
    "qrwkv7": ("qrwkv7", "QRWKV7"),
    "arwkv": ("arwkv", "ARWKV"),
    "qlinatt": ("qlinatt", "QLinAtt"),
}


def mixer_class(method: str) -> "type[Mixer]":
    """The mixer of a method.

    Raises:
        ValueError: there is no such method.
    """
    if method not in METHODS:
        raise ValueError(f"a linear method is one of {', '.join(METHODS)}, got {method!r}")
    module, name = METHODS[method]
    return getattr(import_module(f"swalib.linear.{module}"), name)


def config_class(method: str) -> type[MixerConfig]:
    """The config of a method; raises as `mixer_class`."""
    return mixer_class(method).Config
