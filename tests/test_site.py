"""A page that would need the network, a kernel or a lost file is named with what it asks for."""

from pathlib import Path

import pytest

from swalib.notebooks import BookError
from swalib.site import check


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            '<script src="https://cdn.example/x.js"></script>',
            "loads https://cdn.example/x.js from the network",
        ),
        (
            '<script>import("https://cdn.example/y.mjs")</script>',
            "loads https://cdn.example/y.mjs from the network",
        ),
        ('<link rel="preload stylesheet" href="//fonts.example/a.css">', "loads //fonts.example/a.css from"),
        (
            '<img src="there.png" srcset="there.png 1x, https://i.example/2.png 2x">',
            "https://i.example/2.png",
        ),
        ("<p style=\"background: url('http://i.example/b.png')\">", "http://i.example/b.png"),
        ('<style>@import "https://f.example/c.css";</style>', "https://f.example/c.css"),
        ('<img src="gone.png">', "loads gone.png, which is not there"),
        ('<img src="/there.png">', "loads /there.png, which is not there"),
        ('<a href="gone.html#top">x</a>', "links to gone.html#top, which is not there"),
        ('<script type="application/vnd.jupyter.widget-view+json">{}</script>', "shows a Jupyter widget"),
    ],
)
def test_check_names_the_page_and_the_address(tmp_path: Path, body: str, says: str):
    page = tmp_path / "page.html"
    (tmp_path / "there.png").touch()
    fine = """<link rel="canonical" href="https://a.example/"><a href="https://a.example/x.js">out</a>
    <script type="application/json">{"a": "https://a.example/z.js"}</script><img src="there.png?digest=1">
    <img src="data:image/png;base64,AA=="><a href="page.html?x=1#y">self</a><a href="#top">x</a>
    <a href="mailto:x@y">m</a>"""
    page.write_text(fine)
    check(tmp_path)
    page.write_text(fine + body)
    with pytest.raises(BookError) as caught:
        check(tmp_path)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{page} ")


def test_check_reads_stylesheets_and_wants_a_page(tmp_path: Path):
    with pytest.raises(BookError, match="holds no page"):
        check(tmp_path)
    (tmp_path / "page.html").write_text("")
    (tmp_path / "a.css").write_text("@font-face { src: url(https://f.example/a.woff2) }")
    with pytest.raises(BookError, match=r"a\.css loads https://f\.example/a\.woff2 from the network"):
        check(tmp_path)
