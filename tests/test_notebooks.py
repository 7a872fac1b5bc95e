"""Every chapter runs from its first cell to its last, at toy size, and stores nothing."""

import json

import pytest

from swalib import notebooks


@pytest.mark.parametrize("name", notebooks.names())
def test_a_chapter_runs_at_toy_size_and_shows_its_figures(name, tmp_path, results_folder):
    run = notebooks.run_notebook(name, "smoke", out=tmp_path / "out.ipynb")
    cells = json.loads(run.path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    source = "".join("".join(cell["source"]) for cell in cells)
    shown = [
        output for output in outputs if "swa-figure" in "".join(output.get("data", {}).get("text/html", ""))
    ]
    assert len(shown) == source.count("figures.") - source.count("figures.panel")
    assert not results_folder.exists()
