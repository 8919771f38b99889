"""The task table of an OOM report: its columns are taken from its header line, never by position."""

from __future__ import annotations

import re

from oomproof.records import dataclass, field

_HEADER = re.compile(r"\[\s*pid\s*\]\s+(?P<columns>uid\s.*\bname)\s*$")
# journalctl cut the line
_CUT_HEADER = re.compile(r"\[\s*pid\s*\]\s+(?P<columns>uid\s+tgid\s+total_vm\s.*)$")
_ROW = re.compile(r"\[\s*(?P<pid>\d{1,10})\]\s+(?P<rest>-?\d.*)$")
_MOST = 20_000  # rows; a machine with more tasks still has its victim among the biggest


@dataclass(frozen=True, slots=True)
class Task:
    """Memory in pages, None where this kernel has no such column."""

    pid: int
    name: str | None
    total_vm: int | None = None
    # anonymous and shared memory, where the kernel tells them apart (6.8): as everywhere here
    rss: int | None = None
    uid: int | None = None
    swap: int | None = None

    @property
    def held(self) -> int:
        return (self.rss or 0) + (self.swap or 0)


@dataclass(slots=True)
class TaskTable:
    columns: tuple[str, ...] = ()
    whole: bool = True  # the header ends in "name"
    tasks: dict[int, Task] = field(default_factory=dict)

    def begin(self, message: str) -> bool:
        """Whether this line is a header; it then empties the table."""
        match = _HEADER.search(message)
        whole = match is not None
        match = match or _CUT_HEADER.search(message)
        if match is None:
            return False
        self.columns, self.whole, self.tasks = tuple(match["columns"].split()), whole, {}
        if not whole and self.columns:
            self.columns = self.columns[:-1]  # the last word of a cut line may be half of one
        return True

    def row(self, message: str) -> bool:
        if not self.columns:
            return False
        match = _ROW.match(message.strip())
        if match is None:
            return False
        if len(self.tasks) < _MOST:
            self._keep(int(match["pid"]), match["rest"])
        return True

    def _keep(self, pid: int, rest: str) -> None:
        values = rest.split(None, len(self.columns) - 1) if self.whole else rest.split()
        if self.whole and len(values) != len(self.columns):
            return
        cells = dict(zip(self.columns, values, strict=False))

        def number(name: str) -> int | None:
            text = cells.get(name, "")
            return int(text) if text.isdecimal() and len(text) < 20 else None

        name = cells["name"].strip() if self.whole else None
        anon, rss = number("rss_anon"), number("rss")
        if anon is not None:  # a mapped file's pages are given back before anybody is killed
            rss = anon + (number("rss_shmem") or 0)
        self.tasks[pid] = Task(pid, name, number("total_vm"), rss, number("uid"), number("swapents"))


def page_size(task: Task, total_vm: int | None) -> int | None:
    """The kernel's page size, where the Killed line's bytes and the table's pages of one task tell it."""
    if total_vm is None or not task.total_vm or total_vm % task.total_vm:
        return None
    size = total_vm // task.total_vm
    return size if size in (4096, 8192, 16384, 65536) else None
