"""One run in, the changes to its files out: reads its verdict, its command and the files, and has the decisions made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oomproof.diagnosis.conclusion import conclude_once
from oomproof.errors import USAGE, OomproofError
from oomproof.evidence.case_collector import collect
from oomproof.plans.death_facts import facts_of
from oomproof.recording import run_folders
from oomproof.recording.run_folders import Run
from oomproof.records import dataclass, replace
from oomproof.remedies.config_formats.format_choice import with_value
from oomproof.remedies.config_formats.scalars import Unreadable
from oomproof.remedies.fix_files import CHANGED_SINCE, program_of, settings_files
from oomproof.remedies.fix_plan import FixChange, FixPlan, plan_fix, plan_of_attempts
from oomproof.remedies.fix_probation import compared
from oomproof.remedies.fix_record import figures_of_attempt
from oomproof.remedies.fix_store import UNDONE, list_fixes
from oomproof.remedies.settings_search import Refusal, SettingsFile, find_settings
from oomproof.runner.run_flags import as_typed

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
