"""Tells a job that is slow for lack of page cache: its libraries, weights and mapped data are read from disk again and again.
Pure. A file that is read for the first time, or by read(), is none of it."""

from __future__ import annotations

from oomproof.machine.cache_faults import CacheFaults
from oomproof.records import dataclass
from oomproof.units import MIB, format_duration, format_size

PAGE_CACHE = "page-cache"  # the event, and the alert
BY_LIMIT, BY_MACHINE = "slowed by its limit", "slowed by a full machine"
STEP = 1.25  # of the limit: what to try next. run_clm.py, which wants 8 % more, was four times as slow without it
_SLICE = 5.0  # seconds
_LASTS, _LASTS_LOADING = 20.0, 60.0  # seconds in a row
# Of each slice. Measured, run_clm.py some MiB below what it wants: 70 to 160 major faults a second, 250 to 780 MiB/s read
# back, 17 to 69 % of the time waited; with enough: none. A data file read over and over: up to 1.7 GiB/s, 20 %, no major fault.
_MAJOR = 5.0  # a second; a disk that turns makes about a hundred
_MAJOR_ALONE = 20.0  # ... where nobody tells how long was waited
_READ_BACK = MIB  # a second
_WAITED = 0.1  # of the time
_TURNS = 2  # times that all its page cache was read back, since it began
_FULL = 0.95  # of the limit, page cache included


@dataclass(frozen=True, slots=True)
class Held:
    """Of one moment, in bytes. ``limit``: that the kernel enforces and the user asked for; None: there is none."""

    use: int
    charged: int
    cache: int
    limit: int | None
    available: int  # of the machine


class PageCacheWatch:
    def __init__(self) -> None:
        self._first: tuple[float, CacheFaults] | None = None  # of the watch
        self._begun: tuple[float, CacheFaults] | None = None  # of what lasts
        self._slice: tuple[float, CacheFaults] | None = None
        self._last: tuple[float, CacheFaults] | None = None
        self._told: Held | None = None

    def look(self, t: float, faults: CacheFaults, held: Held, loading: bool) -> str:
        """What to tell, once; empty: nothing."""
        now = (t, faults)
        self._last = now
        if self._first is None or self._slice is None:
            self._first = self._slice = now
        if t - self._slice[0] < _SLICE:
            return ""
        before, self._slice = self._slice, now
        if not _is_slow(before, now):
            self._begun = None
            return ""
        self._begun = begun = self._begun or before
        lasted = t - begun[0]
        read = faults.read_back - begun[1].read_back
        if (
            self._told is not None
            or lasted < (_LASTS_LOADING if loading else _LASTS)
            or read < _TURNS * held.cache
        ):
            return ""
        self._told = held
        return _text(held, begun, now, f"in {format_duration(lasted)} ", f"held {format_size(held.use)}")

    def whole(self) -> str:
        """Of the whole watch, for the end, where what was held at most stands beside it; empty where nothing was told."""
        if self._told is None or self._first is None or self._last is None:
            return ""
        return _text(self._told, self._first, self._last, "", "")


def _is_slow(before: tuple[float, CacheFaults], now: tuple[float, CacheFaults]) -> bool:
    """Counters of processes fall when one ends: such a slice is none."""
    seconds, (_, first), (_, last) = now[0] - before[0], before, now
    major, read = last.major - first.major, last.read_back - first.read_back
    if first.stalled is None or last.stalled is None:
        waited, least = _WAITED, _MAJOR_ALONE
    else:
        waited, least = (last.stalled - first.stalled) / seconds, _MAJOR
    return major >= least * seconds and read >= _READ_BACK * seconds and waited >= _WAITED


def _text(
    held: Held, first: tuple[float, CacheFaults], last: tuple[float, CacheFaults], when: str, use: str
) -> str:
    """``use``: what it held, in words; empty at the end."""
    read, waited = last[1].read_back - first[1].read_back, ""
    if first[1].stalled is not None and last[1].stalled is not None:
        share = (last[1].stalled - first[1].stalled) / max(1.0, last[0] - first[0])
        waited = f", waiting {min(1.0, share):.0%} of the time"
    read_back = f"read {format_size(read)} back from disk {when}for lack of page cache{waited}"
    if held.limit is not None and held.charged + held.cache >= _FULL * held.limit:
        limit, higher = format_size(held.limit), -int(-held.limit * STEP // MIB)
        facts = f": {use} of {limit} and " if use else f" of {limit}: "
        return f"{BY_LIMIT}{facts}{read_back}; raise --limit to about {higher}M"
    facts = f"{use} and " if use else ""
    return f"{BY_MACHINE}: {facts}{read_back}; {format_size(held.available)} were available"
