"""What the readers of guards' words share: findings kept in order, one for one death."""

from __future__ import annotations

from abc import ABC, abstractmethod

from oomproof.evidence.texts.finding import Finding, GuardFacts, Sizes
from oomproof.evidence.texts.line_prefixes import Stamped
from oomproof.records import replace

_MOST = 5_000
_NO_FACTS = GuardFacts()


class GuardReader(ABC):
    """Base of the readers in ``guard_*.py``: ``feed`` each line, ``found`` in the order of the text.
    ``anchors`` are strings one of which stands in every line ``feed`` wants."""

    anchors: tuple[str, ...] = ()

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: list[Finding] = []

    @abstractmethod
    def feed(self, number: int, stamp: Stamped) -> None:
        """One line that holds an anchor."""

    def finish(self) -> list[Finding]:
        return self.found

    def add(
        self,
        cause: str,
        number: int,
        stamp: Stamped,
        says: str,
        strength: float,
        victim: Sizes | None = None,
        cgroup: str | None = None,
        limit: int | None = None,
        facts: GuardFacts = _NO_FACTS,
    ) -> None:
        if len(self.found) >= _MOST:  # keep the first half and the newest
            del self.found[_MOST // 2]
        pids = (victim.pid,) if victim is not None and victim.pid is not None else ()
        text, time, seconds = stamp.message[:600], stamp.time, stamp.seconds
        self.found.append(
            Finding(cause, self.source, number, text, says, strength, time, seconds, victim, None, cgroup, limit, pids, guard=facts)
        )  # fmt: skip

    def last(self, cause: str) -> Finding | None:
        return self.found[-1] if self.found and self.found[-1].cause == cause else None

    def amend(self, **changes: object) -> None:
        """The newest finding, with what a later line adds."""
        self.found[-1] = replace(self.found[-1], **changes)  # type: ignore[arg-type]
