"""How is a chapter run, always in this very environment and with no parameter misspelt?"""

import ast
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from swalib.provenance import ROOT

NOTEBOOKS = ROOT / "notebooks"
MAX_CELLS, MAX_LINES = 12, 15
INJECTED = "injected-parameters"


class BookError(RuntimeError):
    """A notebook or the book can't be run, or isn't fit to be shown; the message says what to do."""


class NotebookFailed(BookError):
    """A cell of a notebook raised; `error` is the exception's name."""

    def __init__(self, message: str, error: str) -> None:
        super().__init__(message)
        self.error = error


@dataclass(frozen=True)
class Run:
    """A notebook that ran to its end: where the executed copy lies, and how long it took."""

    name: str
    path: Path
    seconds: float


def names(folder: Path = NOTEBOOKS) -> list[str]:
    """The notebooks of `folder`, in the order of their numbers."""
    return sorted(path.stem for path in folder.glob("*.ipynb"))


def load(name: str, folder: Path = NOTEBOOKS) -> dict:
    """The JSON of notebook `name`; BookError when there is none."""
    path = folder / f"{name.removesuffix('.ipynb')}.ipynb"
    if not path.is_file():
        raise BookError(
            f"no notebook is called {name!r}: choose from {', '.join(names(folder)) or 'none yet'}."
        )
    return json.loads(path.read_text(encoding="utf-8"))


def declared(name: str, folder: Path = NOTEBOOKS) -> dict[str, object]:
    """The parameters of notebook `name` and their defaults, from its cell tagged `parameters`."""
    cells = [cell for cell in load(name, folder)["cells"] if "parameters" in _tags(cell)]
    if len(cells) != 1:
        raise BookError(f"{name} has {len(cells)} cells tagged `parameters`: it needs one.")
    found = {}
    for line in ast.parse(_source(cells[0])).body:
        match line:
            case ast.Assign(targets=[ast.Name(id=parameter)], value=value):
                try:
                    found[parameter] = ast.literal_eval(value)
                    continue
                except ValueError:
                    pass
        raise BookError(
            f"{name}: its parameters cell may only hold `name = literal`, not `{ast.unparse(line)}`."
        )
    return found


def chosen(
    name: str, preset: str, given: Mapping[str, object] | None = None, folder: Path = NOTEBOOKS
) -> dict:
    """What notebook `name` gets: the preset's shared parameters that it declares, then its own, then `given`.

    Raises BookError for an unknown preset, a parameter that no notebook declares, or a value of another type.
    """
    import yaml

    path = folder / "presets" / f"{preset}.yaml"
    if not path.is_file():
        known = sorted(path.stem for path in (folder / "presets").glob("*.yaml"))
        raise BookError(f"no preset is called {preset!r}: choose from {', '.join(known)}.")
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    everyone = {other: declared(other, folder) for other in names(folder)}
    shared = {key: value for key, value in content.items() if key not in everyone}
    if unknown := sorted(set(shared) - {key for defaults in everyone.values() for key in defaults}):
        raise BookError(f"preset {preset} sets {unknown[0]!r}, which no notebook declares.")
    defaults = declared(name, folder)
    values = {key: value for key, value in shared.items() if key in defaults}
    values |= {**(content.get(name) or {}), **(given or {})}
    for key, value in values.items():
        _require_declared(name, key, value, defaults)
    return values


def run_notebook(
    name: str,
    preset: str = "cpu",
    parameters: Mapping[str, object] | None = None,
    out: Path | None = None,
    folder: Path = NOTEBOOKS,
) -> Run:
    """Execute notebook `name` with this interpreter and write the executed copy to `out`.

    The copy holds no times and no random ids, so that equal results are equal bytes. Raises BookError for an
    unknown name, preset or parameter, NotebookFailed (with the path of what ran so far) when a cell raises.
    """
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError

    name = name.removesuffix(".ipynb")
    notebook = _prepared(load(name, folder))
    values = chosen(name, preset, parameters, folder)
    out = out or folder.parent / "_build" / "runs" / f"{name}.ipynb"
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_suffix(".partial.ipynb")
    started = time.perf_counter()
    try:
        with _this_kernel(_command(name, preset, parameters)):
            done = papermill.execute_notebook(
                nbformat.from_dict(notebook),
                partial,
                values,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                stderr_file=sys.stderr,
                cwd=folder,
            )
    except papermill.PapermillExecutionError as error:
        message = f"{name}, cell {error.exec_count}: {error.ename}: {error.evalue} (it ran up to {partial})"
        raise NotebookFailed(message, error.ename) from None
    except DeadKernelError:
        raise NotebookFailed(
            f"{name}: its process died, most likely for want of memory.", "DeadKernelError"
        ) from None
    out.write_text(nbformat.writes(_normalised(done)) + "\n", encoding="utf-8")
    partial.unlink()
    return Run(name, out, time.perf_counter() - started)


