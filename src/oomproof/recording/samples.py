"""One table of a recording by time, without loading it: rows were written in the order of time and have no index on it.

A recording at its cap has five million rows. Short runs of rows (pieces) are summed up by SQLite in one pass; only the pieces
at the edges of a question are looked into, by SQLite too: to bring the rows into Python takes twice as long as the pass."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Any

from oomproof.records import dataclass

_ROWS = 256  # of a piece
NUMBERS = "typeof(t) = 'real'"  # as the column makes of every number; a damaged row may have anything there


@dataclass(frozen=True, slots=True)
class Piece:
    first: int  # rowids
    last: int
    begin: float  # times
    end: float
    low: float
    high: float


class Samples:
    """The values of one expression over time, in the order of their times. Raises what SQLite raises."""

    def __init__(self, connection: sqlite3.Connection, table: str, value: str, where: str = "1") -> None:
        self._connection, self._table, self._value = connection, table, value
        self._where = f"{NUMBERS} AND {where} AND typeof({value}) IN ('integer', 'real')"
        self.pieces = self._read()
        if any(before.end > after.begin for before, after in pairwise(self.pieces)):
            self._sort()
        self._begins = [piece.begin for piece in self.pieces]
        self._ends = [piece.end for piece in self.pieces]

    def _read(self) -> list[Piece]:
        query = (
            f"SELECT min(r), max(r), min(t), max(t), min(v), max(v) FROM (SELECT rowid AS r, t, {self._value} AS v "
            f"FROM {self._table} WHERE rowid > ? AND {self._where} ORDER BY rowid LIMIT {_ROWS})"
        )
        pieces: list[Piece] = []
        at = -1
        while True:
            first, last, *limits = self._connection.execute(query, (at,)).fetchone()
            if last is None or last <= at:
                return pieces
            pieces.append(Piece(first, last, *limits))
            at = last

    def _sort(self) -> None:
        """Rows out of order, as no writer of ours leaves them: a sorted copy, in SQLite's own temporary file."""
        name = f"sorted_{self._table}_{id(self)}"
        self._connection.execute(
            f"CREATE TEMP TABLE {name} AS SELECT t, {self._value} AS v FROM {self._table} WHERE {self._where} ORDER BY t"
        )
        self._table, self._value, self._where = name, "v", "1"
        self.pieces = self._read()

    def __bool__(self) -> bool:
        return bool(self.pieces)

    @property
    def begin(self) -> float:
        return self.pieces[0].begin

    @property
    def end(self) -> float:
        return self.pieces[-1].end

    def _ask(self, number: int, columns: str, rest: str, *values: float) -> tuple[Any, ...] | None:
        """Of the rows of one piece."""
        piece = self.pieces[number]
        query = f"SELECT {columns} FROM {self._table} WHERE rowid BETWEEN ? AND ? AND {self._where} {rest}"
        row: tuple[Any, ...] | None = self._connection.execute(
            query, (piece.first, piece.last, *values)
        ).fetchone()
        return row

    def at(self, t: float) -> float:
        """The value at that time: of the last sample until then, of the first one for what lies before it."""
        number = max(0, bisect_right(self._begins, t) - 1)
        row = self._ask(number, self._value, "AND t <= ? ORDER BY t DESC, rowid DESC LIMIT 1", t)
        row = row or self._ask(number, self._value, "ORDER BY t, rowid LIMIT 1")
        return float(row[0]) if row else 0.0

    def between(self, begin: float, end: float) -> tuple[float, float] | None:
        """The lowest and the highest value from one time to another, both included; None when there was no sample."""
        lows, highs = [], []
        for number in range(bisect_left(self._ends, begin), bisect_right(self._begins, end)):
            piece = self.pieces[number]
            low, high = piece.low, piece.high
            if not (begin <= piece.begin and piece.end <= end):
                columns = f"min({self._value}), max({self._value})"
                low, high = self._ask(number, columns, "AND t BETWEEN ? AND ?", begin, end) or (None, None)
            if low is not None:
                lows.append(low)
                highs.append(high)
        return (min(lows), max(highs)) if lows else None

    def highest(self, count: int) -> list[tuple[float, float]]:
        """At most a few moments for each of ``count`` equal slices of time, among them the highest of the slice; and
        the first and the last moment."""
        if not self.pieces:
            return []
        step = max(self.end - self.begin, 1e-9) / count
        highest: list[tuple[float, float]] = []
        for piece in self.pieces:
            if int((piece.begin - self.begin) / step) == int((piece.end - self.begin) / step):
                highest.append((piece.begin, piece.high))
                continue
            best: dict[int, tuple[float, float]] = {}
            query = (
                f"SELECT t, {self._value} FROM {self._table} WHERE rowid BETWEEN ? AND ? AND {self._where}"
            )
            for t, value in self._connection.execute(query, (piece.first, piece.last)):
                slot = int((t - self.begin) / step)
                if slot not in best or value > best[slot][1]:
                    best[slot] = (t, value)
            highest += best.values()
        return [(self.begin, self.at(self.begin)), *highest, (self.end, self.at(self.end))]


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
