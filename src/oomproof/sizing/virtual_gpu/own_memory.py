"""What the script's own process holds, noted by itself between two pieces of work: on a busy machine nobody may have looked by then."""

from __future__ import annotations


class OwnMemory:
    """Anonymous bytes at most: ``before`` the model's first pass, and ``since``."""

    def __init__(self) -> None:
        self.before = self.since = 0

    def begin(self) -> None:
        self.before, self.since = max(self.before, self.since, resident()), 0
        self.note()

    def note(self) -> None:
        self.since = max(self.since, resident())

    def as_json(self) -> dict[str, int]:
        self.note()
        return {"before": self.before, "since": self.since}


def resident() -> int:
    """Anonymous memory of this process, in bytes."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))
    except (OSError, StopIteration):
        return 0
