"""Which job of a set runs on which card, and what is short there."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class CardPart:
    """What one job wants on a card, in bytes. ``index`` None: any card will do."""

    need: int = 0
    index: int | None = None
    held: int = 0

    @property
    def wanted(self) -> int:
        return max(self.need, self.held)


@dataclass(frozen=True, slots=True)
class CardSpace:
    """A card, and what others than the set hold and have reserved on it."""

    index: int
    total: int
    rest: int = 0


@dataclass(frozen=True, slots=True)
class CardSum:
    """A card with the jobs that go onto it."""

    index: int
    total: int
    rest: int
    wanted: int
    names: tuple[str, ...]

    @property
    def short(self) -> int:
        return max(0, self.wanted + self.rest - self.total)


def is_too_large(part: CardPart, cards: Sequence[CardSpace]) -> bool:
    """Whether it never fits: there is no such card, or it is smaller."""
    totals = [card.total for card in cards if part.index in (None, card.index)]
    return part.wanted > max(totals, default=0)


def place(parts: Sequence[tuple[str, CardPart]], cards: Sequence[CardSpace]) -> tuple[CardSum, ...]:
    """The cards that are used. Those bound to a card first, then the largest, each where it fits most tightly; one that fits
    nowhere goes where most is left."""
    left = {card.index: card.total - card.rest for card in cards}
    names: dict[int, list[str]] = {card.index: [] for card in cards}
    for name, part in sorted(parts, key=lambda named: (named[1].index is None, -named[1].wanted)):
        indexes = [index for index in left if part.index in (None, index)]
        if not part.wanted or not indexes:
            continue
        fitting = [index for index in indexes if left[index] >= part.wanted]
        index = min(fitting, key=left.__getitem__) if fitting else max(indexes, key=left.__getitem__)
        left[index] -= part.wanted
        names[index].append(name)
    return tuple(
        CardSum(
            card.index,
            card.total,
            card.rest,
            card.total - card.rest - left[card.index],
            tuple(names[card.index]),
        )
        for card in cards
        if names[card.index]
    )
