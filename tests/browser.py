"""A real browser for tests: headless Chromium on a local page, keeping its complaints and requests."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import plotly.offline
from playwright.sync_api import Browser, Page, sync_playwright

from swalib.figures import show

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Generous: a busy machine may be slow, and no test is about time.
PATIENCE_MS = 240_000
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@dataclass
class Opened:
    """A page, its console errors and uncaught exceptions, and the requests that left the machine."""

    page: Page
    errors: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def hear(self, message) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def watch(self, request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.left.append(request.url)

    def wait_drawn(self) -> int:
        """Wait until every figure on the page is drawn; returns how many there are."""
        count = self.page.locator(".swa-figure").count()
        self.page.wait_for_function(
            "count => document.querySelectorAll('.swa-figure[data-ready]').length === count", arg=count
        )
        return count

    def traces(self, id: str) -> list[dict]:
        """The drawn data of figure `id`: name, x, y and z of each trace as Plotly holds them."""
        plot = "document.getElementById(id).__swa.plot"
        return self.page.evaluate(
            f"id => {plot}.data.map(({{ name, x, y, z }}) => ({{ name, x, y, z }}))", id
        )

    def slide(self, id: str, name: str, value) -> None:
        """Move slider `name` of figure `id` to `value` by keyboard, and wait until the figure shows it."""
        slider = f"#{id}-{name}"
        self.page.focus(slider)
        for step in range(int(self.page.get_attribute(slider, "max")) + 1):
            self.page.keyboard.press("ArrowRight" if step else "Home")
            # On a busy machine a key's event may come late; two frames after it, it has been heard.
            reached = "([slider, step]) => +document.querySelector(slider).value === step"
            self.page.wait_for_function(reached, arg=[slider, step])
            self.page.evaluate("new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))")
            if self.state(id)[name] == value:
                return
        raise AssertionError(f"slider {name} of {id} has no value {value}")

    def state(self, id: str) -> dict:
        """The state that figure `id` was last drawn with."""
        drawn = "f => f.dataset.state === JSON.stringify(f.__swa.state)"
        self.page.wait_for_function(f"id => ({drawn})(document.getElementById(id))", arg=id)
        return json.loads(self.page.get_attribute(f"#{id}", "data-state"))

    def assert_quiet(self) -> None:
        """No console error, and no request to anything but local files."""
        assert not self.errors, self.errors
        assert not self.left, self.left


_running: list[Browser] = []


@contextmanager
def running_browser() -> Iterator[Browser]:
    """The browser already open, or a new one: a second Playwright inside the first is refused."""
    if _running:
        yield _running[0]
        return
    with sync_playwright() as playwright:
        _running.append(playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS))
        try:
            yield _running[0]
        finally:
            _running.pop().close()


@contextmanager
def open_page(
    path: Path | str, width: int = 1280, height: int = 900, dark: bool = False, reduced_motion: bool = False
) -> Iterator[Opened]:
    """Open the HTML file at `path` over file://, in a window of the given size and colour scheme."""
    with running_browser() as browser:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if reduced_motion else "no-preference",
        )
        context.set_default_timeout(PATIENCE_MS)
        opened = Opened(context.new_page())
        opened.page.on("console", opened.hear)
        opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
        opened.page.on("request", opened.watch)
        try:
            opened.page.goto(Path(path).resolve().as_uri())
            yield opened
        finally:
            context.close()


def write_page(folder: Path, figures: list[show.Figure]) -> Path:
    """A bare page holding `figures`, with the book's own scripts and a local plotly.js beside it."""
    names = ["plotly.min.js", *show.SCRIPTS]
    (folder / "plotly.min.js").write_text(plotly.offline.get_plotlyjs(), encoding="utf-8")
    for name in [*show.SCRIPTS, "swa.css"]:
        shutil.copy(show.ASSETS / name, folder / name)
    scripts = "".join(f'<script src="{name}"></script>' for name in names)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>figures</title>'
        f'<link rel="stylesheet" href="swa.css">{scripts}'
    )
    body = "".join(figure.html() for figure in figures)
    path = folder / "index.html"
    page = f'<!doctype html><html lang="en"><head>{head}</head><body><main>{body}</main></body></html>'
    path.write_text(page, encoding="utf-8")
    return path
