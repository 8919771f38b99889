"""The last seconds of a recording, read without changing it; a damaged one gives what can still be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from oomproof.evidence.agent_files import AgentMessage
from oomproof.evidence.case_file import (
    GpuSample,
    HostSample,
    JobSample,
    ProcessSeen,
    Samples,
)
from oomproof.recording.reader import Recording, open_recording
from oomproof.recording.series import GpuRow, HostRow, JobRow, Series
from oomproof.records import dataclass, field

_WINDOW = 10.0  # seconds before the last sample that rate, pressure and the low of /dev/shm look back over
_TOLD = 50  # events of the job's agent, the last ones
_JUST_NOW = 2.0  # a death frees its memory before the wait status comes: up to a second on a starved machine


@dataclass(frozen=True, slots=True)
class RecordingTail:
    meta: Mapping[str, str] = field(default_factory=dict)
    samples: Samples = Samples()
    # (total, free) of /dev/shm, by the job's own process as it failed
    shm_told: tuple[int, int] | None = None
    phase: str = "unknown"
    step: int | None = None
    told: tuple[AgentMessage, ...] = ()
    openmp: str | None = None  # two OpenMP runtimes in one process, as the sampler noted them
    reason: str | None = None  # why nothing could be read


def _host(rows: list[HostRow]) -> HostSample | None:
    if not rows:
        return None
    first, last = rows[0], rows[-1]
    share = None
    if first.psi_full_us is not None and last.psi_full_us is not None and last.t > first.t:
        share = min(1.0, max(0.0, (last.psi_full_us - first.psi_full_us) / 1e6 / (last.t - first.t)))
    lowest = min(row.mem_available or 0 for row in rows if last.t - row.t <= _JUST_NOW)
    return HostSample(
        last.t, last.mem_total or 0, last.mem_available or 0, last.swap_total or 0, last.swap_free or 0, share,
        lowest,
    )  # fmt: skip


def _job(rows: list[JobRow]) -> JobSample | None:
    if not rows:
        return None
    last = rows[-1]
    before = next((row for row in reversed(rows[:-1]) if last.t - row.t >= 1.0), rows[0])
    return JobSample(
        t=last.t,
        anon=last.anon or 0,
        shmem=last.shmem or 0,
        file=last.file or 0,
        swap=last.swap or 0,
        headroom=last.headroom,
        processes=last.processes or 0,
        shm_total=last.shm_total,
        shm_free=last.shm_free,
        rate=(last.use - before.use) / (last.t - before.t) if last.t > before.t else 0.0,
    )


def _shm_told(series: Series) -> tuple[int, int] | None:
    for _, told in reversed(series.told_numbers("exception", last=_TOLD)):
        shm = told.get("shm")
        if (
            isinstance(shm, list)
            and len(shm) == 2
            and all(isinstance(size, int) and size >= 0 for size in shm)
        ):
            return shm[0], shm[1]
    return None


class _Processes(Mapping[int, ProcessSeen]):
    """Read when first asked for: a run that ended well has nobody to look for, and a day's run millions of rows."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @cached_property
    def _found(self) -> dict[int, ProcessSeen]:
        with self._recording.series() as series:
            return {
                pid: ProcessSeen(pid, row.role or "", row.name or "", first, row.t, row.use, row.pss)
                for pid, (first, row) in series.processes().items()
            }

    def __getitem__(self, pid: int) -> ProcessSeen:
        return self._found[pid]

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def last_samples(path: Path, well: bool = False) -> RecordingTail:
    """``well``: it ended well, and nobody will ask what grew."""
    if not path.exists():
        return RecordingTail(reason=f"{path.name} is not there")
    recording = open_recording(path)
    if recording.problem and "no such table" in recording.problem:  # the others tell what they can
        recording = Recording(path)
    if recording.problem:
        return RecordingTail(reason=recording.problem.replace("the recording", path.name, 1))
    with recording.series() as series:
        job = series.newest(JobRow, _WINDOW)
        cards = {row.idx: GpuSample(*row) for row in series.newest(GpuRow, _JUST_NOW) if None not in row[:4]}
        phase, step = series.last_phase() or ("unknown", None)
        told = series.events(
            "exception",
            "saved",
            "stacks",
            "worker-lost",
            "program-lost",
            "mappings",
            "page-cache",
            last=_TOLD,
        )
        openmp = series.events("openmp", last=1)
        grew: dict[str, Any] = {}
        if not well:
            from oomproof.evidence import memory_growth

            grew = {
                "growth": memory_growth.job_growth(series, recording.wall_offset),
                "grown": memory_growth.grown_processes(series),
                "others": memory_growth.other_jobs(series, series.end()),
            }
        samples = Samples(
            host=_host(series.newest(HostRow, _WINDOW)),
            job=_job(job),
            gpus=tuple(cards[index] for index in sorted(cards)),
            shm_low=min((row.shm_free for row in job if row.shm_free is not None), default=None),
            processes=_Processes(recording),
            **grew,
        )
        return RecordingTail(
            meta=recording.meta,
            samples=samples,
            shm_told=None if well else _shm_told(series),
            phase=phase,
            step=step,
            told=tuple(AgentMessage(event.t, event.kind, event.text) for event in told),
            openmp=openmp[0].text if openmp else None,
        )
