"""Which of a text's findings it is about: the last kill, else the fault at the root, else the last notice."""

from __future__ import annotations

from collections.abc import Iterable

from oomproof.causes import cause_of
from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.kill_history import oldest_first

_NEAR = 400  # lines within which a fault and its aftermath stand


def settle(findings: Iterable[Finding]) -> Finding | None:
    """``findings`` of the kernel's and the guards' parsers . None: no death is told of."""
    in_order = oldest_first(findings)
    kills = [finding for finding in in_order if cause_of(finding.cause).kill]
    if kills:
        sure = [kill for kill in kills if kill.strength >= 0.8] or kills
        # a kubelet repeats what the kernel said of the same process, and not which limit it was
        told = [finding for finding in sure if finding.guard.by != "kubelet" and _same(finding, sure[-1])]
        return told[-1] if told else sure[-1]
    deaths = [finding for finding in in_order if finding.cause != "not-a-crash"]
    if deaths:
        strong = [death for death in deaths if death.strength >= 0.6] or deaths
        last = strong[-1]
        near = [finding for finding in strong if last.sort_key - finding.sort_key < _NEAR]
        # a GPU's fault makes its own program fall: the driver's line is the root
        for finding in reversed(near):
            if finding.cause == "xid" and finding.strength > 0.9 and _same(finding, last):
                return finding
        return (
            last
            if last.strength > 0.8
            else max(near, key=lambda finding: (finding.strength, finding.sort_key))
        )
    return in_order[-1] if in_order else None


def _same(finding: Finding, other: Finding) -> bool:
    return bool(set(finding.pids) & set(other.pids))
