"""What of a verdict is shown, in which order: the same in the terminal, in Markdown and on the page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.diagnosis.verdict import Remedy, Verdict
from oomproof.evidence.case_file import Evidence
from oomproof.printable import printable
from oomproof.reports.document import Causes, Labels, Proof, Step, Steps, section, terminal
from oomproof.reports.verdict_text import three_lines
from oomproof.units import format_size

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


def considered(verdict: Verdict) -> Causes:
    return Causes(tuple(cause for cause in verdict.causes if cause.probability >= _NOTICED))


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


def remedies(verdict: Verdict) -> Steps:
    return Steps(
        tuple(
            Step(
                remedy.title,
                remedy.basis + (f", saves {format_size(remedy.saves_bytes)}" if remedy.saves_bytes is not None else ""),
                how(remedy),
            )
            for remedy in verdict.remedies
        ),
        ordered=True,
    )  # fmt: skip


def missing(verdict: Verdict, before: str = "") -> Steps:
    return Steps(
        tuple(Step(f"{before}{gap.source}: {gap.reason}", "", gap.how_to_grant) for gap in verdict.missing)
    )


def long_form(verdict: Verdict, *, colour: bool = False, width: int = 110) -> str:
    """All of a verdict, for the terminal."""
    causes = considered(verdict)
    decided, beside = decisive_first(verdict)
    rest = [section(Labels(tuple(_details(verdict))))]
    rest += [section(causes, title="Causes, most likely first")] if len(causes.ranked) > 1 else []
    named: list[tuple[str, Proof | Steps]] = [
        ("Evidence", Proof(tuple(decided))), ("Also seen", Proof(tuple(beside))),
        ("What may help", remedies(verdict)), ("Could not be read", missing(verdict)),
    ]  # fmt: skip
    rest += [section(block, title=title) for title, block in named if block.items]
    return f"{three_lines(verdict, colour=colour, width=width)}\n\n{printable(terminal(tuple(rest), width))}"


def _details(verdict: Verdict) -> list[tuple[str, str]]:
    # whatever no rule names is an "other error": that there is no other reading makes it no surer than its word says
    unsure = verdict.cause == "other-error" and verdict.certainty != "proven" and len(verdict.causes) < 2
    rows = [("cause", verdict.kind.title + ("" if unsure else f", {verdict.probability:.0%}"))]
    if verdict.phase != "unknown":
        step = f", step {verdict.step}" if verdict.step is not None else ""
        rows.append(("phase", verdict.phase + step))
    if (victim := verdict.victim) is not None:
        who = f"pid {victim.pid}" + (f" ({victim.name})" if victim.name else "")
        text = who if victim.pid is not None else victim.who
        if victim.anon_rss_bytes is not None:
            # total-vm is left out on purpose: it is address space, and people read it as memory
            shared = f", shared {format_size(victim.shmem_rss_bytes)}" if victim.shmem_rss_bytes else ""
            text += f": {format_size(victim.anon_rss_bytes)} of its own{shared}"
        rows.append(("victim", text))
    if (gpu := verdict.gpu) is not None:
        told = (
            ("asked", gpu.requested_bytes),
            ("free", gpu.free_bytes),
            ("total", gpu.total_bytes),
            ("allocated", gpu.allocated_bytes),
            ("reserved but unused", gpu.reserved_unallocated_bytes),
        )
        sizes = [f"{name} {format_size(size)}" for name, size in told if size is not None]
        if gpu.index is None and gpu.total_bytes is None and gpu.free_bytes is None:  # it failed on the host
            rows.append(("asked", format_size(gpu.requested_bytes)))
        else:
            rows.append(("gpu", f"{gpu.index if gpu.index is not None else '?'}: {', '.join(sizes)}"))
    causes = considered(verdict).ranked
    if len(causes) == 1 and causes[0].test and not verdict.kind.good:
        rows.append(("test", causes[0].test))
    return rows
