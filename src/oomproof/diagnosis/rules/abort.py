"""SIGABRT: the program ended itself; its last lines tend to say why (bad_alloc, an assertion, glibc)."""

from __future__ import annotations

import re
import signal

from oomproof.diagnosis.advice import command, read_output, smaller_job
from oomproof.diagnosis.crashes import crash_of
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.verdict import Certainty, Remedy, WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile

_LINES = 60  # a native stack trace may follow the words
_BAD_ALLOC = re.compile(r"std::bad_alloc|std::bad_array_new_length|terminate called .*bad_alloc")
_ASSERT = re.compile(r"Assertion [`'].*failed|: Assertion|assertion failed", re.IGNORECASE)
_GLIBC = re.compile(r"malloc\(\)|free\(\)|double free|corrupted|munmap_chunk|stack smashing", re.IGNORECASE)
_TERMINATE = re.compile(
    r"terminate called (?:after throwing|without an active).*|\s+what\(\):.*|Fatal Python error:.*"
)


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or death.signal != signal.SIGABRT:
        return []
    certainty: Certainty = "proven" if death.direct else "likely"
    read = f"read the last lines: {read_output(case)}"
    tail = case.output.lines[-_LINES:]
    why = f"it ended by {death.phrase}"
    crash = crash_of(case, signal.SIGABRT)
    if crash is not None and crash.frames:
        why += f"; the Python line was {crash.where}"
    if line := _find(_BAD_ALLOC, tail):
        refused = "the system refused it memory (a limit on addresses, overcommit, or a huge request)"
        return [
            _claim(
                case,
                "bad-alloc",
                certainty,
                "out of memory: C++ could not allocate (std::bad_alloc) and aborted",
                f"{why}; it printed: {line}; {refused}",
                f"check the limits: ulimit -v; oomproof check; then halve batch or workers: {command(case)}",
                "abort.told",
                smaller_job(case),
            )
        ]
    if line := _find(_ASSERT, tail):
        headline = "aborted: an assertion in native code failed"
        return [_claim(case, "assert", certainty, headline, f"{why}; it printed: {line}", read, "abort.told")]
    if line := _find(_GLIBC, tail) or _find(_TERMINATE, tail):
        headline = "aborted by its own native code, not an OOM kill"
        return [_claim(case, "abort", certainty, headline, f"{why}; it printed: {line}", read, "abort.told")]
    stack = f"get the Python stack of the abort: PYTHONFAULTHANDLER=1 {command(case)}"
    headline = "aborted by its own native code, not an OOM kill"
    if crash is not None and crash.line is not None:
        headline = f"aborted by its own native code at {crash.line}, not an OOM kill"
        stack = f"look at what {crash.line} calls; the whole stack: {case.folder}/agent/{crash.pid}-fault.txt"
        return [_claim(case, "abort", certainty, headline, why, stack, "abort")]
    return [_claim(case, "abort", certainty, headline, f"{why} and did not say why", stack, "abort")]


def _find(pattern: re.Pattern[str], lines: tuple[str, ...]) -> str | None:
    return next((line.strip()[:160] for line in reversed(lines) if pattern.search(line)), None)


def _claim(
    case: CaseFile,
    cause: str,
    certainty: Certainty,
    headline: str,
    why: str,
    next_step: str,
    weight: str,
    remedies: tuple[Remedy, ...] = (),
) -> WeightedCause:
    return WeightedCause(
        cause,
        odds(weight),
        certainty,
        headline,
        why,
        next_step,
        evidence=case.evidence_from("exit", "output.", "agent.crash", "agent.position"),
        test="PYTHONFAULTHANDLER=1 shows the Python line that led to the abort",
        remedies=remedies,
    )
