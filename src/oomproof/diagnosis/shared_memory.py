"""Whether /dev/shm was full when the job ended."""

from __future__ import annotations

from oomproof.evidence.case_file import CaseFile
from oomproof.units import MIB

_FULL_SHARE, _FULL_BYTES = 0.05, 16 * MIB  # one batch of images is larger: the next does not fit


def shm_left(case: CaseFile) -> int | None:
    """The least of what was seen free: by the time of the exit the dead job has given its pages back."""
    return min((free for free in (case.shm_low, case.shm_free) if free is not None), default=None)


def shm_full(case: CaseFile) -> bool | None:
    free, total = shm_left(case), case.shm_total
    if free is None or not total:
        return None
    return free <= max(total * _FULL_SHARE, min(_FULL_BYTES, total // 4))
