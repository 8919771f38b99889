"""The case file's facts as evidence items: each with an id that rules cite, a source and what it says."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oomproof.evidence import gpu_oom
from oomproof.evidence.case_file import CaseFile, Evidence, Growth, JobSample, OtherJob
from oomproof.leaf.attempt_names import KEEPER_EVENTS, OUTPUT
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_peak import SOURCES
from oomproof.recording.series import told_kind
from oomproof.units import MIB, format_duration, format_exact, format_rate, format_size

if TYPE_CHECKING:
    from oomproof.evidence.texts.finding import Finding

_GROWTH = 16 * MIB  # of another job: less is not worth a word
_ACTIONS = Attempt.actions_file.name
LAST_LINE = "output.last"  # which a report without the log leaves out
_MOST = 8  # of one kind; a storm of a thousand kills is told by its first and last


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe(case: CaseFile, wall_offset: float | None) -> tuple[Evidence, ...]:
    def wall(boottime: float | None) -> float | None:
        return None if boottime is None or wall_offset is None else boottime + wall_offset

    return tuple(
        Evidence(id, source, wall(when), text, says)
        for id, source, when, text, says in (
            *_exit(case),
            *_counters(case),
            *_samples(case),
            *_own_actions(case),
            *_kernel(case),
            *_output(case),
            *_agent(case),
            *_silence(case),
            *_boots(case),
        )
    ) + tuple(Evidence(*item) for item in gpu_oom.describe(case.agent.gpu_oom, case.agent.host_owners))


_Item = tuple[str, str, float | None, str, str]


def _exit(case: CaseFile) -> Iterator[_Item]:
    status = case.exit.status
    if status is None:
        return
    if status.signal is not None:
        text = f"ended by {signal_name(status.signal)}" + (", core dumped" if status.core else "")
        says = "a signal ended the process"
    else:
        text = f"exited with code {status.code}"
        says = "the process ended by itself"
    yield "exit", "wait status", status.boottime, text, says


def _counters(case: CaseFile) -> Iterator[_Item]:
    end = case.exit.status.boottime if case.exit.status else None
    told = (
        ("memcg_oom_kill", "the job's cgroup", "processes of the job killed by the kernel for memory"),
        ("memcg_oom", "the job's cgroup", "times the job's own limit could not be enforced"),
        ("memcg_failcnt", "the job's cgroup", "times the job's own limit was reached"),
        ("vmstat_oom_kill", "/proc/vmstat", "kernel OOM kills on the whole machine, of anybody"),
        ("oomd_kill", "the cgroup's xattr", "processes of the job killed by systemd-oomd"),
    )
    for name, source, says in told:
        before, after = getattr(case.limits.at_start, name), getattr(case.limits.at_death, name)
        if after is not None:
            start = "?" if before is None else before
            yield f"counter.{name}", source, end, f"{name}: {start} at start, {after} at death", says


def _samples(case: CaseFile) -> Iterator[_Item]:
    end = case.exit.status.boottime if case.exit.status else None

    def age(t: float) -> str:
        return f", {max(0.0, end - t):.1f} s before the end" if end is not None else ""

    if (host := case.samples.host) is not None:
        text = f"{format_size(host.available)} of {format_size(host.total)} available"
        if host.swap_total:
            text += f", {format_size(host.swap_free)} of {format_size(host.swap_total)} swap free"
        if host.psi_full is not None and host.psi_full >= 0.005:
            text += f", all tasks stalled {host.psi_full:.0%} of the time"
        yield (
            "sample.host",
            "recording",
            host.t,
            text + age(host.t),
            "the machine's available memory at the last sample",
        )
    if (job := case.samples.job) is not None:
        text = f"the job held {format_size(job.used)}"
        if job.processes:  # 0: it ended before the sampler had counted them
            text += f" in {job.processes} process" + ("es" if job.processes > 1 else "")
        if job.headroom is not None:
            text += f", {format_size(job.headroom)} below its limit{_also_charged(case, job)}"
        yield "sample.job", "recording", job.t, text + age(job.t), "the job at the last sample"
    if case.samples.job_peak:
        text = f"the job held at most {format_size(case.samples.job_peak)}"
        yield (
            "sample.peak",
            SOURCES[case.samples.peak_source],
            None,
            text,
            "its peak in the whole run, without page cache",
        )
    if case.samples.shm_total:
        free = (
            case.samples.shm_free
            if case.samples.shm_low is None
            else min(case.samples.shm_low, case.samples.shm_free or case.samples.shm_low)
        )
        text = f"/dev/shm: {format_size(free)} of {format_size(case.samples.shm_total)} free"
        yield "sample.shm", "recording", end, text, "shared memory as the job saw it"
    if case.limits.address_space is not None:
        text = f"the job's address space was limited to {format_size(case.limits.address_space)} (ulimit -v)"
        yield "ulimit", "run.json", None, text, "an allocation beyond it is refused, whatever is free"
    if (growth := case.samples.growth) is not None:
        sizes = f"{format_size(growth.from_bytes)} to {format_size(growth.to_bytes)}"
        text = f"from {sizes}: {growth_text(growth)}"
        yield "sample.growth", "recording", end, text, "growth that continued to the end: not size alone"
        if growth.made_at:
            yield "agent.trace", "agent", None, growth.made_at, "the line that allocated what stayed"
        if growth.not_a_leak:
            yield "agent.trim", "agent", None, growth.not_a_leak, "freed memory that the C library kept"
    for index, process in enumerate(case.samples.grown[:3], 1):
        what = ", worker" if process.role == "worker" else ""
        sizes = f"from {format_size(process.before)} to {format_size(process.after)}"
        text = f"{process.name} (pid {process.pid}{what}) grew {sizes} in {process.seconds:.0f} s"
        yield f"sample.process.{index}", "recording", end, text, "a process of the job that grew at the end"
    for index, other in enumerate(case.samples.others[:3], 1):
        yield (
            f"other.{index}",
            "recording",
            other.t,
            other_text(other),
            "a run of oomproof beside this one" if other.managed else "an unmanaged job beside this one",
        )
    if case.samples.twin is not None:
        text = (
            f"pid {case.samples.twin.pid} ran the same command and held {format_size(case.samples.twin.held)}"
        )
        yield "sample.twin", "/proc", end, text, "a twin of this job, alive right after its end"
    for gpu in case.samples.gpus:
        text = f"GPU {gpu.index}: {format_size(gpu.used)} of {format_size(gpu.total)} used"
        yield f"sample.gpu{gpu.index}", "recording", gpu.t, text, "GPU memory at the last sample"


def _also_charged(case: CaseFile, job: JobSample) -> str:
    """What the kernel counts beside what the job held, so that the figures add up to the limit."""
    limit = case.limits.limit if case.limits.limit is not None else case.limits.settings.limit
    if limit is None or job.headroom is None:
        return ""
    rest = limit - job.headroom - (job.used - job.swap)
    return (
        f" of {format_size(limit)}: {format_size(rest)} of page cache and kernel memory count too"
        if rest >= MIB
        else ""
    )


def growth_text(growth: Growth) -> str:
    """ "grew 12 MiB a step for 48 steps without levelling off, nearly all in train": in words for a verdict, with the figures
    of `oomproof trend`."""
    lasted = f"for {format_duration(growth.seconds)}"
    if growth.bytes_per_cycle is not None:
        rate = f"grew {format_exact(growth.bytes_per_cycle)} per {growth.cycle} {lasted}"
    elif growth.bytes_per_step is not None and growth.steps:
        rate = f"grew {format_exact(growth.bytes_per_step)} a step for {growth.steps} steps"
    else:
        rate = f"grew {format_rate(growth.bytes_per_second)} {lasted}"
    slower = ", ever slower" if growth.kind == "slowing" else " without levelling off"
    return f"{rate}{slower}" + (f", nearly all in {growth.phase}" if growth.phase else "")


def other_text(job: OtherJob) -> str:
    user = f", user {user_name(job.uid)}" if job.uid is not None else ""
    swap = f" ({format_size(job.swap)} of it in swap)" if job.swap else ""
    text = f"{job.called} (pid {job.pid}{user}) held {format_size(job.held)}{swap}"
    if job.grew >= _GROWTH:
        text += f" and grew by {format_size(job.grew)} in {format_duration(job.seconds)} ({format_size(job.rate)}/s)"
    return text


def user_name(uid: int) -> str:
    import pwd  # not for a run that ended well

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _own_actions(case: CaseFile) -> Iterator[_Item]:
    for index, action in enumerate(case.actions[-_MOST:], 1):
        text = f"{action.by}: {told_kind(action.action)}" + (f" ({action.why})" if action.why else "")
        yield f"action.{index}", _ACTIONS, action.boottime, text, "what oomproof did to the job"
    for index, event in enumerate(case.keeper_events[-_MOST:], 1):
        text = told_kind(event.kind) + (f": {event.text}" if event.text else "")
        yield f"keeper.{index}", KEEPER_EVENTS, event.boottime, text, "what the keeper saw"


def _kernel(case: CaseFile) -> Iterator[_Item]:
    for index, kill in enumerate(case.kernel.our_kills[-_MOST:], 1):
        whose = f" (limit of {kill.oom_memcg})" if kill.oom_memcg else ""
        says = f"the kernel killed pid {kill.pid} ({kill.name}) of this job for memory{whose}"
        yield f"kernel.kill.{index}", "kernel log", kill.time, kill.text, says
    for index, fault in enumerate(case.kernel.our_faults[-_MOST:], 1):
        yield (
            f"kernel.fault.{index}",
            "kernel log",
            fault.time,
            fault.text,
            fault.says or f"{fault.kind} in this job",
        )
    for index, kill in enumerate(case.kills_beside[-_MOST:], 1):
        says = f"the kernel killed {kill.name}, which is not of this job"
        yield f"kernel.other.{index}", "kernel log", kill.time, kill.text, says


def _output(case: CaseFile) -> Iterator[_Item]:
    text = case.output.text
    told = [finding for finding in (*text.system, *text.training) if _tells(finding)] if text else []
    told.sort(key=lambda finding: (finding.job.role != "root", finding.line))
    for index, finding in enumerate(told[:_MOST], 1):
        yield f"output.{index}", f"{finding.source}:{finding.line}", None, finding.text, finding.says
    if not told and case.output.empty:
        yield "output.none", OUTPUT, None, "the job printed nothing", "no word of its own about its end"
    elif not told and case.output.last_line:
        line = case.output.last_line[:200]
        yield LAST_LINE, OUTPUT, None, line, "the last line the job printed"


def _silence(case: CaseFile) -> Iterator[_Item]:
    if case.agent.openmp is not None:
        says = "two OpenMP runtimes in one process: a known reason for crashes in native code"
        yield "openmp", "recording", None, case.agent.openmp, says
    for index, handler in enumerate(case.program.silent[:_MOST], 1):
        says = "this message of the script's own never appeared in its output"
        where = f"{handler.file}:{handler.line}"
        yield f"handler.{index}", where, None, f"{handler.catches} prints «{handler.text}»", says


def _tells(finding: Finding) -> bool:
    return finding.cause != "not-a-crash" and finding.job.role != "noise"


def _agent(case: CaseFile) -> Iterator[_Item]:
    """What the job's own Python told."""
    if case.agent.phase != "unknown" or case.agent.step is not None:
        step = f", step {case.agent.step}" if case.agent.step is not None else ""
        text = f"phase {case.agent.phase}{step}"
        end = case.exit.status.boottime if case.exit.status else None
        if case.agent.step_time is not None and end is not None:
            text += f", {max(0.0, end - case.agent.step_time):.1f} s before the end"
        if case.agent.step_location:
            text += f"; steps are made at {case.agent.step_location}"
        yield "agent.position", "agent", case.agent.step_time, text, "where the job stood"
    for index, crash in enumerate(case.agent.crashes[-_MOST:], 1):
        text = f"{crash.kind} in pid {crash.pid}: {crash.where}"
        yield f"agent.crash.{index}", "faulthandler", None, text, "the Python line that was running"
    if case.agent.censuses:
        last, end = case.agent.censuses[-1], case.exit.status.boottime if case.exit.status else None
        age = f", {max(0.0, end - last.t):.1f} s before the end" if end is not None else ""
        from oomproof.recording.census_record import summary

        text = summary(list(case.agent.censuses))
        yield "agent.census", "agent", last.t, text, f"what the job's variables held{age}"
    for kind, says in _TOLD.items():
        source, most = (_SEEN[kind], 1) if kind in _SEEN else ("agent", 2)
        for index, told in enumerate(
            [message for message in case.agent.told if message.kind == kind][-most:], 1
        ):
            yield (
                f"{'sample' if kind in _SEEN else 'agent'}.{kind}.{index}",
                source,
                told.t,
                told.text,
                says,
            )


