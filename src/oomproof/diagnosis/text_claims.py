"""What texts say as claims: joins what the kernel and the guards say with what the job itself printed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.causes import CAUSES, cause_of
from oomproof.diagnosis.cause_texts import (
    fill,
    general_advice,
    machine_text,
    remedies,
    test_of,
    victim_text,
    whole_job,
)
from oomproof.diagnosis.silent_end import evidence_of_silence, silent_end
from oomproof.diagnosis.verdict import Certainty, Gpu, Kill, Victim, WeightedCause, trust
from oomproof.evidence.case_file import Evidence
from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.kill_history import oldest_first
from oomproof.evidence.texts.main_finding import settle
from oomproof.evidence.texts.progress import is_finish
from oomproof.evidence.texts.root_failure import root
from oomproof.evidence.texts.text_case import TextCase
from oomproof.records import replace
from oomproof.units import format_time

_CITED = 20  # pieces of evidence of one cause: more are only the same again
_UNCATCHABLE = (9, 11, 7, 10, 6)
_HANDLER = re.compile(
    r"(?i)\bskip|\bcaught\b|recover|ignor(?:e|ing)|retry|retrying|discard|continu|reduc\w+ (?:the )?batch"
)
_ALARM = re.compile(
    r"(?i)error|fail|kill|abort|oom|memory|fatal|fault|panic|terminat|exception|exhaust|lost|bus\b"
)


def claims_of_texts(case: TextCase, phase: str | None = None) -> list[WeightedCause]:
    """One claim for each cause the texts speak of, the best first; weights are shares of 1. ``not-a-crash`` leads when
    none tells of a death. ``phase``: what the job was doing, where something else than the texts knows it."""
    best, joined = _best(case)
    if best is None:
        silent = [replace(claim, why=claim.why + _others_text(case)) for claim in silent_end(case)]
        return silent or _nothing(case)
    others, ids = _others(best, case)
    shares = _shares(best, case, joined, others)
    told_phase = _phase(best, case)
    headline, advice = fill(best, case.command, phase or told_phase)
    first = WeightedCause(
        best.cause,
        shares[best.cause],
        _certainty(best, joined, shares[best.cause]),
        headline,
        _why(best, case, joined),
        advice,
        evidence=tuple(ids.get(best.cause, ())[:_CITED]),
        test=test_of(best),
        victim=_victim(best) or _named_elsewhere(best, joined, case),
        gpu=_gpu(best),
        remedies=remedies(best, case.command, phase or told_phase),
        phase=told_phase,
        step=case.progress.training_step,
    )
    del shares[best.cause]
    return [first, *(_perhaps(cause, share, first, ids.get(cause, ())) for cause, share in shares.items())]


def _perhaps(cause: str, share: float, first: WeightedCause, ids: Sequence[str] = ()) -> WeightedCause:
    """Another reading of the same texts."""
    return WeightedCause(
        cause,
        share,
        "possible",
        f"perhaps {cause}",
        first.why,
        first.next,
        tuple(ids[:_CITED]),
        CAUSES[cause].test,
    )


def kills_in_texts(case: TextCase) -> tuple[Kill, ...]:
    return tuple(
        Kill(finding.seconds, finding.cause, victim)
        for finding in oldest_first((*case.system, *case.others))
        if cause_of(finding.cause).kill and (victim := _victim(finding)) is not None
    )


def _best(case: TextCase) -> tuple[Finding | None, Finding | None]:
    system, job = settle(case.system), root(case.training)
    if system is not None and system.cause == "not-a-crash":
        system = None
    if system is not None:
        system = whole_job(system, case.system)
    return _join(system, job)


def _join(system: Finding | None, job: Finding | None) -> tuple[Finding | None, Finding | None]:
    """(the finding that speaks, the other one that it explains or that confirms it)."""
    if system is None or job is None:
        return job or system, None
    if cause_of(system.cause).kill and (cause_of(job.cause).sign_of_kill or _same_process(system, job)):
        return system, job
    if system.cause == job.cause and system.victim is not None:
        return system, job
    if cause_of(system.cause).kill and system.strength >= 0.9 and job.strength < 0.75:
        return system, job  # a passing complaint beside a kill that names its victim
    if system.guard.by == "slurm" and not system.guard.why:
        return job, system  # a step is cancelled when its task has died
    if cause_of(job.cause).sign_of_kill and system.strength > job.strength:
        return system, job
    if system.cause == "xid" and cause_of(job.cause).sign_of_gpu_fault:
        return system, job  # the driver's own word on what the program saw as a failed call
    # An error the job printed is its own story, unless the kernel's kill comes with a text of the kernel alone.
    return (job, system) if job.source == system.source or job.strength >= 0.5 else (system, job)


def _same_process(system: Finding, job: Finding) -> bool:
    pid = system.victim.pid if system.victim else None
    return pid is not None and pid in job.pids


def _shares(
    best: Finding, case: TextCase, joined: Finding | None, others: dict[str, float]
) -> dict[str, float]:
    """The best finding's share is how far such a finding is to be believed; the rest goes to the other causes."""
    others = dict(others)
    for finding in _silent(best, case):  # its handler was heard before, and not this time
        others.pop(finding.cause, None)
    share = _trust(best, joined, bool(others))
    if best.cause == "other-error":
        others.setdefault("not-a-crash", 0.5)
    else:
        others.setdefault("other-error", 0.5)
    scale = (1 - share) / sum(others.values())
    shares = {cause: weight * scale for cause, weight in others.items()}
    if best.cause == "killed-unknown":
        # one death, two readings: the text does not say who sent the signal
        memory = trust("text.sigkill-was-memory")
        shares["oom-kill-global"] = shares.get("oom-kill-global", 0.0) + share * memory / (1 + memory)
    shares = {cause: round(part, 4) for cause, part in shares.items() if part >= 0.0001}
    ordered = [best.cause, *sorted(shares, key=lambda cause: -shares[cause])]
    for cause in ordered[1:]:  # a reading that is put first is never called less likely than another
        mine = 1 - sum(shares.values())
        if shares[cause] > mine:
            shares[cause] = int((shares[cause] + mine) / 2 * 1e4) / 1e4
    shares[best.cause] = round(1 - sum(shares.values()), 4)
    return {cause: shares[cause] for cause in ordered}


