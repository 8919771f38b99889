"""Shows what a run printed; -f follows until it ends.

oomproof logs            of the newest run
oomproof logs -f big     follow the run called big
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from oomproof.recording import run_folders

_TICK = 0.2


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="id, part of an id, or name (default: the newest)"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the run ends")


def run(arguments: argparse.Namespace) -> int:
    target = run_folders.find(arguments.run)
    attempt = target.attempt
    if attempt.output_first_file.exists():
        _copy(attempt.output_first_file)
        if attempt.output_before_file.exists():
            print("\n[oomproof: the middle of the output was not stored]", flush=True)
    _copy(attempt.output_before_file)
    follow(target) if arguments.follow else _copy(attempt.output_file)
    return 0


def _copy(path: Path) -> None:
    sys.stdout.flush()
    try:
        with path.open("rb") as file:
            while data := file.read(1 << 16):
                _write(data)
    except OSError:
        pass  # nothing was printed


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _just_starting(run: run_folders.Run) -> bool:
    return run.folder.exists() and run.state() == "starting"


def follow(run: run_folders.Run, from_end: bool = False) -> None:
    """New output until the run has ended; the file is changed under us when it grows past its cap."""
    path = run.attempt.output_file
    file = None
    while True:
        over = not (
            run.waits() or run.keeper_lives() or _just_starting(run)
        )  # before the read: what came before the end is then read for sure
        if file is None and path.exists():
            file = path.open("rb")
            if from_end:
                file.seek(0, os.SEEK_END)
        if file is not None:
            while data := file.read(1 << 16):
                _write(data)
            try:
                rotated = path.stat().st_ino != os.fstat(file.fileno()).st_ino
            except OSError:
                rotated = False
            if rotated:
                file.close()
                file = None
                continue
        if over:
            return
        time.sleep(_TICK)
