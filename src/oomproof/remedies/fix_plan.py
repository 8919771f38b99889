"""Which settings to change for a run that died of memory, where, what each brings, and the changed text of each file."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from oomproof.diagnosis.advice import run_line
from oomproof.diagnosis.conclusion import conclude_once
from oomproof.diagnosis.smaller_command import bare_name
from oomproof.diagnosis.verdict import Basis, Remedy, Verdict
from oomproof.errors import USAGE, OomproofError
from oomproof.evidence.case_collector import collect
from oomproof.plans.death_facts import DeathFacts, facts_of
from oomproof.plans.knobs import kind_of
from oomproof.plans.plan import Plan, effective_batch
from oomproof.plans.smaller_plans import NoPlan, next_plan
from oomproof.recording import run_folders
from oomproof.recording.run_folders import Run
from oomproof.records import dataclass, replace
from oomproof.remedies.config_formats.format_choice import with_value
from oomproof.remedies.config_formats.scalars import Unreadable
from oomproof.remedies.fix_files import (
    CHANGED_SINCE,
    FoundSettings,
    Place,
    Refusal,
    SettingsFile,
    find_settings,
    find_value,
    program_of,
    settings_files,
)
from oomproof.remedies.fix_probation import compared, figures_of_attempt
from oomproof.remedies.fix_store import UNDONE, list_fixes
from oomproof.runner.run_flags import as_typed
from oomproof.units import format_size

_OWN_FLAG = "--"  # changes of oomproof's own flags stand in no file of the user's
_MOST_BY_HAND = 4


@dataclass(frozen=True, slots=True)
class FixChange:
    """One value of one file. ``effect``: what it brings, in words."""

    place: Place
    new: str
    effect: str
    saves: int | None = None
    basis: Basis = "rule"


@dataclass(frozen=True, slots=True)
class FixPlan:
    """``command``: the run again, where what is to change stands on its command line. ``by_hand``: remedies that no file has a place for."""

    changes: tuple[FixChange, ...] = ()
    command: str | None = None
    refused: tuple[Refusal, ...] = ()
    by_hand: tuple[str, ...] = ()
    nothing: str = ""  # why there is nothing to change


def plan_fix(
    found: FoundSettings,
    files: Sequence[SettingsFile],
    facts: DeathFacts,
    verdict: Verdict,
    flags: Sequence[tuple[str, str]] = (),
    at: Sequence[str] = (),
    died_with: Sequence[Mapping[str, str]] = (),
) -> FixPlan:
    """For a run that died. ``flags``: what `oomproof run` was given; ``died_with``: the plans of its attempts, in their order."""
    if facts.memory is None:
        return FixPlan(nothing=f"it did not run out of memory: {verdict.headline}")
    if facts.others:
        return FixPlan(
            nothing=f"it was not its own memory: {facts.others}", by_hand=_titles(verdict.remedies)
        )
    first = found.plan
    tried = [_with_typed(found, values) for values in died_with] or [first]
    found = replace(found, plan=tried[-1])
    effective = effective_batch(found.template, first)
    smaller = next_plan(found.template, found.plan, tried, facts, (), effective)
    changes: list[FixChange] = []
    command, nothing = None, ""
    refused = list(found.refused)
    if not found.template.knobs:
        unknown = (
            "neither its command line nor the files it names say how large a batch is, or how many workers"
        )
        nothing = "" if refused else unknown
    elif isinstance(smaller, NoPlan):
        nothing = "" if refused else smaller.reason  # what was left alone is the reason
    else:
        changes += _changes(found, smaller.plan, facts, smaller.why)
        command = _command(replace(found, plan=first), smaller.plan, flags)
    placed, more = _by_remedies(verdict.remedies, files, at)
    changes += placed
    refused += [refusal for refusal in more if refusal not in refused]
    done = {bare_name(change.place.scalar.path[-1]) for change in changes}
    by_hand = _titles(remedy for remedy in verdict.remedies if not _covered(remedy, done, found, command))
    return FixPlan(tuple(changes), command, tuple(refused), by_hand, "" if changes or command else nothing)


def plan_of_attempts(
    found: FoundSettings,
    before: Mapping[str, str],
    after: Mapping[str, str],
    effect: str,
    flags: Sequence[tuple[str, str]] = (),
) -> FixPlan:
    """For a run that finished with smaller settings: those, to stay. What was measured is the attempts' own."""
    values = {name: value for name, value in after.items() if before.get(name) != value}
    changes = [
        FixChange(found.places[name], value, effect, basis="measured")
        for name, value in values.items()
        if name in found.places and found.places[name].scalar.value == before.get(name)
    ]
    command = _command(found, found.plan.with_values(**values), flags)
    nothing = "" if changes or command else "no file sets it"
    return FixPlan(tuple(changes), command, nothing=nothing)


