"""Settings: flag > OOMPROOF_* > [tool.oomproof] in pyproject.toml or oomproof.toml > the user's config file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from oomproof.errors import USAGE, OomproofError


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


def file_settings(folder: Path | None = None) -> dict[str, Any]:
    """From the nearest project file upwards, over the user's own file. Keys as flags without dashes in front."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    config = Path(home) / "oomproof" / "config.toml"
    found = _load(config)
    try:
        start = folder or Path.cwd()
    except OSError:  # the folder was removed under us
        return found
    for directory in (start, *start.parents):
        own = _load(directory / "oomproof.toml")
        project = own or _load(directory / "pyproject.toml", ("tool", "oomproof"))
        if project:
            found = {**found, **project}
            break
    return {str(key).replace("-", "_"): value for key, value in found.items()}


def resolve(flags: dict[str, Any], names: set[str], folder: Path | None = None) -> dict[str, Any]:
    """The value of each name: the flag when given (not None), else environment, else files, else None."""
    files = file_settings(folder)
    unknown = sorted(set(files) - names)
    if unknown:
        from difflib import get_close_matches

        near = get_close_matches(unknown[0], names, 1)
        raise OomproofError(
            f"unknown setting {unknown[0]!r} in the settings file",
            f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(sorted(names))}",
            USAGE,
        )
    resolved: dict[str, Any] = {}
    for name in names:
        value = flags.get(name)
        if value is None and not (name == "stop_file" and "OOMPROOF_RUN" in os.environ):
            # inside another run OOMPROOF_STOP_FILE is that run's own, not a wish for this one
            value = os.environ.get(f"OOMPROOF_{name.upper()}")
        if value is None:
            value = files.get(name)
        resolved[name] = value
    return resolved
