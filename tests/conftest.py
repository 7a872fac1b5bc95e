"""One thread, no hub, and a results folder that is not the repository's."""

import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def results_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that `load_or_run` uses by default; this machine's own command is forgotten."""
    monkeypatch.setenv("SWALIB_RESULTS", str(tmp_path / "results"))
    monkeypatch.delenv("SWALIB_COMMAND", raising=False)
    return tmp_path / "results"
