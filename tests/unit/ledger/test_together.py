"""A set of jobs on one machine: the sum, the turns, the remedies. Incident I0's own numbers come out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomproof.ledger.budget import Budget, budget
from oomproof.ledger.together import Part, Together, together

GIB = 1 << 30


def machine(ram: int = 31, available: float = 11, swap: int = 4, swap_free: int = 0, zram: int = 0) -> Budget:
    return budget(
        ram_total=ram * GIB, ram_available=int(available * GIB), swap_total=swap * GIB, swap_free=swap_free * GIB,
        zram_total=zram * GIB,
    )  # fmt: skip


def part(name: str, need: float, held: float = 0.0) -> Part:
    return Part(name, int(need * GIB), "as you say", int(held * GIB), held > 0)


def ways(answer: Together) -> dict[str, tuple[int, str]]:
    return {remedy.way: (remedy.size // GIB, remedy.name) for remedy in answer.remedies()}


def turns(answer: Together) -> list[tuple[str, ...]]:
    return [tuple(part.name for part in turn) for turn in answer.turns]


def test_the_freeze_incident() -> None:
    """31 GB, a training that uses 19, swap full, 11 available, a loader that wants 20: short by 9."""
    answer = together(machine(), [part("train", 19, held=19), part("glm", 20)], rest=3 * GIB)
    assert answer.wanted - answer.memory == 9 * GIB and answer.spare == -14 * GIB
    assert answer.status == "not-now"
    assert answer.rest == 5 * GIB, "1 in RAM and 4 in swap: more than the 3 it was said to be"
    assert turns(answer) == [("train",), ("glm",)]
    assert ways(answer) == {"swap": (14, ""), "smaller": (6, "glm")}


def test_the_same_before_anything_was_started() -> None:
    answer = together(machine(available=29, swap_free=4), [part("train", 19), part("glm", 20)], rest=3 * GIB)
    assert answer.rest == 3 * GIB and answer.spare == -12 * GIB
    assert turns(answer) == [("glm",), ("train",)]


def test_swap_on_disk_makes_it_fit_and_zram_does_not() -> None:
    jobs = [part("train", 19), part("glm", 20)]
    with_disk = together(machine(available=29, swap=18, swap_free=18), jobs)
    assert with_disk.status == "fits" and not ways(with_disk)
    assert together(machine(available=29, swap=0, zram=31), jobs).spare == -15 * GIB


def test_what_runs_stays_in_the_first_turn_and_takes_those_along_that_fit() -> None:
    jobs = [part("a", 10), part("b", 4), part("c", 2, held=1), part("d", 9)]
    answer = together(machine(ram=24, available=22, swap=0), jobs)
    assert turns(answer) == [("a", "b", "c"), ("d",)]


def test_one_that_never_fits() -> None:
    answer = together(machine(), [part("huge", 31), part("small", 1)])
    assert answer.status == "never"


def test_one_that_fits_only_without_everything_else() -> None:
    answer = together(machine(available=6, swap=0), [part("big", 20)])
    assert answer.status == "not-now"
    assert ways(answer)["close"] == (19, "")


def test_turns_are_no_remedy_for_a_job_that_does_not_fit_alone() -> None:
    answer = together(machine(), [part("huge", 64), part("small", 1), part("large", 20)])
    assert [part.name for part in answer.never] == ["huge"]
    assert turns(answer) == [("small",), ("large",)], "the others have turns"
    assert ways(answer) == {}, "neither more swap than RAM, nor a huge that is no huge any more"


def test_what_others_have_reserved_is_not_given_twice() -> None:
    free = machine(available=30, swap=0)
    assert together(free, [part("a", 20)]).status == "fits"
    assert together(free, [part("a", 20)], yet_to_grow=6 * GIB).spare == -1 * GIB


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
    assert (answer.status == "fits") == (answer.spare >= 0) or answer.status == "never"
    in_turns = [part for turn in answer.turns for part in turn]
    assert sorted(part.name for part in (*in_turns, *answer.never)) == sorted(part.name for part in parts)
    for remedy in answer.remedies():
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
            assert together(of, less, rest).spare >= 0
