"""`oomproof check --together`: reads the set, finds out what each of its jobs needs and which of them run already."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from typing import TYPE_CHECKING

from oomproof.errors import USAGE, OomproofError
from oomproof.leaf.command_lines import program_target
from oomproof.ledger.budget import EXIT_STATUS
from oomproof.ledger.machine_facts import Facts, budget_of
from oomproof.ledger.risks import add_swap
from oomproof.ledger.together import Part, Together, together
from oomproof.machine.jobs import Job
from oomproof.printable import terminal_columns
from oomproof.recording import run_folders
from oomproof.recording.run_peak import figures_of
from oomproof.records import replace
from oomproof.reports import together_screen
from oomproof.units import format_size, parse_size

if TYPE_CHECKING:
    from oomproof.ledger.ledger_snapshot import LedgerSnapshot

REST = ("desktop", "system", "others", "rest")  # names for everything that is no job of the set
_EXAMPLE = "write --together train=19G,glm=20G,desktop=3G"
_WORD = re.compile(r"([\w.@+:-]+)(?:=([^=]+))?")


def parse(text: str) -> tuple[dict[str, Part], int]:
    """The jobs as they are typed, and the size of everything else. A job without a size has no basis yet: its need is
    what it held before."""
    parts: dict[str, Part] = {}
    rest = 0
    for word in filter(None, map(str.strip, text.split(","))):
        if (match := _WORD.fullmatch(word)) is None:
            raise OomproofError(f"--together: {word!r} is not NAME=SIZE", _EXAMPLE, USAGE)
        name, size = match.groups()
        if "/" in (size or ""):
            hint = "for the card: oomproof check --gpu-need, and run --gpu-need waits for it"
            raise OomproofError(f"--together: {word}: it adds up RAM only", hint, USAGE)
        if name in parts or (name in REST and (rest or not size)):
            problem = f"how much for {name}?" if name in REST and not size else f"{name} is named twice"
            raise OomproofError(f"--together: {problem}", _EXAMPLE, USAGE)
        try:
            need = parse_size(size) if size else 0
        except OomproofError as error:
            raise OomproofError(f"--together: {name}: {error.message}", error.hint, error.status) from error
        if name in REST:
            rest = need
        else:
            parts[name] = Part(name, need, "as you say" if size else "")
    if not parts:
        raise OomproofError("--together: no job is named", _EXAMPLE, USAGE)
    return parts, rest


def answer(text: str, facts: Facts, snapshot: LedgerSnapshot | None) -> Together:
    typed, rest = parse(text)
    admitted = snapshot.running if snapshot else ()
    running = {key: run for run in admitted for key in (run.entry.name, run.entry.run)}
    yet = sum(run.claim.yet for run in admitted) + (snapshot.unmanaged if snapshot else 0)
    parts, others = [], list(facts.jobs)
    for name, part in typed.items():
        if (run := running.get(name)) is not None:
            yet -= run.claim.yet
            part = replace(part, running=True, held=run.claim.held)
        elif (job := _job_of(name, facts)) is not None:
            others.remove(job)
            basis = part.basis and f"{part.basis} (pid {job.pid})"
            part = replace(part, basis=basis, running=True, held=job.use + job.swap)
        parts.append(part if part.basis else _as_before(part))
    largest = max(others, key=lambda job: job.use, default=None)
    told = f"; the largest is pid {largest.pid} ({format_size(largest.use)})" if largest is not None else ""
    return together(budget_of(facts), parts, rest, yet, told)


def _job_of(name: str, facts: Facts) -> Job | None:
    """The job of that pid, or the only one whose script or program has that name (``train`` or ``train.py``)."""
    found = [job for job in facts.jobs if name.isdigit() and int(name) in job.pids]
    found = found or [job for job in facts.jobs if name.lower() in _names(job)]
    return found[0] if len(found) == 1 else None


def _names(job: Job) -> set[str]:
    target = program_target(job.command[1:])
    word = target[0].removeprefix("-m ") if target else job.command[0] if job.command else ""
    base = os.path.basename(word).lower()
    return {base, os.path.splitext(base)[0]}


def _as_before(part: Part) -> Part:
    """With the most that the runs of that name and command held."""
    try:
        newest = run_folders.find(part.name)
        same = [run for run in run_folders.list_runs() if run.name == newest.name and run.argv == newest.argv]
        peaks = [peak for run in same if (peak := figures_of(run.attempt).peaks.use)]
        if not peaks:
            raise OomproofError(f"nothing is known of what {part.name} held", "")
    except OomproofError as error:
        if part.running:
            return replace(part, basis="what it holds")
        hint = f"give its size: {part.name}=20G; names of past runs: oomproof runs"
        raise OomproofError(f"--together: {error.message}", hint, USAGE) from error
    basis = f"the most it held in {len(peaks)} runs" if len(peaks) > 1 else "what it held in a run"
    command = shlex.join(newest.argv)
    return replace(part, need=max(peaks), basis=basis, command=command if command.isprintable() else "")


def run(text: str, facts: Facts, snapshot: LedgerSnapshot | None, as_json: bool) -> int:
    result = answer(text, facts, snapshot)
    if as_json:
        print(json.dumps(together_screen.to_json(result), indent=2))
    else:
        swap = next((remedy.size for remedy in result.remedies() if remedy.way == "swap"), 0)
        command = add_swap(facts, size=swap)[1] if swap and facts.overcommit else ""
        width = terminal_columns() if sys.stdout.isatty() else 110
        print("\n".join(together_screen.screen(result, width, command)))
    return EXIT_STATUS[result.status]
