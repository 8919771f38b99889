"""What of a verdict is shown, in which order: the same in the terminal, in Markdown and on the page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.diagnosis.verdict import RankedCause, Remedy, Verdict
from oomproof.evidence.case_file import Evidence

_NOTICED = 0.01  # of probability: a cause below stands in the JSON only
# What tells most, first: who killed it, what it said itself, what was seen of it; counters and the exit status go with anything.
_TELLING = ("kernel.kill", "kernel.fault", "agent.crash", "gpu", "text", "output", "action", "agent.exception", "sample.job",
            "sample.host", "exit")  # fmt: skip
_UNMOVED = re.compile(r"\w+: (\d+|\?) at start, \1 at death")


def decisive_first(verdict: Verdict) -> tuple[list[Evidence], list[Evidence]]:
    """The evidence that the first cause rests on, and what was seen beside it."""
    cited = set(verdict.causes[0].evidence) if verdict.causes else set()
    decided = [item for item in verdict.evidence if item.id in cited]
    beside = [item for item in verdict.evidence if item.id not in cited]
    return (decided, beside) if decided else (beside, [])


def telling_first(items: Sequence[Evidence]) -> list[Evidence]:
    """One fact of each kind, the newest, in the order of what it tells; then the others."""
    by_kind: dict[int, list[Evidence]] = {}
    for item in items:
        kind = next((at for at, prefix in enumerate(_TELLING) if item.id.startswith(prefix)), len(_TELLING))
        by_kind.setdefault(kind, []).insert(0, item)
    rounds = sorted((turn, kind, item.id) for kind, same in by_kind.items() for turn, item in enumerate(same))
    known = {item.id: item for item in items}
    return [known[name] for _, _, name in rounds]


def found_nothing(item: Evidence) -> bool:
    """A counter that did not move, a message that never came: looked at, and silent."""
    return item.id.startswith("handler.") or bool(_UNMOVED.fullmatch(item.text))


def notable(verdict: Verdict) -> list[RankedCause]:
    return [cause for cause in verdict.causes if cause.probability >= _NOTICED]


def how(remedy: Remedy) -> str | None:
    """The exact change in one line to type or to look for; None where it differs from job to job."""
    change = remedy.change
    if remedy.command is not None or change is None or change.after is None:
        return remedy.command
    if change.kind == "env":
        return f"{change.key}={change.after}"
    location = f"{change.file}: " if change.file else ""
    values = " → ".join(value for value in (change.before, change.after) if value)
    return f"{location}{change.key}: {values}"
