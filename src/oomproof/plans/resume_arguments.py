"""How a command is told to resume from a checkpoint, and which arguments of its script make loading smaller."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Sequence

from oomproof.diagnosis.smaller_command import bare_name
from oomproof.errors import USAGE, OomproofError
from oomproof.leaf.command_lines import script_of
from oomproof.recording.state_files import read_small
from oomproof.records import dataclass

# Hugging Face's examples, TRL, Axolotl-like scripts; what most scripts call these things
_OFFERED = (
    "streaming", "low_cpu_mem_usage", "torch_dtype", "dtype", "load_in_8bit", "load_in_4bit", "device_map",
    "mmap", "lazy",
)  # fmt: skip
_ADDED = re.compile(r"""add_argument\(\s*(?:["']-\w["'],\s*)?["']--([\w-]+)["']""")
_FIELD = re.compile(r"^    (\w+)\s*:[^\n=]*=", re.MULTILINE)  # of a dataclass that HfArgumentParser reads


def loading_arguments(script: str, argv: Sequence[str]) -> tuple[str, ...]:
    """As they are typed, without those that the command has already."""
    added = {bare_name(match[1]): f"--{match[1]}" for match in _ADDED.finditer(script)}
    if "HfArgumentParser" in script:
        added = {**{match[1]: f"--{match[1]}" for match in _FIELD.finditer(script)}, **added}
    given = {bare_name(word.partition("=")[0]) for word in argv if word.startswith("-")}
    return tuple(added[name] for name in _OFFERED if name in added and name not in given)


def loading_hint(script: str, argv: Sequence[str]) -> str:
    """What may be typed after a death while loading; empty where the script offers nothing."""
    offered = loading_arguments(script, argv)
    if not offered:
        return ""
    return f"its script has arguments for loading less: {', '.join(offered)}"


PLACEHOLDER = "{checkpoint}"
# Hugging Face; Lightning's command line; timm, torchvision and most others. A bare --checkpoint is as often the model to begin with.
_NAMES = re.compile(r"(?:auto_)?resume(?:_from)?(?:_checkpoint|_ckpt|_path)?|ckpt_path")
_TRUTHS = {"false": "true", "true": "true", "False": "True", "True": "True"}
_SCRIPT = 1 << 20  # bytes: no script is larger


@dataclass(frozen=True, slots=True)
class ResumeArgument:
    """``words`` with {checkpoint}. ``replaces``: the place of the value in the command, None: they are put behind it."""

    words: tuple[str, ...]
    replaces: int | None = None

    def command(self, argv: Sequence[str], checkpoint: str) -> list[str]:
        words = [word.replace(PLACEHOLDER, checkpoint) for word in self.words]
        if self.replaces is None:
            return [*argv, *words]
        return [*argv[: self.replaces], *words, *argv[self.replaces + 1 :]]

    def __str__(self) -> str:
        return shlex.join(self.words)


def parse_resume_argument(text: str) -> ResumeArgument:
    """Of ``--resume-arg``. Raises OomproofError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise OomproofError(f"cannot read --resume-arg {text!r}: {error}", _HINT, USAGE) from error
    if not words:
        raise OomproofError("--resume-arg is empty", _HINT, USAGE)
    return ResumeArgument(words)


_HINT = 'write it as the command takes it: --resume-arg "--resume_from_checkpoint {checkpoint}"'


def resume_argument(argv: Sequence[str], folder: str, asked: str | None = None) -> ResumeArgument | None:
    """None where nobody knows whether the command can resume."""
    if asked:
        return parse_resume_argument(asked)
    return _on_the_line(argv) or _of_script(argv, folder)


def _on_the_line(argv: Sequence[str]) -> ResumeArgument | None:
    """An argument for it that the command has already; the last counts."""
    for at in range(len(argv) - 1, 0, -1):
        name, equals, value = argv[at].partition("=")
        if not _NAMES.fullmatch(bare_name(name)) or not (name.startswith("-") or equals):
            continue
        if equals:
            return ResumeArgument((f"{name}={_TRUTHS.get(value, PLACEHOLDER)}",), at)
        if at + 1 < len(argv) and not argv[at + 1].startswith("-"):
            return ResumeArgument((_TRUTHS.get(argv[at + 1], PLACEHOLDER),), at + 1)
        return ResumeArgument((argv[at],), at)  # a switch: the script finds its checkpoint itself
    return None


def _of_script(argv: Sequence[str], folder: str) -> ResumeArgument | None:
    """What the script itself adds to its parser; the Trainer's own argument where it hands that on."""
    script = script_of(argv, folder)
    if script is None or not script.endswith(".py"):
        return None
    try:
        source = read_small(script, _SCRIPT)
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_named(node.func, "add_argument"):
            names = [
                word.value
                for word in node.args
                if isinstance(word, ast.Constant) and isinstance(word.value, str)
            ]
            name = next(
                (name for name in names if name.startswith("--") and _NAMES.fullmatch(bare_name(name))), None
            )
            if name is not None:
                return ResumeArgument((name,) if _is_switch(node) else (name, PLACEHOLDER))
    text = source.decode("utf-8", "replace")
    if "HfArgumentParser" in text and "resume_from_checkpoint" in text:
        return ResumeArgument(("--resume_from_checkpoint", PLACEHOLDER))
    return None


def _is_named(function: ast.expr, name: str) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == name


def _is_switch(call: ast.Call) -> bool:
    action = next((word.value for word in call.keywords if word.arg == "action"), None)
    return isinstance(action, ast.Constant) and str(action.value).startswith("store_true")
