"""Runs a Python command with memray around it, under `oomproof run`, and keeps memray's page with the run.

memray sees every allocation by its line (twice as slow, at worst). It must be installed in the Python that runs
the command.

  oomproof profile -- python train.py --steps 200
  oomproof profile --limit 8G -- python -m train

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oomproof.errors import NOT_FOUND, OUR_FAILURE, USAGE, OomproofError
from oomproof.leaf.command_lines import is_python
from oomproof.own_command import OWN_COMMAND
from oomproof.printable import one_line
from oomproof.recording.profile_files import Profile, folder_of, write_profile
from oomproof.recording.run_folders import Run, newest_runs, runs_folder
from oomproof.recording.run_peak import figures_of
from oomproof.runner.run_flags import limit
from oomproof.runner.trace_requests import READER
from oomproof.units import format_size

_DATA, _PAGE = "memray.bin", "memray.html"
_PAGE_SECONDS = 600.0


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.usage = "oomproof profile [options] -- CMD ..."
    add("--limit", metavar="SIZE", help="of the run, such as 8G (default: as for run)")
    add("--name", metavar="NAME", help="a name to call this run by")
    add("--json", action="store_true", help="print schema 1 JSON; the job's output goes to stderr")
    add("command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command, after --")


def run(arguments: argparse.Namespace) -> int:
    argv = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not argv:
        raise OomproofError("no command to profile", "oomproof profile -- python train.py", USAGE)
    if arguments.limit is not None:
        limit(arguments.limit)
    base = runs_folder().parent
    base.mkdir(parents=True, exist_ok=True)
    # the run's own is not known before it starts
    folder = Path(tempfile.mkdtemp(prefix="profile-", dir=base))
    try:
        wrapped = wrap(argv, folder)
        before = {run.id for run in newest_runs(100)}
        status = _supervised(arguments, wrapped)
        ours = (run for run in newest_runs(100) if run.id not in before and str(folder / _DATA) in run.argv)
        recorded = next(ours, None)
        if recorded is None or not recorded.started():
            return status
        kept = folder_of(recorded.attempt)
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, kept)
        _print(arguments, recorded, _profile(wrapped[0], recorded, kept))
        return status
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wrap(argv: Sequence[str], folder: Path) -> list[str]:
    """The command with memray behind its Python: `python -u train.py`, `python -m train`, or a console script."""
    program = shutil.which(argv[0])
    if program is None:
        raise OomproofError(f"{argv[0]}: command not found", "check the spelling and PATH", NOT_FOUND)
    python, words = argv[0], list(argv[1:])
    if not is_python(python):
        with open(program, "rb") as file:
            first = file.readline(1000)
        named = [word for word in first[2:].decode("utf-8", "replace").split() if is_python(word)]
        python, words = (named[0], [program, *words]) if first[:2] == b"#!" and named else ("", [])
    options = 0
    while words[options:] and words[options].startswith("-") and words[options] not in ("-m", "-c"):
        options += 2 if words[options] in ("-W", "-X") else 1
    if not words[options:]:
        hint = "name the Python and the script: oomproof profile -- python train.py"
        raise OomproofError(f"{argv[0]} is no Python program that memray could be put around", hint, USAGE)
    if _output([python, "-c", "import memray; print(memray)"]) == "":
        hint = f"{python} -m pip install memray"
        raise OomproofError(f"memray is not installed for {python}", hint, NOT_FOUND)
    run = ["-m", "memray", "run", "-q", "-o", str(folder / _DATA)]
    return [python, *words[:options], *run, *words[options:]]


def _supervised(arguments: argparse.Namespace, wrapped: list[str]) -> int:
    """As a user would run it: Ctrl-C is for the run, which hands it to the job, and we wait."""
    given = [(f"--{flag}", value) for flag in ("name", "limit") if (value := getattr(arguments, flag))]
    process = subprocess.Popen(
        [*OWN_COMMAND, "run", "--retry", "0", *(word for pair in given for word in pair), "--", *wrapped],
        stdout=sys.stderr if arguments.json else None,
    )
    before = signal.signal(signal.SIGINT, lambda *_: None)
    ended = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, ended)


def _profile(python: str, run: Run, folder: Path) -> Profile:
    """Makes the page, and reads the three lines that held most; a hundredth of the first is noise."""
    print("oomproof: making memray's page…", file=sys.stderr, flush=True)
    data, page = str(folder / _DATA), folder / _PAGE
    command = [python, "-m", "memray", "flamegraph", "-f", "-o", str(page)]
    _output([*command, "--no-web", data])  # of memray 1.19: without it, the page loads scripts
    if not page.is_file():
        _output([*command, data])
    if not page.is_file():
        hint = f"what it wrote: {folder}; the run: oomproof why {run.name}"
        raise OomproofError("memray left nothing that could be read", hint)
    names = ("file", "line", "function", "bytes")
    try:
        rows = json.loads(_output([python, str(READER), data, "peak"]).splitlines()[-1])["lines"]
        lines = [dict(zip(names, row, strict=False)) for row in rows]
    except (IndexError, ValueError, KeyError, TypeError):  # of another version: there is still its page
        lines = []
    most = max((line["bytes"] for line in lines), default=0)
    profile = Profile("memray", page, tuple([line for line in lines if line["bytes"] > most / 100][:3]))
    write_profile(run.attempt, profile)
    return profile


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_PAGE_SECONDS
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        hint = "its data is in the run's folder"
        raise OomproofError(f"{command[0]} did not end", hint, OUR_FAILURE) from error
    except OSError as error:
        raise OomproofError(
            f"cannot start {command[0]}: {error.strerror}", "check PATH", NOT_FOUND
        ) from error
    return done.stdout


def _print(arguments: argparse.Namespace, run: Run, profile: Profile) -> None:
    if arguments.json:
        value: dict[str, Any] = {
            "schema": 1,
            "run": run.id,
            "profiler": profile.profiler,
            "page": str(profile.page),
        }
        print(json.dumps({**value, "lines": list(profile.lines)}, indent=1))
        return
    print(one_line(f"profile of {run.name} ({profile.profiler}): {profile.page}"))
    for line in profile.lines:
        place = f"{os.path.basename(line['file'])}:{line['line']}" if line["line"] else ""
        function = f"in {line['function']}" if line["function"] else "" if place else "native threads"
        print(one_line(f"  {format_size(line['bytes']):>8}  {place} {function}".rstrip()))
    peak = figures_of(run.attempt).peaks.use
    if peak is not None and any(line["bytes"] > peak for line in profile.lines):
        held = f"the job held at most {format_size(peak)}"
        print(f"  asked for, not held: {held}; what is never touched takes nothing")