def _others(best: Finding, case: TextCase) -> tuple[dict[str, float], dict[str, list[str]]]:
    """The other causes that the texts speak of, weighed by how firmly, and the evidence of each."""
    weights: dict[str, float] = {}
    ids: dict[str, list[str]] = {}
    for number, finding in enumerate((*case.system, *case.training), 1):
        if finding.cause == "not-a-crash":
            continue
        ids.setdefault(finding.cause, []).append(f"text.{number}")
        if finding.cause != best.cause and finding.job.role not in ("consequence", "noise"):
            weights[finding.cause] = max(weights.get(finding.cause, 0.0), finding.strength)
    return weights, {
        cause: numbers for cause, numbers in ids.items() if cause == best.cause or cause in weights
    }


def _trust(best: Finding, joined: Finding | None, rivals: bool) -> float:
    heard = best.job.heard
    kind = best.job.kind
    if not heard:
        named = "sure" if best.strength >= 1 else "named" if best.strength >= 0.9 else ""
        share = trust(f"text.system.{named or ('likely' if best.strength >= 0.7 else 'weak')}")
    elif kind == "wrapper":
        share = trust("text.wrapper")
    elif best.cause == "other-error" and heard in ("traceback", "exception") and best.strength >= 0.7:
        share = trust("text.unnamed")
    elif heard in ("quoted", "cut", "end", "loss"):
        share = trust(f"text.{heard}")
    else:
        share = trust(f"text.{heard}" if best.strength >= 0.7 else f"text.{heard}.weak")
    if joined is not None and (joined.cause == best.cause or cause_of(best.cause).kill):
        share = 1 - (1 - share) * (1 - trust("text.joined"))
    elif rivals:
        share *= trust("text.rivals")
    return share


def _certainty(best: Finding, joined: Finding | None, probability: float) -> Certainty:
    """Proven needs the words of who did it, or of the process it happened to, naming it."""
    if best.strength >= 0.9 and probability >= 0.8:
        return "proven"
    return "likely" if best.strength >= 0.6 or joined is not None else "possible"


def _why(best: Finding, case: TextCase, joined: Finding | None) -> str:
    where = f"{best.source}:{best.line}" if best.source != "-" else f"line {best.line}"
    # of a kernel's kill the last line names the victim; the one before it is for the evidence
    words = best.text.splitlines()[-1] if cause_of(best.cause).kill and best.text.strip() else best.text
    why = f"{where} says: {_quote(words)}"
    if joined is not None and (joined.source, joined.line) != (best.source, best.line):
        why += f"; and {joined.source}:{joined.line}: {_quote(joined.text)}"
    for finding in _silent(best, case)[:1]:
        why += (
            f"; the handler that caught {CAUSES[finding.cause].handled_as} at line {finding.line} said nothing this time, "
            f"so it was not that"
        )
    if best.job.signal in _UNCATCHABLE and not any(map(_traceback, case.training)):
        why += "; no exception was printed: nothing in Python saw it coming"
    if machine := machine_text(best):
        why += f"; {machine}"
    progress = case.progress
    if progress.training_step is not None:
        of = f" of {progress.total}" if progress.total else ""
        why += f"; the last progress was step {progress.step}{of}"
    kills = [kill for kill in kills_in_texts(case) if kill.victim.pid is not None]
    if cause_of(best.cause).kill and len(kills) > 1:
        why += f"; it is the last of {len(kills)} kills in the text (oomproof why --all shows them)"
    return why + _others_text(case)


def _others_text(case: TextCase) -> str:
    """Kills of other jobs or of another day are told, and prove nothing."""
    if not case.others:
        return ""
    last = case.others[-1]
    when = f" at {format_time(last.seconds)}" if last.seconds is not None else ""
    more = f" and {len(case.others) - 1} more" if len(case.others) > 1 else ""
    return f"; {last.source} tells of the kill of {victim_text(last)}{when}{more}: not of this job"


