"""Does a built page open with no network, and is everything that it shows there?"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from swalib.notebooks import BookError

# What a browser fetches by itself; a plain <a href> is only followed by the reader.
LOADED = {
    **{tag: ("src",) for tag in ("script", "iframe", "embed", "audio", "track")},
    **{
        "img": ("src", "srcset"),
        "source": ("src", "srcset"),
        "video": ("src", "poster"),
        "object": ("data",),
    },
    **{"image": ("href", "xlink:href"), "use": ("href", "xlink:href")},
}
LOADED_LINKS = {
    "stylesheet",
    "icon",
    "shortcut",
    "apple-touch-icon",
    "preload",
    "modulepreload",
    "prefetch",
    "manifest",
}
CSS_URL = re.compile(r"""(?:url\(\s*|@import\s+)['"]?([^'")\s]+)""")
REMOTE_SCRIPT = re.compile(r"""["'`]((?:https?:)?//[^"'`\s]+\.m?js[^"'`\s]*)""")
WIDGET = "application/vnd.jupyter.widget-view+json"


class _Page(HTMLParser):
    """Collects what one page loads (`loads`), where it links to (`links`), and its ids."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.widget = False
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        for name in LOADED.get(tag, ()):
            parts = given.get(name, "").split(",") if name == "srcset" else [given.get(name, "")]
            self.loads += [part.split()[0] for part in parts if part.strip()]
        if tag == "link" and LOADED_LINKS & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        if tag == "a":
            self.links.append(given.get("href", ""))
        self.loads += CSS_URL.findall(given.get("style", ""))
        self.widget |= tag == "script" and given.get("type") == WIDGET
        is_script = tag == "script" and given.get("type", "text/javascript") in ("text/javascript", "module")
        self._inside = "script" if is_script else tag if tag == "style" else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.loads += CSS_URL.findall(data)
        elif self._inside == "script":
            self.loads += REMOTE_SCRIPT.findall(data)


def check(html: Path) -> None:
    """Raise BookError naming the page and the address if a page of `html` needs anything that isn't there.

    Looked at: scripts, styles, fonts, images and frames of every page, addresses in every stylesheet, links
    between pages, and widgets, which only a kernel could draw.
    """
    # The theme leaves templates of its own among the static files.
    pages = sorted(path for path in html.rglob("*.html") if "_static" not in path.parts)
    if not pages:
        raise BookError(f"{html} holds no page: build the book first.")
    faults = [fault for page in pages for fault in _page_faults(page)]
    faults += [fault for sheet in sorted(html.rglob("*.css")) for fault in _sheet_faults(sheet)]
    if faults:
        more = f" (and {len(faults) - 1} more like it)" if len(faults) > 1 else ""
        raise BookError(faults[0] + more)


def _page_faults(path: Path) -> Iterator[str]:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    if page.widget:
        yield f"{path} shows a Jupyter widget, which stays blank without a kernel: show a figure there."
    yield from _load_faults(path, page.loads)
    for link in page.links:
        if urlsplit(link).scheme == urlsplit(link).netloc == "" and not _is_there(path, link):
            yield f"{path} links to {link}, which is not there."


def _sheet_faults(path: Path) -> Iterator[str]:
    return _load_faults(path, CSS_URL.findall(path.read_text(encoding="utf-8")))


def _load_faults(path: Path, addresses: list[str]) -> Iterator[str]:
    for address in addresses:
        parts = urlsplit(address)
        if parts.scheme in ("http", "https") or parts.netloc:
            yield f"{path} loads {address} from the network: put a copy into the book."
        elif parts.scheme != "data" and not _is_there(path, address):
            yield f"{path} loads {address}, which is not there."


def _is_there(path: Path, address: str) -> bool:
    target = unquote(urlsplit(address).path)
    return not target or (not target.startswith("/") and (path.parent / target).exists())
