"""Which reader a file of settings has, by its name; and a change of one value that is read back before it counts."""

from __future__ import annotations

import os

from oomproof.remedies.config_formats.env_scalars import env_scalars
from oomproof.remedies.config_formats.json_scalars import json_scalars
from oomproof.remedies.config_formats.python_scalars import python_scalars
from oomproof.remedies.config_formats.scalars import Scalar, Unreadable, Wanted
from oomproof.remedies.config_formats.shell_scalars import shell_scalars
from oomproof.remedies.config_formats.toml_scalars import toml_scalars
from oomproof.remedies.config_formats.yaml_scalars import yaml_scalars

_READERS = {
    ".yaml": yaml_scalars, ".yml": yaml_scalars, ".toml": toml_scalars, ".json": json_scalars, ".env": env_scalars,
    ".sh": shell_scalars, ".bash": shell_scalars, ".slurm": shell_scalars, ".py": python_scalars,
}  # fmt: skip
CONFIGS = (".yaml", ".yml", ".toml", ".json", ".env")
SCRIPTS = (".sh", ".bash", ".slurm")


def kind_of_file(path: str) -> str | None:
    """Its ending, by which it is read; None for what is no file of settings."""
    name = os.path.basename(path)
    if name == ".env" or name.startswith(".env."):
        return ".env"
    ending = os.path.splitext(name)[1].lower()
    return ending if ending in _READERS else None


def scalars_of(path: str, text: str, wanted: Wanted) -> list[Scalar]:
    """Raises Unreadable, and OomproofError where a package is missing."""
    kind = kind_of_file(path)
    return _READERS[kind](text, wanted) if kind is not None else []


def with_value(path: str, text: str, scalar: Scalar, new: str) -> str:
    """The text with that one value changed. Raises Unreadable where it would not be read back so."""
    try:
        changed = scalar.replaced(text, new)
        before = [(known.path, known.value) for known in scalars_of(path, text, lambda _: True)]
        after = [(known.path, known.value) for known in scalars_of(path, changed, lambda _: True)]
    except ValueError as error:
        raise Unreadable(str(error)) from error
    expected = [
        (of_path, new if (of_path, value) == (scalar.path, scalar.value) else value)
        for of_path, value in before
    ]
    differing = [at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]]
    if len(before) != len(after) or len(differing) != 1 or after[differing[0]] != expected[differing[0]]:
        raise Unreadable("it would not be read back as it was meant")
    return changed
