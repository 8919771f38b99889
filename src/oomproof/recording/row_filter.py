"""Which of many figures that seldom change are worth a row: what changed, and a sign of life."""

from __future__ import annotations

from collections.abc import Hashable

from oomproof.units import MIB

_CHANGE = 4 * MIB  # or 2 %: a smaller change is not worth a row
_SIGN_OF_LIFE = 30.0  # seconds


class RowFilter:
    """A row per process and second would be half a gigabyte a day."""

    def __init__(self) -> None:
        self._written: dict[
            Hashable, tuple[float, int]
        ] = {}  # when its last row was written, and what it held

    def is_news(self, t: float, key: Hashable, held: int) -> bool:
        """Whether a row is due; it is then taken for written."""
        last = self._written.get(key)
        if (
            last is not None
            and t - last[0] < _SIGN_OF_LIFE
            and abs(held - last[1]) <= max(_CHANGE, last[1] // 50)
        ):
            return False
        self._written[key] = (t, held)
        return True

    def forget(self, t: float) -> None:
        """Those due for a row anyway need not be known: in a year of builds a machine has millions of processes."""
        self._written = {key: row for key, row in self._written.items() if t - row[0] < _SIGN_OF_LIFE}
