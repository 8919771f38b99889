"""A higher limit for a job that died at its own: one step, or a much larger one where nobody saw how much it wanted. Pure."""

from __future__ import annotations

from oomproof.diagnosis.advice import as_flag, command_line
from oomproof.diagnosis.verdict import Change, Remedy
from oomproof.evidence.case_file import CaseFile
from oomproof.units import MIB, format_duration, format_size

STEP = 1.25  # one step up: enough for a job that died close to its peak, small enough to leave others alive
_TO_LEARN = 8  # times the limit, at most: a second try of the same kind then covers any job, and neighbours keep theirs
_SOON = 60.0  # seconds: growth that fills a step up within them
_NOBODY_SAW = "how much more it wanted is not known"
_BURST = 0.2  # of the limit, taken after the last sample: a quarter more may be far from enough


def higher_limit(case: CaseFile, limit: int | None) -> int | None:
    """The next limit to try, or None when the machine had no headroom for it."""
    if limit is None or case.host is None:
        return None
    wanted = int(limit * STEP)
    return wanted if _most(case) >= wanted else None


def raise_limit(case: CaseFile, limit: int | None) -> tuple[Remedy, ...]:
    higher = higher_limit(case, limit)
    if higher is None or limit is None:
        return ()
    title = f"a higher limit: {format_size(limit)} to {as_flag(higher)}, for which the machine had memory available"
    if size_is_unknown(case, limit):
        higher = max(higher, min(_TO_LEARN * limit, _most(case)) // MIB * MIB)
        title = (
            f"to learn how much it takes, once with a much larger limit: {format_size(limit)} to {as_flag(higher)}, which the "
            f"machine had available; oomproof runs then shows its peak"
        )
    return (
        Remedy(
            title,
            command=command_line(case, f"--limit {as_flag(higher)}"),
            change=Change("argument", "--limit", before=as_flag(limit), after=as_flag(higher)),
        ),
    )


def size_is_unknown(case: CaseFile, limit: int) -> bool:
    """It burst over its limit, was growing fast when it met it, or a step up was tried before and it died all the same."""
    return bool(burst_text(case, limit)) or any(before < limit for before in case.died_at)


def burst_text(case: CaseFile, limit: int | None) -> tuple[str, ...]:
    """For the verdict's why; empty where it came to its limit slowly."""
    if limit is None:
        return ()
    job, unseen = case.job, _unseen(case, limit)
    if unseen >= _BURST * limit:
        end = case.status.boottime if case.status is not None else None
        within = f" within {format_duration(max(0.1, end - job.t))}" if job and end is not None else ""
        return (f"it took the last {format_size(unseen)} of {format_size(limit)}{within}: {_NOBODY_SAW}",)
    if job is not None and job.rate * _SOON > (STEP - 1) * limit:
        return (f"it was growing to its last moment: {_NOBODY_SAW}",)
    return ()


def _unseen(case: CaseFile, limit: int) -> int:
    """What it took up to its limit after the last sample."""
    return max(0, limit - (case.job.used if case.job is not None else 0))


def _most(case: CaseFile) -> int:
    """What the job could have held on this machine, beside the others and above the margin."""
    assert case.host is not None
    return (case.job.used if case.job is not None else 0) + case.host.available - (case.settings.margin or 0)
