"""Exit code 0, still running, or not started yet: no crash. A worker the kernel killed on the way is told all the same."""

from __future__ import annotations

import re

from oomproof.diagnosis.advice import as_flag, command, with_workers
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.stopping_actions import guard_stop, ignored_request, paused, user_stop
from oomproof.diagnosis.verdict import Steps, Victim, Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile
from oomproof.leaf.action_kinds import PAUSE
from oomproof.runner.page_cache_watch import BY_LIMIT, STEP
from oomproof.units import format_duration, format_size

_EXIT_CODE_0 = Weight(1000, "exit code 0 is the job's own word")
_WAITING = Weight(1000, "its front lives and has started nothing")
_SHOWN = 2  # programs that died, of those that are named
_RUNNING = Weight(1000, "the keeper lives and there is no exit status")


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None and case.exit.waits:
        return [_waiting(case)]
    if death is None:
        return [_running(case)] if case.exit.keeper_alive else []
    if death.failed or guard_stop(case) is not None or user_stop(case) is not None:
        return []
    held = case.samples.job_peak
    why = f"exited with code 0; held at most {format_size(held)}" if held else "exited with code 0"
    stood, _ = paused(case)
    if stood:
        why += f"; it was paused for {format_duration(stood)}"
    if (asked := ignored_request(case)) is not None:
        why += "; the guard had asked it to save and stop"
        if case.exit.status is not None and case.exit.status.boottime is not None:
            why += f" {format_duration(case.exit.status.boottime - asked.boottime)} before"
        why += ", which nothing in it looks for: it ended by itself"
    headline, next_step, victim = "finished", _faster(case) or steps("nothing to do"), None
    kills = [kill for kill in case.kernel.our_kills if kill.sure]
    lost = len(kills) or case.moved.memcg_oom_kill or 0
    if lost:
        headline = f"finished, but the kernel killed {lost} of its processes for memory on the way"
        why += "; the results may lack what those processes worked on"
        next_step = steps("check the results; to give each process more memory: ", with_workers(case))
        victim = Victim.of(kills[-1]) if kills else None
    programs = case.lost_programs
    if programs:
        headline = f"finished, but {_programs(len(programs))} that it started ran out of memory on the way"
        why += f"; {_listed(programs)}"
        next_step = steps(
            "start those smaller; trials of a search: oomproof sweep, which skips what cannot fit"
        )
    return [
        WeightedCause(
            "finished",
            _EXIT_CODE_0,
            "proven",
            headline,
            why,
            next_step,
            evidence=case.evidence_from(
                "exit",
                "sample.peak",
                "kernel.kill",
                "agent.program-lost",
                "sample.page-cache",
                "counter.memcg_oom_kill" if lost else "exit",
            ),
            test="the exit code",
            victim=victim,
        )
    ]


def _faster(case: CaseFile) -> Steps:
    limit = case.limits.settings.limit
    if limit is None or not case.slowed.startswith(BY_LIMIT):
        return ()
    return steps("to run it at full speed: ", command(case, f"--limit {as_flag(int(limit * STEP))}"))


def _programs(count: int) -> str:
    return "a program" if count == 1 else f"{count} programs"


def _listed(programs: list[str]) -> str:
    more = f" (and {len(programs) - _SHOWN} before)" if len(programs) > _SHOWN else ""
    return "; ".join(programs[-_SHOWN:]) + more


def _waiting(case: CaseFile) -> WeightedCause:
    asked = re.match(r"needs (.+?)[;:]", case.exit.waits_for[0]) if case.exit.waits_for else None
    return WeightedCause(
        "not-a-crash",
        _WAITING,
        "proven",
        f"waiting for {asked[1]}; it was not started yet" if asked else "waiting; it was not started yet",
        "; ".join(case.exit.waits_for) or "its front waits for memory",
        f"it starts by itself; to take it out of the queue: oomproof stop {case.called}",
        test="whether its front lives",
    )


def _paused_text(case: CaseFile) -> str:
    """What somebody paused by hand no guard resumes."""
    by = next((action.by for action in reversed(case.actions) if action.action == PAUSE), None)
    if by == "user":
        return "paused by you, not hanging: it stays paused until oomproof resume"
    return "paused, not hanging: it resumes when memory is available, or by oomproof resume"


def _follow(case: CaseFile) -> str:
    if case.called is None:
        return "wait for its end"
    return f"oomproof logs -f {case.called} follows it; oomproof wait {case.called} waits for its end"


def _running(case: CaseFile) -> WeightedCause:
    _, stands = paused(case)
    next_step = f"oomproof resume {case.called}" if stands and case.run else _follow(case)
    if case.exit.unguarded and not stands:
        next_step = f"it runs unguarded; to guard it again: oomproof watch {case.called}"
    state = "still running"
    why = "the process that waits for its end is alive, and no exit status has been written"
    if programs := case.lost_programs:
        state += f", but {_programs(len(programs))} that it started ran out of memory"
        why += f"; {_listed(programs)}"
    return WeightedCause(
        "not-a-crash",
        _RUNNING,
        "proven",
        _paused_text(case) if stands else state,
        why,
        next_step,
        test="whether that process is alive",
    )
