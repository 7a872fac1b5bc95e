"""How do notebooks, prose and stored results become a site that opens from a folder, with no network?"""

import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path

from swalib import provenance, results
from swalib.figures.theme import legend
from swalib.glued import fill, glued
from swalib.notebooks import BookError, Run, lint, names, run_notebook
from swalib.provenance import ROOT
from swalib.site import check
from swalib.wheels import Asset, Wheel, fetch

__all__ = ["BookError", "build", "check", "run_notebook"]

# The one file of MathJax 3.2.2 with all of TeX and its glyphs: no font or extension is fetched later.
MATHJAX = Asset(
    file="mathjax-3.2.2-tex-svg-full.js",
    wheels=(
        Wheel(
            "sphinx-mathjax-offline",
            "0.0.2",
            "206418155b2ff2f57496fb8501fdccae3da978e53031ff296c73729ba16062c4",
        ),
    ),
    members="sphinx-mathjax-offline/static/mathjax/tex-svg-full.js",
    sha256="a4354ff94fd868aea0cc6eaaa79a57fda0588646fc46ee3700a349ee0a11cbe6",
    size_bytes=2275113,
)
# Jupyter Book's own build without sphinx-thebe, which puts a script and the address of a CDN on every page.
SPHINX = """
import sys
from pathlib import Path
from jupyter_book.config import get_final_config
from jupyter_book.sphinx import build_sphinx

source, html = map(Path, sys.argv[1:])
options = {"external_toc_path": str(source / "_toc.yml"), "latex_individualpages": False}
config, _ = get_final_config(user_yaml=source / "_config.yml", cli_config=dict(options), sourcedir=source)
options["extensions"] = [name for name in config["extensions"] if name != "sphinx_thebe"]
strict = {"warningiserror": True, "keep_going": True, "freshenv": True, "noconfig": True}
failed = build_sphinx(source, html, path_config=source / "_config.yml", confoverrides=options, **strict)
sys.exit(bool(failed))
"""
SHOWN_VERSIONS = ("swalib", "torch", "transformers", "numpy", "pandas", "plotly", "jupyter-book", "papermill")


def build(preset: str = "cpu", root: Path = ROOT) -> Path:
    """Run every notebook under `preset`, build the HTML book, check it, and return the page to open.

    `root` holds _config.yml, _toc.yml, book/ and notebooks/; all that is made goes to root/_build.
    Raises BookError (NotebookFailed when a cell raises); notebooks that ran before it stay in _build/src.
    """
    if faults := lint(root / "notebooks"):
        raise BookError("\n".join(faults))
    source = root / "_build" / "src"
    _assemble(root, source)
    runs = [_run(name, preset, root, source) for name in names(root / "notebooks")]
    _lay_out_figures(source, runs)
    _fill_pages(source, runs)
    _write_status(root, runs, preset)
    html = _sphinx(root, source)
    _drop_font_preloads(html)
    check(html)
    return html / "index.html"


def status(root: Path = ROOT) -> dict:
    """The last build's preset, date, and seconds of each notebook; empty before the first build."""
    path = root / "_build" / "status.json"
    return json.loads(path.read_text()) if path.exists() else {}


def experiments() -> list[dict[str, object]]:
    """One row for each stored experiment: how many runs and rows, when and where the last was measured."""
    table = []
    for path in sorted(results.results_folder().glob("*.csv")):
        rows = results.read(path.stem)
        last = rows.loc[rows["date"].idxmax()] if len(rows) else {}
        table.append(
            {
                "experiment": path.stem,
                "runs": rows["run_key"].nunique(),
                "rows": len(rows),
                "last measured": last["date"],
                "on": last["hardware"],
            }
        )
    return table


