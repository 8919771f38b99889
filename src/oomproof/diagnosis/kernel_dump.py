"""What the kernel's own report says of the job it killed: its processes together, the machine, fewer workers. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from oomproof.diagnosis.smaller_command import find_argument, with_value, workers_that_fit
from oomproof.diagnosis.verdict import Change, Remedy
from oomproof.evidence.texts.finding import Finding, TaskJob
from oomproof.ledger.budget import default_margin
from oomproof.units import GIB, format_size


def job_of(finding: Finding) -> TaskJob | None:
    """The job of the victim, by the report's task table."""
    return finding.kernel.job_of(finding.victim.pid) if finding.victim is not None else None


def job_text(finding: Finding) -> str:
    """ "one of 17 processes of one job that held 28 GiB"; empty where the table shows no more than the victim."""
    job = job_of(finding)
    if job is None or len(job.pids) < 2:
        return ""
    swap = f" and {format_size(job.swap)} of swap" if job.swap else ""
    return f"one of {len(job.pids)} processes of one job that held {format_size(job.ram)}{swap}"


def machine_text(finding: Finding) -> str:
    machine = finding.kernel.machine
    words = []
    if machine.ram is not None and machine.free is not None:
        words.append(f"{format_size(machine.free)} of {format_size(machine.ram)} RAM was free")
    if machine.swap_total:
        words.append(f"{format_size(machine.swap_free)} of {format_size(machine.swap_total)} swap")
    elif machine.swap_total == 0:
        words.append("there is no swap")
    return ", ".join(words)


def beside(finding: Finding) -> list[Remedy]:
    """Who else was large when the machine ran out; the victim's own job is not somebody else."""
    if finding.cause != "oom-kill-global" or finding.victim is None:
        return []
    mine = job_of(finding)
    large = [job for job in finding.kernel.jobs if job.held >= GIB and job is not mine]
    others = [f"{_called(job)} {format_size(job.held)}" for job in large[:3]]
    if not others:
        return []
    title = f"end or move what else was large then: {', '.join(others)}"
    return [Remedy(title, "measured", sum(job.held for job in large[:3]))]


def _called(job: TaskJob) -> str:
    count = f"{len(job.pids)} processes, the first " if len(job.pids) > 1 else ""
    return f"{job.name or '?'} ({count}pid {job.pids[0]})"


def fewer_workers(finding: Finding, argv: Sequence[str] = ()) -> Remedy | None:
    """As many workers as fit beside what others held, by what each of them held. ``argv``: the command, where a text
    tells it: the number in it is the number asked for, whatever the table still shows."""
    job, room, told = job_of(finding), *_room(finding)
    if job is None or room is None or not job.workers:
        return None
    argument = find_argument(argv)
    now = argument.value if argument is not None else job.workers
    rest = job.held - job.workers * job.each
    fits = workers_that_fit(now, job.each, rest, room)
    if fits is None:
        return None
    key = argument.name if argument is not None else "num_workers"
    before, after = (
        (argument.typed(now), argument.typed(fits))
        if argument
        else (f"num_workers={now}", f"num_workers={fits}")
    )
    each = f"each held {format_size(job.each)}, the rest of the job {format_size(rest)}; {told}"
    return Remedy(
        f"fewer workers: {before} → {after}; {each}",
        "measured",
        (now - fits) * job.each,
        command=f"oomproof run -- {shlex.join(with_value(argv, argument, fits))}" if argument else None,
        change=Change("argument" if argument else "code", key, before=str(now), after=str(fits)),
    )


def _room(finding: Finding) -> tuple[int | None, str]:
    """What the job may take, and the sum behind it. Swap is left out: what lives there makes every step slow."""
    mine = job_of(finding)
    if finding.limit is not None:
        return finding.limit, f"the limit is {format_size(finding.limit)}"
    ram = finding.kernel.machine.ram
    if ram is None or mine is None:
        return None, ""
    others = sum(job.ram for job in finding.kernel.jobs if job is not mine)
    margin = default_margin(ram)
    room = max(0, ram - others - margin)
    return room, (
        f"{format_size(ram)} RAM − {format_size(others)} of others − {format_size(margin)} margin = {format_size(room)}"
    )


def next_command(remedy: Remedy, argv: Sequence[str]) -> str:
    """A command that differs from the one that died."""
    change = remedy.change
    assert change is not None
    if remedy.command is not None:
        return remedy.command
    again = shlex.join(argv) if argv else "CMD"
    return f"set {change.key} to {change.after} (it was {change.before}), then: oomproof run -- {again}"
