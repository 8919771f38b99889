"""Whose turn it is on a card: never more than fits, nobody waits for ever, the dead leave by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.ledger.gpu_turns import ON, WAITING, GpuSlot, GpuTurns, asks, decide
from oomproof.machine.gpu import Gpu, GpuProcess
from oomproof.runner.gpu_share import capacity_of, card_index
from oomproof.units import GIB

CAPACITY = 100


def at(
    run: str, state: str, since: float, need: int | None = 60, used: int = 0, turn: float = 10.0
) -> GpuSlot:
    return GpuSlot(run, state, since, need, used, turn)


def test_one_that_fits_beside_the_others_goes_at_once() -> None:
    assert decide(at("b", WAITING, 5, 40), [at("a", ON, 0, 60)], CAPACITY, 6) == "go"


def test_two_that_do_not_fit_take_turns() -> None:
    a, b = at("a", ON, 0), at("b", WAITING, 5)
    assert decide(b, [a], CAPACITY, 6) == "wait"
    assert decide(a, [b], CAPACITY, 6) == "stay"  # its turn is not over
    assert decide(a, [b], CAPACITY, 11) == "yield"
    a = replace(a, state=WAITING, since=11.0)
    assert decide(b, [a], CAPACITY, 11) == "go"


def test_nobody_waits_nobody_yields() -> None:
    assert decide(at("a", ON, 0), [], CAPACITY, 1e6) == "stay"
    assert (
        decide(at("a", ON, 0, 60), [at("b", WAITING, 1, 30)], CAPACITY, 1e6) == "stay"
    )  # b fits and goes by itself


def test_first_come_first_served() -> None:
    a, first, second = at("a", ON, 0, 60), at("c", WAITING, 1, 60), at("b", WAITING, 2, 10)
    assert decide(second, [a, first], CAPACITY, 3) == "wait"
    assert decide(first, [second], CAPACITY, 3) == "go"


def test_an_unknown_need_has_the_card_for_itself() -> None:
    assert decide(at("b", WAITING, 1, None), [at("a", ON, 0, 1)], CAPACITY, 3) == "wait"
    assert decide(at("b", WAITING, 1, 1), [at("a", ON, 0, None)], CAPACITY, 3) == "wait"


def test_one_that_outgrew_its_word_counts_with_what_it_holds() -> None:
    assert asks(at("a", ON, 0, 10, used=70), CAPACITY) == 70
    assert decide(at("b", WAITING, 1, 40), [at("a", ON, 0, 10, used=70)], CAPACITY, 3) == "wait"


def test_strangers_on_the_card_make_it_smaller() -> None:
    card = Gpu(0, "card", 100 * GIB, 70 * GIB, 30 * GIB, (GpuProcess(1, 60 * GIB),))
    assert capacity_of(card, [at("a", ON, 0, used=60 * GIB)]) == 90 * GIB
    assert capacity_of(card, [at("a", WAITING, 0, used=60 * GIB)]) == 30 * GIB


def test_the_card_is_the_one_asked_for_or_the_first_visible() -> None:
    assert card_index(3, {"CUDA_VISIBLE_DEVICES": "1"}) == 3
    assert card_index(None, {"CUDA_VISIBLE_DEVICES": "1,2"}) == 1
    assert card_index(None, {}) == 0
    assert card_index(None, {"CUDA_VISIBLE_DEVICES": "GPU-6e9e"}) == 0


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.integers(1, 120)), st.integers(1, 60), st.integers(0, 40)),
        min_size=1,
        max_size=6,
    ),
    st.integers(2, 15),
)
def test_all_finish_and_the_card_is_never_over_full(
    jobs: list[tuple[int | None, int, int]], turn: int
) -> None:
    """Jobs of (need, seconds of work, start): run the rule second by second."""
    slots: dict[str, GpuSlot] = {}
    left = {str(number): work for number, (_, work, _) in enumerate(jobs)}
    work = sum(left.values())
    for now in range(40 + work * 3 + 10):
        for number, (need, _, start) in enumerate(jobs):
            if start == now:
                slots[str(number)] = at(str(number), WAITING, now, need, turn=float(turn))
        for name in sorted(slots):
            me = slots[name]
            word = decide(me, [one for other, one in slots.items() if other != name], CAPACITY, now)
            if word == "go":
                slots[name] = replace(me, state=ON, since=float(now))
            elif word == "yield":
                slots[name] = replace(me, state=WAITING, since=float(now))
        on = [one for one in slots.values() if one.state == ON]
        assert len(on) <= 1 or sum(asks(one, CAPACITY) for one in on) <= CAPACITY
        for one in on:
            left[one.run] -= 1
            if left[one.run] == 0:
                del slots[one.run], left[one.run]
    assert not left


def test_the_place_of_a_killed_run_is_gone(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from oomproof.ledger.gpu_turns import *\n"
        "t = GpuTurns(Path(sys.argv[1]), 0, GpuSlot('dead', 'on', 0.0, 60)); print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=-1, stdout=-1) as other:
        assert other.stdout is not None
        other.stdout.readline()
        mine = GpuTurns(tmp_path, 0, at("mine", WAITING, 1))
        assert [one.run for one in mine.others()] == ["dead"]
        assert not mine.take(CAPACITY, 2)
        other.kill()
        other.wait()
        assert mine.others() == []
        assert mine.take(CAPACITY, 3)
        assert mine.slot.state == ON
        mine.leave()
    assert [name for name in os.listdir(tmp_path / "gpu-0") if not name.startswith(".")] == []


def test_two_at_the_same_instant_do_not_both_get_the_card(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from oomproof.ledger.gpu_turns import *\n"
        "t = GpuTurns(Path(sys.argv[1]), 0, GpuSlot(sys.argv[2], 'waiting', 0.0, 60)); print(flush=True); sys.stdin.readline()\n"
        "print(t.take(100, 1.0), flush=True); sys.stdin.read()"
    )
    asking = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"r{n}"], stdin=-1, stdout=-1, text=True)
        for n in range(8)
    ]
    for one in asking:
        assert one.stdout is not None
        one.stdout.readline()
    for one in asking:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    got = [one.stdout.readline().strip() for one in asking if one.stdout]
    for one in asking:
        one.kill()
        one.communicate()
    assert got.count("True") == 1
