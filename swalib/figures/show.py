"""How does one figure reach the book, JupyterLab and a page without scripts? One holder, one script.

In the book a figure is its static MIME bundle: the holder (drawn by the scripts in `book/assets`), the alt
text and the stored picture, if there is one. It is chosen by the environment variable `SWALIB_STATIC=1`,
which `swalib.book` sets while it runs the notebooks. Everywhere else (JupyterLab, VS Code) the same holder
lives in an anywidget, whose module is the very same script text.
"""

import base64
import html
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from swalib.figures.theme import palette

ASSETS = Path(__file__).resolve().parents[2] / "book" / "assets"
PICTURES = ASSETS / "pictures"
STATIC = "SWALIB_STATIC"
SCRIPTS = (
    "swa-core.js",
    "swa-plot.js",
    "swa-sinks.js",
    "swa-kinds.js",
    "swa-heat.js",
    "swa-method.js",
    "swa-cache.js",
    "swa-stream.js",
    "swa-linear.js",
    "swa-recall.js",
    "swa-tables.js",
    "swa-claims.js",
    "swa-short.js",
    "swa-short-variants.js",
    "swa-needles.js",
    "swa-systems.js",
    "swa-babilong.js",
    "swa-influence.js",
    "swa-generation.js",
)

_RENDER = """
async function loadPlotly(model) { if (globalThis.Plotly) return; const source = await
model.widget_manager.get_model(model.get("plotly").slice("IPY_MODEL_".length)); const url =
URL.createObjectURL(new Blob([source.get("code")], { type: "text/javascript" })); await new Promise((done,
failed) => { const script = document.createElement("script"); Object.assign(script, { src: url, onload: done,
onerror: () => failed(new Error("plotly.js did not load")) }); document.head.append(script); }); } export
default { async render({ model, el }) { globalThis.swaPlotly ??= loadPlotly(model).catch((error) => { delete
globalThis.swaPlotly; throw error; }); await globalThis.swaPlotly; let holder; const show = () => { if
(holder) SWA.unmount(holder); el.innerHTML = model.get("holder"); holder = el.querySelector(".swa-figure");
SWA.mount(holder); }; model.on("change:holder", show); show(); return () => { model.off("change:holder",
show); SWA.unmount(holder); }; }, };
"""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the book: data and words in, no number computed.

    `kind` names the registered script that draws it, `title` the question it asks, `alt` what a reader who
    can't see it must know, `caption` the conclusion. `data` is any JSON-able object; a missing number is
    None. `id` is unique in the book (lower-case words joined by hyphens) and names the stored picture
    `book/assets/pictures/<id>.png`.

    Raises ValueError for an empty or malformed field and TypeError for data that JSON can't hold.
    """

    id: str
    kind: str
    title: str
    data: dict
    alt: str
    caption: str

    def __post_init__(self):
        for field in ("kind", "title", "alt", "caption"):
            if not getattr(self, field).strip():
                raise ValueError(f"figure {self.id!r} needs a non-empty {field}.")
        if not self.id or not self.id.replace("-", "").isalnum() or self.id != self.id.lower():
            raise ValueError(f"figure id {self.id!r} must be lower-case letters, digits and hyphens.")
        self.payload()

    def payload(self) -> str:
        """The JSON block a script draws from: data, alt text and theme; safe inside a `<script>` element."""
        block = {"data": self.data, "alt": self.alt, "theme": palette()}
        try:
            return json.dumps(block, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"figure {self.id!r} holds data that JSON can't: {error} (write None for missing)."
            ) from error

    def html(self) -> str:
        """The holder: title, JSON block, a picture or the alt text for readers without scripts, caption."""
        return (
            f'<figure class="swa-figure" id="{self.id}" data-kind="{html.escape(self.kind)}">'
            f'<p class="swa-title">{html.escape(self.title)}</p>'
            f'<script type="application/json">{self.payload()}</script>'
            f"<noscript>{self._fallback()}</noscript>"
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )

    def _fallback(self) -> str:
        picture = self.picture()
        if picture is None:
            return f"<p>{html.escape(self.alt)}</p>"
        source = base64.b64encode(picture).decode()
        return (
            f'<img class="swa-fallback" alt="{html.escape(self.alt)}" src="data:image/png;base64,{source}">'
        )

    def picture(self) -> bytes | None:
        """The stored PNG of this figure, None where none was made."""
        path = PICTURES / f"{self.id}.png"
        return path.read_bytes() if path.exists() else None

    def static_bundle(self) -> dict[str, str]:
        """The MIME bundle for the book: holder, alt text and, where one is stored, the picture."""
        bundle = {"text/html": self.html(), "text/plain": self.alt}
        if (picture := self.picture()) is not None:
            bundle["image/png"] = base64.b64encode(picture).decode()
        return bundle

    def widget(self):
        """The live figure as an anywidget; its `holder` trait takes another figure's `html()`."""
        return _widget_class()(holder=self.html(), plotly=_plotly())

    def _repr_mimebundle_(self, include=None, exclude=None):
        if os.environ.get(STATIC) == "1":
            return self.static_bundle()
        return self.widget()._repr_mimebundle_(include=include, exclude=exclude)


def asset(name: str) -> str:
    """The text of a script or style sheet in `book/assets`; RuntimeError where there is none."""
    path = ASSETS / name
    if not path.exists():
        raise RuntimeError(
            f"{name} is not in {ASSETS}: figures need a clone of the repository (pip install -e '.[book]')."
        )
    return path.read_text(encoding="utf-8")


def module() -> str:
    """The scripts of the book as one ES module for JupyterLab."""
    return "\n".join(["globalThis.swaByHand = true;", *(asset(name) for name in SCRIPTS), _RENDER])


@cache
def _widget_class() -> type:
    import anywidget
    import ipywidgets
    import traitlets

    class FigureWidget(anywidget.AnyWidget):
        _esm = module()
        _css = asset("swa.css")
        holder = traitlets.Unicode().tag(sync=True)
        plotly = traitlets.Instance(anywidget.AnyWidget).tag(sync=True, **ipywidgets.widget_serialization)

    return FigureWidget


@cache
def _plotly():
    """plotly.js travels to the browser once a kernel, as a widget that every figure points to."""
    import anywidget
    import plotly.offline
    import traitlets

    class PlotlySource(anywidget.AnyWidget):
        _esm = "export default {};"
        code = traitlets.Unicode().tag(sync=True)

    return PlotlySource(code=plotly.offline.get_plotlyjs())
