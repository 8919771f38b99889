"""Takes modules that only a start needs out of memory, so that what is imported next takes their place: a guard may live for weeks."""

from __future__ import annotations

import gc
import sys

PARSER = ("argparse", "gettext", "oomproof.cli.command_parser")  # with what they made 0.6 MiB
# what reads a file of settings: 0.9 MiB
SETTINGS = ("tomllib", "tomllib._parser", "tomllib._re", "tomllib._types", "typing", "typing.io", "typing.re",
            "datetime", "string")  # fmt: skip

_allowed = False


def allow() -> None:
    """By whoever has the process to himself: others may hold what would be imported a second time."""
    global _allowed
    _allowed = True


def free_modules(names: tuple[str, ...]) -> None:
    """Whoever imports one of them again has it anew. Nothing may hold what they made."""
    there = [name for name in names if name in sys.modules]
    if not _allowed or not there:
        return
    for name in there:
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(child, None)
        del sys.modules[name]
    gc.collect()
