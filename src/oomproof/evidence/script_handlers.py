"""Branches of a job's own script that say what went wrong, and did not: silence that is evidence.

Only of a script that is still the one that ran (its recorded hash), and only of messages that its output would hold.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from oomproof.evidence.case_file import SilentHandler
from oomproof.evidence.job_output import contains
from oomproof.evidence.json_files import part, string
from oomproof.guard.guard_actions import UNHEARD
from oomproof.leaf.attempt_names import LISTENS
from oomproof.recording.attempt import Attempt
from oomproof.recording.state_files import read_small
from oomproof.records import dataclass
from oomproof.runner.code_identity import hash_file

_LARGEST = 1 << 20
_SHORTEST = 6  # letters of a message that can be told from chance
_MOST = 4
# what a handler around a training catches; one around an import or a file says nothing about its end
_BROAD = ("Exception", "BaseException", "RuntimeError", "MemoryError", "FloatingPointError")
_WORK = ("train", "main", "fit", "run", "step", "epoch", "forward", "backward", "eval")
_NAN = ("isnan", "isfinite", "isinf")
_LOGGERS = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log")
_FILLED = re.compile(r"%[-+ #0-9.]*[a-zA-Z]|\{[^{}]*\}")
_QUIET = ("debug", "info")  # not shown unless logging was set up


@dataclass(frozen=True, slots=True)
class Branch:
    line: int
    kind: str
    catches: str
    text: str
    flushed: bool  # does not wait in a buffer: standard error, logging, flush=True


def silent_handlers(
    attempt: Attempt, run: dict[str, Any], started: dict[str, Any]
) -> tuple[SilentHandler, ...]:
    script, source = script_that_ran(run)
    if source is None or attempt.output_before_file.exists():
        return ()
    sure = _unbuffered(run, started)
    return tuple(
        SilentHandler(
            os.path.basename(script),
            branch.line,
            branch.kind,
            branch.catches,
            branch.text,
            sure or branch.flushed,
        )
        for branch in branches(source)[: 4 * _MOST]
        if not contains(attempt, branch.text.encode("utf-8", "replace"))
    )[:_MOST]


def script_that_ran(run: dict[str, Any]) -> tuple[str, bytes | None]:
    """A Python script's path and source; None where it is gone, or no longer the one that ran."""
    code = part(run, "code")
    script, known = string(code.get("script")) or "", string(code.get("script_sha256"))
    if known is None or not script.endswith(".py"):
        return script, None
    try:
        if os.path.getsize(script) > _LARGEST or hash_file(script) != known:
            return script, None
        return script, Path(script).read_bytes()
    except OSError:
        return script, None


def _unbuffered(run: dict[str, Any], started: dict[str, Any]) -> bool:
    """Python writes lines at once to a terminal, or when told to; to a pipe or a file in blocks."""
    terminal, argv = started.get("terminal"), run.get("argv")
    on_terminal = isinstance(terminal, list) and 1 in terminal
    words = argv if isinstance(argv, list) else []
    return on_terminal or "-u" in words[:3] or bool(part(run, "env").get("PYTHONUNBUFFERED"))


