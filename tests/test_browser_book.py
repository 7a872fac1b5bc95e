"""The book itself, built from the stored rows and opened page by page in a real browser."""

import itertools
import os
import shutil

import numpy as np
import pytest
from browser import open_page, running_browser

from swalib import book, results
from swalib.provenance import ROOT

pytestmark = pytest.mark.browser

PAGES = {
    "book/intro.html": ["perplexity-by-window"],
    "book/verdicts.html": [],
    "notebooks/01_sinks.html": [
        "collapse",
        "perplexity-map",
        "perplexity-by-window",
        "attention-mass",
        "sink-kinds",
        "kv-calculator",
    ],
    "notebooks/02_method.html": [
        "mask-explorer",
        "reach",
        "conventions",
        "cache-slots",
        "positions",
        "stream",
        "prefill",
    ],
    "notebooks/03_linear_attention.html": ["linear-state", "recall", "feature-maps", "effective-masks"],
    "notebooks/04_short_context.html": [
        "printed-table-1",
        "claim-calculator",
        "printed-table-2",
        "short-scores",
        "short-lengths",
    ],
    "notebooks/05_needles.html": [
        "printed-table-3",
        "needle-ratios",
        "needle-null",
        "needle-lengths",
        "needle-depths",
        "needle-scores",
        "needle-beyond",
    ],
    "notebooks/06_babilong.html": [
        "printed-table-4",
        "printed-table-6",
        "babilong-printed",
        "babilong-measured",
        "babilong-facts",
    ],
    "notebooks/07_generation.html": ["needle-reach", "influence", "continuations"],
    "notebooks/08_systems.html": [
        "systems-memory",
        "systems-flops",
        "systems-speed",
        "systems-batch",
        "systems-roofline",
        "systems-launches",
    ],
    "book/use.html": [],
    "book/differ.html": ["short-variants"],
    "book/reading.html": [],
    "book/glossary.html": [],
    "book/references.html": [],
    "book/status.html": [],
}


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The book, built as `make book` does, in a folder of its own."""
    root = tmp_path_factory.mktemp("book")
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(ROOT / name, root)
    for name in ("book", "notebooks", "swalib"):
        shutil.copytree(ROOT / name, root / name)
    before = os.environ.get("SWALIB_RESULTS")
    os.environ["SWALIB_RESULTS"] = str(ROOT / "results")
    try:
        return book.build("cpu", root).parent
    finally:
        os.environ.pop("SWALIB_RESULTS")
        os.environ |= {} if before is None else {"SWALIB_RESULTS": before}


@pytest.fixture(scope="module", autouse=True)
def _one_browser_for_all_pages(html):
    with running_browser():
        yield


def test_no_page_is_forgotten(html):
    built = {str(path.relative_to(html)) for path in html.rglob("*.html") if "_static" not in path.parts}
    assert built - {"index.html", "genindex.html", "search.html"} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_opens_from_its_folder_quietly_drawn_and_fitting(html, name):
    """Wide and light; then narrow and dark, as when a window is made smaller at night."""
    with open_page(html / name, width=1280) as opened:
        opened.wait_drawn()
        ids = opened.page.eval_on_selector_all(".swa-figure", "all => all.map((one) => one.id)")
        assert ids == PAGES[name]
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 1280
        opened.page.emulate_media(color_scheme="dark")
        opened.page.set_viewport_size({"width": 390, "height": 900})
        opened.page.wait_for_function("document.documentElement.scrollWidth <= 390", timeout=60_000)
        opened.wait_drawn()
        opened.assert_quiet()


def test_the_sliders_draw_the_stored_rows(html):
    rows = results.read("sinks", ROOT / "results")
    chosen = {"model": "smollm2-135m", "task": "essay", "metric": "loss", "positions": "text"}
    rows = rows[(rows[list(chosen)] == list(chosen.values())).all(axis=1)]
    with open_page(html / "notebooks" / "01_sinks.html") as opened:
        opened.wait_drawn()
        for window, sinks in [(128, 4), (16, 1)]:
            opened.slide("collapse", "window", window)
            opened.slide("collapse", "sinks", sinks)
            key = rows.query("window == @window and sinks == @sinks")["run_key"].item()
            losses = np.load(ROOT / "results" / "runs" / f"{key}.npz")["losses"].astype(float).mean(0)
            edges = [0, *(round(8 * 2 ** (step / 4)) for step in range(32)), len(losses)]
            expected = [losses[a:b].mean() for a, b in itertools.pairwise(edges)]
            drawn = [trace["y"] for trace in opened.traces("collapse") if trace["y"]]
            assert any(len(y) == len(expected) and np.allclose(y, expected, rtol=1e-4) for y in drawn)
