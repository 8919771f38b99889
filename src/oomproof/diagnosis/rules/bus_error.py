"""SIGBUS: /dev/shm full, where it was; else a file cut short under a mapping, or failing hardware.

A worker's SIGBUS reaches us as the words of PyTorch in the parent's output."""

from __future__ import annotations

import re
import signal

from oomproof.diagnosis.advice import as_flag, command
from oomproof.diagnosis.crashes import crash_of
from oomproof.diagnosis.death import Death, death_of
from oomproof.diagnosis.error_texts import SHM_ERROR
from oomproof.diagnosis.verdict import Certainty, Change, Remedy, WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile
from oomproof.units import MIB, format_size

_FULL_SHARE, _FULL_BYTES = 0.05, 16 * MIB  # one batch of images is larger: the next does not fit
_SAID = re.compile(f"Unexpected bus error encountered in worker|killed by signal: Bus error|{SHM_ERROR}")
_LINES = 80


def shm_left(case: CaseFile) -> int | None:
    """The least of what was seen free: by the time of the exit the dead job has given its pages back."""
    return min((each for each in (case.shm_low, case.shm_free) if each is not None), default=None)


def shm_full(case: CaseFile) -> bool | None:
    free, total = shm_left(case), case.shm_total
    if free is None or not total:
        return None
    return free <= max(total * _FULL_SHARE, min(_FULL_BYTES, total // 4))


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not death.failed:
        return []
    said = next((line for line in reversed(case.output.lines[-_LINES:]) if _SAID.search(line)), None)
    if death.signal != signal.SIGBUS and (said is None or death.signal is not None):
        return []
    full = shm_full(case)
    if full:
        return [_shm(case, death, "bus.shm", "proven" if death.direct else "likely", said)]
    if said is not None:
        return [
            _shm(case, death, "bus.shm-said", "likely", said),
            _other(case, death, "bus.unlikely", "possible"),
        ]
    claims = [_other(case, death, "bus.other", "proven" if death.direct and full is False else "likely")]
    if full is None:
        claims.append(_shm(case, death, "bus.unlikely", "possible", None))
    return claims


def _shm(case: CaseFile, death: Death, weight: str, certainty: Certainty, said: str | None) -> WeightedCause:
    total = case.shm_total
    size = f" ({format_size(shm_left(case))} of {format_size(total)} free)" if total else ""
    why = f"it ended by {death.phrase}; a page of shared memory could not be had"
    if said is not None:
        why += f"; it printed: {said.strip()[:160]}"
    target = as_flag(_larger(case))
    enlarge = f"docker run --shm-size={target} (or sudo mount -o remount,size={target} /dev/shm)"
    next_step = f"{enlarge}, or fewer workers: {command(case)}"
    if total and _larger(case) <= total:
        next_step = f"/dev/shm is as large as RAM allows: halve the workers, then {command(case)}"
    return WeightedCause(
        "shm-exhausted",
        odds(weight),
        certainty,
        f"shared memory exhausted: /dev/shm was full{size}",
        why,
        next_step,
        evidence=case.evidence_from("exit", "sample.shm", "output."),
        test="df -h /dev/shm while the job runs; num_workers=0 needs none of it",
        remedies=(
            Remedy(
                "a larger /dev/shm",
                command=f"sudo mount -o remount,size={target} /dev/shm",
                change=Change("system", "/dev/shm", before=str(total) if total else None, after=target),
            ),
            Remedy("fewer workers: each holds its batches in /dev/shm", change=Change("code", "num_workers")),
        ),
    )


def _larger(case: CaseFile) -> int:
    """Four times as much, at most half of RAM: it is RAM, and the job's limit pays for it."""
    wanted = max((case.shm_total or 0) * 4, 2 << 30)
    return min(wanted, case.host.total // 2) if case.host is not None else wanted


def _other(case: CaseFile, death: Death, weight: str, certainty: Certainty) -> WeightedCause:
    free, total = shm_left(case), case.shm_total
    room = "no sample of /dev/shm"
    if total:
        room = f"/dev/shm had room ({format_size(free)} of {format_size(total)} free)"
    crash = crash_of(case, signal.SIGBUS)
    line = f"; the Python line was {crash.where}" if crash is not None and crash.frames else ""
    return WeightedCause(
        "bus-error",
        odds(weight),
        certainty,
        "crashed: bus error; most often a mapped file became shorter, or its disk is full or failing",
        f"it ended by {death.phrase}; {room}{line}",
        f"see that nobody rewrites the data during a run: df -h; sudo dmesg | tail; then {command(case)}",
        evidence=case.evidence_from("exit", "sample.shm", "output.", "agent.crash", "agent.position"),
        test="compare the mapped files' sizes with what the job expects; sudo dmesg shows failing disks",
    )
