"""A command that starts a Hydra program: where its configs lie, and the values that applied, read from disk."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence

from oomproof.leaf.command_lines import script_arguments, script_of
from oomproof.records import dataclass, field
from oomproof.remedies.hydra_defaults import NotFollowed
from oomproof.remedies.hydra_values import Applied, Path, Word, applied_values, override_words

_LARGEST = 1 << 20  # bytes: no config, and hardly a script, is larger
_ENDINGS = (".yaml", ".yml")
_FLAGS = {
    "-cp": "config_path", "--config-path": "config_path", "-cn": "config_name", "--config-name": "config_name",
    "-cd": "config_dir", "--config-dir": "config_dir",
}  # fmt: skip
_SEVERAL = ("-m", "--multirun")


@dataclass(frozen=True, slots=True)
class HydraProgram:
    """``folders``: of its configs, the first that has a file counts. ``problem``: why its values are not known."""

    folders: tuple[str, ...] = ()
    primary: str = ""
    words: tuple[Word, ...] = ()
    values: Mapping[Path, Applied] = field(default_factory=dict)
    problem: str = ""

    def file_of(self, layer: str) -> str | None:
        return _file(self.folders, layer)

    def text_of(self, layer: str) -> str | None:
        path = self.file_of(layer)
        return _text(path) if path is not None else None


def hydra_program(argv: Sequence[str], folder: str) -> HydraProgram | None:
    """None where the command's script is no Hydra program, or cannot be read."""
    script = script_of(argv, folder)
    if script is None or not script.endswith(".py"):
        return None
    text = _text(script)
    if text is None or "hydra" not in text:
        return None
    named = main_arguments(text)
    if named is None:
        return None
    words = list(script_arguments(argv, script, folder))
    named = {**named, **_flags(words)}
    path, name = named.get("config_path"), named.get("config_name")
    if not path or not name or "://" in path:
        return None
    main = os.path.normpath(os.path.join(os.path.dirname(script), path))
    folders = (main, os.path.join(folder, named["config_dir"])) if "config_dir" in named else (main,)
    primary = os.path.splitext(name)[0] if name.endswith(_ENDINGS) else name
    program = HydraProgram(folders, primary, tuple(override_words(words)))
    if any(word in _SEVERAL for word in words):
        return HydraProgram(folders, primary, program.words, problem="it ran several jobs (--multirun)")
    try:
        values = applied_values(
            program.text_of,
            lambda key: any(os.path.isdir(os.path.join(known, key)) for known in folders),
            primary,
            program.words,
        )
    except NotFollowed as error:
        return HydraProgram(folders, primary, program.words, problem=str(error))
    return HydraProgram(folders, primary, program.words, values)


def main_arguments(text: str) -> dict[str, str] | None:
    """``config_path`` and ``config_name`` of ``@hydra.main``; None where the script has none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("hydra.main", "hydra_main"):
            given = dict(zip(("config_path", "config_name"), node.args, strict=False))
            given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
            return {
                name: value.value
                for name, value in given.items()
                if isinstance(value, ast.Constant) and isinstance(value.value, str)
            }
    return None


def _flags(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in _FLAGS and (equals or at + 1 < len(words)):
            found[_FLAGS[name]] = value if equals else words[at + 1]
    return found


def _file(folders: Sequence[str], layer: str) -> str | None:
    paths = (os.path.join(folder, layer + ending) for folder in folders for ending in _ENDINGS)
    return next((path for path in paths if os.path.isfile(path)), None)


def _text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST).decode()
    except (OSError, UnicodeDecodeError):
        return None
