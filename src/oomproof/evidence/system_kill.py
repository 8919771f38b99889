"""One kill for memory on this machine: who, when, by whom, what it held, whether it was ours."""

from __future__ import annotations

from typing import Any, Literal

from oomproof.evidence.texts.finding import KernelFacts, TaskJob
from oomproof.records import dataclass

Certainty = Literal["proven", "likely", "possible"]


@dataclass(frozen=True, slots=True)
class SystemKill:
    """``held`` is what the victim had of its own, in bytes: never address space."""

    wall: float | None
    cause: str
    pid: int | None
    name: str | None
    held: int | None
    certainty: Certainty
    source: str
    text: str
    cgroup: str | None = None
    limit: int | None = None
    run: str | None = None  # the id of the run of ours it belonged to
    run_name: str | None = None
    facts: KernelFacts = KernelFacts()  # who held what, and the machine, where the kernel's report has them

    @property
    def job(self) -> TaskJob | None:
        return self.facts.job_of(self.pid)

    def to_json(self) -> dict[str, Any]:
        return {
            "time": self.wall,
            "cause": self.cause,
            "victim": {"pid": self.pid, "name": self.name},
            "held_bytes": self.held,
            "certainty": self.certainty,
            "ours": self.run is not None,
            "run": self.run,
            "run_name": self.run_name,
            "cgroup": self.cgroup,
            "limit_bytes": self.limit,
            "source": self.source,
            "text": self.text,
            "jobs": [
                {
                    "name": job.name,
                    "uid": job.uid,
                    "pids": list(job.pids),
                    "ram_bytes": job.ram,
                    "swap_bytes": job.swap,
                    "victim": self.pid in job.pids,
                }
                for job in self.facts.jobs
            ],
            "machine": {
                "ram_bytes": self.facts.machine.ram,
                "free_bytes": self.facts.machine.free,
                "swap_total_bytes": self.facts.machine.swap_total,
                "swap_free_bytes": self.facts.machine.swap_free,
            },
            "asked_by": self.facts.asked_by,
            "asked_bytes": self.facts.asked,
        }
