"""The linearisation methods: recurrences, feature maps, and a mixer each. `METHODS` names them all."""

from importlib import import_module
from typing import TYPE_CHECKING

from swalib.spec import MixerConfig

if TYPE_CHECKING:
    from swalib.linear.mixer import Mixer

# method -> module and mixer class; imported when first asked for
METHODS = {
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
