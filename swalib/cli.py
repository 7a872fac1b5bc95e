"""`swa`: run chapters, build the book, measure, reproduce. Every command is one library call."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from swalib.results import MissingResult


class _App(typer.Typer):
    """A typer app that answers bad input with its one sentence and exit code 1, without a traceback."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        try:
            return super().__call__(*args, **kwargs)
        except ModuleNotFoundError as error:
            sentence = f"{error.name} is not installed: pip install -e '.[book]' brings what the book needs."
        except (RuntimeError, ValueError, MissingResult) as error:
            sentence = str(error)
        except KeyboardInterrupt:
            sentence = "stopped; finished rows are kept."
        print(f"swa: {sentence}", file=sys.stderr)
        sys.exit(1)


app = _App(help="SWA(w, s): run, measure and read.", no_args_is_help=True, pretty_exceptions_enable=False)
Preset = Annotated[str, typer.Option(help="Parameters from notebooks/presets/PRESET.yaml.")]
PARAMETERS = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command()
def book(preset: Preset = "cpu") -> None:
    """Run every notebook and build the HTML book."""
    from swalib.book import build

    started = time.perf_counter()
    page = build(preset)
    print(f"built in {_duration(time.perf_counter() - started)}; open {page}")


@app.command(context_settings=PARAMETERS)
def run(context: typer.Context, notebook: str, preset: Preset = "cpu", out: Path | None = None) -> None:
    """Execute one NOTEBOOK; `-p NAME VALUE`, as often as needed, overrides a parameter (VALUE is YAML)."""
    from swalib.notebooks import run_notebook

    done = run_notebook(notebook, preset, _parameters(context.args), out)
    print(f"{done.name} ran in {_duration(done.seconds)}; open {done.path}")


@app.command(context_settings=PARAMETERS)
def measure(context: typer.Context, experiment: str, preset: Preset = "cpu") -> None:
    """Run the notebook that measures EXPERIMENT, so that its missing rows are stored."""
    from swalib.notebooks import owner, run_notebook

    done = run_notebook(owner(experiment), preset, _parameters(context.args) | {"mode": "run"})
    print(
        f"{experiment} is measured by {done.name}, which ran in {_duration(done.seconds)}; open {done.path}"
    )


@app.command()
def reproduce(preset: Preset = "cpu") -> None:
    """Measure PRESET again and compare with the stored rows; exit code 1 if any differs."""
    from swalib.reproduce import reproduce as again

    report = again(preset)
    for line in report.skipped:
        print(f"skipped: {line}")
    if len(report.differing):
        print(report.differing.to_string(index=False))
    print(f"{report.judged - len(report.differing)} rows agree, {len(report.differing)} differ", end=", ")
    print(f"{len(report.skipped)} runs skipped; the fresh rows are in _build/reproduced")
    raise typer.Exit(1 if len(report.differing) else 0)


@app.command()
def plan(
    teacher: Annotated[list[str] | None, typer.Argument(help="Names as in the paper's tables.")] = None,
    window: Annotated[list[int] | None, typer.Option(help="w; as often as needed.")] = None,
    sinks: int = 4,
    gpus: int = 8,
    gpu_memory_gb: float = 80.0,
    tflops: Annotated[float, typer.Option(help="That a GPU reaches, 10^12 operations a second.")] = 300.0,
) -> None:
    """What the six tasks would take on the paper's TEACHERs: memory, hours, commands. Downloads nothing."""
    from swalib.teachers import TEACHERS
    from swalib.teachers import plan as planned

    for name in teacher or TEACHERS:
        found = planned(name, window or [64], sinks, gpus, gpu_memory_gb, tflops)
        about = found.teacher
        kind = "Instruct, asked without its chat template" if about.instruct else "base model"
        account = ", needs an account that accepted its licence" if about.gated else ""
        print(f"{name}: {about.hub_id}, {about.dtype}, {kind}{account}{about.notes and '; ' + about.notes}")
        print(
            f"  expected: {found.memory_bytes / 1e9:.0f} GB on {found.gpus} GPU(s), {found.copies} copies, "
            f"{found.tokens / 1e6:.1f}M tokens, {found.hours:.2g} hours"
        )
        print("  " + found.command.replace("\n", "\n  "))


@app.command()
def status() -> None:
    """What is stored, and what the last build took."""
    from swalib.book import experiments
    from swalib.book import status as last

    for row in experiments():
        print("{experiment}: {runs} runs, {rows} rows, last measured {last measured} on {on}".format(**row))
    if built := last():
        took = ", ".join(f"{name} {_duration(seconds)}" for name, seconds in built["seconds"].items())
        print(f"last build: {built['date']}, preset {built['preset']} ({took})")
    else:
        print("no book was built here yet: swa book")


@app.command()
def check() -> None:
    """Lint the notebooks; exit code 1 with one line for each fault."""
    from swalib.notebooks import lint, names

    if faults := lint():
        print("\n".join(faults), file=sys.stderr)
        raise typer.Exit(1)
    print(f"{len(names())} notebooks are fit to be read")


def _parameters(words: list[str]) -> dict[str, object]:
    import yaml

    flags, keys, values = words[::3], words[1::3], words[2::3]
    if len(words) % 3 or set(flags) - {"-p", "--parameter"}:
        raise ValueError(f"parameters are given as `-p NAME VALUE`, not {' '.join(words)!r}.")
    return {key: yaml.safe_load(value) for key, value in zip(keys, values, strict=True)}


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
