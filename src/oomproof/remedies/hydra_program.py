"""A command that starts a Hydra program: where its configs lie, and which value of which file applied, as Hydra itself says."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from oomproof.errors import OomproofError
from oomproof.leaf.command_lines import script_arguments, script_of
from oomproof.plans.knobs import KINDS, Kind, Knob, Template, config_knob, is_count, kind_of
from oomproof.records import dataclass, field, replace
from oomproof.remedies import hydra_composer
from oomproof.remedies.config_formats.scalars import Scalar, Unreadable
from oomproof.remedies.config_formats.yaml_scalars import yaml_scalars

_OWN = "hydra"  # what is Hydra's, and no setting of the training
_LARGEST = 1 << 20  # bytes: no config, and hardly a script, is larger
_SECONDS = 60.0  # Hydra is imported in half a second, from a cold network disk in many
_ENDINGS = (".yaml", ".yml")
_FLAGS = {
    "-cp": "config_path", "--config-path": "config_path", "-cn": "config_name", "--config-name": "config_name",
    "-cd": "config_dir", "--config-dir": "config_dir",
}  # fmt: skip
_TRAINERS = re.compile(r"(?:lightning|pytorch_lightning)(?:\.\w+)*\.Trainer")
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """A value and the file it came from, by its path below Hydra's folder, without the ending. ``doubt``: what may have changed it."""

    layer: str
    scalar: Scalar
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class HydraProgram:
    """``folders``: of its configs, the first that has a file counts. ``values``: by their keys in the whole configuration, without
    those that the command line sets (``typed``). ``problem``: why the values are not known."""

    folders: tuple[str, ...] = ()
    primary: str = ""
    typed: tuple[str, ...] = ()
    values: Mapping[Path, Applied] = field(default_factory=dict)
    problem: str = ""

    def file_of(self, layer: str) -> str | None:
        return _file(self.folders, layer)

    def text_of(self, layer: str) -> str | None:
        path = self.file_of(layer)
        return _text(path) if path is not None else None

    def trainers(self) -> list[Path]:
        """Where a Trainer of Lightning is described: what it is not given there has its default."""
        return [
            path[:-1]
            for path, value in self.values.items()
            if path[-1] == "_target_" and _TRAINERS.fullmatch(value.scalar.value)
        ]


def hydra_program(argv: Sequence[str], folder: str, search: str | None = None) -> HydraProgram | None:
    """None where the command's script is no Hydra program, or cannot be read. ``search``: the PATH in which its Python is found."""
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
    extra = os.path.join(folder, named["config_dir"]) if "config_dir" in named else ""
    primary = os.path.splitext(name)[0] if name.endswith(_ENDINGS) else name
    program = HydraProgram((main, extra) if extra else (main,), primary)
    python = _python(argv[: len(argv) - len(words)], folder, search)
    if python is None:
        return replace(program, problem="its command names no Python that could be asked")
    answer = _asked(python, [script, main, primary, extra, *words], folder)
    if "problem" in answer:
        return replace(program, problem=str(answer["problem"]))
    try:
        values = _applied(program, answer)
    except Unreadable as error:
        return replace(program, problem=f"a config cannot be read: {error}")
    except OomproofError as error:
        return replace(program, problem=f"{error}: {error.hint}")
    return replace(program, typed=tuple(answer["typed"]), values=values)


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


def _python(words: Sequence[str], folder: str, search: str | None) -> str | None:
    """The interpreter that is named nearest before the script (`srun python train.py`, `torchrun train.py`), else the script's own."""
    from oomproof.evidence.program_source import interpreter

    *before, script = words
    found = (interpreter(word, folder, search) for word in (*reversed(before), script))
    return next((program for program in found if program is not None), None)


def _asked(python: str, arguments: Sequence[str], folder: str) -> dict[str, Any]:
    import subprocess  # of Hydra programs only: a guard with retries is smaller without

    command = [python, "-B", os.path.abspath(hydra_composer.__file__), *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS
        )  # fmt: skip
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, ValueError, IndexError):
        return {"problem": f"{python} did not say what Hydra merges"}
    except subprocess.TimeoutExpired:
        return {"problem": f"Hydra did not answer within {_SECONDS:.0f} s"}


def _applied(program: HydraProgram, answer: Mapping[str, Any]) -> Mapping[Path, Applied]:
    """The last file that sets a value counts. Raises Unreadable, and OomproofError where nothing reads YAML."""
    values: dict[Path, Applied] = {}
    for layer, dotted in answer["layers"]:
        package = tuple(filter(None, dotted.split(".")))
        text = program.text_of(layer)
        if text is not None:
            for scalar in yaml_scalars(text, lambda _: True):
                values[(*package, *scalar.path)] = Applied(layer, scalar)
            continue
        if layer.partition("/")[0] == _OWN:
            continue
        doubt = f"{layer}, which is no file of Hydra's folder, may set it too"
        for path in [path for path in values if path[: len(package)] == package]:
            values[path] = replace(values[path], doubt=doubt)
    leaves = {tuple(leaf) for leaf in answer["leaves"]}
    typed = [tuple(key.split(".")) for key in answer["typed"]]
    return {
        path: value
        for path, value in values.items()
        if path in leaves and path[0] != _OWN and not any(path[: len(key)] == key for key in typed)
    }


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


_ACCUMULATION = "accumulate_grad_batches"


def with_overrides(template: Template, program: HydraProgram | None) -> Template:
    """The same command, with knobs for what stands once in the configs that applied. What stands there twice is nobody's guess."""
    if program is None or program.problem:
        return template
    knobs, overrides = list(template.knobs), list(template.overrides)
    layers = {value.layer for value in program.values.values()}
    for kind in KINDS:
        paths = paths_of(program, kind)
        if template.knob(kind) is not None or len(paths) != 1:
            continue
        texts = (program.text_of(layer) or "" for layer in layers)
        knobs.append(config_knob(kind, program.values[paths[0]].scalar.value, texts))
        overrides.append((kind, f"{'.'.join(paths[0])}="))
    known = replace(template, knobs=tuple(knobs), overrides=tuple(overrides))
    key = implied_accumulation(program)
    return with_accumulation(known, key) if key and known.knob("accum") is None else known


def with_accumulation(template: Template, key: str) -> Template:
    """``key``: of a Trainer's argument that is not in the configs, and 1 for that."""
    knob = Knob("accum", "accum", first=1, described=False)
    return replace(
        template, knobs=(*template.knobs, knob), overrides=(*template.overrides, ("accum", f"+{key}="))
    )


def paths_of(program: HydraProgram, kind: Kind) -> list[Path]:
    return [
        path
        for path, applied in program.values.items()
        if kind_of(applied.scalar.name) == kind and not applied.doubt and is_count(applied.scalar.value, kind)
    ]


def implied_accumulation(program: HydraProgram) -> str:
    """``trainer.accumulate_grad_batches``, where Lightning's Trainer is described without it; else empty."""
    found = program.trainers()
    if len(found) != 1 or (*found[0], _ACCUMULATION) in program.values:
        return ""
    key = ".".join((*found[0], _ACCUMULATION))
    return "" if key in program.typed else key
