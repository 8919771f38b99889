"""What this machine killed and how it went down, since a moment: one value that any page or table is written from."""

from __future__ import annotations

from typing import Any

from oomproof.diagnosis.outage_verdict import Outage, judge_outage
from oomproof.evidence.outage_finder import find_outages
from oomproof.evidence.system_kills import SystemKills, system_kills
from oomproof.records import dataclass


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
