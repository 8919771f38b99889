"""Settings: flag > OOMPROOF_* > [tool.oomproof] in pyproject.toml or oomproof.toml > the user's file > /etc/oomproof/config.toml."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from oomproof.errors import USAGE, OomproofError

SYSTEM = Path("/etc/oomproof/config.toml")


def _load(path: Path, table: tuple[str, ...] = ()) -> dict[str, Any]:
    try:
        if not path.is_file():
            return {}
    except OSError:  # a folder on the way is closed to us (sudo -u with another's HOME)
        return {}
    import tomllib  # only when there is something to read

    try:
        value: Any = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise OomproofError(
            f"cannot read {path}: {error}", "mend that file, or move it away", USAGE
        ) from error
    for key in table:
        value = value.get(key, {}) if isinstance(value, dict) else {}
    return value if isinstance(value, dict) else {}


def _layers(folder: Path | None = None) -> list[tuple[Path, dict[str, Any]]]:
    """(file, its settings), the weightiest first: the nearest project file upwards, the user's own, the machine's."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    found: list[tuple[Path, dict[str, Any]]] = []
    try:
        start: Path | None = folder or Path.cwd()
    except OSError:  # the folder was removed under us
        start = None
    for directory in (start, *start.parents) if start is not None else ():
        own, project = directory / "oomproof.toml", directory / "pyproject.toml"
        for path, values in ((own, _load(own)), (project, _load(project, ("tool", "oomproof")))):
            if values and not found:
                found.append((path, values))
        if found:
            break
    for path in (Path(home) / "oomproof" / "config.toml", SYSTEM):
        values = _load(path)
        if values:
            found.append((path, values))
    return [
        (path, {str(key).replace("-", "_"): value for key, value in values.items()}) for path, values in found
    ]


def file_settings(folder: Path | None = None) -> dict[str, Any]:
    """What all files say together. Keys as flags without dashes in front."""
    merged: dict[str, Any] = {}
    for _, values in reversed(_layers(folder)):
        merged.update(values)
    return merged


def where(path: Path, key: str) -> str:
    """The file, the line and the key, for whoever has to mend it."""
    wanted = re.compile(rf"""\s*["']?{re.escape(key).replace("_", "[-_]")}["']?\s*=""")
    try:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if wanted.match(line):
                return f"{path}, line {number}: {key}"
    except OSError:
        pass
    return f"{path}: {key}"


class Resolved(dict[str, Any]):
    """The value of each name; ``origin`` says where one came from, for errors."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, Path] = {}
        self._environment: set[str] = set()

    def origin(self, name: str) -> str:
        if name in self._files:
            return where(self._files[name], name)
        return f"OOMPROOF_{name.upper()}" if name in self._environment else f"--{name.replace('_', '-')}"


def resolve(flags: dict[str, Any], names: set[str], folder: Path | None = None) -> Resolved:
    """The value of each name: the flag when given (not None), else environment, else files, else None."""
    layers = _layers(folder)
    for path, values in layers:
        unknown = sorted(set(values) - names)
        if unknown:
            from difflib import get_close_matches

            near = get_close_matches(unknown[0], names, 1)
            raise OomproofError(
                f"{where(path, unknown[0])} is no setting",
                f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(sorted(names))}",
                USAGE,
            )
    resolved = Resolved()
    for name in names:
        value = flags.get(name)
        if value is None and not (name == "stop_file" and "OOMPROOF_RUN" in os.environ):
            # inside another run OOMPROOF_STOP_FILE is that run's own, not a wish for this one
            value = os.environ.get(f"OOMPROOF_{name.upper()}")
            if value is not None:
                resolved._environment.add(name)
        if value is None:
            for path, values in layers:
                if name in values:
                    value = values[name]
                    resolved._files[name] = path
                    break
        resolved[name] = value
    return resolved


def ledger_setting() -> str | None:
    """The folder of a shared ledger, where somebody named one; for verbs that need no other setting."""
    value = os.environ.get("OOMPROOF_LEDGER") or file_settings().get("ledger")
    return str(value) if value else None
