"""How the job ended: its signal, also when a shell only handed its number on, and what was free around it."""

from __future__ import annotations

import signal

from oomproof.evidence.case_evidence import signal_name
from oomproof.evidence.case_file import CaseFile, SilentHandler
from oomproof.records import dataclass
from oomproof.units import MIB, format_size

_FULL_SHARE, _FULL_BYTES = 0.05, 16 * MIB  # one batch of images is larger: the next does not fit


def shm_left(case: CaseFile) -> int | None:
    """The least of what was seen free: by the time of the exit the dead job has given its pages back."""
    return min(
        (free for free in (case.samples.shm_low, case.samples.shm_free) if free is not None), default=None
    )


def shm_full(case: CaseFile) -> bool | None:
    free, total = shm_left(case), case.samples.shm_total
    if free is None or not total:
        return None
    return free <= max(total * _FULL_SHARE, min(_FULL_BYTES, total // 4))


_STALE = 15.0  # seconds; an older sample says nothing about the moment of death (1 GiB/s fills any machine)
# of RAM or of the limit. Guards act at 4 % (ours) to 10 % (earlyoom): above it none of them does
_SHARE = 0.10


@dataclass(frozen=True, slots=True)
class Headroom:
    host: int | None  # bytes left on the machine, growth since the last sample taken off
    host_ample: bool | None
    limit_left: int | None
    limit_ample: bool | None
    age: float | None  # of the samples

    @property
    def ample(self) -> bool | None:
        """Headroom on every side that is known; None when nothing is."""
        if self.host_ample is None:
            return None
        return self.host_ample and self.limit_ample is not False

    @property
    def phrase(self) -> str:
        if self.host is None:
            return "how much memory was left is not known"
        text = f"{format_size(self.host)} of memory was available"
        if self.limit_left is not None:
            text += f" and the job was {format_size(self.limit_left)} below its limit"
        return text


def headroom_at_end(case: CaseFile) -> Headroom:
    end = case.exit.status.boottime if case.exit.status else None
    host, job = case.samples.host, case.samples.job
    age = max(0.0, end - host.t) if host and end is not None else None
    taken = _unsampled(case)  # known also where the samples are old: the guard was stopped, or starved
    stale = age is not None and age > _STALE
    if host is None or (stale and not taken):
        return Headroom(None, None, None, None, age)
    grown = taken if stale or job is None else max(int(max(0.0, job.rate) * (age or 0.0)), taken)
    lowest = host.available if host.lowest is None else min(host.lowest, host.available)
    left = max(0, lowest - grown)
    needed = max(int(host.total * _SHARE), case.limits.settings.floor or 0)
    limit_left = limit_ample = None
    if job is not None and job.headroom is not None:
        limit_left = max(0, job.headroom - grown)
        limit = case.limits.limit or case.limits.settings.limit
        limit_ample = limit_left > int((limit or job.used + job.headroom) * _SHARE)
    return Headroom(left, left > needed, limit_left, limit_ample, age)


def _unsampled(case: CaseFile) -> int:
    """What a job that the kernel killed took after its last sample, which its cgroup's peak still knows."""
    peak, job = case.limits.at_death.memcg_peak, case.samples.job
    if not case.kernel_killed or peak is None or job is None:
        return 0
    if peak <= max(job.used, case.samples.sampled_peak or 0) + job.file:
        return 0  # nothing that the samples did not see
    return peak - job.used - job.file


_EXCLUDES = {"exception": "it was no such Python exception", "nan": "the values it looks at were numbers"}


def silence(case: CaseFile) -> str:
    """One clause for each kind of handler, to stand at the end of a sentence; empty where there is none."""
    first: dict[str, SilentHandler] = {}
    for handler in case.program.silent:
        if handler.kind not in first or (handler.sure and not first[handler.kind].sure):
            first[handler.kind] = handler
    return "".join(f"; {_clause(handler)}" for handler in first.values())


def _clause(handler: SilentHandler) -> str:
    text = handler.text if len(handler.text) <= 60 else handler.text[:59] + "…"
    said = f"{handler.file}:{handler.line} ({handler.catches}) would have printed «{text}» and did not"
    if not handler.sure:
        return f"{said}: {_EXCLUDES[handler.kind]}, unless the line was still in a buffer (python -u)"
    return f"{said}: {_EXCLUDES[handler.kind]}"


# Only these are taken from 128+N: other codes above 128 are more often a program's own.
_SHELL_SIGNALS = frozenset(
    (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGTERM,
    )
)


@dataclass(frozen=True, slots=True)
class Death:
    signal: int | None
    code: int | None
    direct: bool  # False: read off an exit code of 128+N

    @property
    def failed(self) -> bool:
        return self.signal is not None or self.code != 0

    @property
    def phrase(self) -> str:
        if self.signal is None:
            return f"exited with code {self.code}"
        name = signal_name(self.signal)
        return (
            f"was ended by {name}"
            if self.direct
            else f"exited with code {self.code}, which a shell gives for {name}"
        )


def death_of(case: CaseFile) -> Death | None:
    """None when nobody saw the end."""
    status = case.exit.status
    if status is None:
        return None
    if status.signal is not None:
        return Death(status.signal, None, True)
    code = status.code
    if code is not None and code - 128 in _SHELL_SIGNALS:
        return Death(code - 128, code, False)
    return Death(None, code, True)
