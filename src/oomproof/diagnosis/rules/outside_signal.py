"""A signal from outside that neither we nor the kernel's OOM killer sent. SIGKILL does not name its sender:
what is left is to say what it was not, from the counters and the headroom there was."""

from __future__ import annotations

import signal

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.death import Death, death_of, headroom_at_end, silence
from oomproof.diagnosis.memory_answer import answer
from oomproof.diagnosis.stopping_actions import guard_stop, hung_after_kill, output_lost, passed_on, user_stop
from oomproof.diagnosis.verdict import Certainty, Steps, Weight, WeightedCause, steps
from oomproof.evidence.case_evidence import signal_name
from oomproof.evidence.case_file import CaseFile

_FROM_OUTSIDE = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

_AMPLE = Weight(100, "SIGKILL, no OOM kill counted, ample memory: a person or a scheduler")
_TIGHT = Weight(30, "SIGKILL, no kernel OOM kill counted, memory short: a daemon is as likely")
_DAEMON = Weight(15, "earlyoom and systemd-oomd act on short memory and leave no kernel trace")
_UNKNOWN = Weight(25, "SIGKILL, and neither counters nor samples to judge it by")
_OTHER_SIGNAL = Weight(100, "ended by a signal that people and schedulers send")
_TEST = "look for the pid in the scheduler's log and in: journalctl -u earlyoom -u systemd-oomd; last"


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or death.signal is None:
        return []
    if (
        guard_stop(case) is not None
        or user_stop(case) is not None
        or output_lost(case) is not None
        or hung_after_kill(case)
    ):
        return []
    if death.signal == signal.SIGKILL:
        return _sigkill(case, death)
    if death.signal in _FROM_OUTSIDE:
        return _other(case, death)
    return []


def _counters_flat(case: CaseFile) -> bool:
    """Nothing was OOM-killed that could have been us: by the counters, or by a log that names only others."""
    moved = case.moved
    if case.kernel_killed or (moved.oomd_kill or 0) > 0:
        return False
    return moved.vmstat_oom_kill == 0 or moved.memcg_oom_kill == 0 or case.kernel.complete


def _sigkill(case: CaseFile, death: Death) -> list[WeightedCause]:
    if case.kernel_killed:
        return []
    headroom, flat = headroom_at_end(case), _counters_flat(case)
    ended, others = f"it {death.phrase}", silence(case)
    if case.kills_beside:
        others += f"; the kernel did kill {case.kills_beside[-1].name}, which is not of this job"
    if flat and headroom.ample:
        why = f"{ended}; the kernel killed nothing of this job for memory, {headroom.phrase}{others}"
        next_step = steps(
            "ask who or what sent it (a person, a scheduler, a container's stop), then ", command(case)
        )
        headline = "killed by somebody else, not for memory"
        return [_claim(case, "killed-unknown", _AMPLE, _less(death), headline, why, next_step)]
    if flat and headroom.ample is False:
        why = f"{ended}; no kernel OOM kill of this job was counted, but {headroom.phrase}{others}"
        at_limit = headroom.host_ample is not False and headroom.limit_ample is False
        memory = answer(
            case, case.limits.limit or case.limits.settings.limit if at_limit else None, machine=not at_limit
        )
        next_step = steps("journalctl -u earlyoom -u systemd-oomd names who; ", memory.next)
        headline = "killed by somebody else while memory was short; it was not the kernel's OOM killer"
        return [
            _claim(case, "killed-unknown", _TIGHT, "possible", headline, why, next_step),
            *(
                _claim(case, cause, _DAEMON, "possible", f"perhaps killed by {cause}", why, next_step)
                for cause in ("earlyoom", "systemd-oomd")
            ),
        ]
    if flat:
        why = f"{ended}; the kernel killed nothing of this job for memory, {headroom.phrase}{others}"
        next_step = steps(
            "ask who or what sent it (a person, a scheduler, a container's stop), then ", command(case)
        )
        headline = "killed by somebody else; it was not the kernel's OOM killer"
        return [_claim(case, "killed-unknown", _UNKNOWN, "possible", headline, why, next_step)]
    why = f"{ended}; {_unknown(case)}, {headroom.phrase}{others}"
    next_step = steps("let oomproof read the kernel log (see missing), then ", command(case))
    headline = "killed by SIGKILL; who sent it is not known"
    return [_claim(case, "killed-unknown", _UNKNOWN, "possible", headline, why, next_step)]


def _unknown(case: CaseFile) -> str:
    if (case.moved.vmstat_oom_kill or 0) > 0:
        return "something on this machine was OOM-killed meanwhile; whether it was this job is not known"
    return "this machine counts no OOM kills"


def _less(death: Death) -> Certainty:
    return "likely" if death.direct else "possible"


def _other(case: CaseFile, death: Death) -> list[WeightedCause]:
    assert death.signal is not None
    headroom, name = headroom_at_end(case), signal_name(death.signal)
    if death.signal == signal.SIGPIPE:
        headline = "ended by SIGPIPE: whoever read what it wrote (a pipe, a connection) went away"
        why = f"it {death.phrase}, which the kernel sends to a process that writes into a closed pipe; {headroom.phrase}"
        next_step = steps("see which of its pipes was closed, then ", command(case))
        return [_claim(case, "interrupted", _OTHER_SIGNAL, _less(death), headline, why, next_step)]
    next_step = steps(f"ask who or what sends {name} (a scheduler, a logout, kill), then ", command(case))
    if passed_on(case, name):
        headline = f"ended by {name}: somebody sent it to `oomproof run`, which passed it on"
        why = f"it {death.phrase}; {headroom.phrase}"
    else:
        headline = f"ended by {name} from somebody else"
        why = f"it {death.phrase}, which oomproof did not send; {headroom.phrase}"
    if headroom.ample:
        headline += ", not for memory"
    certainty: Certainty = "proven" if passed_on(case, name) and death.direct else _less(death)
    claims = [_claim(case, "interrupted", _OTHER_SIGNAL, certainty, headline, why, next_step)]
    if death.signal == signal.SIGTERM and headroom.ample is False:
        # earlyoom begins with SIGTERM
        text = "perhaps ended by earlyoom"
        claims.append(_claim(case, "earlyoom", _DAEMON, "possible", text, why, next_step))
    return claims


def _claim(
    case: CaseFile,
    cause: str,
    weight: Weight,
    certainty: Certainty,
    headline: str,
    why: str,
    next_step: Steps,
) -> WeightedCause:
    return WeightedCause(
        cause,
        weight,
        certainty,
        headline,
        why,
        next_step,
        evidence=case.evidence_from(
            "exit",
            "action.",
            "counter.",
            "sample.host",
            "sample.job",
            "sample.peak",
            "kernel.other",
            "handler.",
            "agent.position",
        ),
        test=_TEST,
    )
