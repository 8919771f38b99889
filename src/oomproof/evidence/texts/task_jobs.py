"""The kernel's task table grouped into jobs. It prints no parents: names, users, pids and sizes have to tell. Pure.

Loader workers and ranks are forked in a row and hold about the same: three or more such rows are one job, and the
process of the same program that stands just before them is their parent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from oomproof.evidence.texts.finding import TaskJob
from oomproof.evidence.texts.kernel_table import Task

# PyTorch names its threads, and a process is called by its first: pt_main_thread, pt_data_worker
_FAMILIES = (
    ("python", re.compile(r"(?:ipython|python[\d.]*|pt_\w+|ray::.*)$")),
    ("firefox", re.compile(r"(?:firefox.*|Isolated .*|Web Content|WebExtensions|Privileged Cont.*)$")),
)
_LOADER = "pt_data_worker"
_SMALL = 4096  # pages: helpers such as Python's resource tracker belong to nobody's sum
_ALIKE = 2  # workers of one loader differ by what they have touched so far
_ROW = 256  # pids between two processes forked in one loop: each starts some threads
_MOST = 8  # jobs kept of one table


def jobs_of(
    tasks: Iterable[Task], page: int, in_use: int | None, victim: int | None, one_cgroup: bool = False
) -> tuple[TaskJob, ...]:
    """Heaviest first, the victim's always among them. ``one_cgroup``: all rows are of one service, scope or container. ``in_use``: pages of programs by the kernel's own count, where
    each page stands once; what the rows claim beyond it is shared, and is taken from jobs of several processes."""
    by_program: dict[tuple[int | None, str], list[Task]] = {}
    for task in tasks:
        if task.held >= _SMALL or task.pid == victim:
            by_program.setdefault((task.uid, family_of(task.name or "?")), []).append(task)
    groups: list[tuple[list[Task], list[Task]]] = []
    for (_, family), members in by_program.items():
        members.sort(key=lambda task: task.pid)
        if family != "python":
            groups.append((members, []))
        elif one_cgroup:
            alike = [task for row in _rows(members[1:]) if len(row) > 1 for task in row]
            groups.append((members, [] if alike and _launches(members[0], alike) else alike))
        else:
            groups += _python_jobs(members)
    factor = _unshared([members for members, _ in groups], in_use)
    jobs = [_job(members, workers, page, factor) for members, workers in groups]
    jobs.sort(key=lambda job: -job.held)
    return tuple(job for at, job in enumerate(jobs) if at < _MOST or victim in job.pids)


def family_of(name: str) -> str:
    return next((family for family, pattern in _FAMILIES if pattern.match(name)), name)


def _python_jobs(members: Sequence[Task]) -> list[tuple[list[Task], list[Task]]]:
    """(all processes, those that are workers) of each job; ``members`` by pid."""
    jobs: list[tuple[list[Task], list[Task]]] = []
    for row in _rows(members):
        loaders = [task for task in row if task.name == _LOADER]
        if len(row) < 3 and not loaders:
            jobs += [([task], []) for task in row]
            continue
        # people ask for 2, 4, 8, 16 workers
        inside = len(loaders) < len(row) if loaders else len(row) % 2 == 1
        workers = loaders or (row[1:] if inside else row)
        if inside or not jobs:
            jobs.append((row, workers))
            continue
        parent, older = jobs.pop()  # the one just before; ranks' own loaders join the ranks
        above = parent[-1] if not older else parent[0]
        ranks = not loaders and _launches(above, row)
        jobs.append(([*parent, *row], [*older, *([] if ranks else workers)]))
    return jobs


def _launches(parent: Task, children: Sequence[Task]) -> bool:
    """A small parent of large processes starts ranks; a training is about as large as its loader's workers."""
    return parent.held * _ALIKE < min(task.held for task in children)


def _rows(members: Sequence[Task]) -> list[list[Task]]:
    """Processes with neighbouring pids that hold about the same."""
    rows: list[list[Task]] = []
    for task in members:
        last = rows[-1] if rows else []
        near = (
            last and task.pid - last[-1].pid <= _ROW and (task.name == _LOADER) == (last[-1].name == _LOADER)
        )
        sizes = [row_task.held for row_task in last] + [task.held]
        if near and max(sizes) <= _ALIKE * max(1, min(sizes)):
            last.append(task)
        else:
            rows.append([task])
    return rows


def _unshared(groups: Sequence[Sequence[Task]], in_use: int | None) -> float:
    """The part of "all but the largest process of each job" that is no other process's page."""
    if not in_use:
        return 1.0
    claimed = sum(task.rss or 0 for members in groups for task in members)
    certain = sum(max(task.rss or 0 for task in members) for members in groups)
    doubtful = claimed - certain
    return min(1.0, max(0, in_use - certain) / doubtful) if doubtful else 1.0


def _job(members: Sequence[Task], workers: Sequence[Task], page: int, factor: float) -> TaskJob:
    largest = max(members, key=lambda task: task.held)

    def own(task: Task) -> int:
        rss = task.rss or 0
        return int((rss if task is largest else rss * factor) * page)

    sizes = sorted(own(task) + (task.swap or 0) * page for task in workers)
    return TaskJob(
        name=(members[0] if workers else largest).name,
        uid=largest.uid,
        pids=tuple(task.pid for task in members),
        ram=sum(map(own, members)),
        swap=sum(task.swap or 0 for task in members) * page,
        workers=len(workers),
        loader=any(task.name == _LOADER for task in workers)
        or (bool(workers) and workers[0].pid - members[0].pid > _ROW),
        each=sizes[len(sizes) // 2] if sizes else 0,
    )
