"""A job without a cgroup of its own: a killed worker is told while the job waits for it, a stranger's kill is not."""

from __future__ import annotations

from oomproof.machine.processes import ProcessMemory
from oomproof.runner.lost_programs import Program, UncountedKills
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


def test_a_worker_that_takes_longer_to_die_than_a_sample_is_named_when_it_is_gone() -> None:
    """The kernel counts a kill when it decides on it: freeing 2 GiB on a busy machine takes longer than a sample."""
    counts = iter((3, 3, 4, 4))
    kills = UncountedKills(LEADER, lambda: next(counts), lambda since: [KILLED.replace("512", "9512")])
    both = [sample(LEADER), sample(9512)]
    worker = Program(9512, "python pool.py", 200 * MIB, own=False)
    assert kills.look(1.0, both, []) is None
    assert kills.look(2.0, both, []) is None, "counted, and still there"
    told = kills.look(3.0, [sample(LEADER)], [worker])
    assert told is not None and "python pool.py (pid 9512, held 200 MiB)" in told


def test_a_kill_is_told_when_the_log_comes_after_the_count() -> None:
    written: list[str] = []
    kills = UncountedKills(LEADER, iter((3, 3, 4, 4, 4, 4)).__next__, lambda since: written)
    worker = Program(512, "python pool.py", 200 * MIB, own=False)
    assert kills.look(1.0, [sample(LEADER), sample(512)], []) is None
    assert kills.look(2.0, [sample(LEADER)], [worker]) is None, "not written yet"
    written.append(KILLED)
    assert "python pool.py" in (kills.look(3.0, [sample(LEADER)], []) or "")
    assert kills.look(4.0, [sample(LEADER)], []) is None, "told once"


def test_a_small_process_of_the_jobs_is_known_by_its_pid_however_many_went_by() -> None:
    kills = UncountedKills(LEADER, iter((3, 3, 4)).__next__, lambda since: [KILLED.replace("512", "7512")])
    assert kills.look(1.0, [sample(LEADER), sample(7512)], []) is None
    told = kills.look(2.0, [sample(LEADER)], [])
    assert told is not None and "python (pid 7512) of the job" in told


def test_an_old_kill_explains_no_later_death() -> None:
    kills = UncountedKills(
        LEADER, iter((3, 4, *[4] * 20)).__next__, lambda since: [KILLED.replace("512", "9512")]
    )
    worker = Program(9512, "python pool.py", 200 * MIB, own=False)
    for second in range(20):
        assert kills.look(float(second), [sample(LEADER)], []) is None
    assert kills.look(30.0, [sample(LEADER)], [worker]) is None
