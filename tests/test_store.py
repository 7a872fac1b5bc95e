"""A damaged file is never read in part; a folder that can't be written is found before hours are spent."""

import os
from pathlib import Path

import pytest

from swalib import results
from swalib.results import Measured, Value, load_or_run

CONFIG = {"experiment": "toy", "version": 1, "window": 7}


def measured() -> Measured:
    return Measured([Value("loss", 0.1, "nats")])


def never() -> Measured:
    raise AssertionError("computed, though the folder was no good")


@pytest.mark.parametrize("kind", ["read-only", "a file"])
def test_a_folder_that_cannot_be_written_is_found_before_computing(tmp_path: Path, kind: str):
    folder = tmp_path / "results"
    if kind == "a file":
        folder.write_text("")
    else:
        folder.mkdir(mode=0o555)
        if os.access(folder, os.W_OK):
            folder = Path("/proc/swalib")  # root may write anywhere but here
    with pytest.raises(
        RuntimeError, match=r"nothing can be written to .*: make it writable or set SWALIB_RESULTS"
    ):
        load_or_run(CONFIG, never, "run", folder)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text.split("\n", 1)[1], "does not start with the columns"),
        (lambda text: text[:-9] + "\n" + text.split("\n")[1], "row 3 repeats a metric"),
        (lambda text: text + "torn,row", "row 3 has 2 cells, not 22"),
    ],
)
def test_a_damaged_file_is_never_read_in_part(results_folder: Path, damage, says: str):
    load_or_run(CONFIG, measured, "run")
    path = results_folder / "toy.csv"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=says):
        load_or_run(CONFIG, never, "stored")


def test_old_rows_keep_their_bytes(results_folder: Path):
    load_or_run(CONFIG, measured, "run")
    path = results_folder / "toy.csv"
    before = path.read_bytes()
    path.write_bytes(before.rstrip(b"\n"))
    load_or_run(CONFIG | {"window": 8}, measured, "run")
    assert path.read_bytes().startswith(before)
    assert len(results.read("toy")) == 2
