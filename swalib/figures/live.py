"""What does the collapse look like on your own text? A panel that runs the model, for JupyterLab."""

import os
from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from swalib.figures.show import STATIC, Figure
from swalib.figures.sinks import collapse

Compute = Callable[[str, int, int, str], pd.DataFrame]

WINDOWS = (16, 32, 64, 128, 256, 512, 1024)
SINKS = (0, 1, 2, 4, 8, 16)
ELSEWHERE = "In JupyterLab (`make lab`) this cell is a panel that runs the model on a text of your own."


def panel(compute: Compute, text: str = "", window: int = 64, sinks: int = 4):
    """A text area, w, s and positions, and a button that measures the text and redraws the collapse.

    `compute(text, window, sinks, positions)` returns the rows of `collapse` for full attention, SWA(window,
    0) and SWA(window, sinks). What it raises is shown as one sentence and leaves the last figure in place.
    While the book is built (`SWALIB_STATIC=1`) there is no kernel to run on: a note says where to find the
    panel instead.
    """
    if os.environ.get(STATIC) == "1":
        from IPython.display import Markdown

        return Markdown(ELSEWHERE)
    return _build(compute, text, window, sinks)


def live_collapse(rows: pd.DataFrame, window: int, sinks: int) -> Figure:
    """The collapse of one text under one SWA(window, sinks), without sliders of its own."""
    caption = "Measured just now on this text: loss per token, and where the window starts to slide."
    figure = collapse(rows, caption=caption, id="live-collapse", window=window, sinks=sinks)
    return replace(figure, data={**figure.data, "sinks": [sinks]})


def _build(compute: Compute, text: str, window: int, sinks: int):
    import ipywidgets as widgets

    wide = widgets.Layout(width="auto")
    area = widgets.Textarea(
        value=text, placeholder="Your own text, a few hundred words or more", rows=8, layout=wide
    )
    width = widgets.SelectionSlider(options=WINDOWS, value=window, description="window w")
    count = widgets.SelectionSlider(options=SINKS, value=sinks, description="sinks s")
    place = widgets.Dropdown(options=["text", "cache"], value="text", description="positions")
    button = widgets.Button(description="Run", button_style="primary")
    status, shown = widgets.Label(), widgets.VBox([], layout=wide)

    def run(_button) -> None:
        button.disabled, status.value = True, "Running the model on this text …"
        try:
            _measure(compute, (area.value, width.value, count.value, place.value), shown)
            status.value = ""
        # Whatever the model raises belongs under the button as a sentence, not in a log nobody opens.
        except Exception as error:
            status.value = " ".join(str(error).split()) or type(error).__name__
        finally:
            button.disabled = False

    button.on_click(run)
    controls = widgets.HBox([width, count, place, button], layout=widgets.Layout(flex_flow="row wrap"))
    return widgets.VBox([area, controls, status, shown])


def _measure(compute: Compute, settings: tuple[str, int, int, str], shown) -> None:
    _, window, sinks, _ = settings
    if sinks >= window:
        raise ValueError(f"s must be below w: s = {sinks} leaves no room in w = {window}.")
    figure = live_collapse(compute(*settings), window, sinks)
    if shown.children:
        shown.children[0].holder = figure.html()
    else:
        shown.children = (figure.widget(),)
