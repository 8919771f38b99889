"""The core's only way to the islands: parts of oomproof that it works without.

An island is a folder with its own verbs, screens and tests: ``sizing`` (what a job will need, before it runs) and ``sweeps``
(searches over many runs, experiments). The core imports one only here: by name, when it is asked for. An island may import the
modules of the core that tests/layers.py lists as its face.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from oomproof.errors import OomproofError


def island_part(island: str, name: str) -> ModuleType:
    """The module ``name`` of an island; raises ``OomproofError`` where the island's folder is missing."""
    package = f"oomproof.{island}"
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        hint = "pip install --force-reinstall oomproof"
        raise OomproofError(f"this installation of oomproof has no {package}", hint) from None