def _assemble(root: Path, source: Path) -> None:
    """Lay out _build/src with the repository's own paths: launch buttons make their address from them."""
    for needed in ("_config.yml", "_toc.yml", "book"):
        if not (root / needed).exists():
            raise BookError(f"{root} has no {needed}: run this in a checkout of the repository.")
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    for file in ("_config.yml", "_toc.yml"):
        shutil.copy(root / file, source)
    ignore = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for folder in ("book", "swalib"):
        if (root / folder).is_dir():
            shutil.copytree(root / folder, source / folder, ignore=ignore)
    # Jupyter Book would load every script of a folder called _static.
    vendor = source / "vendor"
    assets = root / "book" / "assets"
    shutil.copytree(assets, vendor) if assets.is_dir() else vendor.mkdir()
    shutil.copy(resources.files("plotly") / "package_data" / "plotly.min.js", vendor)
    shutil.copy(fetch(MATHJAX), vendor / "mathjax.js")


def _run(name: str, preset: str, root: Path, source: Path) -> Run:
    print(f"running {name}", file=sys.stderr, flush=True)
    return run_notebook(name, preset, out=source / "notebooks" / f"{name}.ipynb", folder=root / "notebooks")


def _lay_out_figures(source: Path, runs: list[Run]) -> None:
    """Each figure of each chapter, and the legend, as figures/<id>.html, which pages of prose can include."""
    folder = source / "figures"
    folder.mkdir()
    (folder / "legend.html").write_text(legend(), encoding="utf-8")
    for run in runs:
        for cell in json.loads(run.path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                shown = "".join(output.get("data", {}).get("text/html", []))
                if found := re.search(r'<figure class="swa-figure" id="([a-z0-9-]+)"', shown):
                    (folder / f"{found[1]}.html").write_text(shown, encoding="utf-8")


def _fill_pages(source: Path, runs: list[Run]) -> None:
    """Put the chapters' numbers into the pages of prose that show them."""
    chapters = {run.name: glued(run.path) for run in runs}
    for page in sorted((source / "book").rglob("*.md")):
        page.write_text(fill(page.read_text(encoding="utf-8"), chapters), encoding="utf-8")


def _write_status(root: Path, runs: list[Run], preset: str) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    seconds = {run.name: round(run.seconds, 1) for run in runs}
    record = {"preset": preset, "date": now, "seconds": seconds}
    (root / "_build" / "status.json").write_text(json.dumps(record, indent=1) + "\n")
    versions = [
        ("Python", sys.version.split()[0]),
        *((name, metadata.version(name)) for name in SHOWN_VERSIONS),
    ]
    measured = [list(row.values()) for row in experiments()]
    page = [
        "# Status",
        f"Built {now} from commit `{provenance.commit()}`, preset `{preset}`, on {provenance.hardware()}.",
        "## Notebooks",
        _markdown(["notebook", "seconds in this build"], seconds.items()),
        "## Measured results",
        _markdown(["experiment", "runs", "rows", "last measured", "on"], measured),
        "## Versions",
        _markdown(["package", "version"], versions),
    ]
    (root / "_build" / "src" / "book" / "status.md").write_text("\n\n".join(page) + "\n")


def _markdown(head: list[str], rows: object) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _drop_font_preloads(html: Path) -> None:
    """Undo the theme's preloading of icon fonts, which a browser refuses, loudly, on file:// pages."""
    for page in html.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(r"<link rel=\"preload\" as=\"font\"[^>]*>\s*", "", text), encoding="utf-8")


def _sphinx(root: Path, source: Path) -> Path:
    html, log = root / "_build" / "html", root / "_build" / "book.log"
    shutil.rmtree(html, ignore_errors=True)
    print("building the pages", file=sys.stderr, flush=True)
    with log.open("w") as out:
        command = [sys.executable, "-c", SPHINX, str(source), str(html)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        lines = log.read_text(errors="replace").splitlines()
        told = [line for line in lines if "WARNING" in line or "ERROR" in line] or lines[-3:]
        raise BookError("\n".join([f"the book has faults (all of it: {log}):", *told]))
    return html
