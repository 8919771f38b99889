"""A machine that went down under its runs: who held what, who asked for more, how much was missing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from oomproof.evidence.case_file import OtherJob
from oomproof.evidence.outage_finder import HostPoint, OutageFacts, RunFacts, find_outages
from oomproof.evidence.system_kills import SystemKills, system_kills
from oomproof.records import dataclass
from oomproof.trend.growth import mean_rate

Kind = Literal["shutdown", "panic", "after-kernel-kill", "memory", "filling", "not-memory", "unknown"]
Certainty = Literal["proven", "likely", "possible"]

_STALLED = 0.3  # a third of the time with every task stalled: a desktop that no longer answers
_LOW = 0.05  # of RAM left: below twice the floor at which any guard acts
_AMPLE = 0.15
_MOVED = 16 << 20  # bytes in the last seconds that count as growing
_LATELY = 10.0  # seconds that say whether a run was still asking
_SOON = 30.0  # seconds to a full machine: the last sample may be seconds old when a machine stalls
_RECENT_KILL = 300.0  # seconds before the last sign within which a kernel kill belongs to the story


@dataclass(frozen=True, slots=True)
class Share:
    """One run's part. ``still`` is what it had yet to take: None where nothing tells its need."""

    run: RunFacts
    growth: int  # bytes in the last minute
    rate: float
    still: int | None


@dataclass(frozen=True, slots=True)
class Outage:
    facts: OutageFacts
    kind: Kind
    certainty: Certainty
    headline: str
    shares: tuple[Share, ...]
    newest: Share | None = None
    there_at_start: int | None = None  # available + free swap when the newest run began
    there: int | None = None  # and at the last sample
    needed: int | None = None  # what all runs had yet to take then
    shortfall: int | None = None  # of the newest run, when it began; negative: it would have fitted
    stalled: float | None = None  # share of the last minute in which every task stalled
    swap_taken: int | None = None  # in the last minute
    seconds_left: float | None = None  # at the last rates, until nothing was left
    culprit: OtherJob | None = None  # an unmanaged job that grew more than all runs together

    def to_json(self) -> dict[str, Any]:
        facts = self.facts
        return {
            "schema": 1,
            "kind": self.kind,
            "certainty": self.certainty,
            "headline": self.headline,
            "boot_id": facts.boot_id,
            "last_sign": facts.last_sign,
            "next_boot": facts.next_boot,
            "shutdown": facts.shutdown,
            "runs": [
                {
                    "id": share.run.id,
                    "name": share.run.name,
                    "started": share.run.started,
                    "held_bytes": share.run.held,
                    "grew_bytes_last_minute": share.growth,
                    "need_bytes": share.run.need,
                    "need_basis": share.run.need_basis,
                    "need_at_least": share.run.at_least,
                    "rate_bytes_per_second": share.rate,
                    "allowed_bytes": share.run.allowed,
                    "still_to_take_bytes": share.still,
                    "started_again": share.run.started_again,
                }
                for share in self.shares
            ],
            "unmanaged": [
                {
                    "pid": job.pid,
                    "name": job.name,
                    "uid": job.uid,
                    "held_bytes": job.held,
                    "swap_bytes": job.swap,
                    "grew_bytes": job.grew,
                    "rate_bytes_per_second": job.rate,
                    "is_culprit": job is self.culprit,
                }
                for job in facts.others
            ],
            "there_bytes": self.there,
            "there_at_start_bytes": self.there_at_start,
            "needed_bytes": self.needed,
            "shortfall_bytes": self.shortfall,
            "stalled": self.stalled,
            "swap_taken_bytes": self.swap_taken,
            "timeline": [{"time": at, "text": text} for at, text in facts.timeline],
        }


def judge_outage(facts: OutageFacts) -> Outage:
    shares = tuple(_share(run) for run in facts.runs)
    last, minute = facts.host[-1] if facts.host else None, _last_minute(facts.host)
    there = last.available + last.swap_free if last else None
    known = [share.still for share in shares if share.still is not None]
    needed = sum(known) if known else None
    newest = max(shares, key=lambda share: share.run.started or 0.0, default=None)
    at_start = _host_at(facts.host, newest.run.started) if newest is not None else None
    there_at_start = at_start.available + at_start.swap_free if at_start else None
    shortfall = None
    if newest is not None and newest.run.need is not None and there_at_start is not None:
        shortfall = newest.run.need - there_at_start
    stalled = _stalled(minute)
    rate = sum(max(0.0, share.rate) for share in shares)
    culprit = max(facts.others, key=lambda job: job.rate, default=None)
    if culprit is not None and (culprit.grew <= _MOVED or culprit.rate <= rate):
        culprit = None
    rate += culprit.rate if culprit is not None else 0.0
    left = there / rate if there is not None and rate > 1 << 20 else None
    kind, certainty = _kind(facts, last, needed, there, shortfall, stalled, left)
    return Outage(
        facts,
        kind,
        certainty,
        _HEADLINES[kind],
        shares,
        newest,
        there_at_start,
        there,
        needed,
        shortfall,
        stalled,
        minute[0].swap_free - minute[-1].swap_free if minute else None,
        left,
        culprit,
    )


