"""SQLite without the Python layer over it, which loads ``datetime``: 0.5 MiB of a guard at rest for columns nobody of ours has.

``_sqlite3`` is what ``sqlite3`` takes all its names from: connections and errors are the same classes, whoever imports which."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
else:
    try:
        import _sqlite3 as sqlite3
    except ImportError:  # another interpreter
        import sqlite3

__all__ = ["sqlite3"]
