"""The registry: one rule per file, each a function from the case file to weighted causes."""

from __future__ import annotations

from collections.abc import Callable

from oomproof.diagnosis.rules import (
    abort,
    bus_error,
    finished,
    gpu_fault,
    guard_lost,
    interrupted,
    kernel_oom,
    killed_by_somebody,
    machine_down,
    own_words,
    segfault,
    stopped_by_guard,
    stopped_by_user,
    systemd_oomd,
)
from oomproof.diagnosis.verdict import WeightedCause
from oomproof.evidence.facts import CaseFile

Rule = Callable[[CaseFile], list[WeightedCause]]

RULES: tuple[Rule, ...] = (
    finished.weigh,
    kernel_oom.weigh,
    systemd_oomd.weigh,
    stopped_by_guard.weigh,
    stopped_by_user.weigh,
    interrupted.weigh,
    killed_by_somebody.weigh,
    segfault.weigh,
    gpu_fault.weigh,
    abort.weigh,
    bus_error.weigh,
    own_words.weigh,
    machine_down.weigh,
    guard_lost.weigh,
)
