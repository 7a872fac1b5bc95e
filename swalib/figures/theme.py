"""Which colour is which method, and which line is which layer of a number? The one place that knows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A method's name on the page, and its colour on light and on dark paper; colour-blind safe."""

    label: str
    light: str
    dark: str


METHODS = {
    "full": Method("full attention", "#333333", "#DDDDDD"),
    "sinks": Method("SWA with sinks", "#0072B2", "#56B4E9"),
    "dense_prefill": Method("dense prefill, then evict", "#4FA3D9", "#A9D8F5"),
    "no_sinks": Method("SWA without sinks", "#D55E00", "#FF8C42"),
    "lolcats": Method("LoLCATs", "#009E73", "#3CC9A0"),
    "liger": Method("Liger-GLA", "#CC79A7", "#E6A1C8"),
    "gla": Method("GLA", "#B8860B", "#E6B800"),
    "gated_deltanet": Method("Gated DeltaNet", "#6A51A3", "#A895D6"),
    "rwkv": Method("RWKV family", "#8C2D04", "#E08A5C"),
    "other": Method("other linear methods", "#7F7F7F", "#7F7F7F"),
    "chance": Method("chance", "#8A8A8A", "#9A9A9A"),
}

LAYERS = {
    "measured": {"dash": "solid", "symbol": "circle"},
    "printed": {"dash": "dash", "symbol": "circle-open"},
    "source": {"dash": "dot", "symbol": "circle-open"},
}

PAGE = {
    "light": {
        "ink": "#222832",
        "muted": "#5A6270",
        "axis": "#9AA3AF",
        "grid": "#E9ECEF",
        "paper": "#FFFFFF",
        "faint": "#F1F3F5",
        "accent": "#FF4FA3",
    },
    "dark": {
        "ink": "#CED6DD",
        "muted": "#9DA6B1",
        "axis": "#6B7480",
        "grid": "#2B3139",
        "paper": "#14181E",
        "faint": "#222832",
        "accent": "#FF7EB6",
    },
}

# Viridis at nine even steps: one-sided, even to the eye, readable in grey.
_VIRIDIS = ["#440154", "#472D7B", "#3B528B", "#2C728E", "#21918C", "#28AE80", "#5EC962", "#ADDC30", "#FDE725"]
# Blue to orange through the paper's own colour: only around a meaningful zero.
_DIVERGING = {"light": ["#0072B2", "#F7F7F7", "#D55E00"], "dark": ["#56B4E9", "#222832", "#FF8C42"]}


def _scale(colours: list[str]) -> list[list]:
    return [[index / (len(colours) - 1), colour] for index, colour in enumerate(colours)]


def palette() -> dict:
    """The whole theme as JSON-able data, as the scripts in `book/assets` receive it with every figure."""
    pages = {
        mode: {
            **PAGE[mode],
            "methods": {name: getattr(method, mode) for name, method in METHODS.items()},
            "labels": {name: method.label for name, method in METHODS.items()},
            "sequential": _scale(_VIRIDIS),
            "diverging": _scale(_DIVERGING[mode]),
        }
        for mode in PAGE
    }
    return {"layers": LAYERS, **pages}


def legend() -> str:
    """The methods and their colours as HTML for a page of prose, right on light paper and on dark."""
    swatch = '<svg class="swa-{mode}" width="14" height="14" aria-hidden="true"><rect width="14" height="14" '
    items = [
        "".join(
            swatch.format(mode=mode) + f'fill="{colour}"/></svg>'
            for mode, colour in (("light", method.light), ("dark", method.dark))
        )
        + f" {method.label}"
        for method in METHODS.values()
    ]
    return '<ul class="swa-legend">' + "".join(f"<li>{item}</li>" for item in items) + "</ul>\n"
