"""Whether a job listens for the request to save and stop, and whether it acted on it, as far as its files tell."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any, Literal

from oomproof.evidence.json_files import part, string
from oomproof.evidence.script_handlers import script_that_ran
from oomproof.guard.guard_actions import UNHEARD
from oomproof.leaf.attempt_names import LISTENS
from oomproof.recording.attempt import Attempt
from oomproof.recording.state_files import read_small

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
