"""A notebook runs here or says why not; a built page opens from its folder with no network."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from swalib import book, notebooks, results
from swalib.notebooks import BookError, NotebookFailed, run_notebook
from swalib.reproduce import reproduce

SHOW = """
import sys
print(sys.executable, window, rate, mode)
print("progress", file=sys.stderr)
"""
# Measures three windows; the data of window 9 can't be had.
MEASURE = """
from pathlib import Path
from swalib import results
from swalib.wheels import DataUnavailable
results.ROOT = Path("HERE")
def compute(w):
    if w == 9:
        raise DataUnavailable("no wheel today")
    return results.Measured([results.Value("x", w * rate, "nats"), results.Value("t", rate, "ms")])
for w in (7, 8, 9):
    config = {"experiment": "toy", "version": 1, "window": w, "hardware": "test"}
    results.load_or_run(config, lambda: compute(w), mode)
"""


def cell(source: str, kind: str = "code", **metadata: object) -> dict:
    made = {"cell_type": kind, "metadata": metadata, "source": source}
    return made | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def notebook(
    *sources: str, parameters: str = "mode = 'stored'\nwindow = 7\nrate = 0.5\ntexts = ['essay']"
) -> dict:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [cell("# A toy", "markdown"), cell(parameters, tags=["parameters"]), *map(cell, sources)]
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A notebooks folder with one toy chapter and the presets cpu and odd."""
    made = tmp_path / "notebooks"
    (made / "presets").mkdir(parents=True)
    save(made, "01_toy", notebook(SHOW))
    preset(made, "cpu", {"mode": "stored", "window": 11})
    return made


def save(folder: Path, name: str, content: dict) -> None:
    (folder / f"{name}.ipynb").write_text(json.dumps(content))


def preset(folder: Path, name: str, content: dict) -> None:
    (folder / "presets" / f"{name}.yaml").write_text(yaml.safe_dump(content))


def printed(run: notebooks.Run) -> str:
    cells = json.loads(run.path.read_text())["cells"]
    return "".join("".join(out.get("text", "")) for c in cells for out in c.get("outputs", []))


def test_a_notebook_runs_in_this_environment_with_its_parameters(
    folder: Path, tmp_path: Path, monkeypatch, capfd
):
    fake = tmp_path / "elsewhere" / "kernels" / "python3"
    fake.mkdir(parents=True)
    (fake / "kernel.json").write_text(
        '{"argv": ["/bin/false"], "display_name": "other", "language": "python"}'
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "elsewhere"))
    run = run_notebook("01_toy", "cpu", {"rate": 2}, tmp_path / "one.ipynb", folder)
    assert printed(run) == f"{sys.executable} 11 2 stored\n"
    again = run_notebook("01_toy.ipynb", "cpu", {"rate": 2}, tmp_path / "two.ipynb", folder)
    assert again.path.read_bytes() == run.path.read_bytes()
    injected = [c for c in json.loads(run.path.read_text())["cells"] if c["id"] == "injected-parameters"]
    assert injected[0]["metadata"]["tags"] == ["injected-parameters", "remove-cell"]
    assert "papermill" not in run.path.read_text()
    assert capfd.readouterr().err.count("progress\n") == 2  # a kernel may add a word as it goes
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize("kernel", [None, {"name": "gone", "display_name": "Gone", "language": "python"}])
def test_a_missing_or_foreign_kernelspec_does_not_matter(folder: Path, kernel: dict | None):
    content = notebook(SHOW)
    content["metadata"] = {} if kernel is None else {"kernelspec": kernel}
    save(folder, "01_toy", content)
    run = run_notebook("01_toy", folder=folder)
    assert printed(run).startswith(sys.executable)
    assert run.path == folder.parent / "_build" / "runs" / "01_toy.ipynb"