_TOLD = {
    "exception": "the error that ended it, with the sizes of its variables",
    "worker-lost": "the job's own process found its loader worker dead",
    "program-lost": "a program that the job had started ran out of memory",
    "stacks": "where the code stood",
    "saved": "a checkpoint was written",
    "mappings": "one kind of mapping became more: whose habit it is",
    "page-cache": "pages of files that it works with were taken from memory and read from disk again",
}
_SEEN = {"mappings": "/proc", "page-cache": "the kernel's counters"}  # from outside, with its source


def _boots(case: CaseFile) -> Iterator[_Item]:
    if case.rebooted:
        text = f"boot id {case.exit.run_boot_id} then, {case.exit.boot_id} now"
        yield "boot", "boot id", None, text, "the machine has been restarted since"
    if case.exit.shutdown_wall is not None:
        yield "wtmp.shutdown", "wtmp", None, "a shutdown was recorded", "the machine went down in order"
    elif case.exit.next_boot_wall is not None and case.exit.boots_recorded:
        yield "wtmp.boot", "wtmp", None, "the next boot has no shutdown before it", "no orderly shutdown"
    if case.exit.going_down:
        says = "the machine was being shut down in order"
        yield "shutdown", "systemd", None, "systemd was stopping the machine when the job ended", says
