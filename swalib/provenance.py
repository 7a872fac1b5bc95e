"""On which machine, and from which commit, was something measured?"""

import os
import platform
import re
import subprocess
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@lru_cache(maxsize=1)
def hardware() -> str:
    """The machine in a few words: GPU, if torch sees one, CPU model, usable cores, torch's threads."""
    import torch

    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else []
    cpu = names[0].strip() if names else platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    threads = torch.get_num_threads()
    return ", ".join([*gpu, cpu, f"{cores} cores", f"{threads} threads"])


@lru_cache(maxsize=1)
def commit() -> str:
    """Short hash of the checkout swalib is imported from, or "unknown"; another repository's never."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--show-toplevel", "--short", "HEAD"]
    try:
        top, short = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\n")[:2]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return short if Path(top).resolve() == ROOT else "unknown"
