"""systemd-oomd: it kills whole cgroups and writes a mark on them; the kernel's counters stay flat."""

from __future__ import annotations

from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.memory_answer import answer
from oomproof.diagnosis.verdict import Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile

_WEIGHT = Weight(900, "systemd-oomd marks the cgroups it kills")


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not death.failed or not case.moved.oomd_kill:
        return []
    memory = answer(case, None, machine=True)
    why = f"the mark user.oomd_kill on the job's cgroup moved; it {death.phrase}"
    return [
        WeightedCause(
            "systemd-oomd",
            _WEIGHT,
            "proven",
            "killed by systemd-oomd: the memory pressure of its slice was too high for too long",
            "; ".join((why, *memory.told)),
            steps(memory.next, "; see journalctl -u systemd-oomd"),
            evidence=case.evidence_from("exit", "counter.oomd_kill", "sample.", "other."),
            test="journalctl -u systemd-oomd names the cgroup",
            remedies=memory.remedies,
            culprit=memory.culprit,
        )
    ]
