"""A generation of thousands of tokens from its first few: what one token takes and gives back, with sizes that grow by the same step.

The cache of keys and values is copied into a larger one for each token; blocks of ever new sizes are what fills a card there, so
the allocator has to see each of them.
"""

from __future__ import annotations

from typing import Any

from oomproof.records import dataclass

Event = tuple[int, int]
_WHOLE = 32  # of so many tokens one has all its tensors; what another takes anew at the same size, and gives back, finds its blocks cached


@dataclass(frozen=True, slots=True)
class Token:
    """One pass. ``steps``: ("new", index) or ("free", tokens ago, index), in order; ``numbers`` and ``sizes`` of what it made."""

    steps: tuple[tuple[Any, ...], ...]
    numbers: tuple[int, ...]
    sizes: tuple[int, ...]


def read_token(events: list[Event], before: Token | None) -> Token:
    """A free of what is older than the token before is not the pattern's, and left out."""
    numbers: list[int] = []
    sizes: list[int] = []
    steps: list[tuple[Any, ...]] = []
    older = {number: index for index, number in enumerate(before.numbers)} if before is not None else {}
    for number, size in events:
        if number > 0:
            steps.append(("new", len(numbers)))
            numbers.append(number)
            sizes.append(size)
        elif -number in numbers:
            steps.append(("free", 0, numbers.index(-number)))
        elif -number in older:
            steps.append(("free", 1, older[-number]))
    return Token(tuple(steps), tuple(numbers), tuple(sizes))


def continued(events: list[Event], cuts: list[int], left: int, first_number: int) -> list[Event] | None:
    """The log with ``left`` more tokens behind the last of ``cuts``, the indexes at which the last tokens began (four are needed).
    None where the tokens seen do not have one pattern."""
    if len(cuts) < 4 or left <= 0:
        return None
    begin = read_token(events[cuts[-4] : cuts[-3]], None)
    middle = read_token(events[cuts[-3] : cuts[-2]], begin)
    last = read_token(events[cuts[-2] : cuts[-1]], middle)
    if middle.steps != last.steps:
        return None
    added = _more(middle, last, left, first_number)
    return events[: cuts[-1]] + added + list(_renamed(events[cuts[-1] :], last, added))


def _more(middle: Token, last: Token, left: int, number: int) -> list[Event]:
    growth = [after - before for before, after in zip(middle.sizes, last.sizes, strict=True)]
    alike = {step[2] for step in last.steps if step[:2] == ("free", 0) and not growth[step[2]]}
    added: list[Event] = []
    previous, current = list(last.numbers), list(last.numbers)
    for token in range(1, left + 1):
        previous, current = current, []
        left_out = alike if token % _WHOLE else frozenset()
        for step in last.steps:
            if step[-1] in left_out and step[:2] != ("free", 1):
                current += [0] if step[0] == "new" else []
            elif step[0] == "new":
                added.append((number, last.sizes[step[1]] + token * growth[step[1]]))
                current.append(number)
                number += 1
            else:
                added.append((-(previous if step[1] else current)[step[2]], 0))
    return added


def _renamed(events: list[Event], last: Token, added: list[Event]) -> Any:
    """What frees the last token seen frees the last one added, and all else that was added."""
    freed = {-number for number, _ in added if number < 0}
    alive = {number for number, _ in added if number > 0} - freed
    for number, size in events:
        if -number not in last.numbers:
            yield number, size
            continue
        for rest in sorted(alive):
            yield -rest, 0
        alive.clear()
        if -number not in freed:
            yield number, size
