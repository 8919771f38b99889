"""The program ended with an error of its own: what its last traceback says, else what its last lines say."""

from __future__ import annotations

import re

from oomproof.diagnosis.advice import command, read_output, smaller_job
from oomproof.diagnosis.death import Death, death_of
from oomproof.diagnosis.deeds import ended_by_us
from oomproof.diagnosis.error_texts import OTHER, Meaning, gpu_numbers, meaning_of
from oomproof.diagnosis.gpu_shortage import gpu_of, same_failure, shortage
from oomproof.diagnosis.lost_worker import explains_the_end, told
from oomproof.diagnosis.verdict import MEMORY_CAUSES, Certainty, Change, Gpu, Remedy, WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile
from oomproof.evidence.output_tail import PythonError
from oomproof.evidence.texts.cuda_sentence import gpu_numbers as sentence_numbers
from oomproof.units import format_size

_NEAR = 40  # lines from the end in which an error's words count without a traceback
_LOOKS_LIKE_ERROR = re.compile(
    r"\b(?:error|fatal|failed|exception|terminate)\b|Error\b|No space|out of memory", re.I
)
_FRAGMENTED = 0.10  # of the card reserved but unallocated: expandable segments are worth a try


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not death.failed or death.signal is not None:
        return []
    if ended_by_us(case) or explains_the_end(case):
        return []  # the error is how the end showed, not why it came
    claims = [_from_lines(case, death)]
    if case.output.errors:
        claims = _from_tracebacks(case, death, case.output.errors)
    lost = told(case)
    meaning = meaning_of(f"RuntimeError: {lost}") if lost is not None else None
    if lost is not None and meaning is not None and not any(each.cause == meaning.cause for each in claims):
        claims.append(_claim(case, death, meaning, PythonError(lost, "", 0), "worker.told", "proven"))
    return claims


def _from_tracebacks(case: CaseFile, death: Death, errors: tuple[PythonError, ...]) -> list[WeightedCause]:
    final = errors[-1]
    meaning = meaning_of(final.text)
    if meaning is None and final.more and "DataLoader" in final.text + final.more:
        meaning = meaning_of(f"{final.text}\n{final.more}")
    claims = [_claim(case, death, meaning or OTHER, final, "error.final", _certain(meaning))]
    if meaning is None:
        # "During handling of…": the first error is the story when the last one says nothing of its own
        origin = errors[-2] if len(errors) > 1 and errors[-2].chained else None
        first = meaning_of(origin.text) if origin is not None else None
        if origin is not None and first is not None:
            claims.append(_claim(case, death, first, origin, "error.chained", "likely"))
    return claims


def _certain(meaning: Meaning | None) -> Certainty:
    # these texts have other causes as well: only the free memory of that moment would decide
    doubtful = ("cublas-alloc", "cudnn", "shm-exhausted", "nan")
    return "likely" if meaning is not None and meaning.cause in doubtful else "proven"


def _from_lines(case: CaseFile, death: Death) -> WeightedCause:
    for line in reversed(case.output.lines[-_NEAR:]):
        meaning = meaning_of(line) if _LOOKS_LIKE_ERROR.search(line) else None
        if meaning is not None:
            error = PythonError(line.strip()[:160], "", 0)
            return _claim(case, death, meaning, error, "error.text", "likely")
    if death.code in (126, 127):
        text = "not found" if death.code == 127 else "found but could not be executed"
        return _plain(case, death, f"the command was {text}", "check the command's name and PATH")
    last = f"; its last line: {case.output.lines[-1].strip()[:160]}" if case.output.lines else ""
    return _plain(
        case, death, f"ended with an error of its own (exit code {death.code}){last}", read_output(case)
    )


def _plain(case: CaseFile, death: Death, headline: str, next_step: str) -> WeightedCause:
    return WeightedCause(
        "other-error",
        odds("error.plain"),
        "likely",
        headline,
        f"it ended by itself with exit code {death.code}; no signal, no traceback in its last lines",
        next_step,
        evidence=case.evidence_from("exit", "output."),
        test="the last lines of its output",
    )


def _claim(
    case: CaseFile, death: Death, meaning: Meaning, error: PythonError, weight: str, certainty: Certainty
) -> WeightedCause:
    gpu = gpu_numbers(f"{error.text}\n{error.more}") if meaning.cause == "cuda-oom" else None
    headline = f"{meaning.headline}: {error.line}"
    if gpu is not None and gpu.requested_bytes is not None and gpu.total_bytes is not None:
        headline = (
            f"{meaning.headline}: asked for {format_size(gpu.requested_bytes)}, "
            f"{format_size(gpu.free_bytes)} of {format_size(gpu.total_bytes)} was free"
        )
    next_step = meaning.next.format(command=command(case), output=read_output(case))
    remedies = _remedies(case, meaning, gpu)
    numbers = sentence_numbers(f"{error.text}\n{error.more}") if meaning.cause == "cuda-oom" else None
    if numbers is not None and (numbers.neighbours or 0) >= max(1, numbers.requested or 1):
        others = "end or move the other process on the card"
        remedies = (Remedy(others, "measured", numbers.neighbours, "nvidia-smi"), *remedies)
    account, phase, step = "", "", None
    if meaning.cause == "cuda-oom" and case.gpu_oom is not None and same_failure(case.gpu_oom, gpu):
        # the job's own allocator spoke before the exception did, and knows who held what
        found = shortage(case.gpu_oom, case)
        gpu = gpu_of(case.gpu_oom)
        headline = f"{meaning.headline}{_where(case)}: {found.headline}"
        account, next_step, remedies = f"; {found.why}", found.next, found.remedies
        phase, step = case.gpu_oom.phase, case.gpu_oom.step
    said = "its last traceback says so" if weight == "error.final" else f"it printed: {error.line}"
    why = f"it ended by itself with {death.phrase}; {said}"
    if (case.moved.vmstat_oom_kill or 0) == 0 and meaning.cause in MEMORY_CAUSES and not case.our_kills:
        why += "; the kernel killed nothing"
    return WeightedCause(
        meaning.cause,
        odds(weight),
        certainty,
        headline,
        why + account,
        next_step,
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
        test="the traceback in output.log",
        gpu=gpu,
        remedies=remedies,
        phase=phase,
        step=step,
    )


def _where(case: CaseFile) -> str:
    oom = case.gpu_oom
    if oom is None or not oom.phase:
        return ""
    return f" in {oom.phase}" + (f", step {oom.step}" if oom.step is not None else "")


def _remedies(case: CaseFile, meaning: Meaning, gpu: Gpu | None) -> tuple[Remedy, ...]:
    if meaning.cause not in MEMORY_CAUSES:
        return ()
    spare, total = (gpu.reserved_unallocated_bytes, gpu.total_bytes) if gpu is not None else (None, None)
    if spare is not None and total is not None and spare > total * _FRAGMENTED:
        fragments = Remedy(
            f"less fragmentation: {format_size(spare)} was reserved but unused",
            change=Change("env", "PYTORCH_CUDA_ALLOC_CONF", after="expandable_segments:True"),
            command=f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {command(case)}",
        )
        return (fragments, *smaller_job(case))
    return smaller_job(case)
