"""Every chapter runs from its first cell to its last, at toy size, and stores nothing.

In this process, which has imported the library already; `test_book` runs notebooks in kernels of their own.
"""

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from swalib import notebooks
from swalib.evals import bench


@pytest.fixture
def shell():
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()
    bench._resident.clear()


@pytest.mark.parametrize("name", notebooks.names())
def test_a_chapter_runs_at_toy_size_and_shows_its_figures(name, shell, monkeypatch, results_folder):
    monkeypatch.chdir(notebooks.NOTEBOOKS)
    monkeypatch.setenv("SWALIB_STATIC", "1")
    chosen, shown, source = notebooks.chosen(name, "smoke"), 0, ""
    for cell in notebooks.load(name)["cells"]:
        if cell["cell_type"] != "code":
            continue
        text = "".join(cell["source"])
        with capture_output() as captured:
            done = shell.run_cell(text)
        done.raise_error()
        if "parameters" in cell["metadata"].get("tags", ()):
            shell.push(chosen)
        last, _ = shell.display_formatter.format(done.result)
        bundles = [last, *(output.data for output in captured.outputs)]
        shown += sum("swa-figure" in bundle.get("text/html", "") for bundle in bundles)
        source += text
    assert shown == source.count("figures.") - source.count("figures.panel")
    assert not results_folder.exists()
