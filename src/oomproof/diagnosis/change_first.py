"""What has to change before a command that died for want of memory is started again, where no argument of it makes it
smaller: the same line would end the same way. Pure."""

from __future__ import annotations

import re
import shlex

from oomproof.diagnosis.advice import (
    LOAD_LESS,
    as_flag,
    command,
    command_line,
    died_loading,
    held_by_others,
    what_is_smaller,
    without_batches,
)
from oomproof.diagnosis.verdict import Change, Remedy, Steps, steps
from oomproof.evidence.case_file import CaseFile
from oomproof.units import MIB, format_duration, format_size

STEP = 1.25  # one step up: enough for a job that died close to its peak, small enough to leave others alive
_TO_LEARN = 8  # times the limit, at most: a second try of the same kind then covers any job, and neighbours keep theirs
_SOON = 60.0  # seconds: growth that fills a step up within them
_NOBODY_SAW = "how much more it wanted is not known"
_BURST = 0.2  # of the limit, taken after the last sample: a quarter more may be far from enough


def higher_limit(case: CaseFile, limit: int | None) -> int | None:
    """The next limit to try, or None when the machine had no headroom for it."""
    if limit is None or case.samples.host is None:
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
    return bool(burst_text(case, limit)) or any(before < limit for before in case.limits.died_at)


def burst_text(case: CaseFile, limit: int | None) -> tuple[str, ...]:
    """For the verdict's why; empty where it came to its limit slowly."""
    if limit is None:
        return ()
    job, unseen = case.samples.job, _unseen(case, limit)
    if unseen >= _BURST * limit:
        end = case.exit.status.boottime if case.exit.status is not None else None
        within = f" within {format_duration(max(0.1, end - job.t))}" if job and end is not None else ""
        return (f"it took the last {format_size(unseen)} of {format_size(limit)}{within}: {_NOBODY_SAW}",)
    if job is not None and job.rate * _SOON > (STEP - 1) * limit:
        return (f"it was growing to its last moment: {_NOBODY_SAW}",)
    return ()


def _unseen(case: CaseFile, limit: int) -> int:
    """What it took up to its limit after the last sample."""
    return max(0, limit - (case.samples.job.used if case.samples.job is not None else 0))


def _most(case: CaseFile) -> int:
    """What the job could have held on this machine, beside the others and above the margin."""
    assert case.samples.host is not None
    return (
        (case.samples.job.used if case.samples.job is not None else 0)
        + case.samples.host.available
        - (case.limits.settings.margin or 0)
    )


# what `oomproof data inspect` reads
_DATA_FILE = re.compile(
    r"[^=]+\.(?:npz|npy|csv|tsv|jsonl|ndjson|parquet|arrow|feather|pkl|pickle|joblib|safetensors|gguf)", re.I
)


def change_first(case: CaseFile, limit: int | None) -> Steps:
    """``limit``: the job's own, where that was full; None: the machine was."""
    if limit is not None and case.samples.host is None:
        more = as_flag(int(limit * STEP))
        return steps(
            f"see whether the machine has more: oomproof check --need {more}; then ",
            command(case, f"--limit {more}"),
        )
    full = "the machine has no memory for a higher limit: " if limit is not None else ""
    return steps(
        full,
        _after_others(case, limit)
        or steps(f"{_smaller(case, limit)}; unchanged it ends the same way. Then ", command(case)),
    )


def _after_others(case: CaseFile, limit: int | None) -> Steps | None:
    """Others held a good part, and without them it fits: it waits for its turn."""
    host, others = case.samples.host, held_by_others(case)
    need = int(limit * STEP) if limit is not None else case.held
    if host is None or not others or need > host.total - (case.limits.settings.margin or 0):
        return None
    who = f"others held {format_size(others)}"
    if case.samples.twin is not None:
        who = f"the same command ran as pid {case.samples.twin.pid} and held {format_size(case.samples.twin.held)}"
    flags = [f"--need {as_flag(need)}"] + ([f"--limit {as_flag(need)}"] if limit is not None else [])
    return steps(f"{who} (oomproof check); this waits for its turn: ", command(case, *flags))


def _smaller(case: CaseFile, limit: int | None) -> str:
    """By what it was given to read, else by what the machine lacks."""
    if (data := _data_file(case)) is not None:
        return f"see what loading {data} takes and how to read it for less: oomproof data inspect {shlex.quote(data)}"
    host, need = case.samples.host, case.held
    if limit is None and host is not None and case.samples.in_container:
        return f"load less at a time, or raise the limit around it ({format_size(host.total)}: container --memory, Slurm --mem)"
    if limit is None and host is not None and need:
        have = f"{format_size(host.total)} RAM and "
        have += f"{format_size(host.swap_total)} swap" if host.swap_total else "no swap"
        return (
            f"load less at a time, or give the machine swap ({have}): oomproof system --need {as_flag(need)}"
        )
    if died_loading(case):
        return LOAD_LESS
    if without_batches(case):
        return "load less at a time: stream or map the data" + (
            ", fewer processes" if case.program.pool else ""
        )
    return f"load less at a time: stream or map the data, {what_is_smaller(case)}"


def _data_file(case: CaseFile) -> str | None:
    """The first data file of the command line: ``train.npz``, ``--data=train.npz``."""
    words = (
        word.partition("=")[2] if word.startswith("-") and "=" in word else word for word in case.argv[1:]
    )
    return next((word for word in words if _DATA_FILE.fullmatch(word)), None)
