"""Which of a text's findings it is about: the last kill, else the fault at the root, else the last notice."""

from __future__ import annotations

from collections.abc import Iterable

from oomproof.causes import cause_of
from oomproof.evidence.texts.finding import Finding

_NEAR = 400  # lines within which a fault and its aftermath stand


def settle(findings: Iterable[Finding]) -> Finding | None:
    """``findings`` of the kernel's and the guards' parsers over one text. None: no death is told of."""
    found = sorted(findings, key=lambda each: each.place)
    kills = [each for each in found if cause_of(each.cause).kill]
    if kills:
        sure = [each for each in kills if each.strength >= 0.8] or kills
        # a kubelet repeats what the kernel said of the same process, and not which limit it was
        told = [each for each in sure if each.guard.by != "kubelet" and _same(each, sure[-1])]
        return told[-1] if told else sure[-1]
    deaths = [each for each in found if each.cause != "not-a-crash"]
    if deaths:
        strong = [each for each in deaths if each.strength >= 0.6] or deaths
        last = strong[-1]
        near = [each for each in strong if last.place - each.place < _NEAR]
        # a GPU's fault makes its own program fall: the driver's line is the root
        for each in reversed(near):
            if each.cause == "xid" and each.strength > 0.9 and _same(each, last):
                return each
        return last if last.strength > 0.8 else max(near, key=lambda each: (each.strength, each.place))
    return found[-1] if found else None


def _same(one: Finding, other: Finding) -> bool:
    return bool(set(one.pids) & set(other.pids))
