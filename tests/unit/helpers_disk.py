"""A disk that fills up, as `small_disk` of the conftest is."""

from __future__ import annotations

from pathlib import Path


def fill(folder: Path) -> None:
    with (folder / "filler").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
