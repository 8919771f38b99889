"""Whether a script's own source names who makes its batches: only then does "none was asked for yet" say that it was still loading.

A loop that cuts its batches from an array itself has no such moment: it may die of its first batch before any pass through a model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.evidence.script_sources import script_sources

# PyTorch's own and fastai's; whatever is called a trainer; graphs that are loaded in pieces. Not karpathy's DataLoaderLite, an array and an index.
_LOADER = re.compile(
    r"\bDataLoaders?\b|\b\w*Trainer\b|\bLightning(?:CLI|Module|DataModule)\b|\b(?:Neighbor|Cluster|GraphSAINT\w*)Loader\b"
)


def names_a_loader(script: str, folders: tuple[str, ...] = ()) -> bool:
    """In the script or in a module beside it that it imports. ``folders``: where modules are looked for as well."""
    return any(map(names_a_loader_in, script_sources(script, folders)))


def names_a_loader_in(text: str) -> bool:
    return bool(_LOADER.search(text))


# what Dataset.map works on and writes at once is no batch of a training
_BATCH = re.compile(r"(?<!writer_)batch(?!ed\b)", re.I)
_POOL = re.compile(r"\b(Pool|ProcessPoolExecutor)\(\s*(?:(?:processes|max_workers)\s*=\s*)?(\d{1,5}\b)?")


def names_a_batch(argv: Sequence[str], script: str, folders: tuple[str, ...] = ()) -> bool:
    """In the arguments, in the script or in a module beside it that it imports."""
    # a folder's name says nothing
    words = [word for word in argv[1:] if "/" not in word or " " in word or "\n" in word]
    return any(_BATCH.search(text) for text in (*words, *script_sources(script, folders)))


def process_pool(script: str, folders: tuple[str, ...] = ()) -> tuple[str, int]:
    """What starts processes there, and how many as written: ``("Pool", 8)``; 0 for no number."""
    found = next((match for text in script_sources(script, folders) if (match := _POOL.search(text))), None)
    return (found[1], int(found[2] or 0)) if found is not None else ("", 0)
