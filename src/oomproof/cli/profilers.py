"""The full profilers that `oomproof profile` can put around a command: how each is started, its page, its largest lines."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oomproof.errors import NOT_FOUND, OUR_FAILURE, USAGE, OomproofError
from oomproof.records import dataclass
from oomproof.runner.trace_requests import READER
from oomproof.units import MIB

_WITH_VALUE = ("-W", "-X")  # options of Python's that take the next word
_TOLD = 3
_PAGE_SECONDS = 600.0
_MASSIF = re.compile(r"^ n\d+: (\d+) 0x[0-9A-Fa-f]+: (.+?)(?: \(([^():]+):(\d+)\))?$")
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PythonCommand:
    python: str
    options: tuple[str, ...]  # of the interpreter
    target: tuple[str, ...]  # script, -m NAME or -c TEXT, and its arguments


def python_command(argv: Sequence[str]) -> PythonCommand | None:
    """`python train.py`, `python -m train`, or a console script whose first line names a Python; None for any other program."""
    program = shutil.which(argv[0])
    if program is None:
        raise OomproofError(f"{argv[0]}: command not found", "check the spelling and PATH", NOT_FOUND)
    if os.path.basename(argv[0]).startswith(("python", "pypy")):
        words = list(argv[1:])
        options: list[str] = []
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
            options.append(words.pop(0))
            if options[-1] in _WITH_VALUE and words:
                options.append(words.pop(0))
        return PythonCommand(argv[0], tuple(options), tuple(words)) if words else None
    python = _shebang(program)
    return PythonCommand(python, (), (program, *argv[1:])) if python else None


def _shebang(path: str) -> str | None:
    """The Python that a script names in its first lines: directly, through env, or as pip writes long paths."""
    try:
        with open(path, "rb") as file:
            lines = file.read(1000).decode("utf-8", "replace").splitlines()[:2]
    except OSError:
        return None
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if words and words[0].endswith("/sh") and len(lines) > 1 and lines[1].startswith("'''exec'"):
        words = shlex.split(lines[1][len("'''exec'") :])
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    is_python = words and os.path.basename(words[0]).startswith(("python", "pypy"))
    return words[0] if is_python else None


class Memray:
    name, page = "memray", "memray.html"

    def wrapped(self, argv: Sequence[str], folder: Path) -> list[str]:
        python = _needed(argv, self.name, "pip install memray")
        run = ["-m", "memray", "run", "-q", "-o", str(folder / "memray.bin")]
        return [python.python, *python.options, *run, *python.target]

    def make_page(self, argv: Sequence[str], folder: Path) -> None:
        python, data = _needed(argv, self.name, "").python, folder / "memray.bin"
        command = [python, "-m", "memray", "flamegraph", "-f", "-o", str(folder / self.page)]
        # of memray 1.19: without it, the page loads scripts
        if _run([*command, "--no-web", str(data)]).returncode:
            _run([*command, str(data)])

    def lines(self, argv: Sequence[str], folder: Path) -> list[Line]:
        python = _needed(argv, self.name, "").python
        told = _run([python, str(READER), str(folder / "memray.bin"), "peak"]).stdout.splitlines()
        rows = json.loads(told[-1])["lines"] if told else []
        return [
            {"file": file, "line": line, "function": function, "bytes": size}
            for file, line, function, size, *_ in rows
        ]


class Scalene:
    name, page = "scalene", "scalene-profile.html"

    def wrapped(self, argv: Sequence[str], folder: Path) -> list[str]:
        python = _needed(argv, self.name, "pip install scalene")
        if python.target[0] == "-c":
            raise OomproofError(
                "scalene profiles files and modules", "write it into a file, or --with memray", USAGE
            )
        named = 2 if python.target[0] == "-m" else 1
        target, rest = python.target[:named], python.target[named:]
        run = ["-m", "scalene", "run", "-o", str(folder / "scalene-profile.json"), *target]
        return [python.python, *python.options, *run, *(("---", *rest) if rest else ())]

    def make_page(self, argv: Sequence[str], folder: Path) -> None:
        python = _needed(argv, self.name, "").python
        _run([python, "-m", "scalene", "view", "--standalone", "scalene-profile.json"], folder)

    def lines(self, argv: Sequence[str], folder: Path) -> list[Line]:
        value = json.loads((folder / "scalene-profile.json").read_text())
        rows = [
            {
                "file": file,
                "line": line["lineno"],
                "function": "",
                "bytes": int(line["n_peak_mb"] * MIB),
            }
            for file, part in value["files"].items()
            for line in part["lines"]
            if line["n_peak_mb"] > 0
        ]
        return sorted(rows, key=lambda row: -row["bytes"])


class Valgrind:
    """massif: every malloc of any program, some twenty times slower."""

    name, page = "valgrind", "massif.txt"

    def wrapped(self, argv: Sequence[str], folder: Path) -> list[str]:
        if shutil.which("valgrind") is None:
            raise OomproofError("valgrind is not installed", "sudo apt install valgrind", NOT_FOUND)
        return ["valgrind", "-q", "--tool=massif", f"--massif-out-file={folder / 'massif.out'}", *argv]

    def make_page(self, argv: Sequence[str], folder: Path) -> None:
        printed = _run(["ms_print", str(folder / "massif.out")])
        if printed.stdout:
            (folder / self.page).write_text(printed.stdout)

    def lines(self, argv: Sequence[str], folder: Path) -> list[Line]:
        return massif_lines((folder / "massif.out").read_text(errors="replace"))


def massif_lines(text: str) -> list[Line]:
    """The functions that held most in the largest snapshot that has a tree."""
    best: tuple[int, list[Line]] = (-1, [])
    for snapshot in text.split("snapshot=")[1:]:
        heap = re.search(r"^mem_heap_B=(\d+)$", snapshot, re.MULTILINE)
        rows = []
        for match in filter(None, map(_MASSIF.match, snapshot.splitlines())):
            size, function, file, line = match.groups()
            rows.append(
                {"file": file or "", "line": int(line or 0), "function": function, "bytes": int(size)}
            )
        if heap is not None and rows and int(heap[1]) >= best[0]:
            best = (int(heap[1]), rows)
    return best[1]


PROFILERS = {profiler.name: profiler for profiler in (Memray(), Scalene(), Valgrind())}


def _needed(argv: Sequence[str], module: str, install: str) -> PythonCommand:
    """The Python of the command, which must have that module: profilers run inside it."""
    command = python_command(argv)
    if command is None:
        raise OomproofError(
            f"{argv[0]} is no Python program that {module} could be put around",
            "name the Python and the script: oomproof profile -- python train.py; valgrind takes any program: --with valgrind",
            USAGE,
        )
    if install and not has_module(command.python, module):
        raise OomproofError(
            f"{module} is not installed for {command.python}", f"{command.python} -m {install}", NOT_FOUND
        )
    return command


def has_module(python: str, name: str) -> bool:
    found = _run([python, "-c", f"import importlib.util as u; print(u.find_spec({name!r}) is not None)"])
    return "True" in found.stdout


def _run(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
            timeout=_PAGE_SECONDS, cwd=folder,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise OomproofError(
            f"{command[0]} did not end", "its data is in the run's folder", OUR_FAILURE
        ) from error
    except OSError as error:
        raise OomproofError(
            f"cannot start {command[0]}: {error.strerror}", "check PATH", NOT_FOUND
        ) from error


def largest(lines: Sequence[Line]) -> list[Line]:
    """The three that hold most; what is a hundredth of the first is noise."""
    most = max((line["bytes"] for line in lines), default=0)
    return [line for line in lines if line["bytes"] > most / 100][:_TOLD]
