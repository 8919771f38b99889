"""The machine went down under the run: another boot id, and nobody wrote an exit status. In order, or not."""

from __future__ import annotations

from oomproof.diagnosis.advice import as_flag, command
from oomproof.diagnosis.deeds import keeper_was_asked
from oomproof.diagnosis.verdict import WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile
from oomproof.units import format_size

_STALLED = 0.3  # a third of the time with every task standing still: a desktop that no longer answers


def weigh(case: CaseFile) -> list[WeightedCause]:
    if not case.rebooted:
        return []
    orderly = case.shutdown_wall is not None or keeper_was_asked(case)
    if case.status is not None and not (
        keeper_was_asked(case) and case.shutdown_wall and case.status.code != 0
    ):
        return []  # it ended before the machine did
    if orderly:
        source = (
            "wtmp has a shutdown"
            if case.shutdown_wall is not None
            else "the keeper was asked to end (SIGTERM)"
        )
        return [
            _claim(
                case,
                "machine-down.orderly",
                "the machine was shut down or restarted in order while the job ran",
                f"{source}, and the machine has booted since; {_last(case)}",
                f"to start it again: {command(case)}",
            )
        ]
    short = _short(case)
    headline = "the machine went down without a shutdown (power, reset, freeze or panic)"
    if short:
        headline += "; memory was nearly gone just before"
    next_step = f"to start it again: {command(case)}; for the kernel's last words: journalctl -k -b -1 -e"
    if short:
        next_step = _with_less(case)
    why = f"the boot id changed and no exit status was written; {_last(case)}"
    return [_claim(case, "machine-down", headline, why, next_step)]


def _with_less(case: CaseFile) -> str:
    """The limit under which what the others held and the margin would have stayed."""
    if case.host is None or case.job is None:
        return f"see what else holds memory: oomproof check; then {command(case)}"
    others = case.host.total - case.host.available - case.job.used
    limit = case.host.total - others - (case.settings.margin or 0)
    if limit < case.job.used // 2:
        return f"others held {format_size(others)}: end them first (oomproof check), then {command(case)}"
    return f"{command(case, f'--limit {as_flag(limit)}')}; see what else holds memory: oomproof check"


def _short(case: CaseFile) -> bool:
    host = case.host
    if host is None:
        return False
    floor = case.settings.floor or host.total // 25
    return host.available <= floor * 2 or (host.psi_full or 0.0) >= _STALLED


def _last(case: CaseFile) -> str:
    if case.host is None:
        return "no sample of its last seconds is left"
    left = format_size(case.host.available)
    text = f"at the last sample {left} of {format_size(case.host.total)} was available"
    if case.job is not None:
        text += f", the job held {format_size(case.job.used)}"
    if case.host.psi_full:
        text += f", all tasks stalled {case.host.psi_full:.0%} of the time"
    return text


def _claim(case: CaseFile, weight: str, headline: str, why: str, next_step: str) -> WeightedCause:
    return WeightedCause(
        "machine-down",
        odds(weight),
        "proven",
        headline,
        why,
        next_step,
        evidence=case.evidence_from("boot", "wtmp", "keeper.", "sample."),
        test="last -x reboot shutdown; journalctl --list-boots",
    )