@pytest.mark.parametrize(
    ("name", "chosen", "given", "says"),
    [
        ("02_toy", "cpu", {}, "no notebook is called '02_toy': choose from 01_toy."),
        ("01_toy", "gpus", {}, "no preset is called 'gpus': choose from cpu, odd."),
        ("01_toy", "odd", {}, "preset odd sets 'widnow', which no notebook declares."),
        (
            "01_toy",
            "cpu",
            {"widnow": 3},
            "01_toy has no parameter 'widnow': choose from mode, window, rate, texts.",
        ),
        ("01_toy", "cpu", {"window": "64"}, "01_toy: parameter 'window' is of type int, like 7, not '64'."),
        ("01_toy", "cpu", {"window": True}, "01_toy: parameter 'window' is of type int, like 7, not True."),
        (
            "01_toy",
            "cpu",
            {"texts": "novel"},
            "01_toy: parameter 'texts' is of type list, like ['essay'], not 'novel'.",
        ),
    ],
)
def test_a_wrong_name_is_one_sentence(folder: Path, name: str, chosen: str, given: dict, says: str):
    preset(folder, "odd", {"widnow": 3})
    with pytest.raises(BookError) as caught:
        run_notebook(name, chosen, given, folder=folder)
    assert str(caught.value) == says


def test_a_preset_may_speak_to_one_notebook(folder: Path):
    save(folder, "02_other", notebook(parameters="window = 0"))
    preset(folder, "cpu", {"window": 11, "mode": "run", "01_toy": {"window": 13}})
    assert notebooks.chosen("01_toy", "cpu", folder=folder) == {"mode": "run", "window": 13}
    assert notebooks.chosen("02_other", "cpu", folder=folder) == {"window": 11}


def test_a_missing_result_names_the_exact_command(folder: Path, results_folder: Path):
    source = (
        "from swalib.results import load_or_run\nload_or_run({'experiment': 'toy', 'version': 1}, None, mode)"
    )
    save(folder, "01_toy", notebook(source))
    with pytest.raises(NotebookFailed) as caught:
        run_notebook("01_toy", "cpu", {"texts": ["a", "b"]}, folder=folder)
    assert caught.value.error == "MissingResult"
    command = """swa run 01_toy --preset cpu -p texts '["a", "b"]' -p mode run"""
    assert "01_toy, cell 3: MissingResult: toy.csv has no row for" in str(caught.value)
    assert f"measure it with: {command} (it ran up to " in str(caught.value)
    assert not results_folder.exists()


LINT = {
    "has outputs": lambda n: n["cells"][2].update(outputs=[{}]),
    "has more than 15 lines": lambda n: n["cells"][2].update(source="x = 1\n" * 16),
    "holds `def f():`": lambda n: n["cells"][2].update(source="%time\ndef f():\n    pass"),
    "holds `for i in x:`": lambda n: n["cells"][2].update(source="for i in x:\n    pass"),
    "holds `class A:`": lambda n: n["cells"][2].update(source="class A:\n    pass"),
    "is not Python": lambda n: n["cells"][2].update(source="x ="),
    "13 code cells": lambda n: n["cells"].extend([cell("1")] * 11),
    "kernelspec is not python3": lambda n: n["metadata"].clear(),
    "0 cells tagged `parameters`": lambda n: n["cells"][1]["metadata"].clear(),
    "2 cells tagged `parameters`": lambda n: n["cells"][2].update(metadata={"tags": ["parameters"]}),
    "may only hold `name = literal`": lambda n: n["cells"][1].update(source="window = 2 * x"),
}


@pytest.mark.parametrize("says", LINT)
def test_lint_finds(folder: Path, says: str):
    content = notebook(SHOW)
    assert notebooks.lint(folder) == []
    LINT[says](content)
    save(folder, "01_toy", content)
    (fault,) = notebooks.lint(folder)
    assert fault.startswith("01_toy: ")
    assert says in fault


def test_the_repository_s_notebooks_pass_the_lint_and_know_their_presets():
    assert notebooks.lint() == []
    for name in notebooks.names():
        for path in (notebooks.NOTEBOOKS / "presets").glob("*.yaml"):
            notebooks.chosen(name, path.stem)


def test_owner(folder: Path):
    content = notebook(SHOW)
    content["metadata"]["swalib"] = {"experiments": ["perplexity"]}
    save(folder, "01_toy", content)
    assert notebooks.owner("perplexity", folder) == "01_toy"
    with pytest.raises(BookError, match="no notebook measures 'reach': choose from perplexity"):
        notebooks.owner("reach", folder)


