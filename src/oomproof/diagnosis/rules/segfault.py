"""SIGSEGV: a bad pointer in native code. The kernel's log names the library, if no handler was set."""

from __future__ import annotations

import signal

from oomproof.diagnosis.advice import command, command_line, read_output
from oomproof.diagnosis.crashes import crash_of, crash_of_another, crash_remedies, native_stack
from oomproof.diagnosis.death import Death, death_of, silence
from oomproof.diagnosis.verdict import Certainty, Change, Remedy, Victim, Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile

_FAULTHANDLER = "Fatal Python error: Segmentation fault"


_OPENMP_TEST = (
    "the same run with OMP_NUM_THREADS=1, which starts no second thread: if it lives, the two runtimes are the cause; "
    "python -m threadpoolctl -i numpy torch lists what is loaded"
)

_SEGFAULT = Weight(500, "SIGSEGV is the kernel's word for it")
_GPF = Weight(600, "the kernel's log calls it a general protection fault")


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is not None and death.failed and death.signal is None:
        return _of_another(case, death)
    if death is None or death.signal != signal.SIGSEGV:
        return []
    fault = next(
        (
            kernel_fault
            for kernel_fault in reversed(case.kernel.our_faults)
            if kernel_fault.kind in ("segfault", "gpf")
        ),
        None,
    )
    cause = "gpf" if fault is not None and fault.kind == "gpf" else "segfault"
    where = f" in {fault.library}" if fault is not None and fault.library else ""
    crash = crash_of(case, signal.SIGSEGV)
    if crash is not None and crash.line is not None:
        where += f" at {crash.line}"
    output_verdict = _faulthandler(case)
    certainty: Certainty = "proven" if death.direct or fault is not None or output_verdict else "likely"
    kind = "general protection fault" if cause == "gpf" else "segmentation fault"
    why = f"it {death.phrase}: native code used a bad address, which is not a lack of memory by itself"
    if fault is not None and fault.null:
        why += "; the address was a null pointer"
    if case.agent.openmp is not None:
        why += f"; a possible reason, not proven: {case.agent.openmp}"
        if _told_to_ignore(case):
            why += "; KMP_DUPLICATE_LIB_OK silenced the runtime's own check"
    why += silence(case)
    if crash is not None and crash.frames:
        why += f"; the Python line was {crash.where}"
        next_step = steps(
            f"look at what {crash.line} hands to native code; the whole stack: {case.folder}/agent/{crash.pid}-fault.txt"
        )
    elif output_verdict:
        next_step = steps("read the Python stack that faulthandler printed: ", read_output(case))
    elif case.program.native:
        next_step = native_stack(case)
    else:
        next_step = steps("get the Python stack of the crash: ", command(case, env="PYTHONFAULTHANDLER=1"))
    stack = Remedy(
        "let Python print its stack when it crashes",
        change=Change("env", "PYTHONFAULTHANDLER", after="1"),
        command=_with(case, "PYTHONFAULTHANDLER=1"),
    )
    return [
        WeightedCause(
            cause,
            _GPF if cause == "gpf" else _SEGFAULT,
            certainty,
            f"crashed: {kind}{where}, not an OOM kill",
            why,
            next_step,
            evidence=case.evidence_from(
                "exit", "kernel.fault", "output.", "openmp", "handler.", "agent.crash", "agent.position"
            ),
            test=_OPENMP_TEST
            if case.agent.openmp is not None
            else f"the line 'segfault at' in the kernel log; {'a debugger' if case.program.native else 'PYTHONFAULTHANDLER=1'} shows the "
            f"{'line' if case.program.native else 'Python line'}",
            victim=Victim(fault.pid, fault.name) if fault is not None else None,
            remedies=(
                *((stack,) if crash is None and not case.program.native else ()),
                *_one_runtime(case),
                *crash_remedies(case, crash),
            ),
        )
    ]


def _of_another(case: CaseFile, death: Death) -> list[WeightedCause]:
    """A rank or a child crashed, and whoever started it gave up."""
    crash = crash_of_another(case, signal.SIGSEGV)
    if crash is None:
        return []
    return [
        WeightedCause(
            "segfault",
            _SEGFAULT,
            "likely",
            f"a process of the job crashed: segmentation fault at {crash.line or 'an unknown line'}, not an OOM kill",
            f"it {death.phrase} after its process {crash.pid} died of SIGSEGV; the Python line was {crash.where}",
            f"look at what {crash.line} hands to native code; the whole stack: {case.folder}/agent/{crash.pid}-fault.txt",
            evidence=case.evidence_from("exit", "output.", "agent.crash", "agent.position"),
            test="the same command with one process",
            victim=Victim(crash.pid, ""),
            remedies=crash_remedies(case, crash, own=False),
        )
    ]


def _told_to_ignore(case: CaseFile) -> bool:
    return case.environment.get("KMP_DUPLICATE_LIB_OK", "").lower() in ("true", "1", "yes")


def _one_runtime(case: CaseFile) -> tuple[Remedy, ...]:
    if case.agent.openmp is None:
        return ()
    return (
        Remedy(
            "see whether the two OpenMP runtimes are the cause: one thread needs neither",
            change=Change("env", "OMP_NUM_THREADS", after="1"),
            command=_with(case, "OMP_NUM_THREADS=1"),
        ),
        Remedy(
            "one OpenMP runtime only: all packages from one source (pip or conda), or conda's nomkl; "
            "KMP_DUPLICATE_LIB_OK=TRUE only hides the warning",
            change=Change("system", "packages"),
        ),
    )


def _with(case: CaseFile, variable: str) -> str | None:
    line = command_line(case)
    return None if line is None else f"{variable} {line}"


def _faulthandler(case: CaseFile) -> bool:
    text = case.output.text
    return text is not None and any(_FAULTHANDLER in finding.text for finding in text.training)