def owner(experiment: str, folder: Path = NOTEBOOKS) -> str:
    """The notebook whose metadata `swalib.experiments` names `experiment`; BookError when none does."""
    owned = {}
    for name in names(folder):
        for measured in load(name, folder)["metadata"].get("swalib", {}).get("experiments", []):
            owned[measured] = name
    if experiment not in owned:
        raise BookError(f"no notebook measures {experiment!r}: choose from {', '.join(owned) or 'none yet'}.")
    return owned[experiment]


def lint(folder: Path = NOTEBOOKS) -> list[str]:
    """What makes a notebook of `folder` unfit to be a chapter, one sentence each; empty when all is well."""
    return [f"{name}: {fault}" for name in names(folder) for fault in _faults(name, folder)]


def _faults(name: str, folder: Path) -> Iterator[str]:
    notebook = load(name, folder)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if notebook["metadata"].get("kernelspec", {}).get("name") != "python3":
        yield "its kernelspec is not python3"
    if len(code) > MAX_CELLS:
        yield f"it has {len(code)} code cells, more than {MAX_CELLS}: move logic to swalib"
    try:
        declared(name, folder)
    except BookError as error:
        yield str(error)
    for number, cell in enumerate(code, start=1):
        yield from (f"code cell {number} {fault}" for fault in _cell_faults(cell))


def _cell_faults(cell: dict) -> Iterator[str]:
    if cell["outputs"] or cell["execution_count"] is not None:
        yield "has outputs: clear them"
    source = _source(cell)
    if len(source.splitlines()) > MAX_LINES:
        yield f"has more than {MAX_LINES} lines: move logic to swalib"
    # A magic is not Python; it holds no logic either.
    lines = ["pass" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        body = ast.parse("\n".join(lines)).body
    except SyntaxError as error:
        yield f"is not Python: {error.msg}"
        return
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.For | ast.While):
            yield f"holds `{ast.unparse(node).splitlines()[0]}`: move logic to swalib"


def _require_declared(name: str, key: str, value: object, defaults: Mapping[str, object]) -> None:
    if key not in defaults:
        raise BookError(f"{name} has no parameter {key!r}: choose from {', '.join(defaults)}.")
    default = defaults[key]
    same = isinstance(value, type(default)) or (isinstance(default, float) and type(value) is int)
    if None not in (default, value) and (not same or isinstance(value, bool) != isinstance(default, bool)):
        raise BookError(
            f"{name}: parameter {key!r} is of type {type(default).__name__}, like {default!r}, not {value!r}."
        )


def _source(cell: dict) -> str:
    return "".join(cell["source"])


def _tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def _command(name: str, preset: str, parameters: Mapping[str, object] | None) -> str:
    """The command line that measures what this run may find missing."""
    words = ["swa", "run", name, "--preset", preset]
    for key, value in {**(parameters or {}), "mode": "run"}.items():
        words += ["-p", key, value if isinstance(value, str) else json.dumps(value)]
    return shlex.join(words)


def _prepared(notebook: dict) -> dict:
    # papermill refuses a notebook that names no kernel, and follows one that names another environment's.
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {key: value for key, value in notebook["metadata"].items() if key != "papermill"}
    cells = [{"id": f"cell-{number}"} | cell for number, cell in enumerate(notebook["cells"])]
    return notebook | {"metadata": metadata | {"kernelspec": kernel}, "cells": cells, "nbformat_minor": 5}


def _normalised(notebook: dict) -> dict:
    notebook["metadata"].pop("papermill", None)
    for cell in notebook["cells"]:
        cell["metadata"].pop("papermill", None)
        cell["metadata"].pop("execution", None)
        if cell["cell_type"] == "code":
            # Progress bars and their times; the terminal has shown them.
            cell["outputs"] = [out for out in cell["outputs"] if out.get("name") != "stderr"]
        if INJECTED in _tags(cell):
            cell["id"] = INJECTED
            cell["metadata"]["tags"] = [INJECTED, "remove-cell"]
    return notebook


@contextmanager
def _this_kernel(command: str) -> Iterator[None]:
    """Make "python3" mean this interpreter, whatever kernels the user has; figures in it come out static."""
    argv = [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    argv += ["--log-level=ERROR"]
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, "kernels", "python3", "kernel.json")
        spec.parent.mkdir(parents=True)
        env = {"SWALIB_COMMAND": command, "SWALIB_STATIC": "1"}
        kernel = {"argv": argv, "display_name": "Python 3", "language": "python", "env": env}
        spec.write_text(json.dumps(kernel))
        before = dict(os.environ)
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [folder, before.get("JUPYTER_PATH")]))
        try:
            yield
        finally:
            del os.environ["JUPYTER_PATH"]
            os.environ |= {name: path for name, path in before.items() if name == "JUPYTER_PATH"}
