"""How many anonymous mappings of which size a process has, from its maps: one size that becomes more names a habit.

Read from outside, so also of a process that no agent is in. The kernel joins neighbours of the same kind into one mapping, so a
size is only seen where something lies between them; arenas and stacks have their guard pages there."""

from __future__ import annotations

import os

from oomproof.records import dataclass

ARENAS, STACKS, SHARED, ANONYMOUS = "arenas", "stacks", "shared", "anonymous"
_ARENA = 64 << 20  # of glibc on 64 bits: aligned to its size, the unused rest not readable
_GUARD = 64 << 10  # bytes below a thread's stack at most
_LEAST = 64 << 10  # what is smaller is the loader's
_MOST = 100_000  # lines
_MORE = 4  # mappings: some threads and arenas come by themselves


@dataclass(frozen=True, slots=True)
class MappingClass:
    kind: str
    size: int  # bytes of each; 0: of different sizes


def mapping_sizes(pid: int, proc: str = "/proc") -> dict[MappingClass, tuple[int, int]] | None:
    """Number and bytes of each class; None where the process is gone, or somebody else's."""
    try:
        with open(f"{proc}/{pid}/maps", "rb") as file:
            lines = file.readlines(_MOST * 100)
        threads = len(os.listdir(f"{proc}/{pid}/task"))
    except OSError:
        return None
    counted: dict[MappingClass, tuple[int, int]] = {}
    mappings = [mapping for mapping in map(_mapping, lines) if mapping is not None]
    for index, (begin, end, access, name) in enumerate(mappings):
        before = mappings[index - 1] if index else None
        after = mappings[index + 1] if index + 1 < len(mappings) else None
        size = end - begin
        if name.startswith((b"/dev/shm/", b"/memfd:", b"/dev/zero", b"/SYSV")):
            of = MappingClass(SHARED, 0)
        elif (name and not name.startswith(b"[anon")) or access[:2] != b"rw":
            continue
        elif after is not None and begin % _ARENA == 0 and _rest_of(after, end, begin + _ARENA):
            of = MappingClass(ARENAS, _ARENA)
        elif (
            before is not None
            and before[2][:2] == b"--"
            and before[1] == begin
            and begin - before[0] <= _GUARD
        ):
            of = MappingClass(STACKS, size)
        elif size >= _LEAST:
            of = MappingClass(ANONYMOUS, size)
        else:
            continue
        number, total = counted.get(of, (0, 0))
        counted[of] = (number + 1, total + size)
    for of in [of for of, (number, _) in counted.items() if of.kind == STACKS and number > threads]:
        counted[MappingClass(ANONYMOUS, of.size)] = counted.pop(of)  # a library's own, with guard pages
    return counted


def _mapping(line: bytes) -> tuple[int, int, bytes, bytes] | None:
    """(begin, end, access, name)."""
    words = line.split(None, 5)
    try:
        begin, _, end = words[0].partition(b"-")
        return int(begin, 16), int(end, 16), words[1], words[5].strip() if len(words) > 5 else b""
    except (ValueError, IndexError):
        return None


def _rest_of(after: tuple[int, int, bytes, bytes], begin: int, end: int) -> bool:
    return after[:2] == (begin, end) and after[2][:2] == b"--"


def grown_class(
    before: dict[MappingClass, tuple[int, int]], after: dict[MappingClass, tuple[int, int]]
) -> tuple[MappingClass, int, int] | None:
    """The class that grew most: what, how many more, how many bytes more. None where no class got more of its kind."""
    grown = []
    for of, (number, total) in after.items():
        number_before, total_before = before.get(of, (0, 0))
        if number - number_before >= _MORE:
            grown.append((total - total_before, number - number_before, of))
    if not grown:
        return None
    size, number, of = max(grown, key=lambda row: row[0])
    return of, number, size
