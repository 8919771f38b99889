"""Shows what a run printed; -f follows until it ends.

oomproof logs               of the newest run
oomproof logs -n 50 big     the last 50 lines of the run called big
oomproof logs -f big        follow it, from attempt to attempt (run --retry)
oomproof logs big/1         of its first attempt
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from oomproof.cli.command_parser import add_run, count
from oomproof.recording import run_folders
from oomproof.recording.attempt import Attempt

_TICK = 0.2


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "the newest")
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the run ends")
    parser.add_argument("-n", "--lines", type=count("lines"), metavar="N", help="only the last N lines")


def run(arguments: argparse.Namespace) -> int:
    target = run_folders.find(arguments.run)
    if target.waits():  # it printed nothing, and nobody would see why
        told = "; ".join(target.waits_for()) or "for memory"
        print(f"oomproof: {target.name} was not started yet, it waits: {told}", file=sys.stderr)
    if target.info.get("adopted"):  # nothing would come, however long one follows
        print(
            f"oomproof: {target.name} was taken under watch while it ran: its output is where it always went",
            file=sys.stderr,
        )
        return 0
    attempt = target.attempt
    if target.number is None and not arguments.follow and len(target.attempts()) > 1:
        name = run_folders.to_type(target)
        told = f"attempt {attempt.number} of {len(target.attempts())}; the first: oomproof logs {name}/1"
        print(f"oomproof: {told}", file=sys.stderr)
    parts = [attempt.output_first_file, attempt.output_before_file, attempt.output_file]
    starts = _last(parts, arguments.lines) if arguments.lines is not None else dict.fromkeys(parts, 0)
    first, before, newest = parts
    if first in starts and first.exists():
        _copy(first, starts[first])
        if before.exists():
            print("\n[oomproof: the middle of the output was not stored]", flush=True)
    if before in starts:
        _copy(before, starts[before])
    if not arguments.follow:
        _copy(newest, starts[newest])
        return 0
    follow(target.at(attempt.number), starts[newest])
    while target.number is None and (following := _next_attempt(target, attempt)) is not None:
        attempt = following
        print(f"oomproof: attempt {attempt.number}", file=sys.stderr)
        follow(target.at(attempt.number))
    return 0


def _next_attempt(run: run_folders.Run, before: Attempt) -> Attempt | None:
    """With --retry: the one that follows, once it has begun; None when none does."""
    while True:
        over = not run.folder.exists() or not run.may_be_retried()
        newest = run.attempt
        if newest.number != before.number and newest.started_file.exists():
            return newest
        if over:
            return None
        time.sleep(_TICK)


def _last(parts: list[Path], lines: int) -> dict[Path, int]:
    """Where the last lines begin, in each file that has some of them: the newest, and older ones as far as needed."""
    starts: dict[Path, int] = {}
    for path in reversed(parts):
        starts[path], found = _start_of(path, lines)
        lines -= found
        if not lines:
            break
    return starts


def _start_of(path: Path, lines: int) -> tuple[int, int]:
    """(where the last lines of a file begin, how many there are); read from its end."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            if not end or not lines:
                return end, 0
            at, found = end - 1, 0  # a newline at the very end begins no line
            while at > 0:
                size = min(at, 1 << 16)
                at -= size
                file.seek(at)
                data, place = file.read(size), size
                while (place := data.rfind(b"\n", 0, place)) >= 0:
                    found += 1
                    if found == lines:
                        return at + place + 1, found
            return 0, found + 1
    except OSError:
        return 0, 0  # nothing was printed


def _copy(path: Path, start: int = 0) -> None:
    sys.stdout.flush()
    try:
        with path.open("rb") as file:
            file.seek(start)
            while data := file.read(1 << 16):
                _write(data)
    except OSError:
        pass  # nothing was printed


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _just_starting(run: run_folders.Run) -> bool:
    return run.folder.exists() and run.state() == "starting"


def follow(run: run_folders.Run, start: int = 0, from_end: bool = False) -> int:
    """New output until the run has ended, or nobody keeps it any more; where in the file that was. It is changed under us when
    it grows past its cap."""
    path = run.attempt.output_file
    file = None
    while True:
        # before the read: what came before the end is then read for sure
        over = run.is_earlier() or not (run.waits() or run.keeper_lives() or _just_starting(run))
        if file is None and path.exists():
            file = path.open("rb")
            file.seek(0, os.SEEK_END) if from_end else file.seek(start)
        if file is not None:
            while data := file.read(1 << 16):
                _write(data)
            try:
                rotated = path.stat().st_ino != os.fstat(file.fileno()).st_ino
            except OSError:
                rotated = False
            if rotated:
                file.close()
                file, start, from_end = None, 0, False
                continue
        if over:
            return file.tell() if file is not None else 0
        time.sleep(_TICK)
