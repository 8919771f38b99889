"""A run whose files are damaged is told as such, not as a bug of ours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from oomproof.errors import OomproofError
from oomproof.recording.run_folders import Run


@contextlib.contextmanager
def readable(*runs: Run) -> Iterator[None]:
    """Around what reads them. Whatever a damaged file makes us do comes out as one line and a hint."""
    try:
        yield
    except (OomproofError, OSError):
        raise
    except Exception as error:
        if os.environ.get("OOMPROOF_DEBUG"):
            raise
        names = " or ".join(run.id for run in runs)
        damage = next((problems for run in runs if (problems := run.damage())), None)
        raise OomproofError(
            f"{names} cannot be read: {damage or f'its files are damaged ({type(error).__name__}: {error})'}",
            "the other runs: oomproof runs; what it printed: oomproof logs " + runs[0].id,
        ) from error
