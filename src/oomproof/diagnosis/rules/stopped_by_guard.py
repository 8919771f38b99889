"""Our own guard ended it: actions.jsonl says so, and the end came within the time such an action allows."""

from __future__ import annotations

import signal

from oomproof.diagnosis.death import Death, death_of
from oomproof.diagnosis.memory_answer import answer
from oomproof.diagnosis.stopping_actions import ended_by_us, guard_stop
from oomproof.diagnosis.verdict import Certainty, Weight, WeightedCause
from oomproof.evidence.case_file import Action, CaseFile
from oomproof.guard.action_text import reason_text, without_rate
from oomproof.leaf.action_kinds import KILL, NEAR_LIMIT, REQUEST, TERM
from oomproof.units import format_duration, format_size

_SIGNALLED = Weight(800, "our own record of the signal, and the job ended within the grace time")
_ASKED = Weight(800, "our own record of the request, and the job ended cleanly after it")
_ASKED_THEN_FAILED = Weight(60, "asked to stop, and it ended with an error of its own")
_KERNEL_TOO = Weight(40, "we acted, but the kernel's counter moved too: the counter decides")

_TOLD: dict[str, str] = {
    REQUEST: "asked to save and stop",
    TERM: "ended with SIGTERM",
    KILL: "killed with SIGKILL",
}
_SENT: dict[str, signal.Signals] = {TERM: signal.SIGTERM, KILL: signal.SIGKILL}
_AT_ONCE = 1.0  # seconds


def weigh(case: CaseFile) -> list[WeightedCause]:
    death, stop = death_of(case), guard_stop(case)
    if death is None or stop is None:
        return []
    weight, certainty = _weight(case, stop)
    at_limit = case.limits.settings.limit is not None and stop.scope == "limit"
    short = (
        f"near its limit of {format_size(case.limits.settings.limit)}" if at_limit else "as memory ran short"
    )
    headline = f"stopped by oomproof's guard {short}: {_told(stop, death)}"
    heard = case.stop_answer == "heard"
    if stop.action == REQUEST and not death.failed:
        headline += ", and it did" if heard else ", and it ended"
    memory = answer(case, case.limits.settings.limit if at_limit else None, machine=not at_limit)
    reason = stop.why or "memory was about to run out"
    if stop.reason == NEAR_LIMIT and case.samples.growth is not None and memory.culprit is None:
        # the rate is given below, over the whole time of the growth
        reason = reason_text(NEAR_LIMIT, without_rate(stop.figures))
    why = f"{reason}{_ending(case, stop, death)}"
    if stop.action == REQUEST and not heard:
        why += "; whether it had seen the request is not known"
    named = memory.culprit is not None and stop.figures.get("culprit") == memory.culprit.pid
    why = "; ".join((why, *(() if named else memory.told)))
    return [
        WeightedCause(
            "stopped-by-guard",
            weight,
            certainty,
            headline,
            why,
            memory.next,
            evidence=case.evidence_from(
                "action.", "exit", "counter.memcg_oom_kill", "sample.", "other.", "agent.census"
            ),
            test=f"what the guard did: oomproof runs show {case.called}",
            remedies=memory.remedies,
            culprit=memory.culprit,
        )
    ]


def _ending(case: CaseFile, stop: Action, death: Death) -> str:
    """How it ended; an end at once, by the signal that the headline names, is not said twice."""
    end = case.exit.status.boottime if case.exit.status else None
    if end is None:
        return f"; it {death.phrase}"
    took = max(0.0, end - stop.boottime)
    if took < _AT_ONCE and death.signal == _SENT.get(stop.action, -1):
        return ""
    return f"; {format_duration(took)} later it {death.phrase}"


def _told(stop: Action, death: Death) -> str:
    """What was done, and how it ended where that is another thing: it may leave by itself on SIGTERM."""
    sent = _SENT.get(stop.action)
    if sent is None or death.signal == sent:
        return _TOLD[stop.action]
    return f"sent {sent.name}, and it {death.phrase}"


def _weight(case: CaseFile, stop: Action) -> tuple[Weight, Certainty]:
    if case.kernel_killed:
        return _KERNEL_TOO, "possible"
    if not ended_by_us(case):  # asked, and answered with an error of its own, which then tells the story
        return _ASKED_THEN_FAILED, "possible"
    if stop.action == REQUEST:
        return _ASKED, "proven" if case.stop_answer == "heard" else "likely"
    return _SIGNALLED, "proven"
