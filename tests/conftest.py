"""One thread, no hub, and a results folder that is not the repository's."""

import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from browser import CHROMIUM

torch.set_num_threads(1)


# Files that take longest for their few tests: run first, so that no worker is left alone with one at the end.
LONG = ("test_browser_book", "test_notebooks", "test_attention_flex", "test_attention_triton", "test_lm_eval")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first. Where there is no Chromium or no GPU, the tests that need one say so."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))
    absent = {"browser": CHROMIUM is None, "gpu": not torch.cuda.is_available()}
    for item in items:
        for mark, is_absent in absent.items():
            if is_absent and mark in item.keywords:
                item.add_marker(
                    pytest.mark.skip(reason=f"needs {'Chromium' if mark == 'browser' else 'a GPU'}")
                )


@pytest.fixture
def results_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that `load_or_run` uses by default; this machine's own command is forgotten."""
    monkeypatch.setenv("SWALIB_RESULTS", str(tmp_path / "results"))
    monkeypatch.delenv("SWALIB_COMMAND", raising=False)
    return tmp_path / "results"
