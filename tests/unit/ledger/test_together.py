"""A set of jobs on one machine: the sum, the turns, the remedies. Incident I0's own numbers come out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomproof.ledger.budget import Budget, budget
from oomproof.ledger.cards_together import CardPart, CardSpace, place
from oomproof.ledger.together import Part, Together, together

GIB = 1 << 30


def machine(ram: int = 31, available: float = 11, swap: int = 4, swap_free: int = 0, zram: int = 0) -> Budget:
    return budget(
        ram_total=ram * GIB, ram_available=int(available * GIB), swap_total=swap * GIB, swap_free=swap_free * GIB,
        zram_total=zram * GIB,
    )  # fmt: skip


def part(
    name: str, need: float, held: float = 0.0, gpu: float = 0.0, index: int | None = None, on: float = 0.0
) -> Part:
    card = CardPart(int(gpu * GIB), index, int(on * GIB))
    return Part(name, int(need * GIB), "as you say", int(held * GIB), held > 0, card)


def card(index: int = 0, total: float = 24, rest: float = 0) -> CardSpace:
    return CardSpace(index, int(total * GIB), int(rest * GIB))


def ways(answer: Together) -> dict[str, tuple[int, str]]:
    return {remedy.way: (remedy.size // GIB, remedy.name) for remedy in answer.remedies}


def test_the_freeze_incident() -> None:
    """31 GB, a training that uses 19, swap full, 11 available, a loader that wants 20: short by 9."""
    answer = together(machine(), [part("train", 19, held=19), part("glm", 20)], rest=3 * GIB)
    assert answer.short == 9 * GIB and answer.short_by == 14 * GIB
    assert answer.status == "not-now" and answer.exit_status == 75
    assert answer.rest == answer.rest_now == 5 * GIB, (
        "1 in RAM and 4 in swap: more than the 3 it was said to be"
    )
    assert [turn.names for turn in answer.turns] == [("train",), ("glm",)]
    assert ways(answer) == {"turns": (0, ""), "swap": (14, ""), "smaller": (6, "glm")}


def test_the_same_before_anything_was_started() -> None:
    answer = together(machine(available=29, swap_free=4), [part("train", 19), part("glm", 20)], rest=3 * GIB)
    assert answer.rest == 3 * GIB and answer.short == 7 * GIB and answer.short_by == 12 * GIB
    assert [turn.names for turn in answer.turns] == [("glm",), ("train",)]
    assert not any(turn.close for turn in answer.turns)


def test_swap_on_disk_makes_it_fit_and_zram_does_not() -> None:
    jobs = [part("train", 19), part("glm", 20)]
    with_disk = together(machine(available=29, swap=18, swap_free=18), jobs)
    assert with_disk.status == "fits" and with_disk.in_swap == 15 * GIB and not with_disk.remedies
    assert together(machine(available=29, swap=0, zram=31), jobs).short == 10 * GIB


def test_what_runs_stays_in_the_first_turn_and_takes_those_along_that_fit() -> None:
    jobs = [part("a", 10), part("b", 4), part("c", 2, held=1), part("d", 9)]
    answer = together(machine(ram=24, available=22, swap=0), jobs)
    assert [turn.names for turn in answer.turns] == [("a", "b", "c"), ("d",)]


def test_one_that_never_fits() -> None:
    answer = together(machine(), [part("huge", 31), part("small", 1)])
    assert answer.status == "never" and answer.exit_status == 69


def test_one_that_fits_only_without_everything_else() -> None:
    answer = together(machine(available=6, swap=0), [part("big", 20)])
    assert answer.status == "not-now" and answer.turns[0].close == 19 * GIB
    assert ways(answer)["close"] == (19, "")


def test_turns_are_no_remedy_for_a_job_that_does_not_fit_alone() -> None:
    answer = together(machine(), [part("huge", 64), part("small", 1), part("large", 20)])
    assert answer.never == ("huge",)
    assert [turn.names for turn in answer.turns] == [("small",), ("large",)], "the others have turns"
    assert ways(answer) == {}, "neither turns, nor more swap than RAM, nor a huge that is no huge any more"
    answer = together(machine(available=6, swap=0), [part("big", 20), part("other", 20)])
    assert answer.status == "not-now" and "turns" not in ways(answer), "each only when the rest is closed"


def test_a_card_that_holds_both_only_in_turns() -> None:
    """RAM is no question here: neither swap nor less RAM is offered."""
    large = machine(ram=256, available=250)
    jobs = [part("a", 10, gpu=14), part("b", 12, gpu=12)]
    answer = together(large, jobs, cards=[card()])
    assert answer.status == "not-now" and not answer.short_by
    assert [(found.index, found.short // GIB) for found in answer.cards] == [(0, 2)]
    assert [turn.names for turn in answer.turns] == [("b",), ("a",)]
    assert ways(answer) == {"turns": (0, ""), "gpu-share": (0, ""), "gpu-smaller": (12, "a")}
    assert together(large, jobs, cards=[card(), card(1)]).status == "fits", "two cards"
    bound = [part("a", 10, gpu=14, index=1), part("b", 12, gpu=12, index=1)]
    assert together(large, bound, cards=[card(), card(1)]).status == "not-now", "both on the same of them"


def test_a_card_that_is_too_small_or_not_there() -> None:
    large = machine(ram=256, available=250)
    answer = together(large, [part("a", 1, gpu=30), part("b", 1, gpu=2)], cards=[card(), card(1, 16)])
    assert answer.status == "never" and answer.never == ("a",)
    assert [turn.names for turn in answer.turns] == [("b",)]
    assert together(large, [part("a", 1, gpu=1)]).never == ("a",), "no card at all"
    assert together(large, [part("a", 1, gpu=20, index=1)], cards=[card(), card(1, 16)]).never == ("a",)


def test_others_on_the_card() -> None:
    """A running job's own memory is not in the way of it; somebody else's is, until it is closed."""
    large = machine(ram=256, available=200)
    runs = part("a", 20, held=20, gpu=14, index=0, on=9)
    assert together(large, [runs, part("b", 1, gpu=8)], cards=[card(rest=2)]).status == "fits"
    answer = together(large, [part("b", 1, gpu=14)], cards=[card(rest=12)])
    assert answer.status == "not-now" and answer.turns[0].gpu_close == 2 * GIB
    assert ways(answer) == {"gpu-smaller": (12, "b"), "gpu-close": (2, "")}
    answer = together(large, [runs, part("b", 1, gpu=14)], cards=[card()])
    assert [turn.names for turn in answer.turns] == [("a",), ("b",)]
    assert "gpu-share" not in ways(answer), "the one that runs was started without it"


def test_each_goes_where_it_fits_most_tightly() -> None:
    wanted = [("small", 5), ("large", 20), ("middle", 10)]
    sums = place([(name, CardPart(size * GIB)) for name, size in wanted], [card(), card(1, 12), card(2, 8)])
    assert {found.index: found.names for found in sums} == {0: ("large",), 1: ("middle",), 2: ("small",)}


def test_what_others_have_reserved_is_not_given_twice() -> None:
    free = machine(available=30, swap=0)
    assert together(free, [part("a", 20)]).status == "fits"
    assert together(free, [part("a", 20)], yet_to_grow=6 * GIB).short_by == 1 * GIB


sizes = st.integers(0, 40 * GIB)


@given(sizes, sizes, sizes, st.lists(st.tuples(sizes, sizes, st.booleans()), min_size=1, max_size=6), sizes)
def test_it_adds_up(
    ram: int, available: int, swap: int, jobs: list[tuple[int, int, bool]], rest: int
) -> None:
    of = budget(ram_total=ram, ram_available=available, swap_total=swap, swap_free=swap // 2)
    parts = [
        Part(str(number), need, "", held if runs else 0, runs)
        for number, (need, held, runs) in enumerate(jobs)
    ]
    answer = together(of, parts, rest)
    assert (answer.status == "fits") == (answer.short_by == 0) or answer.status == "never"
    in_turns = [name for turn in answer.turns for name in turn.names]
    assert sorted([*in_turns, *answer.never]) == sorted(part.name for part in parts)
    assert sum(turn.wanted for turn in answer.turns) == sum(p.wanted for p in parts if p.name in in_turns)
    for remedy in answer.remedies:
        if remedy.way == "swap":  # what is said to help does
            more = budget(
                ram_total=ram, ram_available=available, swap_total=swap + remedy.size, swap_free=swap // 2 + remedy.size
            )  # fmt: skip
            assert together(more, parts, rest).status == "fits"
        if remedy.way == "smaller":
            less = [
                Part(p.name, remedy.size if p.name == remedy.name else p.need, "", p.held, p.running)
                for p in parts
            ]
            assert together(of, less, rest).short_by == 0
