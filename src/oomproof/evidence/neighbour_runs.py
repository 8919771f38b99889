"""Which run of ours a managed job beside a death was: the recording has the pid of the group's first process, the front's mostly."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.evidence.case_file import OtherJob
from oomproof.evidence.json_files import integer, number, part, string
from oomproof.leaf.command_lines import short_name
from oomproof.recording.run_folders import Run, newest_runs, to_type
from oomproof.records import replace

_LOOKED_AT = 50  # runs, the newest: each costs a file or two
_PROCESSES = ("guard", "keeper", "job")


def with_runs(others: Sequence[OtherJob], boot_id: str | None) -> tuple[OtherJob, ...]:
    """By the run's name and its job's process. ``boot_id``: of the boot in which they were seen."""
    runs = newest_runs(_LOOKED_AT)
    return tuple(_with_run(other, runs, boot_id) if other.managed else other for other in others)


def _with_run(other: OtherJob, runs: Sequence[Run], boot_id: str | None) -> OtherJob:
    for run in runs:
        for attempt in reversed(run.attempts()):
            started, _ = attempt.load_started()
            begun, job = number(started.get("boottime")), integer(part(started, "job").get("pid"))
            if begun is None or begun > other.t or string(started.get("boot_id")) != boot_id:
                continue
            if other.pid in [integer(part(started, process).get("pid")) for process in _PROCESSES]:
                return replace(other, run=to_type(run), name=short_name(run.argv), pid=job or other.pid)
    return other
