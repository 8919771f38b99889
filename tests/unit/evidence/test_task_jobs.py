"""The kernel's task table as jobs: workers with their training, and nobody else's process in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomproof.evidence.texts.finding import TaskJob
from oomproof.evidence.texts.kernel_table import Task
from oomproof.evidence.texts.task_jobs import jobs_of

GIB = (1 << 30) // 4096  # in pages, as the table counts


def task(pid: int, rss: float, name: str = "python", uid: int = 1000, swap: float = 0.0) -> Task:
    return Task(pid, name, None, int(rss * GIB), uid, int(swap * GIB))


def jobs(*tasks: Task, victim: int | None = None, in_use: int | None = None) -> list[TaskJob]:
    return list(jobs_of(tasks, 4096, in_use, victim))


def test_a_training_and_its_sixteen_workers_are_one_job() -> None:
    workers = [task(500 + at, 1.5 + at % 3 / 50, swap=0.4) for at in range(16)]
    (job,) = jobs(task(100, 4), *workers, victim=503)
    assert len(job.pids) == 17 and job.workers == 16 and job.name == "python"
    assert 27.9 < job.ram / 2**30 < 28.5 and round(job.swap / 2**30, 1) == 6.4
    assert 1.8 < job.each / 2**30 < 2.0  # with what of it lay in swap


def test_a_main_process_of_the_same_size_is_no_worker() -> None:
    (job,) = jobs(*(task(500 + at, 1.5) for at in range(17)))
    assert len(job.pids) == 17 and job.workers == 16


def test_torchs_own_names_settle_who_is_a_worker() -> None:
    main = task(500, 1.5, "pt_main_thread")
    (job,) = jobs(main, *(task(501 + at, 1.5, "pt_data_worker") for at in range(3)))
    assert len(job.pids) == 4 and job.workers == 3 and job.name == "pt_main_thread"


def test_another_users_and_another_programs_processes_are_other_jobs() -> None:
    workers = [task(500 + at, 1.5) for at in range(4)]
    found = jobs(task(400, 4), *workers, task(450, 3, uid=1001), task(460, 2, "java"), task(90, 1.2))
    assert [(job.name, len(job.pids)) for job in found] == [
        ("python", 5), ("python", 1), ("java", 1), ("python", 1),
    ]  # fmt: skip


def test_two_trainings_of_one_user_are_two_jobs() -> None:
    one = [task(1000, 4), *(task(1010 + at, 1.5) for at in range(4))]
    two = [task(9000, 5), *(task(9020 + at, 1) for at in range(8))]
    first, second = sorted(jobs(*one, *two), key=lambda job: job.pids[0])
    assert (len(first.pids), first.workers, len(second.pids), second.workers) == (5, 4, 9, 8)


def test_ranks_under_a_small_launcher_are_not_called_loader_workers() -> None:
    (job,) = jobs(task(100, 0.2), *(task(110 + at, 6) for at in range(4)))
    assert len(job.pids) == 5 and job.workers == 0


def test_a_browsers_processes_are_one_job() -> None:
    (job,) = jobs(*(task(100 + 7 * at, 0.3 + at / 10, "chrome") for at in range(20)))
    assert job.name == "chrome" and len(job.pids) == 20 and job.workers == 0


def test_pages_that_forked_workers_share_are_counted_once() -> None:
    """Each of 16 workers maps the parent's 10 GiB; the kernel counted 12 GiB in all."""
    (job,) = jobs(task(100, 10), *(task(200 + at, 10) for at in range(16)), in_use=12 * GIB)
    assert 11.9 < job.ram / 2**30 < 12.1


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4_000_000), st.integers(0, 1 << 24), st.integers(0, 1 << 20),
            st.sampled_from(["python", "pt_data_worker", "pt_main_thread", "chrome", "Isolated Web Co", "x"]),
            st.sampled_from([0, 1000, None]),
        ), max_size=60, unique_by=lambda row: row[0],
    ),
    st.none() | st.integers(0, 1 << 26),
)  # fmt: skip
def test_no_process_is_in_two_jobs_and_no_sum_exceeds_the_rows(
    rows: list[tuple[int, int, int, str, int | None]], in_use: int | None
) -> None:
    tasks = [Task(pid, name, None, rss, uid, swap) for pid, rss, swap, name, uid in rows]
    found = jobs_of(tasks, 4096, in_use, rows[0][0] if rows else None)
    pids = [pid for job in found for pid in job.pids]
    assert len(pids) == len(set(pids)) and set(pids) <= {pid for pid, *_ in rows}
    assert sum(job.held for job in found) <= sum(rss + swap for _, rss, swap, _, _ in rows) * 4096
    assert all(job.workers <= len(job.pids) and job.each >= 0 for job in found)
    assert not rows or rows[0][0] in pids


def test_in_one_container_two_workers_are_told_too() -> None:
    main, *workers = task(35, 4.0), task(42, 1.5), task(45, 1.5)
    (job,) = jobs_of([main, *workers], 4096, None, 42, one_cgroup=True)
    assert job.pids == (35, 42, 45) and job.workers == 2
    assert len(jobs(main, *workers)) == 3  # on a whole machine that is a guess
