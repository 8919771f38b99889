"""What kind of program a job was, told from its command line and its processes: advice for Python is none for C++."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence

from oomproof.leaf.command_lines import is_python, python_target, shell_words, without_wrappers

# what runs Python, or a script of anything: whose words are not its own program's
_STARTS_OTHERS = re.compile(r"(?:i?python|pypy)[\d.]*$|.*sh$|(?:mpi|s|u|conda|docker|podman|apptainer)\w*$")
_SCRIPT = re.compile(r"\.(?:py|sh|ipynb)$|(?:^|/)(?:python|torchrun|accelerate)[\d.]*$")
_COMM = 15  # characters of a name that the kernel keeps
_ELF = b"\x7fELF"


def is_native(argv: Sequence[str], folder: str, names: Iterable[str]) -> bool:
    """A compiled program that ran nothing but itself; ``names``: of the processes that were seen. False where that is not sure."""
    words = without_wrappers(argv)
    program = os.path.basename(words[0]) if words else ""
    if not program or _STARTS_OTHERS.match(program) or any(map(_SCRIPT.search, words)):
        return False
    if any(name != program[:_COMM] for name in names):
        return False
    path = os.path.join(folder, words[0]) if "/" in words[0] else shutil.which(words[0])
    try:
        with open(path or "", "rb") as file:
            return file.read(4) == _ELF
    except OSError:
        return False


def inline_code(argv: Sequence[str]) -> str | None:
    """What ``python -c`` was given, also within ``sh -c``; None for anything else."""
    words = list(without_wrappers(shell_words(argv) or argv))
    if "-c" not in words or python_target([*words[: words.index("-c")], "-c"]) is not None:
        return None
    if python_target([*words[:1], "x"]) is None:
        return None
    at = words.index("-c")
    return words[at + 1] if at + 1 < len(words) else None


def interpreter(word: str, folder: str, search: str | None = None) -> str | None:
    """The Python of a program: itself, or the one in the first line of the script it is (torchrun, accelerate). ``search``: a PATH."""
    program = os.path.join(folder, word) if os.sep in word else shutil.which(word, path=search)
    if program is None or not os.access(program, os.X_OK) or not os.path.isfile(program):
        return None
    if is_python(program):
        return program
    try:
        with open(program, "rb") as file:
            first = file.readline(512).decode("utf-8", "replace").strip()
    except OSError:
        return None
    words = first[2:].split() if first.startswith("#!") else []
    if len(words) > 1 and os.path.basename(words[0]) == "env":
        words = [shutil.which(words[1], path=search) or ""]
    return words[0] if words and is_python(words[0]) else None
