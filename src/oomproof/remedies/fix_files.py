"""Which files of a run may be changed (those its command line names and those of its own folder, never by a link that leads out of it),
and where each setting stands in them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from oomproof.evidence.program_source import script_sources
from oomproof.leaf.small_files import sha256_hex
from oomproof.plans.knobs import KINDS, Kind, Template, config_knob, is_count, kind_of, template_of
from oomproof.plans.plan import Plan
from oomproof.plans.smaller_plans import first_plan
from oomproof.records import dataclass, field, replace
from oomproof.remedies.config_formats.format_choice import CONFIGS, SCRIPTS, kind_of_file, scalars_of
from oomproof.remedies.config_formats.scalars import Scalar, Unreadable, Wanted
from oomproof.remedies.config_formats.shell_scalars import words_of
from oomproof.remedies.hydra_program import (
    HydraProgram,
    hydra_program,
    implied_accumulation,
    paths_of,
    with_accumulation,
)


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
    for kind in KINDS:
        if template.knob(kind) is not None:
            continue
        place, refusal = choose(kind, _of_kind(readable, kind), at)
        if refusal is not None and refusal not in refused:
            refused.append(refusal)
        if place is not None:
            knobs.append(knob := config_knob(kind, place.scalar.value, (file.text for file in files)))
            values[kind], places[kind] = str(knob.first), place
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
    """Whole numbers, and values that cannot be changed: the user is told the reason."""
    candidates = _candidates(files, lambda name: kind_of(name) == kind)
    return [place for place in candidates if place.scalar.problem or is_count(place.scalar.value, kind)]


_LARGEST = 1 << 20  # bytes: no file of settings is larger
_BESIDE = ".env"  # in the run's folder, read by many without being named
_READS_IT = re.compile(r"dotenv|(?<![\w])\.env\b|BaseSettings|decouple|environs")
_VARIABLE = re.compile(r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*=", re.MULTILINE)
CHANGED_SINCE = "it was changed after this run began: run it again first"
_JUST_THEN = 1.0  # seconds: file systems round times


def settings_files(
    argv: Sequence[str],
    folder: str,
    began: float | None,
    code: Mapping[str, Any] | None = None,
    program: HydraProgram | None = None,
) -> list[SettingsFile]:
    """``began``: when the run was started, wall seconds; ``code``: the script and its hash, as run.json has them. ``program``: of Hydra,
    where it is one."""
    paths: dict[str, None] = {}
    for path in _named(argv, folder):
        paths.setdefault(path)
        if os.path.splitext(path)[1] in SCRIPTS:  # what it starts counts as named
            for inner in _named([word.text.strip("'\"") for word in words_of(_text(path)[0])], folder):
                paths.setdefault(inner)
    beside = os.path.join(folder, _BESIDE)
    if os.path.isfile(beside) and _is_read(beside, paths, folder):
        paths.setdefault(beside)
    sources = [path for path in paths if kind_of_file(path) == ".py"]
    files = [replace(_file(path, folder, began, code or {}), given=path in sources[1:]) for path in paths]
    if program is None:
        return files
    composed = list(_hydra_files(program, folder, began))
    known = {file.path for file in composed}
    return [*(file for file in files if file.path not in known), *composed]


def _is_read(beside: str, paths: Iterable[str], folder: str) -> bool:
    """Whether the run's programs read such a file, or name one of its variables: another program's is none of this run's."""
    names = "|".join(_VARIABLE.findall(_text(beside)[0]))
    used = re.compile(rf"\b(?:{names})\b") if names else _READS_IT
    for path in paths:
        if kind_of_file(path) in SCRIPTS:
            texts: Iterable[str] = (_text(path)[0],)
        else:
            texts = script_sources(path, (folder,)) if path.endswith(".py") else ()
        if any(_READS_IT.search(text) or used.search(text) for text in texts):
            return True
    return False


def program_of(argv: Sequence[str], folder: str, search: str | None = None) -> HydraProgram | None:
    """The Hydra program that the command starts, itself or in its launch script. ``search``: the run's PATH."""
    program = hydra_program(argv, folder, search)
    for path in _named(argv, folder) if program is None else ():
        if program is None and os.path.splitext(path)[1] in SCRIPTS:
            program = hydra_program(
                [word.text.strip("'\"") for word in words_of(_text(path)[0])], folder, search
            )
    return program


def _hydra_files(program: HydraProgram, folder: str, began: float | None) -> Iterator[SettingsFile]:
    """Each with the values that applied; one line where that could not be told."""
    if program.problem:
        path = program.file_of(program.primary)
        if path is not None:
            yield SettingsFile(
                path, os.path.relpath(path, folder), problem=f"not followed: {program.problem}"
            )
        return
    applied: dict[str, dict[int, str]] = {}
    for value in program.values.values():
        applied.setdefault(value.layer, {})[value.scalar.start] = value.doubt
    for layer, places in applied.items():
        path = program.file_of(layer)
        if path is not None:
            yield replace(_file(path, folder, began, {}), applied=places)


def _named(words: Sequence[str], folder: str) -> Iterator[str]:
    """``--config=conf/train.yaml``, ``train.py``; what is no regular file is none."""
    for word in words:
        for candidate in (word, word.partition("=")[2]):
            if candidate and "\0" not in candidate and kind_of_file(candidate) is not None:
                path = os.path.normpath(os.path.join(folder, candidate))
                if os.path.isfile(path):
                    yield path


def _file(path: str, folder: str, began: float | None, code: Mapping[str, Any]) -> SettingsFile:
    shown = os.path.relpath(path, folder) if _below(path, folder) else path
    real = os.path.realpath(path)
    text, problem = _text(path)
    problem = problem or _why_not(path, real, folder)
    if not problem and began is not None and _changed_since(real, text, began, code):
        problem = CHANGED_SINCE
    return SettingsFile(real, shown, text, problem)


def _text(path: str) -> tuple[str, str]:
    """(its text, why it cannot be read)"""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        return "", f"it cannot be read: {error.strerror}"
    if len(data) > _LARGEST:
        return "", "it is larger than any file of settings"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "", "it is not UTF-8"
    if text.startswith("\ufeff"):
        return "", "it begins with a byte order mark"
    return text, ""


def _why_not(path: str, real: str, folder: str) -> str:
    """A link inside the project is followed, and what it leads to is changed."""
    inside = _below(path, folder)
    if (inside and not _below(real, os.path.realpath(folder))) or (not inside and os.path.islink(path)):
        return f"it is a link that leads out of {folder}"
    try:
        status = os.stat(real)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_nlink > 1:
        return "it has several names (hard links), of which only one would change"
    if not os.access(real, os.W_OK) or not os.access(os.path.dirname(real), os.W_OK):
        return "it may not be written"
    return ""


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _changed_since(real: str, text: str, began: float, code: Mapping[str, Any]) -> bool:
    """Then its values are not those that the run died of."""
    known = code.get("script_sha256")
    if isinstance(known, str) and os.path.realpath(str(code.get("script"))) == real:
        return sha256_hex(text.encode()) != known
    return os.stat(real).st_mtime > began + _JUST_THEN
