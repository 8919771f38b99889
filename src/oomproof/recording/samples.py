"""One value of a recording over time, and a table of it by time: rows were written in the order of time, without an index.

A recording at its cap has five million rows. One value is held as two arrays (20 MB of 1.25 million moments, read in half a
second); of a table, short runs of rows (pieces) are summed up by SQLite in one pass, and only those of a question are read."""

from __future__ import annotations

import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from typing import Any

_ROWS = 256  # of a piece
_READ = 50_000  # rows fetched at once
NUMBERS = "typeof(t) = 'real'"  # as the column makes of every number; a damaged row may have anything there


class Samples:
    """The values of one expression over time, in the order of their times. Raises what SQLite raises.

    ``together``: those of one moment, as of several cards, are added up."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        table: str,
        value: str,
        where: str = "1",
        *,
        together: bool = False,
    ) -> None:
        self._times, self._values = array("d"), array("d")
        cursor = connection.execute(
            f"SELECT t, {value} AS v FROM {table} WHERE {NUMBERS} AND {where}"
            " AND typeof(v) IN ('integer', 'real') ORDER BY rowid"
        )
        ordered = True
        while rows := cursor.fetchmany(_READ):
            times, values = zip(*rows, strict=True)
            ordered = ordered and (not self._times or self._times[-1] <= times[0])
            ordered = ordered and list(times) == sorted(times)
            self._times.extend(times)
            self._values.extend(values)
        if not ordered:  # as no writer of ours leaves them
            rows = sorted(zip(self._times, self._values, strict=True), key=lambda row: row[0])
            self._times, self._values = array("d", (t for t, _ in rows)), array("d", (v for _, v in rows))
        if together:
            self._add_up()

    def _add_up(self) -> None:
        times, values, latest = array("d"), array("d"), None
        for t, value in zip(self._times, self._values, strict=True):
            if t == latest:
                values[-1] += value
            else:
                times.append(t)
                values.append(value)
                latest = t
        self._times, self._values = times, values

    def __bool__(self) -> bool:
        return bool(self._times)

    @property
    def end(self) -> float:
        return self._times[-1]

    def at(self, t: float) -> float:
        """The value at that time: of the last sample until then, of the first one for what lies before it."""
        return self._values[max(0, bisect_right(self._times, t) - 1)]

    def between(self, begin: float, end: float) -> tuple[float, float] | None:
        """The lowest and the highest value from one time to another, both included; None when there was no sample."""
        inside = self._values[bisect_left(self._times, begin) : bisect_right(self._times, end)]
        return (min(inside), max(inside)) if inside else None

    def highest(self, count: int) -> list[tuple[float, float]]:
        """The highest moment of each of ``count`` equal slices of time, and the first and the last one."""
        if not self._times:
            return []
        times, values = self._times, self._values
        step = max(times[-1] - times[0], 1e-9) / count
        found, first = [], 0
        while first < len(times):
            slot = int((times[first] - times[0]) / step)
            last = max(first + 1, bisect_left(times, times[0] + (slot + 1) * step))
            best = max(range(first, last), key=values.__getitem__)
            found.append((times[best], values[best]))
            first = last
        return [(times[0], values[0]), *found, (times[-1], values[-1])]


class Table:
    """Where in a table a time lies: the times of each piece, from one pass over it."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self.connection, self.name = connection, name
        self._read()
        if len(self._odd) > max(16, len(self._begins) // 20):  # no writer of ours leaves it so: a sorted copy
            self.name = f"sorted_{name}"
            copy = f"CREATE TEMP TABLE {self.name} AS SELECT * FROM {name} WHERE {NUMBERS} ORDER BY t"
            connection.execute(copy)
            self._read()

    def _read(self) -> None:
        query = (
            f"SELECT max(r), min(t), max(t) FROM (SELECT rowid AS r, t FROM {self.name} "
            f"WHERE rowid > ? AND {NUMBERS} ORDER BY rowid LIMIT {_ROWS})"
        )
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._lasts: list[int] = []
        self._odd: list[tuple[int, int, float, float]] = []  # pieces with a row out of its order
        self.begin: float | None = None
        self.end: float | None = None
        at = -1
        while True:
            last, begin, end = self.connection.execute(query, (at,)).fetchone()
            if last is None or last <= at:
                return
            self.begin = begin if self.begin is None else min(begin, self.begin)
            self.end = end if self.end is None else max(end, self.end)
            if self._ends and begin < self._ends[-1]:
                self._odd.append((at + 1, last, begin, end))
            else:
                self._begins.append(begin)
                self._ends.append(end)
                self._lasts.append(last)
            at = last

    @property
    def size(self) -> int:
        """Rows, about."""
        return (len(self._begins) + len(self._odd)) * _ROWS

    def rows(
        self, columns: str, begin: float, end: float, where: str = "1", tail: str = ""
    ) -> list[tuple[Any, ...]]:
        """Of the times from ``begin`` to before ``end``."""
        first, last = bisect_left(self._ends, begin), bisect_left(self._begins, end)
        ranges = (
            [(self._lasts[first - 1] + 1 if first else -1, self._lasts[last - 1])] if last > first else []
        )
        ranges += [(a, b) for a, b, low, high in self._odd if low < end and high >= begin]
        if not ranges:
            return []
        inside = " OR ".join(["rowid BETWEEN ? AND ?"] * len(ranges))
        return self.connection.execute(
            f"SELECT {columns} FROM {self.name} WHERE ({inside}) AND t >= ? AND t < ? AND {where} {tail}",
            (*(rowid for pair in ranges for rowid in pair), begin, end),
        ).fetchall()
