"""Triton's kernels: `triton_kernels.py`, in a Python of its own with or without the interpreter."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from swalib import SWA
from swalib.attention import attend

KERNELS = Path(__file__).parent / "triton_kernels.py"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


def run_kernels(**environment: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(KERNELS)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_interpreted():
    run_kernels(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
def test_compiled():
    run_kernels(TRITON_INTERPRET="0")


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter is on")
def test_without_a_gpu_or_the_interpreter_it_says_how_to_get_one():
    x = torch.zeros(1, 1, 3, 8)
    with pytest.raises(RuntimeError, match=r'impl="triton" does not run here: .*set TRITON_INTERPRET=1'):
        attend(x, x, x, SWA(2, 1), "triton")
