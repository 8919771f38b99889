"""Which settings to change for a run that died of memory, where, and what each brings. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from oomproof.diagnosis.advice import run_line
from oomproof.diagnosis.smaller_command import bare_name
from oomproof.diagnosis.verdict import Basis, Remedy, Verdict
from oomproof.plans.death_facts import DeathFacts
from oomproof.plans.knobs import kind_of
from oomproof.plans.plan import Plan, effective_batch
from oomproof.plans.smaller_plans import NoPlan, next_plan
from oomproof.records import dataclass, replace
from oomproof.remedies.settings_search import FoundSettings, Place, Refusal, SettingsFile, find_value
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