def _with_typed(found: FoundSettings, values: Mapping[str, str]) -> Plan:
    """What an attempt had: retries change what stands on the command line, and what Hydra's configs say, by an override there."""
    known = {name for name, _ in found.plan.values}
    return found.plan.with_values(**{name: value for name, value in values.items() if name in known})


def _changes(found: FoundSettings, plan: Plan, facts: DeathFacts, why: str) -> list[FixChange]:
    changes = []
    for name, value in plan.values:
        if name not in found.places or value == (before := found.places[name].scalar.value):
            continue
        saves, basis, effect = _effect(found, name, int(before), int(value), facts, why)
        changes.append(FixChange(found.places[name], value, effect, saves, basis))
    return changes


def _effect(
    found: FoundSettings, name: str, before: int, after: int, facts: DeathFacts, why: str
) -> tuple[int | None, Basis, str]:
    """(bytes it saves, how that is known, in words)"""
    if name == "workers" and facts.worker_bytes:
        saves = facts.worker_bytes * (before - after)
        return (
            saves,
            "measured",
            f"saves about {format_size(saves)} of RAM: each worker held {format_size(facts.worker_bytes)}",
        )
    if name == "batch" and facts.memory == "gpu" and facts.gpu_wanted:
        saves = int(max(0, facts.gpu_wanted - (facts.gpu_fixed or 0)) * (1 - after / before))
        words = "at most " if facts.gpu_fixed is None else "about "
        return saves, "predicted", f"saves {words}{format_size(saves)} of GPU memory"
    if name == "accum":
        batch = effective_batch(found.template, found.plan)
        return None, "rule", f"keeps the effective batch at {batch}"
    return None, "rule", f"how much memory it saves was not measured; the new value: {why}"


def _command(found: FoundSettings, plan: Plan, flags: Sequence[tuple[str, str]]) -> str | None:
    """The run again with what stands on its line changed; None where nothing does."""
    typed = [
        name for name, value in plan.values if name not in found.places and value != found.plan.get(name)
    ]
    if not typed:
        return None
    return run_line(shlex.join(found.template.command(plan.as_dict())), kept=flags)


def _by_remedies(
    remedies: Sequence[Remedy], files: Sequence[SettingsFile], at: Sequence[str]
) -> tuple[list[FixChange], list[Refusal]]:
    """Changes that the verdict names with both values, and that are none of a plan's."""
    changes: list[FixChange] = []
    refused: list[Refusal] = []
    for remedy in remedies:
        change = remedy.change
        if (
            change is None
            or change.before is None
            or change.after is None
            or change.key.startswith(_OWN_FLAG)
        ):
            continue
        if kind_of(change.key) is not None:
            continue
        place, refusal = find_value(files, bare_name(change.key), change.before, at)
        if place is not None:
            saves = f"saves about {format_size(remedy.saves_bytes)}" if remedy.saves_bytes else remedy.title
            changes.append(FixChange(place, change.after, saves, remedy.saves_bytes, remedy.basis))
        elif refusal is not None and refusal not in refused:
            refused.append(refusal)
    return changes, refused


def _covered(remedy: Remedy, done: set[str], found: FoundSettings, command: str | None) -> bool:
    """Whether the plan does it, or something like it."""
    if remedy.change is None:
        return False
    kind = kind_of(remedy.change.key)
    if kind is None:
        return bare_name(remedy.change.key) in done
    return found.template.knob(kind) is not None or command is not None


def _titles(remedies: Iterable[Remedy]) -> tuple[str, ...]:
    return tuple(
        f"{remedy.title}: {remedy.command}" if remedy.command else remedy.title
        for remedy in islice(remedies, _MOST_BY_HAND)
    )


