"""How much memory was left at the end: ample, tight, or nobody knows. The samples decide, not a feeling."""

from __future__ import annotations

from oomproof.evidence.case_file import CaseFile
from oomproof.records import dataclass
from oomproof.units import format_size

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
    end = case.status.boottime if case.status else None
    host, job = case.host, case.job
    age = max(0.0, end - host.t) if host and end is not None else None
    taken = _unsampled(case)  # known also where the samples are old: the guard was stopped, or starved
    stale = age is not None and age > _STALE
    if host is None or (stale and not taken):
        return Headroom(None, None, None, None, age)
    grown = taken if stale or job is None else max(int(max(0.0, job.rate) * (age or 0.0)), taken)
    lowest = host.available if host.lowest is None else min(host.lowest, host.available)
    left = max(0, lowest - grown)
    needed = max(int(host.total * _SHARE), case.settings.floor or 0)
    limit_left = limit_ample = None
    if job is not None and job.headroom is not None:
        limit_left = max(0, job.headroom - grown)
        limit = case.limit or case.settings.limit
        limit_ample = limit_left > int((limit or job.used + job.headroom) * _SHARE)
    return Headroom(left, left > needed, limit_left, limit_ample, age)


def _unsampled(case: CaseFile) -> int:
    """What a job that the kernel killed took after its last sample, which its cgroup's peak still knows."""
    peak, job = case.at_death.memcg_peak, case.job
    if not case.kernel_killed or peak is None or job is None:
        return 0
    if peak <= max(job.used, case.sampled_peak or 0) + job.file:
        return 0  # nothing that the samples did not see
    return peak - job.used - job.file
