"""What has to change before a command that died for want of memory is started again, where no argument of it makes it
smaller: the same line would end the same way. Pure."""

from __future__ import annotations

import re
import shlex

from oomproof.diagnosis.advice import (
    LOAD_LESS,
    as_flag,
    command,
    died_loading,
    held_by_others,
    what_is_smaller,
    without_batches,
)
from oomproof.diagnosis.larger_limit import STEP
from oomproof.evidence.case_file import CaseFile
from oomproof.units import format_size

# what `oomproof data inspect` reads
_DATA_FILE = re.compile(
    r"[^=]+\.(?:npz|npy|csv|tsv|jsonl|ndjson|parquet|arrow|feather|pkl|pickle|joblib|safetensors|gguf)", re.I
)


def change_first(case: CaseFile, limit: int | None) -> str:
    """``limit``: the job's own, where that was full; None: the machine was."""
    if limit is not None and case.host is None:
        more = as_flag(int(limit * STEP))
        return (
            f"see whether the machine has more: oomproof check --need {more}; "
            f"then {command(case, f'--limit {more}')}"
        )
    full = "the machine has no memory for a higher limit: " if limit is not None else ""
    return full + (
        _after_others(case, limit)
        or f"{_smaller(case, limit)}; unchanged it ends the same way. Then {command(case)}"
    )


def _after_others(case: CaseFile, limit: int | None) -> str | None:
    """Others held a good part, and without them it fits: it waits for its turn."""
    host, others = case.host, held_by_others(case)
    need = int(limit * STEP) if limit is not None else case.held
    if host is None or not others or need > host.total - (case.settings.margin or 0):
        return None
    who = f"others held {format_size(others)}"
    if case.twin is not None:
        who = f"the same command ran as pid {case.twin.pid} and held {format_size(case.twin.held)}"
    flags = [f"--need {as_flag(need)}"] + ([f"--limit {as_flag(need)}"] if limit is not None else [])
    return f"{who} (oomproof check); this waits for its turn: {command(case, *flags)}"


def _smaller(case: CaseFile, limit: int | None) -> str:
    """By what it was given to read, else by what the machine lacks."""
    if (data := _data_file(case)) is not None:
        return f"see what loading {data} takes and how to read it for less: oomproof data inspect {shlex.quote(data)}"
    host, need = case.host, case.held
    if limit is None and host is not None and case.in_container:
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
        return "load less at a time: stream or map the data" + (", fewer processes" if case.pool else "")
    return f"load less at a time: stream or map the data, {what_is_smaller(case)}"


def _data_file(case: CaseFile) -> str | None:
    """The first data file of the command line: ``train.npz``, ``--data=train.npz``."""
    words = (
        word.partition("=")[2] if word.startswith("-") and "=" in word else word for word in case.argv[1:]
    )
    return next((word for word in words if _DATA_FILE.fullmatch(word)), None)
