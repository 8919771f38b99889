"""`oomproof check --together`: reads the set, finds out what each of its jobs needs and which of them run already."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING

from oomproof.errors import USAGE, OomproofError
from oomproof.leaf.command_lines import is_keeper, program_target
from oomproof.ledger.machine_facts import Facts, budget_of
from oomproof.ledger.needs import Need, from_history
from oomproof.ledger.risks import add_swap
from oomproof.ledger.together import Part, Together, together
from oomproof.machine.jobs import Job
from oomproof.printable import terminal_columns
from oomproof.recording import run_folders
from oomproof.reports import together_screen
from oomproof.settings import ledger_setting
from oomproof.units import format_size, parse_size

if TYPE_CHECKING:
    from oomproof.ledger.ledger_snapshot import LedgerSnapshot

REST = ("desktop", "system", "others", "rest")  # names for everything that is no job of the set
_EXAMPLE = "--together train=19G,glm=20G,desktop=3G"
_NOTEWORTHY = 1 << 30


def parse(text: str) -> list[tuple[str, int | None]]:
    """[(name, size, or None for what it held before)]"""
    words = [word.strip() for word in text.split(",") if word.strip()]
    parsed: list[tuple[str, int | None]] = []
    for word in words:
        name, equals, size = (part.strip() for part in word.partition("="))
        if not re.fullmatch(r"[\w.@+:-]+", name) or (equals and not size):
            raise OomproofError(f"--together: {word!r} is not NAME=SIZE", f"write {_EXAMPLE}", USAGE)
        if name in [known for known, _ in parsed]:
            raise OomproofError(
                f"--together: {name} is named twice",
                f"call them {name}1 and {name}2, each with its size",
                USAGE,
            )
        if name in REST and not equals:
            raise OomproofError(
                f"--together: how much for {name}?",
                f"give a size, {name}=3G, or leave it out: it is measured",
                USAGE,
            )
        try:
            parsed.append((name, parse_size(size) if equals else None))
        except OomproofError as error:
            raise OomproofError(f"--together: {name}: {error.message}", error.hint, error.status) from error
    if not [name for name, _ in parsed if name not in REST]:
        raise OomproofError("--together: no job is named", f"write {_EXAMPLE}", USAGE)
    if len([name for name, _ in parsed if name in REST]) > 1:
        raise OomproofError("--together: everything else is named twice", f"write {_EXAMPLE}", USAGE)
    return parsed


def answer(text: str, facts: Facts, snapshot: LedgerSnapshot | None) -> tuple[Together, str]:
    """The answer, and a note on what may have been meant otherwise."""
    parsed = parse(text)
    running = {run.entry.name: run.claim for run in snapshot.running} if snapshot else {}
    running |= {run.entry.run: run.claim for run in snapshot.running} if snapshot else {}
    rest = sum(size or 0 for name, size in parsed if name in REST)
    parts, taken = [], set[int]()
    for name, size in parsed:
        if name in REST:
            continue
        claim, job = running.get(name), _job_of(name, facts)
        need = (
            Need(size, size, "as you say")
            if size is not None
            else _need_before(name, claim is None and job is not None)
        )
        if claim is not None:
            parts.append(Part(name, need.high, need.basis, claim.held, running=True))
        elif job is not None:
            taken.add(job.pid)
            parts.append(
                Part(name, need.high, f"{need.basis} (pid {job.pid})", job.use + job.swap, running=True)
            )
        else:
            parts.append(Part(name, need.high, need.basis))
    named = {id(claim) for name, claim in running.items() if name in [part.name for part in parts]}
    others = {run.entry.run: run.claim for run in snapshot.running} if snapshot else {}
    yet = sum(claim.yet for claim in others.values() if id(claim) not in named)
    result = together(budget_of(facts), parts, rest, yet + (snapshot.unmanaged if snapshot else 0))
    return result, _note(facts, result, taken)


def _job_of(name: str, facts: Facts) -> Job | None:
    """The job that is meant, if it runs: by its pid, or by its script or program, where only one is called so."""
    if name.isdigit():
        return next((job for job in facts.jobs if int(name) in job.pids), None)
    called = [job for job in facts.jobs if name.lower() in _names(job)]
    return called[0] if len(called) == 1 else None


def _names(job: Job) -> set[str]:
    """``train`` and ``train.py`` of ``python train.py --epochs 3``; a program by its own name."""
    target = program_target(job.command[1:])
    words = [job.command[0]] if job.command else []
    if target is not None:
        words = [target[0].removeprefix("-m ")]
    bases = {os.path.basename(word).lower() for word in words}
    return bases | {base.rpartition(".")[0] for base in bases if "." in base}


def _need_before(name: str, is_job: bool) -> Need:
    """What the command of that run held before; of one that only runs, nothing is known but what it holds."""
    try:
        run = run_folders.find(name)
    except OomproofError as error:
        if is_job:
            return Need(0, 0, "what it holds")
        raise OomproofError(
            f"--together: {error.message}",
            f"give its size: {name}=20G; names of past runs: oomproof runs",
            USAGE,
        ) from error
    from oomproof.ledger.ledger_folder import is_there
    from oomproof.ledger.ledger_store import Busy, open_ledger
    from oomproof.ledger.peak_history import peaks_of
    from oomproof.recording.run_peak import figures_of

    key, wanted = (run.info.get("claim") or {}).get("key"), ledger_setting()
    if key and is_there(wanted):
        ledger = open_ledger(wanted)
        try:
            if (need := from_history(peaks_of(ledger, str(key)))) is not None:
                return need
        except Busy:
            pass
        finally:
            ledger.close()
    if (peak := figures_of(run.attempt).peaks.use) is not None:
        return Need(peak, peak, f"what run {run.id} held")
    raise OomproofError(
        f"--together: nothing is known of what {name} held", f"give its size: {name}=20G", USAGE
    )


def _note(facts: Facts, result: Together, taken: set[int]) -> str:
    """A large job that runs and is not named: is it one of the set?"""
    if result.status == "fits" or all(part.running for part in result.parts):
        return ""
    worth = max(_NOTEWORTHY, min(part.need for part in result.parts if not part.running) // 2)
    largest = next((job for job in facts.jobs if job.pid not in taken and job.use + job.swap >= worth), None)
    if largest is None or not largest.command:
        return ""
    if is_keeper(largest.command):
        return ""  # a run of ours, which the reservations know
    held, size = format_size(largest.use + largest.swap), -(-(largest.use + largest.swap) >> 30)
    name = min(_names(largest), key=len, default="it")
    return (
        f"pid {largest.pid} ({name}) holds {held} and counts as everything else; if it is one of these, "
        f"name it by its pid: {largest.pid}={size}G"
    )


def run(text: str, facts: Facts, snapshot: LedgerSnapshot | None, as_json: bool) -> int:
    result, note = answer(text, facts, snapshot)
    if as_json:
        print(json.dumps(together_screen.to_json(result), indent=2))
        return result.exit_status
    width = terminal_columns() if sys.stdout.isatty() else 110
    swap = next((remedy.size for remedy in result.remedies if remedy.way == "swap"), 0)
    command = add_swap(facts, size=swap >> 30)[1] if swap and facts.overcommit else ""
    print("\n".join(together_screen.screen(result, width, command, note)))
    return result.exit_status
