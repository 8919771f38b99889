"""A failure that a run's own output tells of, beside the run's facts."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from oomproof.causes import cause_of
from oomproof.diagnosis.advice import (
    again,
    command,
    kernel_ruled_out,
    merged,
    read_output,
    smaller_job,
    typed,
    with_workers,
)
from oomproof.diagnosis.death import Death, death_of, silence
from oomproof.diagnosis.gpu_shortage import same_failure, with_account
from oomproof.diagnosis.output_claims import output_claims
from oomproof.diagnosis.stopping_actions import ended_by_us, explains_the_end, output_lost
from oomproof.diagnosis.stopping_actions import told as lost_worker
from oomproof.diagnosis.verdict import Certainty, Steps, Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile
from oomproof.records import replace

if TYPE_CHECKING:
    from oomproof.evidence.texts.finding import Finding

_TRACEBACK = Weight(400, "the last traceback's exception, and the job exited with an error")
_WORDS_ONLY = Weight(60, "the words stand in the output, but no traceback carries them")
_LATER_ERROR = Weight(
    150, "a second traceback, unchained, stands below the one taken for the root: it was caught"
)
_BEFORE_CRASH = Weight(600, "an exception ended it, and the interpreter crashed while it went down")
_ABORT_TOLD = Weight(500, "SIGABRT, and the output says why it aborted")
_KILLER_SAID = Weight(700, "who killed it says so in its output: a scheduler, an engine, a daemon")
_EXIT_CODE_ONLY = Weight(20, "a non-zero exit code and no words that say why")
_WORKER_LOST = Weight(
    4000,
    "the job's own process found its loader worker dead; what it then stumbled over is a race: a broken connection as often as PyTorch's own words",
)

# Signals by which a program ends through its own doing: what it printed before belongs to the story
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not death.failed:
        return []
    if ended_by_us(case) or explains_the_end(case) or output_lost(case) is not None:
        return []  # the error is how the end showed, not why it came
    told = output_claims(case)
    if not told:
        claims = [_plain(case, death)] if death.signal is None else []
    else:
        weight = _weight(case, death, told[0])
        claims = _claims(case, death, told, weight) if weight is not None else []
    lost = lost_worker(case) if death.signal is None else None
    # its own error: PyTorch says as much of a worker that was killed
    if lost is not None and _by_itself(lost):
        claims = [claim for claim in claims if claim.cause != "dataloader-killed"]
    if lost is not None and not any(claim.cause == "dataloader-killed" for claim in claims):
        claims.append(_lost(case, death, lost))
    return claims


def _by_itself(lost: str) -> bool:
    return "with exit code" in lost


def _lost(case: CaseFile, death: Death, lost: str) -> WeightedCause:
    """The job's own process saw it; what the parent then stumbled over is a race."""
    exited, ruled_out = _by_itself(lost), kernel_ruled_out(case)
    more = "" if exited or ruled_out else ", or whether it was memory"
    return WeightedCause(
        "other-error" if exited else "dataloader-killed",
        _WORKER_LOST,
        "proven",
        f"a DataLoader worker {'ended by an error of its own' if exited else 'died under the job'}: {lost}",
        f"the job's own process found it dead: {lost}; it {death.phrase}",
        steps(f"to see its own error{more}: ", with_workers(case, 0)),
        evidence=case.evidence_from(
            "exit", "output.", "agent.exception", "agent.worker-lost", "agent.position"
        ),
        test="the same with num_workers=0" if ruled_out else "the kernel's log for the worker's pid",
        remedies=() if exited else smaller_job(case),
    )


def _weight(case: CaseFile, death: Death, told: WeightedCause) -> Weight | None:
    """Which starting weight the words have beside this end; None where another rule speaks for them."""
    if cause_of(told.cause).shared_memory:
        return None  # the samples of /dev/shm decide
    traceback = _raised(case, told)
    if death.signal is None:
        return _TRACEBACK if traceback or told.certainty == "proven" else _WORDS_ONLY
    if death.signal == signal.SIGABRT:
        return _ABORT_TOLD
    if death.signal in _CRASHES:
        same = death.signal == signal.SIGSEGV and told.cause in ("segfault", "gpf")
        return _BEFORE_CRASH if traceback and not same else None
    # and who kills from outside may have said so
    cause = cause_of(told.cause)
    return _KILLER_SAID if cause.kill and not cause.kernel_kill else None


def _raised(case: CaseFile, told: WeightedCause) -> bool:
    failure = case.output.failure
    return failure is not None and failure.cause == told.cause and bool(failure.job.exception)


