"""Rows are exact, keys never collide, and neither a kill nor a second writer loses or doubles anything."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from swalib import results, store
from swalib.results import Measured, MissingResult, Value, load_or_run, run_key
from swalib.wheels import DataUnavailable

CONFIG = {
    "experiment": "toy",
    "version": 1,
    "model": "tiny",
    "method": "swa",
    "window": 7,
    "sinks": 3,
    "seed": 0,
}

# Run by a Python of its own that imports no torch, so that it may fork: a child measures 20 tiny runs.
WRITERS = """
import os, random, signal, sys, time, types
package = types.ModuleType("swalib")
package.__path__ = [sys.argv[1]]
sys.modules["swalib"] = package
import numpy as np
from pathlib import Path
from swalib import store
from swalib.results import Measured, Value, load_or_run

def run(experiment, seed, began=lambda: None):
    config = {"experiment": experiment, "version": 1, "seed": seed, "hardware": "test"}
    values = [Value("a", seed / 3, "nats", 5), Value("b", seed / 7, "ms")]
    measured = Measured(values, {"x": np.full(3, seed, "f2")})
    load_or_run(config, lambda: began() or measured, "run")

def start():
    heard, said = os.pipe()
    if child := os.fork():
        os.close(said)
        return child, heard
    for seed in range(20):
        run("toy", seed, began=lambda: os.write(said, b".") and None)
    os._exit(0)

def killed(seconds):
    child, heard = start()
    os.read(heard, 1)  # a run is computed and will now be written
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.close(heard)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])

def finish(children):
    assert not any(os.waitpid(child, 0)[1] for child, heard in children)
"""


def python(code: str) -> str:
    source = str(Path(results.__file__).parent)
    command = [sys.executable, "-c", WRITERS + code, source]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def measured(value: float = 0.1, **arrays: np.ndarray) -> Measured:
    return Measured([Value("loss", value, "nats", n=11, stderr=0.2)], arrays)


def never() -> Measured:
    raise AssertionError("a stored run was computed again")


def assert_complete(folder: Path) -> None:
    rows = results.read("toy")
    assert sorted(zip(rows["seed"], rows["metric"], strict=True)) == list(itertools.product(range(20), "ab"))
    assert rows["run_key"].nunique() == 20
    for key, seed, value in rows.loc[rows["metric"] == "a", ["run_key", "seed", "value"]].itertuples(
        index=False
    ):
        assert value == seed / 3
        np.testing.assert_array_equal(store.load_arrays(folder / "toy.csv", key)["x"], np.full(3, seed, "f2"))


def test_a_run_survives_sigkill_at_any_moment(results_folder: Path):
    kills = python("""
run("rehearsal", 0)
began = time.perf_counter()
run("rehearsal", 1)
pace = time.perf_counter() - began

luck, kills, path = random.Random(5), 0, Path(os.environ["SWALIB_RESULTS"], "toy.csv")
for _ in range(25):
    kills += killed(luck.uniform(0, 1.5 * pace))
    halves = [key for key, rows in store.table(path).items() if len(rows) != 2]
    assert not halves, halves
