"""Whether a script's own source names who makes its batches: only then does "none was asked for yet" say that it was still loading.

A loop that cuts its batches from an array itself has no such moment: it may die of its first batch before any pass through a model.
"""

from __future__ import annotations

import re

from oomproof.evidence.script_sources import script_sources

# PyTorch's own and fastai's; whatever is called a trainer; graphs that are loaded in pieces. Not karpathy's DataLoaderLite, an array and an index.
_LOADER = re.compile(
    r"\bDataLoaders?\b|\b\w*Trainer\b|\bLightning(?:CLI|Module|DataModule)\b|\b(?:Neighbor|Cluster|GraphSAINT\w*)Loader\b"
)


def names_a_loader(script: str, folders: tuple[str, ...] = ()) -> bool:
    """In the script or in a module beside it that it imports. ``folders``: where modules are looked for as well."""
    return any(_LOADER.search(text) for text in script_sources(script, folders))
