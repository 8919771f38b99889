"""The last seconds of a recording, read without changing it; a damaged one gives what can still be read."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oomproof.evidence.agent_files import Told
from oomproof.evidence.facts import GpuSample, HostSample, JobSample, ProcessSeen
from oomproof.recording.reader import UNREADABLE, connect

_WINDOW = 10.0  # seconds before the last sample that rate, pressure and the low of /dev/shm look back over
_TOLD = 50  # events of the job's agent, the last ones
_JUST_NOW = 2.0  # a death frees its memory before the wait status comes: up to a second on a starved machine


@dataclass(frozen=True, slots=True)
class RecordingTail:
    meta: Mapping[str, str] = field(default_factory=dict)
    host: HostSample | None = None
    job: JobSample | None = None
    job_peak: int | None = None
    shm_low: int | None = None
    gpus: tuple[GpuSample, ...] = ()
    phase: str = "unknown"
    step: int | None = None
    processes: Mapping[int, ProcessSeen] = field(default_factory=dict)
    told: tuple[Told, ...] = ()
    openmp: str | None = None  # two OpenMP runtimes in one process, as the sampler noted them
    reason: str | None = None  # why nothing could be read


def _rows(connection: sqlite3.Connection, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of one table; a table that is not there or is damaged has none."""
    try:
        return connection.execute(query, values).fetchall()
    except UNREADABLE:
        return []


def _host(connection: sqlite3.Connection) -> HostSample | None:
    rows = _rows(
        connection,
        "SELECT t, mem_total, mem_available, swap_total, swap_free, psi_full_us FROM host"
        " WHERE t >= (SELECT max(t) FROM host) - ? ORDER BY t",
        _WINDOW,
    )
    if not rows:
        return None
    first, last = rows[0], rows[-1]
    share = None
    if first[5] is not None and last[5] is not None and last[0] > first[0]:
        share = min(1.0, max(0.0, (last[5] - first[5]) / 1e6 / (last[0] - first[0])))
    lowest = min(row[2] or 0 for row in rows if last[0] - row[0] <= _JUST_NOW)
    return HostSample(last[0], last[1] or 0, last[2] or 0, last[3] or 0, last[4] or 0, share, lowest)


def _job(connection: sqlite3.Connection) -> tuple[JobSample | None, int | None]:
    rows = _rows(
        connection,
        "SELECT t, anon, shmem, file, swap, headroom, processes, shm_total, shm_free FROM job"
        " WHERE t >= (SELECT max(t) FROM job) - ? ORDER BY t",
        _WINDOW,
    )
    if not rows:
        return None, None

    def used(row: tuple[Any, ...]) -> int:
        return int((row[1] or 0) + (row[2] or 0) + (row[4] or 0))

    last = rows[-1]
    before = next((row for row in reversed(rows[:-1]) if last[0] - row[0] >= 1.0), rows[0])
    rate = (used(last) - used(before)) / (last[0] - before[0]) if last[0] > before[0] else 0.0
    lows = [row[8] for row in rows if row[8] is not None]
    sample = JobSample(
        t=last[0],
        anon=last[1] or 0,
        shmem=last[2] or 0,
        file=last[3] or 0,
        swap=last[4] or 0,
        headroom=last[5],
        processes=last[6] or 0,
        shm_total=last[7],
        shm_free=last[8],
        rate=rate,
    )
    return sample, min(lows, default=None)


def _processes(connection: sqlite3.Connection) -> dict[int, ProcessSeen]:
    # a bare column beside max(t) is of the row that holds the maximum (documented behaviour of SQLite)
    rows = _rows(
        connection,
        "SELECT pid, role, name, max(t),"
        " coalesce(anon, 0) + coalesce(shmem, 0) + coalesce(swap, 0), pss FROM process GROUP BY pid",
    )
    firsts = dict(_rows(connection, "SELECT pid, min(t) FROM process GROUP BY pid"))
    return {
        row[0]: ProcessSeen(
            row[0], row[1] or "", row[2] or "", firsts.get(row[0], row[3]), row[3], row[4], row[5]
        )
        for row in rows
    }


def last_samples(path: Path) -> RecordingTail:
    if not path.exists():
        return RecordingTail(reason=f"{path.name} is not there")
    try:
        connection = connect(path)
    except UNREADABLE as error:
        words = "its tables are damaged" if isinstance(error, UnicodeDecodeError) else str(error)
        return RecordingTail(reason=f"{path.name} cannot be read: {words}")
    try:
        meta = {str(key): str(value) for key, value in _rows(connection, "SELECT key, value FROM meta")}
        job, shm_low = _job(connection)
        peak = _rows(connection, "SELECT max(coalesce(anon,0)+coalesce(shmem,0)+coalesce(swap,0)) FROM job")
        gpus = _rows(
            connection,
            "SELECT t, idx, used, total, job_used FROM gpu"
            " WHERE t >= (SELECT max(t) FROM gpu) - 2 ORDER BY t",
        )
        newest = {row[1]: GpuSample(*row) for row in gpus if None not in row[:4]}
        phase = _rows(connection, "SELECT name, step FROM phase ORDER BY t DESC LIMIT 1")
        told = _rows(
            connection,
            "SELECT t, kind, text FROM event WHERE kind IN ('exception', 'saved', 'stacks', 'worker-lost') ORDER BY t",
        )
        openmp = _rows(connection, "SELECT text FROM event WHERE kind = 'openmp' ORDER BY t DESC LIMIT 1")
        return RecordingTail(
            meta=meta,
            host=_host(connection),
            job=job,
            job_peak=peak[0][0] if peak else None,
            shm_low=shm_low,
            gpus=tuple(newest[index] for index in sorted(newest)),
            phase=str(phase[0][0]) if phase and phase[0][0] else "unknown",
            step=phase[0][1] if phase else None,
            processes=_processes(connection),
            told=tuple(Told(float(t), str(kind), str(text or "")) for t, kind, text in told[-_TOLD:]),
            openmp=str(openmp[0][0]) if openmp else None,
        )
    except (TypeError, ValueError, ArithmeticError) as error:  # text where a number belongs
        return RecordingTail(reason=f"{path.name} is damaged: {error}")
    finally:
        connection.close()