_HEADLINES: dict[Kind, str] = {
    "shutdown": "the machine was shut down or restarted in order: not for lack of memory",
    "panic": "the kernel itself failed and the machine went down",
    "after-kernel-kill": "the kernel had killed for memory, and then the machine went down without a shutdown",
    "memory": "the machine went down without a shutdown while memory ran out: it froze",
    "filling": "the machine went down without a shutdown while memory was filling fast: it froze, or power or reset",
    "not-memory": "the machine went down without a shutdown, and not for memory: power, reset or panic",
    "unknown": "the machine went down without a shutdown; how memory stood then was not recorded",
}


def _kind(
    facts: OutageFacts,
    last: HostPoint | None,
    needed: int | None,
    there: int | None,
    shortfall: int | None,
    stalled: float | None,
    left: float | None,
) -> tuple[Kind, Certainty]:
    if facts.shutdown is not None:
        return "shutdown", "proven"
    if facts.panic is not None:
        return "panic", "proven"
    if any(facts.last_sign - at <= _RECENT_KILL for at, _ in facts.kernel_kills):
        return "after-kernel-kill", "proven"
    if last is None or last.total <= 0:
        return "unknown", "possible"
    low = last.available <= _LOW * last.total
    stuck = stalled is not None and stalled >= _STALLED
    asked_more = needed is not None and there is not None and needed > there
    if low and (stuck or asked_more or (shortfall is not None and shortfall > 0)):
        return "memory", "likely"
    if low or stuck:
        return "memory", "possible"
    if asked_more or (left is not None and left <= _SOON):
        return "filling", "possible"
    if last.available >= _AMPLE * last.total:
        # nobody writes down a power cut; headroom a second before it is all there is to see
        return "not-memory", "likely"
    return "not-memory", "possible"


def _share(run: RunFacts) -> Share:
    minute = [point for point in run.use if run.use[-1][0] - point[0] <= 60.0]
    lately = [point for point in minute if minute[-1][0] - point[0] <= _LATELY]
    growth = minute[-1][1] - minute[0][1] if minute else 0
    # a run that filled up half a minute ago and then stopped growing was not asking any more
    grown = lately[-1][1] - lately[0][1] if lately else 0
    still = max(0, run.need - run.held) if run.need is not None else None
    if run.at_least and not still:
        still = None  # it was past what is known of it
    return Share(run, growth, mean_rate(lately) if grown > _MOVED else 0.0, still)


def _last_minute(points: Sequence[HostPoint]) -> list[HostPoint]:
    return [point for point in points if points[-1].wall - point.wall <= 60.0]


def _stalled(minute: Sequence[HostPoint]) -> float | None:
    known = [(point.wall, point.psi_full) for point in minute if point.psi_full is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    share = (known[-1][1] - known[0][1]) / 1e6 / (known[-1][0] - known[0][0])
    return min(1.0, max(0.0, share))


def _host_at(points: Sequence[HostPoint], wall: float | None) -> HostPoint | None:
    """The machine just before somebody began; the nearest sample, if one is near enough to tell."""
    if wall is None or not points:
        return None
    before = [point for point in points if wall - 30.0 <= point.wall <= wall]
    after = [point for point in points if wall < point.wall <= wall + 5.0]
    return before[-1] if before else after[0] if after else None


@dataclass(frozen=True, slots=True)
class SystemHistory:
    kills: SystemKills
    outages: tuple[Outage, ...] = ()  # oldest first

    def to_json(self) -> dict[str, Any]:
        return {**self.kills.to_json(), "outages": [outage.to_json() for outage in self.outages]}


def system_history(since: float) -> SystemHistory:
    """``since`` in epoch seconds. Never raises for what it reads."""
    outages = [judge_outage(facts) for facts in find_outages() if facts.last_sign >= since]
    return SystemHistory(system_kills(since), tuple(outages))
