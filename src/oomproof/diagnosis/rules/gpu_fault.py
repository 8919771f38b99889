"""The GPU's driver reported an error (Xid) that names a process of the job: the root of what the program saw."""

from __future__ import annotations

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.stopping_actions import ended_by_us
from oomproof.diagnosis.verdict import Victim, Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile

_WEIGHT = Weight(2000, "the driver names a process of ours; the program's own error is what it saw of it")

_ROOT = 0.9  # weaker ones are notes about the card, or the driver's cleaning up after a failure


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not death.failed or ended_by_us(case) or case.kernel_killed:
        return []
    fault = next(
        (
            kernel_fault
            for kernel_fault in case.kernel.our_faults
            if kernel_fault.kind == "xid" and kernel_fault.strength > _ROOT
        ),
        None,
    )
    if fault is None:
        return []
    return [
        WeightedCause(
            "xid",
            _WEIGHT,
            "proven",
            f"the GPU driver reported an error: {fault.says.partition(' reported ')[2] or fault.says}",
            f"the kernel's log names pid {fault.pid} of this job; it {death.phrase}",
            steps(
                "Xid 13 and 31 are mostly the program: ",
                command(case, env="CUDA_LAUNCH_BLOCKING=1"),
                "; 48, 79, 94, 95 the card",
            ),
            evidence=case.evidence_from("exit", "kernel.fault", "output."),
            test="nvidia-smi -q; the same job on another card",
            victim=Victim(fault.pid, fault.name or None),
        )
    ]
