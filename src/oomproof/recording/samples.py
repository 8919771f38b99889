"""One table of a recording by time, without loading it: rows were written in the order of time and have no index on it.

A recording at its cap has five million rows. Of each short run of rows (a piece) only the first is looked at; a question is
answered by SQLite from the pieces that it touches: to bring their rows into Python takes twice as long."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from math import inf, nextafter
from typing import Any

from oomproof.recording.sqlite_files import sqlite3

_ROWS = 128  # of a piece
_BESIDE = 32  # rows by which one may stand beside its place: a burst is written behind the sample that came after it
_LAST = (1 << 63) - 1  # the highest rowid there can be
NUMBERS = "typeof(t) = 'real'"  # as the column makes of every number; a damaged row may have anything there


class Table:
    """Where in a table a time lies, from the first row of each piece: no pass over it. Writers keep the order of time; a row
    that stands a little beside its place is found all the same. To compare all rows of a recording at its cap takes a second."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self.connection, self.name = connection, name
        if not self._read():  # rows of a damaged file: a sorted copy
            self.name = f"sorted_{name}"
            copy = f"CREATE TEMP TABLE {self.name} AS SELECT * FROM {name} WHERE {NUMBERS} ORDER BY t"
            connection.execute(copy)
            self._read()

    def _read(self) -> bool:
        """Whether the pieces are in the order of time. Where rows were thinned out, a piece has more numbers and as many rows."""
        query = (
            f"WITH RECURSIVE place(first) AS (SELECT min(rowid) FROM {self.name} WHERE {NUMBERS} UNION ALL "
            f"SELECT first + {_ROWS} FROM place WHERE first + {_ROWS} <= (SELECT max(rowid) FROM {self.name})) "
            f"SELECT first, t FROM place JOIN {self.name} ON rowid = first WHERE {NUMBERS}"
        )
        pieces = self.connection.execute(query).fetchall()
        self._firsts: list[int] = [first for first, _ in pieces]
        self._begins: list[float] = [begin for _, begin in pieces]
        self.begin, self.end = self._limit("min(t)", 0, 2), self._limit("max(t)", -2, len(pieces))
        return all(before <= after for before, after in pairwise(self._begins))

    def _limit(self, what: str, first: int, after: int) -> float | None:
        """Of the pieces from one to before another."""
        if not self._firsts:
            return None
        begin = self._firsts[max(first, -len(self._firsts))]
        end = self._firsts[after] if after < len(self._firsts) else _LAST
        query = f"SELECT {what} FROM {self.name} WHERE rowid >= ? AND rowid < ? AND {NUMBERS}"
        limit: float | None = self.connection.execute(query, (begin, end)).fetchone()[0]
        return limit

    @property
    def size(self) -> int:
        """Rows, about."""
        return len(self._firsts) * _ROWS

    def rows(
        self, columns: str, begin: float, end: float, where: str = "1", tail: str = ""
    ) -> list[tuple[Any, ...]]:
        """Of the times from ``begin`` to before ``end``."""
        if not self._firsts:
            return []
        first, after = max(0, bisect_left(self._begins, begin) - 1), bisect_left(self._begins, end)
        last = self._firsts[after] + _BESIDE if after < len(self._firsts) else _LAST
        return self.connection.execute(
            f"SELECT {columns} FROM {self.name} WHERE rowid BETWEEN ? AND ? AND t >= ? AND t < ? AND {where} {tail}",
            (self._firsts[first] - _BESIDE, last, begin, end),
        ).fetchall()

    def first(self, columns: str, where: str = "1") -> tuple[Any, ...] | None:
        """The first row of all."""
        reach = 2
        while True:
            end = self._begins[reach] if reach < len(self._begins) else inf
            rows = self.rows(columns, -inf, end, where, "ORDER BY t, rowid LIMIT 1")
            if rows or end == inf:
                return rows[0] if rows else None
            reach *= 8

    def last(self, columns: str, t: float, where: str = "1") -> tuple[Any, ...] | None:
        """The last row at that time or before it."""
        reach, piece = 1, bisect_left(self._begins, t)
        while True:
            begin = self._begins[piece - reach] if piece > reach else -inf
            rows = self.rows(columns, begin, nextafter(t, inf), where, "ORDER BY t DESC, rowid DESC LIMIT 1")
            if rows or begin == -inf:
                return rows[0] if rows else None
            reach *= 8


class Samples:
    """The values of one expression over time. Raises what SQLite raises."""

    def __init__(self, table: Table, value: str, where: str = "1") -> None:
        self._table, self._value = table, value
        self._where = f"{where} AND {value} IS NOT NULL"  # a sum is a number whatever a damaged row holds
        begin, end = self._table.first("t", self._where), self._table.last("t", inf, self._where)
        self._known = bool(begin and end)
        self.begin, self.end = (float(begin[0]), float(end[0])) if begin and end else (0.0, 0.0)

    def __bool__(self) -> bool:
        return self._known

    def at(self, t: float) -> float:
        """The value at that time: of the last sample until then, of the first one for what lies before it."""
        row = self._table.last(self._value, t, self._where) or self._table.last(
            self._value, self.begin, self._where
        )
        return float(row[0]) if row else 0.0

    def between(self, begin: float, end: float) -> tuple[float, float] | None:
        """The lowest and the highest value from one time to another, both included; None when there was no sample."""
        columns = f"min({self._value}), max({self._value})"
        rows = self._table.rows(columns, begin, nextafter(end, inf), self._where)
        return rows[0] if rows and rows[0][0] is not None else None

    def highest(self, count: int) -> list[tuple[float, float]]:
        """The highest moment of each of ``count`` equal slices of time, and the first and the last moment of all."""
        if not self:
            return []
        edges = [self.begin + (self.end - self.begin) * number / count for number in range(count)]
        moments = [(self.begin, self.at(self.begin))]
        for begin, end in pairwise([*edges, inf]):
            rows = self._table.rows(f"t, max({self._value})", begin, end, self._where)
            moments += [row for row in rows if row[1] is not None]
        return [*moments, (self.end, self.at(self.end))]
