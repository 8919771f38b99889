"""What a run held at most, and how that is known: one figure for every reader.

The largest of the samples, of what the guard saw between them, of the cgroup's own peak less page cache (as far as the
largest process bears it out, or the little that the job read and wrote), of that process's high-water mark less the files it had mapped (where there is no cgroup), and
of what the kernel said of its victims, where they surely were the job's. In doubt it is the smaller figure: page cache is
nothing that a job holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oomproof.machine.cgroups import charge_doubt
from oomproof.recording.attempt import Attempt
from oomproof.recording.reader import Figures, whole
from oomproof.records import replace
from oomproof.units import MIB

SAMPLES = "samples"
# each source in words: "at most 480 MiB, by the cgroup's peak less page cache"
SOURCES = {
    SAMPLES: "the samples",
    "guard": "the guard's own readings",
    "cgroup": "the cgroup's peak less page cache",
    "process": "its largest process's peak less mapped files",
    "kernel": "the kernel's report of the kill",
}
# A process starts as a copy of the keeper, with its 15 MiB, and maps libraries before the first sample.
_PROCESS_DOUBT = 32 * MIB


def figures_of(attempt: Attempt, verdict: Mapping[str, Any] | None = None) -> Figures:
    """Of its recording, with what it held at most. ``verdict`` as verdict.json has it, else the stored one: it may know of
    victims of the kernel's."""
    figures = attempt.recording().figures()
    use, source = run_peak(attempt, figures, _victims(attempt.verdict() if verdict is None else verdict))
    return replace(figures, peaks=replace(figures.peaks, use=use, source=source))


def _victims(verdict: Mapping[str, Any]) -> list[int]:
    """What each of the kernel's victims held, as a verdict lists them."""
    kills = verdict.get("kills")
    victims = [
        kill.get("victim") for kill in (kills if isinstance(kills, list) else []) if isinstance(kill, dict)
    ]
    return [
        (whole(victim.get("anon_rss_bytes")) or 0) + (whole(victim.get("shmem_rss_bytes")) or 0)
        for victim in victims
        if isinstance(victim, dict)
    ]


def run_peak(attempt: Attempt, figures: Figures, victims: Iterable[int]) -> tuple[int | None, str]:
    """(bytes, of SOURCES). ``victims``: what those held that the kernel killed. Of two that say the same, the first."""
    known = [] if figures.peaks.use is None else [(figures.peaks.use, figures.peaks.source)]
    for action in attempt.actions():  # the writer may have been killed before it wrote that row
        facts = action.get("facts")
        if isinstance(facts, dict) and (use := whole(facts.get("use"))) is not None:
            known.append((use, "guard"))
    sampled = max((use for use, _ in known), default=0)
    counters = attempt.exit().get("counters") or {}
    resident = counters.get("largest_rss")
    if (charged := counters.get("memcg_peak")) is not None:
        at_exit = (counters.get("memcg_active_file") or 0) + (counters.get("memcg_inactive_file") or 0)
        cache = max(figures.cache or 0, at_exit)
        held = charged - cache - (figures.kernel or 0)
        # cache that was gone again before any row stands in that peak too: a process must have been larger than its rows say,
        # or the files that the job read and wrote, all together, must be too small for it
        known_of_one = (figures.process_anon or 0) + (figures.mapped or 0) + (figures.peaks.shmem or 0)
        borne_out = held - cache if resident is None else min(held, sampled + resident - known_of_one)
        if (file_io := whole(counters.get("file_io"))) is not None:
            borne_out = max(borne_out, held - file_io)
        held = borne_out
        if held > sampled + charge_doubt(charged, cache):
            known.append((held, "cgroup"))
    elif resident is not None:
        held = resident - (figures.mapped or 0)
        if held > sampled + max(_PROCESS_DOUBT, resident // 50):
            known.append((held, "process"))
    known += [(held, "kernel") for held in victims if held]
    return max(known, key=lambda peak: peak[0], default=(None, SAMPLES))
