"""Loads a file in a child process, within a limit, and says what that took."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from oomproof.errors import NOT_FOUND, NOT_NOW, OomproofError
from oomproof.leaf.proc_files import kib_field, read_bytes
from oomproof.records import dataclass
from oomproof.sizing.data import load_child
from oomproof.units import format_size

_LOOK = 0.002  # seconds between two looks; a process touches at most some ten MiB in that time
_MODULES = {"yaml": "pyyaml"}


@dataclass(frozen=True, slots=True)
class Proof:
    """Bytes that the process grew by. ``peak`` and ``kept`` are its own; ``mapped`` are pages of files, at most."""

    peak: int
    kept: int
    mapped: int
    seconds: float


@dataclass(slots=True)
class _Highest:
    """What looks at the child saw at most, since it began to load."""

    anon: int = 0
    file: int = 0


def prove(
    loader: str, path: str, limit: int, python: str = sys.executable, join: Sequence[str] = ()
) -> Proof:
    """Raises ``OomproofError`` where the child could not load it. ``limit``: what it may hold, without pages of files; ``join``:
    the lists of processes (cgroup.procs) of a cgroup in which the kernel enforces it too."""
    return measure([python, load_child.__file__, loader, path], path, limit, join)


def measure(command: list[str], path: str, limit: int, join: Sequence[str] = ()) -> Proof:
    with _start(command, join) as child:
        try:
            output, highest = _watch(child, path, limit)
        finally:
            if child.poll() is None:
                child.kill()
    if join and child.returncode == -signal.SIGKILL:  # sooner than the next look
        raise _over(path, limit)
    return _proof(output, highest, child.returncode, path, command[0])


def _over(path: str, limit: int) -> OomproofError:
    return OomproofError(
        f"{path}: not proved: loading it went over the limit of {format_size(limit)}, and was ended",
        "end something large first, or prove a part of it: oomproof data head",
        NOT_NOW,
    )


def _start(command: list[str], join: Sequence[str]) -> subprocess.Popen[bytes]:
    from oomproof.sizing.watched_child import enter

    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            preexec_fn=(lambda: enter(join)) if sys.platform == "linux" else None,
        )  # fmt: skip
    except OSError as error:
        raise OomproofError(
            f"cannot start {command[0]}: {error.strerror}", "name a Python with --python", NOT_FOUND
        ) from None


def _watch(child: subprocess.Popen[bytes], path: str, limit: int) -> tuple[bytes, _Highest]:
    """What it printed, and what it held; the child is killed when it goes over the limit."""
    assert child.stdout is not None
    output, highest = b"", _Highest()
    while True:
        status = read_bytes(f"/proc/{child.pid}/status") or b""
        highest.anon = max(highest.anon, kib_field(status, b"RssAnon:"))
        highest.file = max(highest.file, kib_field(status, b"RssFile:"))
        if highest.anon > limit:
            child.kill()
            raise _over(path, limit)
        if select.select([child.stdout], [], [], _LOOK)[0]:
            part = os.read(child.stdout.fileno(), 1 << 16)
            if not part:
                return output, highest
            if b"\n" not in output and b"\n" in part:
                highest = _Highest()  # what the imports took is not the file's
            output += part


def _proof(output: bytes, highest: _Highest, status: int, path: str, python: str) -> Proof:
    try:
        answer: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        if answer.keys() == {"before"}:
            raise ValueError("it died while it loaded")
    except (ValueError, IndexError):
        raise OomproofError(
            f"{path}: not proved: the child process ended with status {status}", "see: oomproof check"
        ) from None
    if "missing" in answer:
        name = str(answer["missing"])
        raise OomproofError(
            f"{path}: not proved: {python} has no {name}",
            f"{os.path.basename(python)} -m pip install {_MODULES.get(name, name)}, or name another with --python",
            NOT_FOUND,
        )
    if "problem" in answer:
        raise OomproofError(
            f"{path}: not proved: loading it failed with {answer['problem']}",
            "the file or the library is at fault",
        )
    before, after = answer["before"], answer["after"]
    mapped = max(0, highest.file - before["file"], after["file"] - before["file"])
    # the kernel knows the exact peak of all pages, looks only know what they saw of the process's own
    peak = max(
        highest.anon - before["anon"], after["anon"] - before["anon"], after["peak"] - before["all"] - mapped
    )
    return Proof(max(0, peak), max(0, after["anon"] - before["anon"]), mapped, float(answer["seconds"]))