_OF_RETRY = ("retry", "knob", "order", "resume_arg")


@dataclass(frozen=True, slots=True)
class Proposal:
    """``texts``: each file's (before, after), by its path; ``shown``: what people call those paths."""

    plan: FixPlan
    texts: Mapping[str, tuple[str, str]]
    shown: Mapping[str, str]
    headline: str


def propose(of_run: Run, at: Sequence[str] = ()) -> Proposal:
    """``at``: ``FILE:LINE`` where a setting stands in several places. Raises OomproofError."""
    if of_run.state() in run_folders.ALIVE:
        name = run_folders.to_type(of_run)
        raise OomproofError(f"{of_run.name} has not ended", f"wait for it: oomproof wait {name}", USAGE)
    verdict = conclude_once(of_run).verdict
    info, first = of_run.info, of_run.at(1)
    folder = str(info.get("cwd") or ".")
    began = first.started().get("wall") or of_run.created or None
    program = program_of(first.argv, folder, (info.get("env") or {}).get("PATH"))
    files = settings_files(first.argv, folder, began, first.info.get("code"), program)
    files = [_with_own_change(file, of_run.id) for file in files]
    found = find_settings(first.argv, folder, files, at, program)
    flags = info.get("flags")
    kept_flags = (
        {name: value for name, value in flags.items() if name not in _OF_RETRY}
        if isinstance(flags, dict)
        else {}
    )
    typed = as_typed(kept_flags)
    if verdict.kind.good and (of_run.attempt.number or 1) > 1:
        before, after = (of_attempt.info.get("plan") or {} for of_attempt in (first, of_run))
        plan = plan_of_attempts(found, before, after, _peaks(first, of_run), typed)
    elif verdict.kind.good:
        plan = FixPlan(nothing=f"nothing to change: {verdict.headline}")
    else:
        died_with = [
            of_run.at(number).info.get("plan") or {} for number in range(1, (of_run.attempt.number or 1) + 1)
        ]
        facts = facts_of(collect(of_run.attempt), verdict)
        plan = plan_fix(found, files, facts, verdict, typed, at, died_with)
    texts, kept, refused = changed_texts(plan.changes)
    plan = replace(plan, changes=tuple(kept), refused=(*plan.refused, *refused))
    shown = {change.place.file.path: change.place.file.shown for change in kept}
    return Proposal(plan, texts, shown, verdict.headline)


def _with_own_change(file: SettingsFile, run_id: str) -> SettingsFile:
    """Who changed it since, where that was this very verb."""
    if file.problem != CHANGED_SINCE:
        return file
    for fix in list_fixes():
        manifest = fix.manifest
        paths = [entry.get("path") for entry in manifest.get("files") or () if isinstance(entry, dict)]
        if fix.state != UNDONE and manifest.get("run") == run_id and file.path in paths:
            problem = f"oomproof fix has changed it since ({fix.id}): run it again, or take that back: oomproof fix --undo {fix.id}"
            return replace(file, problem=problem)
    return file


def changed_texts(
    changes: Sequence[FixChange],
) -> tuple[dict[str, tuple[str, str]], list[FixChange], list[Refusal]]:
    """((before, after) of each file, the changes in them, those that could not be made). From the end of each file to its beginning, so that
    places stay where they were read."""
    texts: dict[str, tuple[str, str]] = {}
    kept: list[FixChange] = []
    refused: list[Refusal] = []
    places: set[tuple[str, int]] = set()
    for change in sorted(changes, key=lambda change: (change.place.file.path, -change.place.scalar.start)):
        file, scalar = change.place.file, change.place.scalar
        if (file.path, scalar.start) in places:
            continue
        before, now = texts.get(file.path, (file.text, file.text))
        try:
            texts[file.path] = (before, with_value(file.path, now, scalar, change.new))
        except Unreadable as error:
            refused.append(Refusal(scalar.key, f"{change.place}: {error}"))
            continue
        places.add((file.path, scalar.start))
        kept.insert(0, change)
    return texts, kept, refused


def _peaks(first: Run, last: Run) -> str:
    """What the attempts held and how fast they were, in words."""
    before, after = (figures_of_attempt(of_attempt.attempt)[0] for of_attempt in (first, last))
    return f"it finished so; {compared(before, after)}"