finish([start()])
print(kills)
""")
    assert int(kills) > 0
    assert_complete(results_folder)


def test_processes_writing_at_once_lose_and_double_nothing(results_folder: Path):
    python("finish([start(), start(), start()])")
    assert_complete(results_folder)


def test_run_computes_once_and_stored_reads_it_back_exactly(results_folder: Path):
    awkward = 0.1 + 0.2
    first = load_or_run(CONFIG, lambda: measured(awkward, map=np.arange(6, dtype="f4").reshape(2, 3)), "run")
    for mode in ("run", "stored"):
        again = load_or_run(dict(reversed(CONFIG.items())), never, mode)
        pd.testing.assert_frame_equal(again.rows, first.rows)
        assert again.value("loss") == awkward
        assert again.arrays["map"].dtype == np.float32
        np.testing.assert_array_equal(again.arrays["map"], [[0, 1, 2], [3, 4, 5]])
    row = results.read("toy").iloc[0]
    assert (row["window"], row["sinks"], row["n"], row["stderr"]) == (7, 3, 11, 0.2)
    assert row["shots"] is pd.NA
    assert json.loads(row["params_json"]).keys() == {"version", "run_seconds"}
    assert tuple(results.read("toy")) == store.COLUMNS


def test_smoke_gives_the_same_frame_and_writes_nothing(results_folder: Path):
    smoke = load_or_run(CONFIG, lambda: measured(x=np.zeros(2)), "smoke")
    assert not results_folder.exists()
    stored = load_or_run(CONFIG, measured, "run")
    pd.testing.assert_frame_equal(
        smoke.rows.drop(columns="params_json"), stored.rows.drop(columns="params_json")
    )
    assert smoke.arrays["x"].shape == (2,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window", 8),
        ("sinks", 0),
        ("method", "full"),
        ("version", 2),
        ("text", "novel"),
        ("seed", 1),
        ("seed", None),
    ],
)
def test_every_setting_changes_the_key(results_folder: Path, name: str, value: object):
    other = CONFIG | {name: value}
    assert run_key(other) != run_key(CONFIG)
    load_or_run(CONFIG, lambda: measured(1.0), "run")
    assert load_or_run(other, lambda: measured(2.0), "run").value("loss") == 2.0
    assert load_or_run(CONFIG, never, "stored").value("loss") == 1.0


def test_an_absent_setting_and_none_are_the_same():
    assert run_key(CONFIG | {"task": None}) == run_key(CONFIG)


@pytest.mark.parametrize("missing_part", ["row", "array"])
def test_missing_results_name_the_command_that_measures(results_folder: Path, monkeypatch, missing_part: str):
    if missing_part == "array":
        load_or_run(CONFIG, measured, "run")
    ask = lambda **also: load_or_run(CONFIG, never, "stored", **also).arrays  # noqa: E731
    with pytest.raises(MissingResult, match=r"measure (it|them) with: swa measure toy$"):
        ask()
    monkeypatch.setenv("SWALIB_COMMAND", "swa run 01_sinks --preset cpu -p mode run")
    with pytest.raises(MissingResult, match=r"with: swa run 01_sinks --preset cpu -p mode run$"):
        ask()
    with pytest.raises(MissingResult, match=r"with: make me$"):
        ask(command="make me")


def test_run_brings_back_arrays_that_git_does_not_carry(results_folder: Path):
    key = load_or_run(CONFIG, lambda: measured(x=np.ones(3)), "run").run_key
    store.arrays_path(results_folder / "toy.csv", key).unlink()
    again = load_or_run(CONFIG, lambda: measured(x=np.ones(3)), "run")
    np.testing.assert_array_equal(again.arrays["x"], np.ones(3))
    assert len(results.read("toy")) == 1


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        ({"window": np.int64(7)}, TypeError, "`window` must be int"),
        ({"window": 7.0}, TypeError, "`window` must be int"),
        ({"sinks": True}, TypeError, "`sinks` must be int"),
        ({"model": 3}, TypeError, "`model` must be str"),
        ({"recipe": {"path": Path("x")}}, TypeError, r"`recipe\.path` is a"),
        ({"recipe": {1: "x"}}, TypeError, "JSON keys are text"),
        ({"recipe": [1, {2}]}, TypeError, "`recipe` is a set"),
        ({"rate": math.inf}, TypeError, "no such number"),
        ({"value": 1.0}, ValueError, "must not set `value`"),
        ({"experiment": "../x"}, ValueError, "config needs `experiment`"),
        ({"version": None}, ValueError, "config needs `version`"),
    ],
)
def test_a_bad_config_is_refused_before_anything_runs(
    results_folder: Path, bad: dict, error: type, says: str
):
    with pytest.raises(error, match=says):
        load_or_run(CONFIG | bad, never, "run")


def test_bad_measurements_are_refused_and_nothing_is_stored(results_folder: Path):
    with pytest.raises(ValueError, match="NaN"):
        load_or_run(CONFIG, lambda: measured(math.nan), "run")
    with pytest.raises(ValueError, match="a metric each of its own"):
        load_or_run(CONFIG, lambda: Measured([Value("loss", 1, "nats")] * 2), "run")
    with pytest.raises(TypeError, match="array 'x' must be a numpy array of numbers"):
        load_or_run(CONFIG, lambda: measured(x=np.array(["text"])), "run")
    with pytest.raises(ValueError, match="mode must be one of"):
        load_or_run(CONFIG, never, "fast")
    assert not store.table(results_folder / "toy.csv")


def test_missing_and_estimate(results_folder: Path, capsys):
    load_or_run(CONFIG, measured, "run")
    configs = [CONFIG | {"window": window} for window in (7, 11, 13)]
    absent = results.missing(configs)
    assert [config["window"] for config in absent] == [11, 13]
    assert results.estimate(1800, len(absent), cores=2) == 2.0
    assert capsys.readouterr().err == "estimated 2 core-hours for 2 missing runs\n"
    assert results.estimate(1800, 0) == 0
    assert capsys.readouterr().err == ""
    assert results.run_seconds(results.read("toy")) >= 0


def test_compare_finds_what_differs(tmp_path: Path):
    for folder, values in (
        ("old", {5: 1.0, 7: 1.0, 11: 0.0}),
        ("new", {5: 1.0009, 7: 1.002, 11: 0.0, 13: 4.0}),
    ):
        for window, value in values.items():
            load_or_run(CONFIG | {"window": window}, lambda v=value: measured(v), "run", tmp_path / folder)
    old, new = (results.read("toy", tmp_path / folder) for folder in ("old", "new"))
    assert results.compare(old, new, {"default": 1e-3})["window"].tolist() == [7, 13]
    assert results.compare(old, new, {"default": 0.0, "loss": 0.01})["window"].tolist() == [13]
    assert results.compare(old, new.iloc[:0], {"default": 0.0}).empty


def test_reproduce_measures_apart_and_names_what_is_absent(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.delenv("SWALIB_RESULTS", raising=False)

    def absent() -> Measured:
        raise DataUnavailable("no wheel today")

    load_or_run(CONFIG, lambda: measured(1.0), "run")
    with pytest.raises(RuntimeError, match="a folder of its own"):
        load_or_run(CONFIG, never, "reproduce")
    monkeypatch.setenv("SWALIB_RESULTS", str(tmp_path / "fresh"))
    assert load_or_run(CONFIG, absent, "reproduce").value("loss") == 1.0
    assert (tmp_path / "fresh" / "skipped.txt").read_text().endswith(": no wheel today\n")
    assert load_or_run(CONFIG, lambda: measured(2.0), "reproduce").value("loss") == 2.0
    assert results.read("toy", tmp_path / "results")["value"].tolist() == [1.0]


def test_provenance(tmp_path: Path, monkeypatch):
    from swalib import provenance

    assert "thread" in provenance.hardware()
    provenance.commit.cache_clear()
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.commit() == "unknown"
    provenance.commit.cache_clear()