TOY_CONFIG = {
    "title": "Toy",
    "author": "swalib",
    "only_build_toc_files": True,
    "execute": {"execute_notebooks": "off"},
    "sphinx": {
        "config": {
            "html_static_path": ["vendor"],
            "html_js_files": ["plotly.min.js"],
            "mathjax_path": "mathjax.js",
            "html_context": {"default_mode": "auto"},
            "nb_ipywidgets_js": {},
            "suppress_warnings": ["mystnb.unknown_mime_type"],
        }
    },
}


def toy_book(folder: Path) -> Path:
    root = folder.parent
    (root / "book" / "assets").mkdir(parents=True)
    (root / "book" / "assets" / "toy.css").write_text("p { color: black }")
    (root / "book" / "intro.md").write_text(
        "# Intro\n\nMath: $a^2$, and [a chapter](../notebooks/01_toy.ipynb): {glue:text}`01_toy/half:.2f`.\n"
    )
    (root / "_config.yml").write_text(yaml.safe_dump(TOY_CONFIG))
    chapters = [{"file": "notebooks/01_toy"}, {"file": "book/status"}]
    toc = {"format": "jb-book", "root": "book/intro", "chapters": chapters}
    (root / "_toc.yml").write_text(yaml.safe_dump(toc))
    return root


@pytest.mark.network
def test_a_book_is_built_and_opens_without_network(folder: Path, results_folder: Path):
    root = toy_book(folder)
    save(folder, "01_toy", notebook(SHOW, 'from myst_nb import glue\nglue("half", rate / 2, display=False)'))
    results.load_or_run(
        {"experiment": "toy", "version": 1}, lambda: results.Measured([results.Value("x", 1, "")]), "run"
    )
    page = book.build(root=root)
    assert page == root / "_build" / "html" / "index.html"
    html = root / "_build" / "html"
    assert sys.executable in (html / "notebooks" / "01_toy.html").read_text()
    assert 'src="../_static/mathjax.js' in (html / "book" / "intro.html").read_text()
    for asset in ("mathjax.js", "plotly.min.js", "toy.css"):
        assert (html / "_static" / asset).is_file()
    status = (html / "book" / "status.html").read_text()
    assert all(word in status for word in ("transformers", "01_toy", results.hardware()))
    intro = (html / "book" / "intro.html").read_text()
    assert "unpkg" not in intro
    assert "a chapter</span></a>: 0.25." in intro
    assert book.status(root)["seconds"].keys() == {"01_toy"}
    assert [row["experiment"] for row in book.experiments()] == ["toy"]


def test_a_build_stops_at_the_first_fault_with_a_sentence(folder: Path, results_folder: Path, monkeypatch):
    with pytest.raises(BookError, match=r"has no _config\.yml"):
        book.build(root=folder.parent)
    root = toy_book(folder)
    save(folder, "01_toy", notebook("for i in x:\n    pass"))
    with pytest.raises(BookError, match="01_toy: code cell 2 holds `for i in x:`"):
        book.build(root=root)


def test_reproduce_judges_every_fresh_row_and_names_what_it_skips(folder: Path, tmp_path: Path, capfd):
    for window, value in ((7, 3.5), (8, 4.1), (9, 4.5)):
        config = {"experiment": "toy", "version": 1, "window": window, "hardware": "test"}
        values = [results.Value("x", value, "nats"), results.Value("t", 1.0, "ms")]
        results.load_or_run(config, lambda v=values: results.Measured(v), "run", tmp_path / "results")
    save(folder, "01_toy", notebook(MEASURE.replace("HERE", str(tmp_path))))

    report = reproduce(root=tmp_path)
    assert capfd.readouterr().err.startswith("estimated 0")
    assert report.judged == 2
    assert report.differing["window"].tolist() == [8]
    assert report.differing[["value_stored", "value_fresh"]].iloc[0].tolist() == [4.1, 4.0]
    assert len(report.skipped) == 1
    assert '"window":9' in report.skipped[0]
    assert report.skipped[0].endswith(": no wheel today")
    assert len(results.read("toy", tmp_path / "_build" / "reproduced")) == 4
    assert len(results.read("toy", tmp_path / "results")) == 6
