"""What this user's jobs held at most, by their recordings: the largest, and the two largest that were there at the same time.

Behind `sudo` it runs as the user (``python -m oomproof.ledger.job_history``): root neither reads nor writes a user's files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from oomproof.machine.asking_user import AskingUser
from oomproof.printable import one_line
from oomproof.records import asdict, dataclass

_LOOKED_AT = 100  # runs, the newest
_WORTH = 64 << 20  # bytes; smaller jobs ask nothing of a machine
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class JobPeak:
    name: str
    use: int
    begin: float = 0.0  # asked for, waiting counts too; seconds since the epoch
    end: float = 0.0
    gpu: int | None = None


@dataclass(frozen=True, slots=True)
class JobHistory:
    """``together`` is one job, or two that overlapped in time and held more together than the largest alone."""

    runs: int = 0
    together: tuple[JobPeak, ...] = ()
    problem: str = ""
    declared: bool = False  # by --need

    @property
    def use(self) -> int:
        return sum(job.use for job in self.together)


def largest(peaks: Iterable[JobPeak]) -> tuple[JobPeak, ...]:
    """The job, or the two at the same time, that held most."""
    known = sorted((peak for peak in peaks if peak.use >= _WORTH), key=lambda peak: -peak.use)
    if not known:
        return ()
    sets: list[tuple[JobPeak, ...]] = [
        (known[0],),
        *(pair for pair in combinations(known, 2) if _overlap(*pair)),
    ]
    return max(sets, key=lambda jobs: sum(job.use for job in jobs))


def _overlap(first: JobPeak, second: JobPeak) -> bool:
    return first.begin < second.end and second.begin < first.end


def read() -> JobHistory:
    """Of whoever runs this."""
    from oomproof.errors import OomproofError
    from oomproof.recording import run_summary
    from oomproof.recording.run_folders import newest_runs

    peaks = []
    for run in newest_runs(_LOOKED_AT):
        if not run.info or run.elsewhere() is not None:
            continue
        try:
            summary = run_summary.read(run) or run_summary.make(run, run.attempt.verdict() or None)
        except (OSError, ValueError, KeyError, TypeError, OomproofError):  # a damaged run tells nothing
            continue
        if summary.peaks.use:
            ended = float(run.exit().get("wall") or summary.created + (summary.seconds or 0.0))
            peaks.append(JobPeak(run.name, summary.peaks.use, summary.created, ended, summary.peaks.gpu))
    return JobHistory(len(peaks), largest(peaks))


def read_of(user: AskingUser, own_uid: int) -> JobHistory:
    """The same for the person behind `sudo`."""
    if user.uid == own_uid:
        return read()
    import subprocess
    from pathlib import Path

    ours = str(Path(__file__).parents[2])
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            user=user.uid, group=user.gid, extra_groups=[], cwd="/", capture_output=True, timeout=_SECONDS,
            stdin=subprocess.DEVNULL, env={"HOME": user.home, "PATH": "/usr/bin:/bin", "PYTHONPATH": ours},
        )  # fmt: skip
        return from_json(json.loads(done.stdout))
    except (OSError, ValueError, TypeError, KeyError, subprocess.TimeoutExpired):
        return JobHistory(problem=f"the runs of {user.name} could not be read")


def declared(sizes: Sequence[int]) -> JobHistory:
    return JobHistory(0, tuple(JobPeak("", size) for size in sizes), declared=True)


def from_json(value: dict[str, Any]) -> JobHistory:
    """What a user's process wrote: taken apart, not trusted."""
    jobs = tuple(
        JobPeak(
            one_line(str(job["name"])),
            max(0, int(job["use"])),
            float(job["begin"]),
            float(job["end"]),
            job["gpu"],
        )
        for job in value["together"][:2]
    )
    return JobHistory(int(value["runs"]), jobs, one_line(str(value["problem"])))


if __name__ == "__main__":
    print(json.dumps(asdict(read())))
