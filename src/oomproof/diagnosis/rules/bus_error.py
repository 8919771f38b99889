"""SIGBUS: /dev/shm full, where it was; else a file cut short under a mapping, or failing hardware.

A worker's SIGBUS reaches us as the words of PyTorch in the parent's output."""

from __future__ import annotations

import signal

from oomproof.causes import cause_of
from oomproof.diagnosis.advice import NO_WORKERS, as_flag, command, with_workers
from oomproof.diagnosis.crashes import crash_of
from oomproof.diagnosis.death import Death, death_of, shm_full, shm_left
from oomproof.diagnosis.output_claims import output_claims
from oomproof.diagnosis.stopping_actions import ended_by_us, explains_the_end
from oomproof.diagnosis.verdict import Certainty, Change, Remedy, Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile
from oomproof.units import format_size

_SHM_FULL = Weight(500, "SIGBUS with /dev/shm full: a page of shared memory could not be allocated")
_SHM_SAID = Weight(200, "PyTorch says bus error and shared memory, the sample does not show it full")
_OTHER_FAULT = Weight(
    300, "SIGBUS with free space in /dev/shm: a file cut short under a mapping, or hardware"
)
_TINY = 256 << 20  # a container's 64 MiB: one batch of images is larger
_NO_WORKERS = "loader workers need it, and num_workers=0 does not"
_UNLIKELY = Weight(20, "the other reading of a SIGBUS")


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not death.failed:
        return []
    if ended_by_us(case) or (death.signal is None and explains_the_end(case)):
        return []  # a kernel's kill beside it: that rule tells both as one story
    told = next((claim for claim in output_claims(case)[:1] if cause_of(claim.cause).shared_memory), None)
    if death.signal != signal.SIGBUS and (told is None or death.signal is not None):
        return []
    full = shm_full(case)
    words = told.why if told is not None else None
    if full:
        return [_shm(case, death, _SHM_FULL, "proven" if death.direct else "likely", words)]
    if told is not None and told.cause == "shm-exhausted":
        return [
            _shm(case, death, _SHM_SAID, "likely", words),
            _other(case, death, _UNLIKELY, "possible"),
        ]
    if death.signal is None:
        return [
            _other(case, death, _OTHER_FAULT, "likely"),
            _shm(case, death, _UNLIKELY, "possible", words),
        ]
    claims = [_other(case, death, _OTHER_FAULT, "proven" if death.direct and full is False else "likely")]
    if full is None:
        claims.append(_shm(case, death, _UNLIKELY, "possible", None))
    return claims


def _shm(
    case: CaseFile, death: Death, weight: Weight, certainty: Certainty, words: str | None
) -> WeightedCause:
    total, left = (
        case.samples.shm_total,
        f"{format_size(shm_left(case))} of {format_size(case.samples.shm_total)}",
    )
    full, tiny = shm_full(case), total is not None and total <= _TINY
    unseen = (
        full is False and not tiny
    )  # what was looked at was not full: the job wanted more, or has another one
    size = "" if not total or unseen else f" ({left} free)" if full else f" ({format_size(total)} in all)"
    why = f"it {death.phrase}; a page of shared memory could not be allocated"
    if words is not None:
        why += f"; {words}"
    if unseen:
        why += f"; {left} were free when it was last looked at from outside: the job wanted more than that at once, or has a /dev/shm of its own (a container, a mount namespace)"
    target = as_flag(_larger(case))
    enlarge = f"docker run --shm-size={target} (or sudo mount -o remount,size={target} /dev/shm)"
    fewer = "no workers (fewer do not help in one so small)" if tiny else "fewer workers"
    next_step = steps(f"{enlarge}, or {fewer}: ", with_workers(case, 0 if tiny else None))
    largest = bool(total) and _larger(case) <= (total or 0)
    if largest and unseen:
        next_step = steps(
            f"df -h /dev/shm from inside the job tells how large its own is; {_NO_WORKERS}: ",
            with_workers(case, 0),
        )
    elif largest:
        next_step = steps("/dev/shm is as large as RAM allows: ", with_workers(case))
    return WeightedCause(
        "shm-exhausted",
        weight,
        certainty,
        f"shared memory exhausted: /dev/shm was full{size}",
        why,
        next_step,
        evidence=case.evidence_from("exit", "sample.shm", "output."),
        test="df -h /dev/shm while the job runs; num_workers=0 needs none of it",
        remedies=(
            *(() if largest else (_enlarged(total, target),)),
            NO_WORKERS
            if tiny or unseen
            else Remedy(
                "fewer workers: each holds its batches in /dev/shm", change=Change("code", "num_workers")
            ),
        ),
    )


def _enlarged(total: int | None, target: str) -> Remedy:
    return Remedy(
        "a larger /dev/shm",
        command=f"sudo mount -o remount,size={target} /dev/shm",
        change=Change("system", "/dev/shm", before=str(total) if total else None, after=target),
    )


def _larger(case: CaseFile) -> int:
    """Four times as much, at most half of RAM: it is RAM, and the job's limit pays for it."""
    wanted = max((case.samples.shm_total or 0) * 4, 2 << 30)
    return min(wanted, case.samples.host.total // 2) if case.samples.host is not None else wanted


def _other(case: CaseFile, death: Death, weight: Weight, certainty: Certainty) -> WeightedCause:
    free, total = shm_left(case), case.samples.shm_total
    headroom = "no sample of /dev/shm"
    if total:
        headroom = f"/dev/shm had free space ({format_size(free)} of {format_size(total)} free)"
    crash = crash_of(case, signal.SIGBUS)
    line = f"; the Python line was {crash.where}" if crash is not None and crash.frames else ""
    return WeightedCause(
        "bus-error",
        weight,
        certainty,
        "crashed: bus error; most often a mapped file became shorter, or its disk is full or failing",
        f"it {death.phrase}; {headroom}{line}",
        steps(
            "see that nobody rewrites the data during a run: df -h; sudo dmesg | tail; then ", command(case)
        ),
        evidence=case.evidence_from("exit", "sample.shm", "output.", "agent.crash", "agent.position"),
        test="compare the mapped files' sizes with what the job expects; sudo dmesg shows failing disks",
    )
