"""Where the settings of a run stand: on its command line, else in its launch script, its files of settings, its script. Each in one place or in none. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oomproof.plans.command_template import Template, template_of
from oomproof.plans.knobs import Kind, Knob, kind_of, least_of, least_workers
from oomproof.plans.plan import Plan
from oomproof.plans.smaller_plans import first_plan
from oomproof.records import dataclass, field, replace
from oomproof.remedies.config_formats.format_choice import CONFIGS, SCRIPTS, kind_of_file, scalars_of
from oomproof.remedies.config_formats.scalars import Scalar, Unreadable, Wanted
from oomproof.remedies.hydra_knobs import implied_accumulation, paths_of, with_accumulation
from oomproof.remedies.hydra_program import HydraProgram

_KINDS: tuple[Kind, ...] = ("workers", "prefetch", "batch", "accum", "eval_batch")


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """``shown``: as people call it. ``problem``: why nothing in it may be changed. ``given``: to the script, as nanoGPT's config/*.py.
    ``applied``: of one that Hydra merges with others, where the values that it took begin, and what may have changed each; None: all count."""

    path: str
    shown: str
    text: str = ""
    problem: str = ""
    given: bool = False
    applied: Mapping[int, str] | None = None

    @property
    def turn(self) -> int:
        """Whose word counts first: an argument in a launch script wins over a file of settings, that over a default in the code."""
        kind = kind_of_file(self.path)
        return 0 if kind in SCRIPTS else 1 if kind in CONFIGS or self.given else 2


@dataclass(frozen=True, slots=True)
class Place:
    file: SettingsFile
    scalar: Scalar

    def __str__(self) -> str:
        return f"{self.file.shown}:{self.scalar.line}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What could not be placed exactly, and why."""

    what: str
    why: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class FoundSettings:
    """``template``: of the command line, with the knobs of the files beside its own; ``places``: of those, by their names."""

    template: Template
    plan: Plan
    places: Mapping[str, Place] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()


def find_settings(
    argv: Sequence[str],
    folder: str,
    files: Sequence[SettingsFile],
    at: Sequence[str] = (),
    program: HydraProgram | None = None,
) -> FoundSettings:
    """``at``: ``FILE:LINE`` that the user chose where there are several."""
    template = template_of(argv, folder=folder)
    values = first_plan(template, argv).as_dict()
    knobs = list(template.knobs)
    places: dict[str, Place] = {}
    refused: list[Refusal] = []
    readable, problems = _readable(files)
    refused += problems
    for kind in _KINDS:
        if template.knob(kind) is not None:
            continue
        place, refusal = choose(kind, _of_kind(readable, kind), at)
        if refusal is not None and refusal not in refused:
            refused.append(refusal)
        if place is not None:
            value = int(place.scalar.value)
            least = least_of(kind)
            if kind == "workers":
                least = max(least_workers(file.text) for file in files)
            knobs.append(Knob(kind, kind, first=value, least=least, described=False))
            values[kind], places[kind] = str(value), place
    whole = Template(template.words, tuple(knobs), typed=False)
    if program is not None and whole.knob("accum") is None and (key := implied_accumulation(program)):
        whole = with_accumulation(whole, key)
        values["accum"] = "1"
        if "batch" in places and len(paths := paths_of(program, "batch")) == 1:
            # half of the change in a file and half on the command line would be no change to keep: both are typed
            del places["batch"]
            whole = replace(whole, overrides=(*whole.overrides, ("batch", f"{'.'.join(paths[0])}=")))
    return FoundSettings(whole, Plan.of(values), places, tuple(refused))


def find_value(
    files: Sequence[SettingsFile], name: str, before: str, at: Sequence[str] = ()
) -> tuple[Place | None, Refusal | None]:
    """Of one setting, by its name and the value that it had."""
    readable, _ = _readable(files)
    candidates = [
        place for place in _candidates(readable, lambda known: known == name) if place.scalar.value == before
    ]
    return choose(name, candidates, at)


def choose(what: str, candidates: Sequence[Place], at: Sequence[str]) -> tuple[Place | None, Refusal | None]:
    """The one that counts. Several whose word counts alike are none."""
    chosen = [
        place for place in candidates if str(place) in at or f"{place.file.path}:{place.scalar.line}" in at
    ]
    first = min((place.file.turn for place in candidates), default=0)
    left = chosen or [place for place in candidates if place.file.turn == first]
    if not left:
        return None, None
    if len(left) > 1:
        where = ", ".join(f"{place} ({place.scalar.key})" for place in left[:4])
        more = f" and {len(left) - 4} more" if len(left) > 4 else ""
        told_apart = len({str(place) for place in left}) > 1
        hint = f"say which: --at {left[0]}" if told_apart else "they share a line: change that by hand"
        return None, Refusal(what, f"is set in {len(left)} places: {where}{more}", hint)
    place = left[0]
    if place.file.problem:
        return None, Refusal(place.file.shown, place.file.problem)
    if place.scalar.problem:
        return None, Refusal(what, f"{place} ({place.scalar.key}): {place.scalar.problem}")
    return place, None


def _readable(files: Sequence[SettingsFile]) -> tuple[list[SettingsFile], list[Refusal]]:
    kept, refused = [], []
    for file in files:
        if file.problem and not file.text:  # nobody could look into it
            refused.append(Refusal(file.shown, file.problem))
            continue
        try:
            scalars_of(file.path, file.text, lambda _: False)
        except Unreadable as error:
            refused.append(Refusal(file.shown, f"cannot be read: {error}"))
        else:
            kept.append(file)
    return kept, refused


def _candidates(files: Sequence[SettingsFile], wanted: Wanted) -> list[Place]:
    return [
        Place(file, _with_doubt(file, scalar))
        for file in files
        for scalar in scalars_of(file.path, file.text, wanted)
        if file.applied is None or scalar.start in file.applied
    ]


def _with_doubt(file: SettingsFile, scalar: Scalar) -> Scalar:
    doubt = file.applied.get(scalar.start, "") if file.applied is not None else ""
    return replace(scalar, problem=doubt) if doubt and scalar.value.isdecimal() else scalar


def _of_kind(files: Sequence[SettingsFile], kind: Kind) -> list[Place]:
    candidates = _candidates(files, lambda name: kind_of(name) == kind)
    return [place for place in candidates if _is_count(place, kind)]


def _is_count(place: Place, kind: Kind) -> bool:
    """A whole number; a value that cannot be changed is told with its reason all the same."""
    value = place.scalar.value
    if place.scalar.problem:
        return True
    return value.isdecimal() and len(value) < 10 and int(value) >= least_of(kind)
