"""What --spill pinned and what was spilled, as the agent's small file has it: there while the job runs, and after SIGKILL."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from oomproof.leaf.attempt_names import SPILL
from oomproof.recording.attempt import Attempt
from oomproof.recording.state_files import read_json
from oomproof.records import dataclass
from oomproof.units import format_duration, format_size

if TYPE_CHECKING:  # sqlite3: only for whoever reads a recording
    from oomproof.recording.series import Series

SPILLS = "agent:spill"  # events of a recording


@dataclass(frozen=True, slots=True)
class SpillRecord:
    pinned: int = 0  # bytes of host memory; 0: none, or given back
    count: int = 0  # steps and visits of other phases that spilled
    seconds: float = 0.0  # that they took longer, all together
    largest: int = 0  # bytes, of the one that spilled most
    step: int | None = None  # ... which that was
    phase: str = ""
    batch: int | None = None  # ... its samples, and how many would have fitted
    fits: int | None = None
    always: bool = False  # most steps
    refused: str = ""  # why there is no spill
    given_back: int = 0  # when the host was short

    def as_json(self) -> dict[str, Any]:
        return {
            "pinned_bytes": self.pinned,
            "given_back_bytes": self.given_back,
            "spills": self.count,
            "largest_bytes": self.largest,
            "step": self.step,
            "phase": self.phase or None,
            "seconds_slower": self.seconds,
            "batch": self.batch,
            "fitting_batch": self.fits,
            "always": self.always,
            "refused": self.refused or None,
        }


def read(attempt: Attempt) -> SpillRecord | None:
    """Of the process that had it last; None where nobody asked for one."""
    try:
        paths = sorted(attempt.agent_folder.glob(f"*-{SPILL}"), key=lambda path: path.stat().st_mtime)
    except OSError:
        return None
    return _parsed(read_json(paths[-1])) if paths else None


def pinned_at(series: Series) -> float:
    """When the host memory was pinned: what was held before is less by that much, and that is no growth."""
    ready = (t for t, told in series.told_numbers(SPILLS) if told.get("did") == "ready")
    return max(ready, default=-math.inf)


def pinned(attempt: Attempt) -> int:
    record = read(attempt)
    return record.pinned if record is not None else 0


def _parsed(value: dict[str, Any]) -> SpillRecord:
    given_back = _whole(value.get("given_back"))
    seconds = value.get("seconds")
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and math.isfinite(seconds)
    return SpillRecord(
        pinned=0 if given_back else _whole(value.get("size")),
        count=_whole(value.get("count")),
        seconds=max(0.0, float(seconds or 0.0)) if is_number else 0.0,
        largest=_whole(value.get("largest")),
        step=_whole(value.get("step")) or None,
        phase=str(value.get("phase") or "")[:60],
        batch=_whole(value.get("batch")) or None,
        fits=_whole(value.get("fits")) or None,
        always=value.get("always") is True,
        refused=str(value.get("refused") or "")[:500],
        given_back=given_back,
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 60 else 0


def text_of(record: SpillRecord) -> str:
    """For people, in one sentence."""
    if record.refused:
        return f"none: {record.refused}"
    had = f"{format_size(record.pinned)} of host memory pinned"
    if record.given_back:
        had = f"{format_size(record.given_back)} of host memory given back when the host was short"
    if not record.count:
        return f"{had}; never used"
    times = "once" if record.count == 1 else f"{record.count} times"
    where = f" at step {record.step}" if record.step is not None else ""
    text = f"{had}; used {times}, at most {format_size(record.largest)}{where}"
    if record.seconds >= 0.1:
        text += f", {format_duration(record.seconds)} slower in all"
    if record.fits:
        text += f"; a batch of {record.fits} always fits (that one: {record.batch})"
    return text
