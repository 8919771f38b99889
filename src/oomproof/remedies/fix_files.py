"""Which files of a run may be changed: those its command line names and those of its own folder, never by a link that leads out of it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from oomproof.evidence.program_source import script_sources
from oomproof.records import replace
from oomproof.remedies.config_formats.format_choice import SCRIPTS, kind_of_file
from oomproof.remedies.config_formats.shell_scalars import words_of
from oomproof.remedies.hydra_program import HydraProgram, hydra_program
from oomproof.remedies.settings_search import SettingsFile

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
        return hashlib.sha256(text.encode()).hexdigest() != known
    return os.stat(real).st_mtime > began + _JUST_THEN
