"""The source of a script and of the modules beside it that it imports, themselves or by one another."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+\(?([\w, \t]*)|import[ \t]+([\w., \t]+))", re.MULTILINE
)
_LARGEST = 1 << 20  # bytes of one file
_MOST = 200  # files


def script_sources(script: str, folders: tuple[str, ...] = ()) -> Iterator[str]:
    """The script's own first. ``folders``: where modules are looked for as well."""
    roots = dict.fromkeys((os.path.dirname(script), *folders))
    waiting, seen = [script], {script}
    while waiting:
        path = waiting.pop(0)
        text = _read(path)
        yield text
        for name in _imported(text):
            for module in _files_of(name, path, tuple(roots)):
                if module not in seen and len(seen) < _MOST:
                    seen.add(module)
                    waiting.append(module)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace") if os.path.getsize(path) <= _LARGEST else ""
    except OSError:
        return ""


def _imported(text: str) -> Iterator[str]:
    """Names as written: ``a.b`` and, of ``from a import b``, ``a.b`` too, which may be a module."""
    for match in _IMPORT.finditer(text):
        if match[3] is not None:
            for part in match[3].split(","):
                yield (part.split() or [""])[0]
            continue
        yield match[1]
        joint = "" if match[1].endswith(".") else "."
        for part in match[2].split(","):
            if words := part.split():
                yield f"{match[1]}{joint}{words[0]}"


def _files_of(name: str, importer: str, roots: tuple[str, ...]) -> Iterator[str]:
    level = len(name) - len(name.lstrip("."))
    where: tuple[str, ...] = roots
    if level:
        folder = os.path.dirname(importer)
        for _ in range(level - 1):
            folder = os.path.dirname(folder)
        where = (folder,)
    parts = [part for part in name.split(".") if part]
    for root in where if parts else ():
        path = os.path.join(root, *parts)
        for file in (f"{path}.py", os.path.join(path, "__init__.py")):
            if os.path.isfile(file):
                yield file
