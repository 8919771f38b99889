"""Runs a command with a memory profiler around it, under `oomproof run`, and keeps the profiler's page with the run.

memray sees every allocation of a Python program (twice as slow, at worst), scalene its lines by sampling, valgrind (massif) any
program (some twenty times slower). A profiler must be installed in the Python that runs the command.

  oomproof profile -- python train.py --steps 200
  oomproof profile --limit 8G -- python -m train
  oomproof profile --with valgrind -- ./server

Works also when the job dies: what memray had written until then is read. Every other setting of `run` comes from
oomproof.toml or OOMPROOF_*.

Exit status: that of `oomproof run`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from oomproof.cli.profilers import PROFILERS, has_module, largest, python_command
from oomproof.errors import USAGE, OomproofError
from oomproof.own_command import OWN_COMMAND
from oomproof.printable import one_line
from oomproof.recording.profile_files import Profile, folder_of, write_profile
from oomproof.recording.run_folders import Run, newest_runs, runs_folder
from oomproof.recording.run_peak import figures_of
from oomproof.runner.run_flags import limit
from oomproof.units import format_size


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof profile [options] -- CMD ..."
    parser.add_argument(
        "--with",
        dest="profiler",
        choices=list(PROFILERS),
        help="default: memray; scalene where only that is installed",
    )
    parser.add_argument("--limit", metavar="SIZE", help="of the run, such as 8G (default: as for run)")
    parser.add_argument("--name", metavar="NAME", help="a name to call this run by")
    parser.add_argument(
        "--json", action="store_true", help="print schema 1 JSON; the job's output goes to stderr"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command, after --"
    )


def run(arguments: argparse.Namespace) -> int:
    argv = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not argv:
        raise OomproofError("no command to profile", "oomproof profile -- python train.py", USAGE)
    if arguments.limit is not None:
        limit(arguments.limit)
    profiler = PROFILERS[arguments.profiler or _usual(argv)]
    base = runs_folder().parent
    base.mkdir(parents=True, exist_ok=True)
    # the run's own is not known before it starts
    folder = Path(tempfile.mkdtemp(prefix="profile-", dir=base))
    try:
        wrapped = profiler.wrapped(argv, folder)
        before = {run.id for run in newest_runs(100)}
        status = _supervised(arguments, wrapped)
        recorded = next(
            (run for run in newest_runs(100) if run.id not in before and _is_ours(run, folder)), None
        )
        if recorded is None or not recorded.started():
            return status
        kept = folder_of(recorded.attempt)
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, kept)
        _tell(arguments, recorded, _profile(profiler, argv, recorded, kept))
        return status
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _usual(argv: list[str]) -> str:
    """memray, unless the command's Python has only scalene."""
    command = python_command(argv)
    only_scalene = (
        command is not None
        and not has_module(command.python, "memray")
        and has_module(command.python, "scalene")
    )
    return "scalene" if only_scalene else "memray"


def _is_ours(run: Run, folder: Path) -> bool:
    return any(str(folder) in word for word in run.argv)


def _supervised(arguments: argparse.Namespace, wrapped: list[str]) -> int:
    """As a user would run it: Ctrl-C is for the run, which hands it to the job, and we wait."""
    flags = [
        word
        for flag in ("name", "limit")
        if (value := getattr(arguments, flag))
        for word in (f"--{flag}", value)
    ]
    process = subprocess.Popen(
        [*OWN_COMMAND, "run", "--retry", "0", *flags, "--", *wrapped],
        stdout=sys.stderr if arguments.json else None,
    )
    before = signal.signal(signal.SIGINT, lambda *_: None)
    ended = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, ended)


def _profile(profiler: Any, argv: list[str], run: Run, folder: Path) -> Profile:
    """The page and the lines of what it wrote."""
    print(f"oomproof: making {profiler.name}'s page…", file=sys.stderr, flush=True)
    profiler.make_page(argv, folder)
    if not (folder / profiler.page).is_file():
        raise OomproofError(
            f"{profiler.name} left nothing that could be read",
            f"what it wrote: {folder}; the run: oomproof why {run.name}",
        )
    try:
        lines = largest(profiler.lines(argv, folder))
    except (OSError, ValueError, KeyError, TypeError):  # of another version: there is still its page
        lines = []
    profile = Profile(profiler.name, folder / profiler.page, tuple(lines))
    write_profile(run.attempt, profile)
    return profile


def _tell(arguments: argparse.Namespace, run: Run, profile: Profile) -> None:
    if arguments.json:
        value = {"schema": 1, "run": run.id, "profiler": profile.profiler, "page": str(profile.page)}
        print(json.dumps({**value, "lines": list(profile.lines)}, indent=1))
        return
    print(one_line(f"profile of {run.name} ({profile.profiler}): {profile.page}"))
    for line in profile.lines:
        place = (
            f"{os.path.basename(line['file'])}:{line['line']}"
            if line["line"]
            else ""
            if line["function"]
            else "native threads"
        )
        function = f"in {line['function']}" if line["function"] else ""
        print(one_line(f"  {format_size(line['bytes']):>8}  {place} {function}".rstrip()))
    peak = figures_of(run.attempt).peaks.use
    if peak is not None and any(line["bytes"] > peak for line in profile.lines):
        print(
            f"  asked for, not held: the job held at most {format_size(peak)}; what is never touched takes nothing"
        )