def _traceback(finding: Finding) -> bool:
    return finding.job.heard in ("traceback", "exception", "cut")


def _silent(best: Finding, case: TextCase) -> list[Finding]:
    """Handlers that spoke earlier in the log (a batch skipped, a NaN passed over) and not at this death by a signal.
    An `except` or a NaN branch that never fired is evidence too: what it watches for did not happen."""
    if best.job.signal not in _UNCATCHABLE:
        return []
    return [
        finding
        for finding in case.training
        if cause_of(finding.cause).handled_as
        and finding.line < best.line
        and finding.source == best.source
        and _HANDLER.search(finding.text)
    ]


def _quote(text: str, width: int = 180) -> str:
    line = " ".join(text.split())
    return f"«{line if len(line) <= width else line[: width - 1] + '…'}»"


def _phase(best: Finding, case: TextCase) -> str:
    return best.job.phase or case.progress.phase or "unknown"


def _victim(finding: Finding) -> Victim | None:
    sizes = finding.victim
    if finding.guard.unit and finding.cause == "systemd-oomd" and (sizes is None or sizes.name is None):
        return Victim(sizes.pid if sizes else None, finding.guard.unit)
    if sizes is None or sizes.pid is None:
        # a loader's or launcher's message names the dead process, but not what it held
        name = (sizes.name if sizes else None) or finding.job.victim_name
        if finding.pids:
            return Victim(finding.pids[0], name)
        return Victim(None, sizes.name) if sizes is not None and sizes.name else None
    return Victim(sizes.pid, sizes.name, sizes.total_vm, sizes.anon_rss, sizes.file_rss, sizes.shmem_rss)


def _named_elsewhere(best: Finding, joined: Finding | None, case: TextCase) -> Victim | None:
    """ "A task was OOM-killed" (Slurm), "bus error in worker": another line of the same chain names the process."""
    if cause_of(best.cause).lost_process or best.cause == "nccl":
        others = [joined, *case.training] if joined else list(case.training)
        return next((victim for other in others if other and (victim := _victim(other)) is not None), None)
    if not best.job.heard:
        return None
    # of the rest of the chain: who repeats the same cause, then whom a launcher calls the first to fail, then whom it
    # tells of at all
    chain = [finding for finding in case.training if finding.job.role == "consequence" and finding.pids]
    chain = [finding for finding in chain if finding.source == best.source]
    ranked = sorted(
        chain, key=lambda finding: (finding.cause != best.cause, finding.job.first_exit is None, finding.line)
    )
    told = [finding for finding in ranked if finding.cause == best.cause or finding.job.kind == "summary"]
    return _victim(told[0]) if told else None


def _gpu(finding: Finding) -> Gpu | None:
    gpu = finding.gpu
    if gpu is None:
        # Schema 1 has one place for "asked for": a request refused on the host stands there too, with no card.
        asked = finding.job.requested
        return Gpu(None, requested_bytes=asked) if asked is not None else None
    return Gpu(gpu.index, gpu.total, gpu.free, gpu.requested, gpu.allocated, gpu.reserved_unallocated)


def evidence_of_texts(case: TextCase) -> tuple[Evidence, ...]:
    findings = [*case.system, *case.training, *case.others]
    told = tuple(
        Evidence(
            f"text.{number}", f"{finding.source}:{finding.line}", finding.seconds, finding.text, finding.says
        )
        for number, finding in enumerate(findings, 1)
    )
    return told if _best(case)[0] is not None else (*told, *evidence_of_silence(case))


def _nothing(case: TextCase) -> list[WeightedCause]:
    cause = CAUSES["not-a-crash"]
    last = f"; the last line is {_quote(case.last_line)}" if case.last_line else ""
    why = f"no line of {', '.join(case.sources)} tells of a death{last}{_others_text(case)}"
    share, certain = _peaceful(case)
    # a run that trains evaluates and saves between its epochs: without a death it is a training all the same
    phase = "train" if case.progress.trained else case.progress.phase
    first = WeightedCause(
        cause.slug,
        share,
        certain,
        cause.headline,
        why,
        general_advice(cause),
        phase=phase,
        step=case.progress.training_step,
    )
    other = "silent-end" if case.progress.unfinished is None else "other-error"
    return [first, _perhaps(other, round(1 - share, 4), first)]


def _peaceful(case: TextCase) -> tuple[float, Certainty]:
    if _ALARM.search(case.last_line) or any(finding.job.kind == "talk" for finding in case.training):
        return trust("text.nothing.alarmed"), "possible"
    progress = case.progress
    over = is_finish(case.last_line) or (
        progress.training_step is not None and progress.step == progress.total
    )
    if progress.unfinished is None and not over:
        return trust("text.nothing.endless"), "possible"
    return trust("text.nothing.finished" if over else "text.nothing"), "likely"
