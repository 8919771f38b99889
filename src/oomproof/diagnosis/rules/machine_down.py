"""The machine went down under the run: another boot id, and nobody wrote an exit status. In order, or not."""

from __future__ import annotations

import time

from oomproof.diagnosis.advice import as_flag, command
from oomproof.diagnosis.memory_answer import answer, change_first, culprit_of
from oomproof.diagnosis.stopping_actions import guard_stop, keeper_was_asked, user_stop
from oomproof.diagnosis.verdict import Steps, Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile
from oomproof.records import replace
from oomproof.units import format_size, format_time, format_zone

_NO_SHUTDOWN = Weight(900, "the boot id changed and nobody wrote an exit status")
_SHUTDOWN = Weight(950, "the same, and a shutdown was on record")

_STALLED = 0.3  # a third of the time with every task stalled: a desktop that no longer answers

ORDERLY = "the machine was shut down or restarted in order"  # reports tell the two apart by it


def weigh(case: CaseFile) -> list[WeightedCause]:
    if case.exit.going_down:
        return _during_shutdown(case)
    if not case.rebooted:
        return []
    orderly = case.exit.shutdown_wall is not None or keeper_was_asked(case)
    if case.exit.status is not None and not (
        keeper_was_asked(case) and case.exit.shutdown_wall and case.exit.status.code != 0
    ):
        return []  # it ended before the machine did
    if orderly:
        source = (
            "wtmp has a shutdown"
            if case.exit.shutdown_wall is not None
            else "the keeper was asked to end (SIGTERM)"
        )
        return [
            _claim(
                case,
                _SHUTDOWN,
                f"{ORDERLY}{_until_boot(case)} while the job ran",
                f"{source}, and the machine has booted since; {_last(case)}",
                steps("to start it again: ", command(case)),
            )
        ]
    short = _short(case)
    headline = f"the machine went down{_between(case)} without a shutdown (power, reset, freeze or panic)"
    if short:
        headline += "; memory was nearly gone just before"
    next_step = steps(
        "to start it again: ", command(case), "; for the kernel's last words: journalctl -k -b -1 -e"
    )
    why = f"the boot id changed and no exit status was written; {_last(case)}"
    claim = _claim(case, _NO_SHUTDOWN, headline, why, _with_less(case) if short else next_step)
    if short and culprit_of(case) is not None:
        memory = answer(case, None, machine=True)
        claim = replace(claim, why="; ".join((why, *memory.told)), culprit=memory.culprit)
        if memory.culprit is not None and not memory.culprit.managed:  # a run died with the machine, too
            claim = replace(claim, next=memory.next, remedies=memory.remedies)
    return [claim]


def _during_shutdown(case: CaseFile) -> list[WeightedCause]:
    """Judged in the last seconds before the power goes off."""
    if case.kernel_killed or guard_stop(case) is not None or user_stop(case) is not None:
        return []
    why = f"systemd was shutting the machine down when the job was told to end; {_last(case)}"
    next_step = steps("to start it again: ", command(case))
    return [_claim(case, _SHUTDOWN, f"{ORDERLY} while the job ran", why, next_step)]


def _clock(wall: float, beside: float) -> str:
    """With seconds, and with the day where the other time is of another one."""
    day, other = (time.strftime("%F", time.localtime(at)) for at in (wall, beside))
    return format_time(wall, date=day != other, zone=False)


def _between(case: CaseFile) -> str:
    """As in: between 14:03:07 (last sample) and 14:05:10 (next boot). As far as it is known."""
    last, boot = case.last_sign_wall, case.exit.next_boot_wall
    if last is None:
        return ""
    sampled = case.samples.host is not None or case.samples.job is not None
    sign = "last sample" if sampled else "its start"
    if boot is None:
        return f" after {_clock(last, time.time())} {format_zone(last)} ({sign})"
    return f" between {_clock(last, boot)} ({sign}) and {_clock(boot, last)} {format_zone(boot)} (next boot),"


def _until_boot(case: CaseFile) -> str:
    boot = case.exit.next_boot_wall
    if boot is None:
        return ""
    return f" before {_clock(boot, case.last_sign_wall or boot)} {format_zone(boot)} (next boot),"


def _with_less(case: CaseFile) -> Steps:
    """The limit under which what the others held and the margin would have stayed."""
    if case.samples.host is None or case.samples.job is None:
        return change_first(case, None)
    others = case.samples.host.total - case.samples.host.available - case.samples.job.used
    limit = case.samples.host.total - others - (case.limits.settings.margin or 0)
    if limit < case.samples.job.used // 2:
        return change_first(case, None)
    return steps(command(case, f"--limit {as_flag(limit)}"), "; see what else holds memory: oomproof check")


def _short(case: CaseFile) -> bool:
    host = case.samples.host
    if host is None:
        return False
    floor = case.limits.settings.floor or host.total // 25
    return host.available <= floor * 2 or (host.psi_full or 0.0) >= _STALLED


def _last(case: CaseFile) -> str:
    if case.samples.host is None:
        if case.samples.job is not None:
            return f"at the last sample the job held {format_size(case.samples.job.used)}"
        return "no sample of its last seconds is left"
    left = format_size(case.samples.host.available)
    text = f"at the last sample {left} of {format_size(case.samples.host.total)} was available"
    if case.samples.host.swap_total:
        text += f", {format_size(case.samples.host.swap_free)} of {format_size(case.samples.host.swap_total)} swap free"
    else:
        text += ", no swap"
    if case.samples.job is not None:
        text += f", the job held {format_size(case.samples.job.used)}"
    if case.samples.host.psi_full:
        text += f", all tasks stalled {case.samples.host.psi_full:.0%} of the time"
    return text


def _claim(case: CaseFile, weight: Weight, headline: str, why: str, next_step: str | Steps) -> WeightedCause:
    return WeightedCause(
        "machine-down",
        weight,
        "proven",
        headline,
        why,
        next_step,
        evidence=case.evidence_from("boot", "wtmp", "shutdown", "keeper.", "sample.", "other."),
        test="last -x reboot shutdown; journalctl --list-boots",
    )
