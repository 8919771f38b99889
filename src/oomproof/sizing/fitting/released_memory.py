"""Gives back what a failed or ended attempt held. To be called outside every except block: a live exception holds the frames, and they the tensors."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from oomproof.sizing.fitting.oom_errors import memory_cause


def clear_error(error: BaseException) -> None:
    """Its frames' variables, and those of the exceptions behind it; the text stays."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        part = waiting.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        _clear(part.__traceback__)
        part.__traceback__ = None
        waiting += [part.__cause__, part.__context__]
        if isinstance(part, BaseExceptionGroup):
            waiting += part.exceptions


def _clear(step: TracebackType | None) -> None:
    if step is not None:
        traceback.clear_frames(step)


@contextlib.contextmanager
def quick_collections() -> Iterator[None]:
    """Inside, the collector looks only at what was made since: half a second less each time where transformers is imported."""
    is_ours = gc.get_freeze_count() == 0
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()


def release(kept: BaseException | None = None) -> None:
    """Python's garbage, then the allocator's cache. ``kept``: the error that ended the attempt."""
    if kept is not None:
        clear_error(kept)
    # a notebook keeps the last one that was shown, with all that its frames held
    for name in ("last_exc", "last_value"):
        shown = getattr(sys, name, None)
        if isinstance(shown, BaseException) and memory_cause(shown) is not None:
            clear_error(shown)
    gc.collect()
    empty_cache()


def empty_cache() -> None:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        # cuBLAS keeps its workspace, which may lie in a segment of hundreds of MiB and hold all of it; made again when needed
        with contextlib.suppress(Exception):
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    elif (mps := getattr(torch, "mps", None)) is not None and torch.backends.mps.is_available():
        mps.empty_cache()
