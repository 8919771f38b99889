"""What the kernel's own report says of the job it killed: its processes together, the machine, fewer workers. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from oomproof.diagnosis.smaller_command import find_argument, with_value, workers_that_fit
from oomproof.diagnosis.verdict import Change, Remedy
from oomproof.evidence.texts.finding import Finding, TaskJob
from oomproof.evidence.texts.kill_history import SAME_KILL
from oomproof.ledger.budget import default_margin
from oomproof.records import replace
from oomproof.units import GIB, format_size

PROCESSES = "processes"  # of a job whose workers are no loader's, as far as anybody sees


def job_of(finding: Finding) -> TaskJob | None:
    """The job of the victim, by the report's task table."""
    return finding.kernel.job_of(finding.victim.pid) if finding.victim is not None else None


def whole_job(finding: Finding, kills: Iterable[Finding]) -> Finding:
    """With the table of the first report of the same shortage: the kernel takes workers one by one, and the last table
    shows only who was left."""
    pid, at = finding.victim.pid if finding.victim else None, finding.seconds
    for kill in kills:
        before = kill.seconds is not None and at is not None and 0 <= at - kill.seconds <= SAME_KILL
        first, last = kill.kernel.job_of(pid), job_of(finding)
        if before and first is not None and (last is None or len(first.pids) > len(last.pids)):
            return replace(finding, kernel=replace(finding.kernel, jobs=kill.kernel.jobs))
    return finding


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
        words.append(f"{format_size(machine.swap_free)} of {format_size(machine.swap_total)} swap free")
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
    job, available, told = job_of(finding), *_available(finding)
    if job is None or available is None or not job.workers:
        return None
    argument = find_argument(argv)
    now = argument.value if argument is not None else job.workers
    rest = job.held - job.workers * job.each
    fits = workers_that_fit(now, job.each, rest, available)
    if fits is None:
        return None
    # nothing but its name tells a loader's worker from another process: a log of the training may stand beside the table
    loader = argument is not None or job.loader or bool(argv)
    if not loader:
        return _fewer_processes(len(job.pids), fits + len(job.pids) - job.workers, job.each, told)
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


def _fewer_processes(now: int, fits: int, each: int, told: str) -> Remedy:
    """Of processes that nobody knows: how many of them fit at once."""
    fits = max(1, fits)
    return Remedy(
        f"fewer processes at once ({now} → {fits}); each held {format_size(each)}; {told}",
        "measured",
        (now - fits) * each,
        change=Change("code", PROCESSES, before=str(now), after=str(fits)),
    )


def _available(finding: Finding) -> tuple[int | None, str]:
    """What the job may take, and the sum behind it. Swap is left out: what lives there makes every step slow."""
    mine, whole = job_of(finding), finding.limit or finding.kernel.machine.ram
    if whole is None or mine is None:
        return None, ""
    others = sum(job.ram for job in finding.kernel.jobs if job is not mine)
    margin = default_margin(whole)
    available = max(0, whole - others - margin)
    return available, (
        f"{format_size(whole)} {'limit' if finding.limit else 'RAM'} − {format_size(others)} of others"
        f" − {format_size(margin)} margin = {format_size(available)}"
    )


def next_command(remedy: Remedy, argv: Sequence[str]) -> str:
    """A command that differs from the one that died."""
    change = remedy.change
    assert change is not None
    if remedy.command is not None:
        return remedy.command
    if change.key == PROCESSES:
        return f"fewer processes at once ({change.before} → {change.after}), each under watch: oomproof run -- CMD"
    again = shlex.join(argv) if argv else "CMD"
    return f"set {change.key} to {change.after} (it was {change.before}), then: oomproof run -- {again}"
