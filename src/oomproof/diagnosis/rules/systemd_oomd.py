"""systemd-oomd: it kills whole cgroups and writes a mark on them; the kernel's counters stay flat."""

from __future__ import annotations

from oomproof.diagnosis.advice import command, smaller_job
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.rule_weights import Weight
from oomproof.diagnosis.verdict import WeightedCause
from oomproof.evidence.case_file import CaseFile

_WEIGHT = Weight(900, "systemd-oomd marks the cgroups it kills")


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not death.failed or not case.moved.oomd_kill:
        return []
    return [
        WeightedCause(
            "systemd-oomd",
            _WEIGHT,
            "proven",
            "killed by systemd-oomd: the memory pressure of its slice was too high for too long",
            f"the mark user.oomd_kill on the job's cgroup moved; it {death.phrase}",
            f"halve batch or workers, then {command(case)}; see journalctl -u systemd-oomd",
            evidence=case.evidence_from("exit", "counter.oomd_kill", "sample."),
            test="journalctl -u systemd-oomd names the cgroup",
            remedies=smaller_job(case),
        )
    ]
