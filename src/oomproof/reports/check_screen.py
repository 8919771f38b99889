"""What `oomproof check` shows: one screen for people, the same facts as JSON for programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from oomproof.ledger.budget import Answer, Budget, default_floor
from oomproof.ledger.machine_facts import Facts, Row
from oomproof.ledger.risks import Risk
from oomproof.machine.gpu import Gpu
from oomproof.machine.jobs import Job
from oomproof.printable import one_line
from oomproof.recording.secrets import mask_argv
from oomproof.records import dataclass
from oomproof.reports.table_text import Line, cut, fact, folded, folded_fact, print_lines, wrapped
from oomproof.units import format_size, sizes_json

if TYPE_CHECKING:  # the ledger is read only where there is one
    from oomproof.ledger.ledger_entries import Entry
    from oomproof.ledger.ledger_snapshot import LedgerRun, LedgerSnapshot

SCHEMA = 1
JOBS_SHOWN = 5
_NOTEWORTHY_SWAP = 64 << 20
_TINY = 1 << 20  # rows below a MiB are left off the screen (never out of the JSON)
_OVERCOMMIT = {
    0: "refuses only absurd requests",
    1: "refuses nothing",
    2: "refuses all past the commit limit",
}


@dataclass(frozen=True, slots=True)
class Check:
    """Everything one check found out and decided."""

    facts: Facts
    budget: Budget
    rows: tuple[Row, ...]
    risks: tuple[Risk, ...]
    answers: tuple[Answer, ...]
    next_step: tuple[str, str]  # when, command
    snapshot: LedgerSnapshot | None = None  # who runs and waits; None: there is no ledger yet
    ledger_troubles: tuple[str, ...] = ()


def show(check: Check) -> None:
    """Prints for whoever reads: colours and bars on a terminal, plain text into a pipe or with NO_COLOR."""
    print_lines(lambda width, bars: screen(check, width, bars))


def screen(check: Check, width: int, bars: bool = False) -> list[Line]:
    """The whole screen as styled lines; commands to copy are never broken."""
    facts = [part for line in _machine(check.facts) for part in folded_fact(line, width)]
    # whoever asked reads the answer first; the figures behind it follow
    lines = [*_answers(check.answers, width), []] if check.answers else []
    lines += [*facts, [], *_rows(check.rows, check.facts, width, bars), []]
    lines += [*_budget(check.budget), []]
    ledger = [*_ledger(check, width)]
    lines += [*ledger, []] if ledger else []
    if check.risks:
        lines += [*_risks(check.risks, width), []]
    when, command = check.next_step
    lines += wrapped("Next: ", when, width, "bold")
    lines.append([("  ", ""), (command, "cyan")])
    return lines


# --- the machine --------------------------------------------------------------------------------------------


def _machine(facts: Facts) -> Iterable[Line]:
    here = facts.here
    machine = f" (the limit here; the machine has {format_size(facts.memory.total)})" if facts.limited else ""
    yield fact("RAM", f"{format_size(here.available)} available of {format_size(here.total)}{machine}")
    yield from _swaps(facts)
    yield _limit(facts)
    if facts.pressure:
        some, full = facts.pressure.some_avg10, facts.pressure.full_avg10
        style = "yellow" if some >= 10 else ""
        yield fact(
            "pressure", f"some tasks waited {some:.1f} %, all tasks {full:.1f} % of the last 10 s", style
        )
    if facts.overcommit:
        mode = facts.overcommit.mode
        yield fact("overcommit", f"mode {mode}: the kernel {_OVERCOMMIT.get(mode, 'does as it likes')}")
    if facts.shm:
        yield fact("/dev/shm", f"{format_size(facts.shm.free)} free of {format_size(facts.shm.total)}")
    if facts.daemons:
        yield fact("OOM daemon", ", ".join(f"{daemon.name} (pid {daemon.pid})" for daemon in facts.daemons))
    elif facts.overcommit:
        hidden = " seen from this container" if facts.place.container else ""
        yield fact("OOM daemon", f"none{hidden}", "dim")
    if facts.place.wsl:
        yield fact("WSL2", "this is the virtual machine's RAM; what Windows itself uses is not seen")
    yield from _gpus(facts)


def _swaps(facts: Facts) -> Iterable[Line]:
    if not facts.swaps:
        yield fact("swap", "none", "dim")
    for area in facts.swaps:
        if area.zram:
            held, taken = format_size(area.zram.stored), format_size(area.zram.in_ram)
            saves = f"saves {format_size(max(0, area.zram.saved))}; not counted as memory"
            yield fact("zram", f"holds {held} in {taken} of RAM, {saves}")
        else:
            full = area.free <= area.total * 0.05
            size = format_size(area.total)
            text = f"full, {size}" if full else f"{format_size(area.free)} free of {size}"
            yield fact("swap", f"{text} on disk ({area.path})", "red" if full else "")


def _limit(facts: Facts) -> Line:
    tightest = facts.limits.tightest
    if tightest is None:
        return fact("limit", "none over this shell", "dim")
    used, limit = format_size(tightest.used), format_size(tightest.limit)
    return fact("limit", f"{used} used of {limit} ({tightest.file} in {tightest.path})")


def _gpus(facts: Facts) -> Iterable[Line]:
    if facts.gpus.problem:
        yield fact("GPU", facts.gpus.problem, "yellow")
    elif not facts.gpus.gpus:
        yield fact("GPU", "none", "dim")
    for gpu in facts.gpus.gpus:
        yield fact(f"GPU {gpu.index}", _gpu_text(gpu))
        for process in sorted(gpu.processes, key=lambda process: -(process.used or 0))[:4]:
            job = next((job for job in facts.jobs if process.pid in job.pids), None)
            who = cut(_command(job), 40) if job else "a process not seen from here"
            yield fact("", f"{format_size(process.used):>9}  {who}  (pid {process.pid})", "dim")
        if gpu.note:
            yield fact("", gpu.note, "dim")


def _gpu_text(gpu: Gpu) -> str:
    if gpu.unified:
        return gpu.name
    used, total, free = (format_size(size) for size in (gpu.used, gpu.total, gpu.free))
    return f"{used} used of {total}, {free} free ({gpu.name})"


# --- rows, budget, risks, answers ---------------------------------------------------------------------------


def _rows(rows: Sequence[Row], facts: Facts, width: int, bars: bool) -> Iterable[Line]:
    total = max(1, facts.here.total)
    bar = 16 if bars and width >= 76 else 0
    shown = [row for row in rows if abs(row.size) >= _TINY or row.kind == "free"]
    width_left = max(30, width - 14 - bar)
    names = [_job_name(row.job, width_left) if row.job else row.name for row in shown]
    column = min(width_left, max(map(len, names)))
    yield [("Where the RAM is", "bold")]
    for row, name in zip(shown, names, strict=True):
        style = {"job": "", "free": "green", "reclaimable": "green"}.get(row.kind, "dim")
        size = ("" if row.job is None or row.job.exact else "~") + format_size(row.size)
        line = [(f"  {name:<{column}}{size:>11}", style)]
        if bar:
            line.append((f" {'█' * round(bar * max(0, row.size) / total)}", "cyan" if row.job else style))
        yield line
        if row.job and row.job.swap >= _NOTEWORTHY_SWAP:
            yield [(f"    and {format_size(row.job.swap)} in swap", "dim")]
    yield [(f"  {'total':<{column}}{format_size(facts.here.total):>11}", "bold")]
    if any(row.job and not row.job.exact for row in shown):
        told = "shared pages estimated: not readable from here, or too many to count quickly"
        yield from ([(line, "dim")] for line in folded("  ~ ", told, width))


def _job_name(job: Job, width: int = 1000) -> str:
    more = f" +{len(job.pids) - 1}" if len(job.pids) > 1 else ""
    pid = f"  (pid {job.pid}{more})"
    return cut(_command(job), width - len(pid)) + pid


def _budget(budget: Budget) -> Iterable[Line]:
    yield [("Budget", "bold")]
    total = "memory limit here" if budget.limited_by else "total RAM"
    parts = [(total, budget.total, " "), ("in use", budget.in_use, "−")]
    if budget.swap_total:
        parts.append(("disk swap free", budget.swap_free, "+"))
    if budget.reserved:
        parts.append(("reserved for running jobs", budget.reserved, "−"))
    parts.append(("margin", budget.margin, "−"))
    for name, size, sign in parts:
        yield [(f"  {name:<26}{sign} {format_size(size):>9}", "")]
    style = "bold green" if budget.now else "bold red"
    yield [(f"  {'safe to start now':<26}= {format_size(budget.now):>9}", style)]


def _ledger(check: Check, width: int) -> Iterable[Line]:
    """Who has memory reserved, and who waits for it."""
    for trouble in check.ledger_troubles:
        yield from wrapped("  ! ", trouble, width, "yellow", indent="    ")
    snapshot = check.snapshot
    if snapshot is None or not (snapshot.running or snapshot.waiting):
        return
    from oomproof.ledger.ledger_snapshot import run_text

    yield [("Runs of oomproof", "bold")]
    for running in snapshot.running:
        known = (
            f"needs {format_size(running.claim.need)} ({running.entry.basis})"
            if running.claim.need is not None
            else "need unknown"
        )
        yield [(cut(f"  {run_text(running)}; {known}", width - 1), "")]
    for entry in snapshot.waiting:
        yield [
            (
                cut(
                    f"  {one_line(entry.name)} waits for {format_size(entry.need)}{_on_gpu(entry)}", width - 1
                ),
                "yellow",
            )
        ]


def _on_gpu(entry: Entry) -> str:
    if not entry.gpu_need:
        return ""
    where = "a GPU" if entry.gpu is None else f"GPU {entry.gpu}"
    return f" and {format_size(entry.gpu_need)} on {where}"


def _risks(risks: Sequence[Risk], width: int) -> Iterable[Line]:
    yield [("Risks", "bold")]
    for risk in risks:
        yield from wrapped(f"  ! {risk.title}. ", f"{risk.why} {risk.remedy}", width, "yellow", indent="    ")
        yield [("      ", ""), (risk.command, "cyan")]


def _answers(answers: Sequence[Answer], width: int) -> Iterable[Line]:
    words = {
        "fits": ("Fits: ", "bold green"),
        "not-now": ("Not now: ", "bold red"),
        "never": ("Never: ", "bold red"),
    }
    for answer in answers:
        title, style = words[answer.status]
        # the title says it already
        sentence = answer.sentence.replace(": never fits, ", ": ").replace(": never fits", "")
        yield from wrapped(title, sentence, width, style)


def _command(job: Job) -> str:
    """As typed, more or less: the program without its folder, secrets masked, no control characters."""
    words = mask_argv(job.command)
    if len(words) > 1 and os.path.basename(words[1]) == "oomproof":
        words = words[1:]  # a script of ours: its interpreter says nothing
    words[0] = os.path.basename(words[0]) or words[0]
    return one_line(" ".join(words))


# --- JSON ---------------------------------------------------------------------------------------------------


def to_json(check: Check) -> dict[str, Any]:
    """Schema 1. Sizes are bytes; null is "the machine does not tell"."""
    facts, budget = check.facts, check.budget
    tightest = facts.limits.tightest
    return {
        "schema": SCHEMA,
        "budget": {
            **sizes_json(
                budget, "total", "in_use", "available", "swap_total", "swap_free", "reserved", "margin"
            ),
            "floor_bytes": default_floor(budget.total),
            "safe_now_bytes": budget.now,
            "safe_ever_bytes": budget.ever,
            "limited_by": budget.limited_by,
        },
        "answers": [
            {"status": a.status, "need_bytes": a.need, "short_by_bytes": a.short_by, "sentence": a.sentence}
            for a in check.answers
        ],
        "memory": sizes_json(facts.memory, "total", "available", "free"),
        "swaps": [
            {
                "path": area.path,
                "kind": "zram" if area.zram else "disk",
                **sizes_json(area, "total", "used"),
                "stored_bytes": area.zram.stored if area.zram else None,
                "in_ram_bytes": area.zram.in_ram if area.zram else None,
                "saved_bytes": area.zram.saved if area.zram else None,
            }
            for area in facts.swaps
        ],
        "limit": {
            **sizes_json(tightest, "limit", "used"),
            "file": tightest.file,
            "cgroup": tightest.path,
        }
        if tightest
        else None,
        "pressure": {
            "some_avg10": facts.pressure.some_avg10,
            "some_avg60": facts.pressure.some_avg60,
            "full_avg10": facts.pressure.full_avg10,
            "full_avg60": facts.pressure.full_avg60,
        }
        if facts.pressure
        else None,
        "overcommit_mode": facts.overcommit.mode if facts.overcommit else None,
        "shm": sizes_json(facts.shm, "total", "free") if facts.shm else None,
        "oom_daemons": [{"name": daemon.name, "pid": daemon.pid} for daemon in facts.daemons],
        "place": {"container": facts.place.container, "wsl": facts.place.wsl},
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "unified": gpu.unified,
                **sizes_json(gpu, "total", "used", "free"),
                "processes": [{"pid": process.pid, "used_bytes": process.used} for process in gpu.processes],
                "note": gpu.note,
            }
            for gpu in facts.gpus.gpus
        ],
        "gpu_problem": facts.gpus.problem,
        "jobs": [
            {
                "pid": job.pid,
                "uid": job.uid,
                "command": mask_argv(job.command),
                "pids": job.pids,
                **sizes_json(job, "use", "anon", "shmem", "swap"),
                "exact": job.exact,
            }
            for job in facts.jobs
        ],
        "rows": [
            {"name": _job_name(row.job) if row.job else row.name, "bytes": row.size, "kind": row.kind}
            for row in check.rows
        ],
        "risks": [
            {"risk": r.slug, "title": r.title, "why": r.why, "remedy": r.remedy, "command": r.command}
            for r in check.risks
        ],
        "ledger": _ledger_json(check),
        "next": check.next_step[1],
    }


def _ledger_json(check: Check) -> dict[str, Any]:
    snapshot = check.snapshot
    return {
        "running": [_ledger_run_json(running) for running in snapshot.running] if snapshot else [],
        "waiting": [
            {
                "run": entry.run,
                "name": entry.name,
                "uid": entry.uid,
                **sizes_json(entry, "need", "gpu_need"),
                "gpu": entry.gpu,
                "priority": entry.priority,
            }
            for entry in snapshot.waiting
        ]
        if snapshot
        else [],
        "troubles": list(check.ledger_troubles),
    }


def _ledger_run_json(running: LedgerRun) -> dict[str, Any]:
    return {
        "run": running.entry.run,
        "name": running.entry.name,
        "uid": running.entry.uid,
        "need_bytes": running.claim.need,
        "basis": running.entry.basis or None,
        "paused": running.paused,
        "held_bytes": running.claim.held,
        "held_for_gpu_bytes": running.claim.parked,
        "reserved_bytes": running.claim.yet,
        "gpu_need_bytes": running.claim.gpu_need,
        "gpu": running.claim.gpu,
        "gpu_held_bytes": running.claim.gpu_held,
        "seconds_left": running.left,
    }