def _not_started(case: CaseFile, death: Death) -> bool:
    """A shell or Python says that it could not start the program, nothing follows, and the exit code is the one for that."""
    failure = case.output.failure
    if failure is None or not failure.job.goes_on or death.signal is not None:
        return False
    return death.code in (2, 127) and case.output.last_line.strip() in failure.text


def _check_name(case: CaseFile) -> Steps:
    return steps("check the name, and the folder it is started in; then ", command(case))


def _certainty(case: CaseFile, death: Death, told: WeightedCause) -> Certainty:
    """The exit status is a second witness to a traceback, and to an abort that explains itself."""
    if _not_started(case, death):
        return "proven"
    witnessed = _raised(case, told) or (death.signal == signal.SIGABRT and death.direct)
    if witnessed and not cause_of(told.cause).doubtful and told.certainty != "possible":
        return "proven"
    return told.certainty


def _claims(
    case: CaseFile, death: Death, readings: list[WeightedCause], weight: Weight
) -> list[WeightedCause]:
    """What the text alone says, weighed beside how the job ended."""
    told, cause = readings[0], cause_of(readings[0].cause)
    why = f"{told.why}; it {death.phrase}"
    ruled_out = kernel_ruled_out(case)
    if ruled_out and (cause.memory or told.cause == "dataloader-killed"):
        why += "; the kernel killed nothing"
    later = _another_ended_it(case, death, told)
    if later is not None:
        why += f"; but a later error stands below it, in {later.source}:{later.line}: {later.says}"
    best = WeightedCause(
        told.cause,
        weight,
        _certainty(case, death, told),
        told.headline,
        why,
        again(case, told) if not _not_started(case, death) else _check_name(case),
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
        test="the same with num_workers=0" if ruled_out and "kernel's log" in told.test else told.test,
        victim=told.victim,
        gpu=told.gpu,
        remedies=typed(
            case, merged(told.remedies, smaller_job(case) if cause.memory and not cause.gpu else ())
        ),
    )
    if (
        told.cause == "cuda-oom"
        and case.agent.gpu_oom is not None
        and same_failure(case.agent.gpu_oom, told.gpu)
    ):
        best = with_account(best, case.agent.gpu_oom, case)
    if cause.refused:
        from oomproof.diagnosis.own_limits import with_limit  # not for a run that ended well

        best = with_limit(best, case)
    if told.cause == "heap-limit":
        from oomproof.diagnosis.own_limits import with_larger_heap

        best = with_larger_heap(best, case)
    others = [
        WeightedCause(
            reading.cause,
            weight * reading.weight / max(told.weight, 0.01),
            "possible",
            reading.headline,
            why,
            best.next,
            evidence=case.evidence_from("output."),
            test=reading.test,
        )
        for reading in readings[1:]
        # the counters know better than a text's odds, and the exit status says that it did fail
        if not cause_of(reading.cause).kernel_kill
        and reading.cause != "not-a-crash"
        and (later is None or reading.cause != later.cause)
    ]
    if later is not None:
        others.append(
            replace(others[0] if others else best, cause=later.cause, weight=_LATER_ERROR, gpu=None)
        )
    return [best, *others]


def _another_ended_it(case: CaseFile, death: Death, told: WeightedCause) -> Finding | None:
    """A second traceback of the same writer that does not come from the first: the first was caught."""
    first, text = case.output.failure, case.output.text
    if death.signal is not None or first is None or text is None or not _raised(case, told):
        return None
    for finding in reversed(text.training):
        if finding.line <= first.line:
            break
        job = finding.job
        own = job.kind == "failure" and job.exception and not job.echo
        if own and not job.chained and job.rank == first.job.rank:
            return finding if finding.cause != first.cause else None
    return None


def _plain(case: CaseFile, death: Death) -> WeightedCause:
    last = case.output.last_line
    headline = f"ended with an error of its own (exit code {death.code})"
    headline += f"; its last line: {last[:160]}" if last else ""
    next_step = steps("read its last lines: ", read_output(case))
    if case.output.empty:
        next_step = steps(
            "it printed nothing: look for a log of its own, or make it say more (a --verbose flag): ",
            command(case),
        )
    if death.code in (126, 127):
        text = "not found" if death.code == 127 else "found but could not be executed"
        headline = f"the command was {text}"
        next_step = steps("check the command's name and PATH; then ", command(case))
    why = f"it exited with code {death.code}; no signal, no traceback in its output"
    why += silence(case)
    return WeightedCause(
        "other-error",
        _EXIT_CODE_ONLY,
        "likely",
        headline,
        why,
        next_step,
        evidence=case.evidence_from("exit", "output.", "handler."),
        test="the last lines of its output",
    )
