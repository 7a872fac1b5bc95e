"""A package index in a folder: wheels made by hand, which the real pip then finds and downloads."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from swalib.wheels import Wheel


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pip look into `folder` and nowhere else, and swalib keep its cache beside it."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("SWALIB_CACHE", str(folder / "cache"))
    monkeypatch.delenv("SWALIB_OPT_IN", raising=False)


def add_wheel(folder: Path, name: str, members: dict[str, bytes], version: str = "1.0") -> Wheel:
    """Write a wheel with these data members and pin it."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    kind = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    about = {"METADATA": metadata, "WHEEL": kind, "RECORD": ""}
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        for file, content in about.items():
            archive.writestr(f"{stem}.dist-info/{file}", content)
    return Wheel(name, version, hashlib.sha256(path.read_bytes()).hexdigest())
