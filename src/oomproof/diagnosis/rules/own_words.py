"""The program failed and said why: what its output tells, read as ``oomproof why output.log`` reads it."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from oomproof.diagnosis.advice import again, command, merged, read_output, smaller_job, typed
from oomproof.diagnosis.death import Death, death_of
from oomproof.diagnosis.deeds import ended_by_us
from oomproof.diagnosis.gpu_shortage import same_failure, with_account
from oomproof.diagnosis.handlers import silence
from oomproof.diagnosis.lost_worker import explains_the_end
from oomproof.diagnosis.lost_worker import told as lost_worker
from oomproof.diagnosis.said import said
from oomproof.diagnosis.verdict import MEMORY_CAUSES, Certainty, Verdict, WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile

if TYPE_CHECKING:
    from oomproof.evidence.texts.finding import Finding

# Signals by which a program ends through its own doing: what it printed before belongs to the story
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)
# and who kills from outside may have said so
_KILLERS = ("slurm-oom", "ray-oom", "systemd-oomd", "earlyoom", "nohang", "oomd", "jetsam")
_OTHER_RULES = {"shm-exhausted", "bus-error"}  # the samples of /dev/shm decide
# of memory, and not of the GPU's: what makes the job's own memory smaller may help
_ON_THE_HOST = MEMORY_CAUSES - {"cuda-oom", "jax-oom", "tf-oom", "mps-oom", "cublas-alloc"}
# texts that have other causes as well: only the free memory of that moment would decide
_DOUBTFUL = ("cublas-alloc", "cudnn", "nan", "nccl", "killed-unknown")


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not death.failed:
        return []
    if ended_by_us(case) or explains_the_end(case):
        return []  # the error is how the end showed, not why it came
    told = said(case)
    if told is None:
        claims = [_plain(case, death)] if death.signal is None else []
    else:
        weight = _weight(case, death, told)
        claims = _claims(case, death, told, weight) if weight is not None else []
    lost = lost_worker(case) if death.signal is None else None
    if lost is not None and not any(each.cause == "dataloader-killed" for each in claims):
        claims.append(_lost(case, death, lost))
    return claims


def _lost(case: CaseFile, death: Death, lost: str) -> WeightedCause:
    """The job's own process saw it; what the parent then stumbled over is a race."""
    return WeightedCause(
        "dataloader-killed",
        odds("worker.told"),
        "proven",
        f"a DataLoader worker died under the job: {lost}",
        f"the job's own process found it dead: {lost}; it ended by itself with {death.phrase}",
        f"once with num_workers=0 to see its own error, or half the workers: {command(case)}",
        evidence=case.evidence_from(
            "exit", "output.", "agent.exception", "agent.worker-lost", "agent.position"
        ),
        test="the kernel's log for the worker's pid",
        remedies=smaller_job(case),
    )


def _weight(case: CaseFile, death: Death, told: Verdict) -> str | None:
    """Which starting weight the words have beside this end; None where another rule speaks for them."""
    if told.cause in _OTHER_RULES:
        return None
    traceback = _raised(case, told)
    if death.signal is None:
        return "error.final" if traceback or told.certainty == "proven" else "error.text"
    if death.signal == signal.SIGABRT:
        return "abort.told"
    if death.signal in _CRASHES:
        shown = {signal.SIGSEGV: ("segfault", "gpf")}.get(signal.Signals(death.signal), ())
        return "error.before-crash" if traceback and told.cause not in shown else None
    return "engine.said" if told.cause in _KILLERS else None


def _raised(case: CaseFile, told: Verdict) -> bool:
    failure = case.output.failure
    return failure is not None and failure.cause == told.cause and bool(failure.job.exception)


def _certainty(case: CaseFile, death: Death, told: Verdict) -> Certainty:
    """The exit status is a second witness to a traceback, and to an abort that explains itself."""
    witnessed = _raised(case, told) or (death.signal == signal.SIGABRT and death.direct)
    if witnessed and told.cause not in _DOUBTFUL and told.certainty != "possible":
        return "proven"
    return told.certainty


def _claims(case: CaseFile, death: Death, told: Verdict, weight: str) -> list[WeightedCause]:
    ended = f"by itself with {death.phrase}" if death.signal is None else f"by {death.phrase}"
    why = f"{told.why}; it ended {ended}"
    if case.moved.vmstat_oom_kill == 0 and told.cause in MEMORY_CAUSES and not case.our_kills:
        why += "; the kernel killed nothing"
    later = _another_ended_it(case, death, told)
    if later is not None:
        why += f"; but a later error stands below it, in {later.source}:{later.line}: {later.says}"
    best = WeightedCause(
        told.cause,
        odds(weight),
        _certainty(case, death, told),
        told.headline,
        why,
        again(case, told.next),
        evidence=case.evidence_from(
            "exit",
            "output.",
            "sample.gpu",
            "gpu.",
            "tensor.",
            "agent.exception",
            "agent.worker-lost",
            "agent.position",
        ),
        test=told.causes[0].test,
        victim=told.victim,
        gpu=told.gpu,
        remedies=typed(case, merged(told.remedies, smaller_job(case) if told.cause in _ON_THE_HOST else ())),
    )
    if told.cause == "cuda-oom" and case.gpu_oom is not None and same_failure(case.gpu_oom, told.gpu):
        best = with_account(best, case.gpu_oom, case)
    others = [
        WeightedCause(
            each.cause,
            odds(weight) * each.probability / max(told.probability, 0.01),
            "possible",
            f"perhaps {each.cause}",
            why,
            best.next,
            evidence=case.evidence_from("output."),
            test=each.test,
        )
        for each in told.causes[1:]
        # the counters know better than a text's odds, and the exit status says that it did fail
        if not each.cause.startswith("oom-kill-")
        and each.cause != "not-a-crash"
        and (later is None or each.cause != later.cause)
    ]
    if later is not None:
        others.append(
            replace(others[0] if others else best, cause=later.cause, weight=odds("error.later"), gpu=None)
        )
    return [best, *others]


def _another_ended_it(case: CaseFile, death: Death, told: Verdict) -> Finding | None:
    """A second traceback of the same writer that does not come from the first: the first was caught."""
    first, text = case.output.failure, case.output.text
    if death.signal is not None or first is None or text is None or not _raised(case, told):
        return None
    for each in reversed(text.training):
        if each.line <= first.line:
            break
        job = each.job
        own = job.kind == "failure" and job.exception and not job.echo
        if own and not job.chained and job.rank == first.job.rank:
            return each if each.cause != first.cause else None
    return None


def _plain(case: CaseFile, death: Death) -> WeightedCause:
    last = case.output.last_line
    headline = f"ended with an error of its own (exit code {death.code})"
    headline += f"; its last line: {last[:160]}" if last else ""
    next_step = f"read its last lines: {read_output(case)}"
    if case.output.empty:
        next_step = (
            f"it printed nothing: look for a log of its own, or start it with more words: {command(case)}"
        )
    if death.code in (126, 127):
        text = "not found" if death.code == 127 else "found but could not be executed"
        headline, next_step = f"the command was {text}", "check the command's name and PATH"
    why = f"it ended by itself with exit code {death.code}; no signal, no traceback in its output"
    why += silence(case)
    return WeightedCause(
        "other-error",
        odds("error.plain"),
        "likely",
        headline,
        why,
        f"{next_step}; then {command(case)}" if death.code in (126, 127) else next_step,
        evidence=case.evidence_from("exit", "output.", "handler."),
        test="the last lines of its output",
    )