def branches(source: bytes) -> list[Branch]:
    """The handlers and NaN checks of a script that print a message of their own, in order."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    all_branches: list[Branch] = []
    try:
        for node in ast.walk(tree):
            if isinstance(node, (ast.Try, ast.TryStar)) and _is_work(node.body):
                for handler in node.handlers:
                    if (what := _caught(handler)) is not None:
                        all_branches += _messages(handler.body, "exception", what)
            elif isinstance(node, ast.If) and _asks_for_nan(node.test):
                all_branches += _messages(node.body, "nan", "its check for NaN")
    except RecursionError:
        return []
    return sorted(all_branches, key=lambda branch: branch.line)


def _is_work(body: list[ast.stmt]) -> bool:
    """A loop, or a call of something named like the training."""
    for node in (inner for statement in body for inner in ast.walk(statement)):
        if isinstance(node, (ast.For, ast.While, ast.AsyncFor)):
            return True
        if isinstance(node, ast.Call) and any(word in _name(node.func).lower() for word in _WORK):
            return True
    return False


def _caught(handler: ast.ExceptHandler) -> str | None:
    if handler.type is None:
        return "except:"
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = [_name(node) for node in types]
    if any(name in _BROAD or "OutOfMemory" in name for name in names):
        return f"except {', '.join(names)}"
    return None


def _asks_for_nan(test: ast.expr) -> bool:
    """isnan(x), not isfinite(x), x != x"""
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and _name(node.func) in _NAN:
            return True
        if (
            isinstance(node, ast.Compare)
            and isinstance(node.ops[0], ast.NotEq)
            and ast.dump(node.left) == ast.dump(node.comparators[0])
        ):
            return True
    return False


def _messages(body: list[ast.stmt], kind: str, catches: str) -> Iterator[Branch]:
    """What the branch prints first, whatever happens in it: only its own statements count, not nested branches."""
    for statement in body:
        if not isinstance(statement, ast.Expr) or not isinstance(call := statement.value, ast.Call):
            continue
        name = _name(call.func)
        logs = name in _LOGGERS and isinstance(call.func, ast.Attribute)
        if (name != "print" and not logs) or name in _QUIET or not call.args:
            continue
        text = _literal(call.args[0])
        if len(text) >= _SHORTEST:
            yield Branch(call.lineno, kind, catches, text, logs or _flushed(call))
            return


def _flushed(call: ast.Call) -> bool:
    for keyword in call.keywords:
        if keyword.arg == "flush" and isinstance(keyword.value, ast.Constant) and keyword.value.value:
            return True
        if keyword.arg == "file" and _name(keyword.value) == "stderr":
            return True
        if keyword.arg == "file":
            return False
    return False


def _literal(node: ast.expr) -> str:
    """The longest piece of the message that does not depend on anything."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        pieces = [node.value]
    elif isinstance(node, ast.JoinedStr):
        pieces = [
            candidate.value
            for candidate in node.values
            if isinstance(candidate, ast.Constant) and isinstance(candidate.value, str)
        ]
    elif isinstance(node, ast.BinOp):
        return max(_literal(node.left), _literal(node.right) if isinstance(node.op, ast.Add) else "", key=len)
    else:
        return ""
    lines = [line.strip() for piece in pieces for line in piece.splitlines()]
    # "%s of %d" and "{} of {}" are filled in before they are printed
    parts = [part.strip() for line in lines for part in _FILLED.split(line)]
    return max(parts, key=len, default="")


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


StopAnswer = Literal["heard", "may", "none", "unknown"]

_LOOKS_FOR_IT = re.compile(rb"OOMPROOF_STOP_FILE|^[ \t]*(?:import|from)[ \t]+oomproof\b", re.MULTILINE)
_SCRIPT = 1 << 20  # bytes: no script is larger


def stop_answer(attempt: Attempt, run: dict[str, Any]) -> StopAnswer:
    """heard: the agent wrote that it acts on it. may: the job's code or settings name it; none: nothing does.

    unknown: not all of its code can be read. The word of a script is no witness: it may be a comment."""
    folder = attempt.agent_folder
    if any((folder / f"stop.{mark}").exists() for mark in ("taken", "at")):
        return "heard"
    if _told_the_agent(folder):
        return "none"  # it listened, and ended before it came to it
    unheard = any(UNHEARD in part(line, "facts") for line in attempt.actions())
    listens = may_listen(run, signal_unheard=unheard)
    return "unknown" if listens is None else "may" if listens else "none"


def may_listen(run: dict[str, Any], *, signal_unheard: bool = False) -> bool | None:
    """By the settings of the run, or by its command and the files it names. None: nobody can tell.

    ``signal_unheard``: the guard saw that no process of the job catches the stop signal."""
    settings, argv = part(run, "settings"), run.get("argv")
    if settings.get("stop_file") or (settings.get("stop_signal") and not signal_unheard):
        return True  # the user's own way to be asked
    words = [str(word) for word in argv] if isinstance(argv, list) else []
    if any(_LOOKS_FOR_IT.search(code) for code in _codes(words, string(run.get("cwd")) or "")):
        return True
    script, source = script_that_ran(run)
    if source is None and "-c" in words and os.path.basename(words[0]).startswith("python"):
        source = words[words.index("-c") + 1 :][0].encode("utf-8", "replace") if words[-1] != "-c" else None
    if source is None or _imports_more(source, os.path.dirname(script) or string(run.get("cwd")) or ""):
        return None
    return False


def _told_the_agent(folder: Path) -> bool:
    for path in folder.glob(f"*-{LISTENS}"):
        try:
            if b"stop" in read_small(path, 400).split(b"\n")[0].split():
                return True
        except OSError:
            continue
    return False


def _codes(words: list[str], folder: str) -> list[bytes]:
    """The words of the command, and the files they name that are small enough for a script."""
    codes = [word.encode("utf-8", "replace") for word in words]
    for word in words:
        try:
            if len(code := read_small(os.path.join(folder, word), _SCRIPT)) < _SCRIPT:
                codes.append(code)
        except (OSError, ValueError):
            continue
    return codes


def _imports_more(source: bytes, folder: str) -> bool:
    """Whether it imports modules that lie beside it: they may listen."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    roots = {name.partition(".")[0] for name in names}
    return any(
        os.path.exists(os.path.join(folder, root + end)) for root in roots if root for end in (".py", "")
    )
