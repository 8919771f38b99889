"""What Slurm and Ray say when they, or the kernel under them, end a job."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.hit import Hit, Said

ANCHORS = ("oom-kill", "oom_kill", "Out Of Memory", "memory limit", "OUT_OF_MEMORY", "CANCELLED", "memory pressure", "memory usage threshold",
           "RayOutOfMemory", "running low on memory", "OutOfMemoryError", "TIME LIMIT", "TERM_MEMLIMIT", "TERM_RUNLIMIT", "walltime",
           "PREEMPT", "reempted", "ObjectStoreFull", "job killed", "DUE TO")  # fmt: skip

_SLURM = re.compile(
    r"Detected \d+ oom[-_ ]kill event|killed by the cgroup out-of-memory handler|(?:srun|slurmstepd): error:.{0,120}Out Of Memory"
    r"|(?:task|tasks) [\d,-]+: Out Of Memory|Exceeded (?:job|step) memory limit|(?:Step|Job|StepId=|JobId=)\S* ?\S* exceeded (?:virtual )?memory limit"
    r"|\boom-kill event\(s\) in|State(?::|=)\s*OUT_OF_MEMORY|\bTERM_MEMLIMIT\b|job killed: (?:v?mem|pmem)\b.{0,60}exceeded limit"
)
_RAY = re.compile(
    r"ray\.exceptions\.OutOfMemoryError|killed due to memory pressure|RayOutOfMemoryError|due to the node running low on memory"
    r"|exceeds the memory usage threshold|ObjectStoreFullError"
)
_RAY_NONE = re.compile(r"\b0 Workers \(tasks / actors\) killed due to memory")
_ENDED = re.compile(
    r"CANCELLED (?:AT|DUE|BY|\+|by)|\bDUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE|SIGNAL)|\bTERM_RUNLIMIT\b|job killed: walltime"
    r"|(?:[Jj]ob|[Nn]ode|[Ii]nstance|[Ww]orker|VM)\b.{0,40}\b[Pp]reempted|exceeded (?:time limit|walltime)|State(?::|=)\s*(?:TIMEOUT|CANCELLED|PREEMPTED)"
)
_PREEMPT_TALK = re.compile(
    r"[Ss]equence group|KV cache|\bnot preempted"
)  # vLLM's scheduler uses the word for requests
_COUNT = re.compile(r"Detected (\d+) oom")


def recognise(said: Said) -> Hit | None:
    text = said.text
    if _SLURM.search(text):
        count = _COUNT.search(text)
        return Hit("slurm-oom", "Slurm saw the kernel kill processes of this job for memory", 0.95,
                   details={"events": count[1]} if count else {})  # fmt: skip
    if _RAY.search(text) and not _RAY_NONE.search(text):
        return Hit("ray-oom", "Ray's memory monitor killed a worker: the node was short of memory", 0.93)
    if _ENDED.search(text) and not _PREEMPT_TALK.search(text):
        bare = "CANCELLED AT" in text and "DUE TO" not in text
        return Hit(
            "interrupted",
            "the scheduler ended the job (cancelled, out of time, or preempted)",
            0.9,
            details={"cancelled": "yes"} if bare else {},
        )
    return None
