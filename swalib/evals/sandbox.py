"""Does a program that a model wrote pass its test? Run apart, with limits, stopped where it tries to leave.

The program runs in a Python process of its own (isolated, no site-packages, an empty environment, a temporary
folder) under limits of time, memory, files and open files. An audit hook, which Python code can't take off
again, ends the process at the first attempt to open a connection, start a process, load a foreign library or
touch a file outside the folder; reading Python's own library is allowed. This holds off what models write; it
is no wall against an attacker who studies it.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """Seconds of processor time (and half as much again on the clock), bytes of memory, bytes of a file, open
    files."""

    seconds: int = 10
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20
    open_files: int = 32


@dataclass(frozen=True)
class Verdict:
    """Whether the program ran to its end, and if not, one sentence that says why."""

    passed: bool
    reason: str = ""


_RUNNER = r"""
import _thread, json, os, resource, sys
def main():
    task = json.load(sys.stdin)
    folder, library, limits = task["folder"], task["library"], task["limits"]
    os.chdir(folder)
    said = os.open("verdict", os.O_WRONLY | os.O_CREAT)
    for name, most in (("RLIMIT_CPU", limits["seconds"]), ("RLIMIT_AS", limits["memory_bytes"]),
                       ("RLIMIT_FSIZE", limits["file_bytes"]), ("RLIMIT_NOFILE", limits["open_files"]),
                       ("RLIMIT_CORE", 0)):
        resource.setrlimit(getattr(resource, name), (most, most))
    write, leave, dump = os.write, os._exit, json.dumps
    real, fspath, within = os.path.realpath, os.fsdecode, os.path.commonpath
    def end(passed, reason):
        write(said, dump([task["token"], passed, reason]).encode())
        leave(0)
    def inside(path, places):
        if isinstance(path, int):
            return True
        path = real(fspath(path))
        return any(within([path, place]) == place for place in places)
    paths = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link",
             "os.symlink", "os.chmod", "os.chown", "os.truncate", "os.chdir", "os.utime", "os.setxattr"}
    never = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn",
             "os.kill", "ctypes.", "shutil.", "urllib.", "http.", "ftplib.", "smtplib.", "webbrowser.",
             "pty.", "signal.", "resource.", "mmap.", "syslog.", "tempfile.")
    busy, thread = set(), _thread.get_ident
    def hook(event, arguments):
        me = thread()
        if me in busy:
            return
        busy.add(me)
        try:
            if event.startswith(never):
                end(False, f"it tried to leave its sandbox ({event})")
            if event in paths:
                reads = event in ("os.listdir", "os.scandir")
                if event == "open":
                    reads = not (arguments[2] or 0) & 3
                named = arguments[:2 if event in ("os.rename", "os.link") else 1]
                named = [path for path in named if path is not None]
                if not all(inside(path, [folder, *library] if reads else [folder]) for path in named):
                    end(False, f"it tried to leave its sandbox ({event} {str(named[0])[:60]!r})")
        finally:
            busy.discard(me)
    sys.stdin = open(os.devnull)
    code = task.pop("code")
    sys.addaudithook(hook)
    try:
        exec(compile(code, "program.py", "exec"), {"__name__": "__main__"})
    except BaseException as error:
        end(False, f"{type(error).__name__}: {str(error)[:200]}".rstrip(": "))
    end(True, "")
main()
"""


def run(code: str, limits: Limits | None = None) -> Verdict:
    """Run `code` to its end; it passes if nothing is raised.

    A program that ends itself early has not passed, whatever its exit status.

    Raises:
        RuntimeError: an operating system without these limits.
    """
    if os.name != "posix":
        raise RuntimeError("programs are only run where the system can limit them: Linux or macOS")
    limits, token = limits or Limits(), secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        folder = str(Path(folder).resolve())
        library = [str(Path(path).resolve()) for path in sys.path if path and "site-packages" not in path]
        library = [path for path in library if path.startswith(str(Path(sys.base_prefix).resolve()))]
        task = {"token": token, "code": code, "folder": folder, "library": library, "limits": asdict(limits)}
        command = [sys.executable, "-I", "-S", "-B", "-c", _RUNNER]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        ) as process:
            try:
                process.communicate(json.dumps(task).encode(), timeout=1.5 * limits.seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                return Verdict(False, f"it ran for more than {limits.seconds} s")
        return _verdict(Path(folder) / "verdict", token, process.returncode, limits)


def _verdict(path: Path, token: str, status: int, limits: Limits) -> Verdict:
    """What the runner wrote, if it is the runner's."""
    if status in (-9, -24):  # SIGKILL, SIGXCPU: the limit of processor time
        return Verdict(False, f"it ran for more than {limits.seconds} s")
    try:
        said, passed, reason = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        said = None
    if said != token:
        return Verdict(False, f"it ended before its test did (status {status})")
    return Verdict(bool(passed), reason)
