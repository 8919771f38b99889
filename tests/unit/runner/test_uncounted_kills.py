"""A job without a cgroup of its own: a killed worker is told while the job waits for it, a stranger's kill is not."""

from __future__ import annotations

from oomproof.machine.processes import ProcessMemory
from oomproof.runner.lost_programs import Program
from oomproof.runner.uncounted_kills import UncountedKills
from oomproof.units import MIB

LEADER = 500
KILLED = "Memory cgroup out of memory: Killed process 512 (python) total-vm:734020kB, anon-rss:275008kB"
CHROME = "Out of memory: Killed process 9001 (chrome) total-vm:1kB, anon-rss:1kB"


def sample(pid: int, name: str = "python") -> ProcessMemory:
    values = dict.fromkeys(ProcessMemory.__dataclass_fields__, 0)
    return ProcessMemory(**{**values, "pid": pid, "start": pid, "name": name})  # type: ignore[arg-type]


def look(lines: list[str] | None, gone: list[Program], alive: tuple[int, ...] = (LEADER, 510)) -> str | None:
    counts = iter((3, 3, 4))
    kills = UncountedKills(LEADER, lambda: next(counts), lambda since: lines)
    assert kills.look(1.0, [sample(LEADER), sample(510)], []) is None, "nothing was killed"
    return kills.look(2.0, [sample(pid) for pid in alive], gone)


def test_a_worker_that_was_sampled_is_named() -> None:
    worker = Program(512, "python pool.py", 200 * MIB, own=False)
    told = look([CHROME, KILLED], [worker])
    assert told is not None and "python pool.py (pid 512, held 200 MiB)" in told and "never ends" in told


def test_a_worker_between_two_samples_is_told_as_one_like_the_jobs() -> None:
    told = look([KILLED], [])
    assert told is not None and "python (pid 512)" in told and "like processes of the job" in told


def test_somebody_elses_death_is_none_of_the_jobs() -> None:
    assert look([CHROME], []) is None
    far = KILLED.replace("512", "5120")
    assert look([far], [Program(511, "python pool.py", 20 * MIB, own=False)]) is None


def test_where_the_log_may_not_be_read_a_lost_process_is_told_with_what_is_known() -> None:
    worker = Program(512, "python pool.py", 200 * MIB, own=False)
    told = look(None, [worker])
    assert told is not None and "on this machine" in told and "is gone" in told
    assert look(None, []) is None


def test_a_job_that_is_gone_as_a_whole_needs_no_word() -> None:
    assert look([KILLED], [], alive=(510,)) is None


def test_a_kernel_that_does_not_count_is_not_asked() -> None:
    kills = UncountedKills(LEADER, lambda: None, lambda since: [KILLED])
    assert kills.look(1.0, [sample(LEADER)], []) is None
