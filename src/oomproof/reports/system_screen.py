"""What `oomproof system` shows: what to change and why, what is done by hand, what is fine in one line; the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oomproof.ledger.job_history import JobHistory
from oomproof.machine import swap
from oomproof.records import asdict
from oomproof.remedies.system_facts import Change, Plan, SystemFacts
from oomproof.remedies.system_manifest import Manifest
from oomproof.remedies.system_plan import job_sizes
from oomproof.reports.table_text import Line, fact, folded_fact, wrapped
from oomproof.units import format_size, format_time

SCHEMA = 1
_COLUMN = 9


def screen(facts: SystemFacts, jobs: JobHistory, plan: Plan, applied: str, width: int) -> list[Line]:
    lines: list[Line] = []
    for line in (
        fact("machine", _machine(facts), column=_COLUMN),
        fact("jobs", jobs_text(jobs), column=_COLUMN),
        *(fact("", note, "dim", _COLUMN) for note in plan.notes),
        *([fact("applied", applied, "green", _COLUMN)] if applied else []),
    ):
        lines += folded_fact(line, width)
    apply = plan.to_apply
    by_hand = [change for change in plan.changes if change not in apply]
    if apply:
        lines += [[], *change_lines("Change (--apply does it)", apply, width)]
    if by_hand:
        lines += [[], *change_lines("By hand" if apply else "Change, by hand", by_hand, width)]
    if plan.fine:
        fine = "; ".join(finding.text for finding in plan.fine)
        lines += [[], *wrapped("Fine: ", fine, width, "bold green")]
    lines += [[], *_next(plan, applied, width)]
    return lines


def change_lines(title: str, changes: Iterable[Change], width: int, commands: bool = True) -> Iterable[Line]:
    yield [(title, "bold")]
    for change in changes:
        text = f"Why: {change.why}. Does: {change.does}. Does not: {change.does_not}."
        yield from wrapped(f"  {change.name}: {change.title}. ", text, width, "yellow", "    ")
        for command in change.commands if commands else ():
            yield [("      ", ""), (command, "cyan")]


def _machine(facts: SystemFacts) -> str:
    host = facts.host
    parts = [f"{format_size(host.memory.total)} RAM"]
    on_disk, free = swap.disk(host.swaps)
    parts.append(
        f"{format_size(on_disk)} swap on disk ({f'{format_size(free)} free' if free else 'full'})"
        if on_disk
        else "no disk swap"
    )
    for area in host.swaps:
        if area.zram:
            parts.append(
                f"zram {format_size(area.total)}, holding {format_size(area.zram.stored)} in {format_size(area.zram.in_ram)} of RAM"
            )
    if host.place.container:
        parts.append("container")
    elif host.place.wsl:
        parts.append("WSL2")
    elif not facts.macos:
        parts.append("systemd" if facts.systemd else "no systemd")
    if facts.delegation.version:
        parts.append(f"cgroup v{facts.delegation.version}")
    return ", ".join(parts)


def jobs_text(jobs: JobHistory) -> str:
    if jobs.problem:
        return f"{jobs.problem}: sizes are for any job; give one with --need 20G"
    if not jobs.together:
        return "no run is on record: sizes are for any job; give one with --need 20G"
    listed = job_sizes(jobs)
    if jobs.declared:
        return f"{listed} (--need)"
    how = "at the same time" if len(jobs.together) > 1 else "the largest"
    return f"{listed}, {how}, of {jobs.runs} run{'s' if jobs.runs != 1 else ''}"


def applied_text(manifest: Manifest) -> str:
    return (
        f"{', '.join(manifest.changes)} since {format_time(manifest.made)}; back: sudo oomproof system --undo"
    )


def _next(plan: Plan, applied: str, width: int) -> Iterable[Line]:
    if plan.blocked:
        yield from wrapped("Next: ", f"{plan.blocked}.", width, "bold")
    elif applied and plan.to_apply:
        yield [("Next: take back what was applied, then apply again", "bold")]
        yield [("  ", ""), ("sudo oomproof system --undo && sudo oomproof system --apply", "cyan")]
    elif plan.to_apply:
        yield [("Next: ", "bold"), ("see the steps and say yes; --undo takes them back", "")]
        yield [("  ", ""), ("sudo oomproof system --apply", "cyan")]
    else:
        yield [("Next: ", "bold"), ("nothing to apply; is a job safe to start now?", "")]
        yield [("  ", ""), ("oomproof check", "cyan")]


def to_json(facts: SystemFacts, jobs: JobHistory, plan: Plan, manifest: Manifest | None) -> dict[str, Any]:
    """Schema 1. Sizes are bytes; null is "the machine does not tell"."""
    host, sampled = facts.host, facts.sampled
    return {
        "schema": SCHEMA,
        "ram_bytes": host.memory.total,
        "swaps": [
            {
                "path": area.path,
                "kind": "zram" if area.zram else "disk",
                "total_bytes": area.total,
                "used_bytes": area.used,
                "priority": area.priority,
                "in_ram_bytes": area.zram.in_ram if area.zram else None,
                "stored_bytes": area.zram.stored if area.zram else None,
            }
            for area in host.swaps
        ],
        "kernel": {
            **asdict(facts.kernel),
            "overcommit_memory": host.overcommit.mode if host.overcommit else None,
            "mglru_min_ttl_ms": facts.mglru.min_ttl_ms if facts.mglru else None,
        },
        "shm_bytes": host.shm.total if host.shm else None,
        "limits": asdict(facts.limits),
        "cgroup_version": facts.delegation.version,
        "delegated": list(facts.delegation.controllers) if facts.delegation.controllers is not None else None,
        "user": facts.user.name,
        "lingers": facts.lingers,
        "reads_kernel_log": facts.kernel_log,
        "systemd": facts.systemd,
        "container": host.place.container,
        "wsl": host.place.wsl,
        "root_filesystem": host.place.root_filesystem,
        "disk_free_bytes": facts.disk.free if facts.disk else None,
        "oom_daemons": [
            {
                "name": threshold.daemon.name,
                "pid": threshold.daemon.pid,
                "memory_percent": threshold.memory_percent,
                "memory_bytes": threshold.memory_bytes,
                "swap_percent": threshold.swap_percent,
                "pressure": list(threshold.pressure),
            }
            for threshold in facts.thresholds
        ],
        "gpu": {"driver": facts.driver, "persistence": [card.persistence for card in host.gpus.gpus]},
        "compresses_to": sampled.pages.share if sampled and sampled.pages else None,
        "jobs": {
            "runs": jobs.runs,
            "largest": [
                {"name": job.name, "use_bytes": job.use, "gpu_bytes": job.gpu} for job in jobs.together
            ],
        },
        "changes": [_change_json(change, plan) for change in plan.changes],
        "fine": [{"name": finding.name, "text": finding.text} for finding in plan.fine],
        "notes": list(plan.notes),
        "blocked": plan.blocked or None,
        "applied": {"changes": list(manifest.changes), "made": manifest.made} if manifest else None,
    }


def _change_json(change: Change, plan: Plan) -> dict[str, Any]:
    return {
        "name": change.name,
        "title": change.title,
        "why": change.why,
        "does": change.does,
        "does_not": change.does_not,
        "commands": list(change.commands),
        "by_hand": change not in plan.to_apply,
    }
