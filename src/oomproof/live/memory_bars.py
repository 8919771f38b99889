"""The machine part of the screen: RAM, swap and each card as stacked bars in GiB, margin and floor drawn in."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.live.live_snapshot import CardState, LiveSnapshot, MachineState
from oomproof.records import dataclass
from oomproof.reports.table_text import Line, Span
from oomproof.units import GIB

RUNS, UNMANAGED, RESERVED, FREE, MARGIN, FLOOR = "█", "▓", "░", "·", "│", "┊"
_LABEL = 6
_SHORTEST, _LONGEST = 8, 60  # cells of a bar
_PRESSED = 10.0  # percent of the last ten seconds in which something waited for memory

Segment = tuple[int, str, str]  # bytes, glyph, style


def bar(segments: Sequence[Segment], total: int, width: int, marks: Sequence[tuple[int, str]] = ()) -> Line:
    """Exactly ``width`` cells. ``marks`` are drawn over it, at so many bytes from the left."""
    cells: list[Span] = []
    reached = 0
    for size, glyph, style in segments:
        reached += max(0, size)
        end = min(width, round(reached * width / max(1, total)))
        cells += [(glyph, style)] * (end - len(cells))
    cells += [(FREE, "free")] * (width - len(cells))
    for at, glyph in marks:
        cell = min(width - 1, max(0, int(at * width / max(1, total))))
        cells[cell] = (glyph, "mark")
    return _joined(cells)


def _joined(cells: Sequence[Span]) -> Line:
    """Neighbours of one style together: a bar of a hundred cells is four parts."""
    line: Line = []
    for text, style in cells:
        if line and line[-1][1] == style:
            line[-1] = (line[-1][0] + text, style)
        else:
            line.append((text, style))
    return line


def gib(size: int | float | None) -> str:
    """Always in GiB, never in percent: a full machine is where the figure matters."""
    return "?" if size is None else f"{size / GIB:.1f}"


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    segments: tuple[Segment, ...]
    total: int
    figures: Line
    marks: tuple[tuple[int, str], ...] = ()

    @property
    def length(self) -> int:
        return sum(len(text) for text, _ in self.figures)


def machine_lines(snapshot: LiveSnapshot, width: int, legend: bool = True) -> list[Line]:
    """All bars begin and end in the same column. On a narrow terminal they give way, then the figures."""
    machine = snapshot.machine
    rows = [_ram(machine), *([_swap(machine)] if machine.swap_total else []), *map(_card, snapshot.cards)]
    cells = min(_LONGEST, width - _LABEL - 1 - max(row.length for row in rows))
    lines = [_drawn(row, cells, width) for row in rows]
    return [*lines, _legend(machine)] if legend else lines


def _drawn(row: _Row, cells: int, width: int) -> Line:
    figures = row.figures
    if cells < _SHORTEST and row.total:  # used and total, and how full that is
        used = sum(size for size, _, style in row.segments if style != "reserved")
        figures = [(f"{gib(used):>5} of {gib(row.total)} GiB", "")]
        cells = width - _LABEL - 1 - len(figures[0][0])
    line: Line = [(f"{row.label:<{_LABEL}}", "title")]
    if row.total and cells >= 4:
        line += [*bar(row.segments, row.total, cells, row.marks), (" ", "")]
    return [*line, *figures]


def _ram(machine: MachineState) -> _Row:
    segments = (
        (machine.runs, RUNS, "runs"),
        (machine.unmanaged, UNMANAGED, "unmanaged"),
        (machine.reserved_shown, RESERVED, "reserved"),
    )
    figures: Line = [
        (f"{RUNS} {gib(machine.runs)}  ", "runs"),
        (f"{UNMANAGED} {gib(machine.unmanaged)}  ", "unmanaged"),
        (f"{RESERVED} {gib(machine.reserved)}  ", "reserved"),
        (f"{FREE} {gib(machine.free)}", "bad" if machine.available < machine.margin else ""),
        (f"  of {gib(machine.total)} GiB", ""),
    ]
    marks = ((machine.total - machine.margin, MARGIN), (machine.total - machine.floor, FLOOR))
    return _Row("RAM", segments, machine.total, figures, marks)


def _swap(machine: MachineState) -> _Row:
    used = machine.swap_total - machine.swap_free
    text = f"{UNMANAGED} {gib(used)} used  {FREE} {gib(machine.swap_free)}  of {gib(machine.swap_total)} GiB"
    return _Row("swap", ((used, UNMANAGED, "unmanaged"),), machine.swap_total, [(text, "")])


def _card(card: CardState) -> _Row:
    label = f"GPU {card.index}"
    if card.total is None or card.used is None:
        return _Row(label, (), 0, [(f"{card.name}: {card.note or 'no figures'}", "dim")])
    if card.runs is None or card.unmanaged is None:  # whose it is, nobody tells
        segments = [(card.used, UNMANAGED, "unmanaged")]
        figures: Line = [(f"{UNMANAGED} {gib(card.used)} (whose is not known)  ", "unmanaged")]
    else:
        segments = [(card.runs, RUNS, "runs"), (card.unmanaged, UNMANAGED, "unmanaged")]
        figures = [
            (f"{RUNS} {gib(card.runs)}  ", "runs"),
            (f"{UNMANAGED} {gib(card.unmanaged)}  ", "unmanaged"),
            (f"{RESERVED} {gib(card.reserved)}  ", "reserved"),
        ]
    segments.append((card.reserved, RESERVED, "reserved"))
    figures.append((f"{FREE} {gib(card.free)}  of {gib(card.total)} GiB", ""))
    return _Row(label, tuple(segments), card.total, figures)


def _legend(machine: MachineState) -> Line:
    return [
        (" " * _LABEL, ""),
        (f"{RUNS} runs  ", "runs"),
        (f"{UNMANAGED} unmanaged  ", "unmanaged"),
        (f"{RESERVED} reserved  ", "reserved"),
        (f"{FREE} free  ", "free"),
        (f"{MARGIN} margin {gib(machine.margin)}  {FLOOR} floor {gib(machine.floor)}", "mark"),
        ("  (the limit over this shell)" if machine.limited else "", "dim"),
    ]


def pressure_part(machine: MachineState) -> Span:
    """Percent of the last ten seconds in which some, and all, tasks waited for memory."""
    if machine.some_avg10 is None or machine.full_avg10 is None:
        return "", ""
    text = f"pressure {machine.some_avg10:.1f}/{machine.full_avg10:.1f} %"
    return text, "bad" if machine.some_avg10 >= _PRESSED else "dim"
