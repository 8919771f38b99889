from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import OomproofError
from oomproof.ledger.budget import answer, answer_gpu, budget, default_floor, default_margin
from oomproof.machine.gpu import Gpu, Gpus

GIB, MIB = 1 << 30, 1 << 20
sizes = st.integers(min_value=0, max_value=1 << 42)


def test_margin_is_five_gib_and_at_most_a_quarter() -> None:
    assert default_margin(31 * GIB) == 5 * GIB
    assert default_margin(8 * GIB) == 2 * GIB
    assert default_margin(512 * GIB) == 5 * GIB


def test_floor_is_four_percent_at_least_512_mib_and_never_above_the_margin() -> None:
    assert default_floor(31 * GIB) == 31 * GIB * 4 // 100
    assert default_floor(8 * GIB) == 512 * MIB
    assert default_floor(1 * GIB) == 256 * MIB  # a quarter: the warning must come first
    assert default_floor(512 * GIB) == 5 * GIB


@given(sizes)
def test_the_floor_lies_below_the_margin(total: int) -> None:
    assert 0 <= default_floor(total) <= default_margin(total) <= max(total // 4, 0)


def test_the_freeze_incident_word_for_word() -> None:
    machine = budget(ram_total=31 * GIB, ram_available=round(11.2 * GIB), swap_total=4 * GIB, swap_free=0)
    found = answer(machine, 20 * GIB)
    assert found.sentence == (
        "needs 20.0 GiB; 11.2 GiB available, swap full, margin 5.0 GiB: short by 13.8 GiB"
    )
    assert (found.status, found.exit_status) == ("not-now", 75)


def test_fits_and_never() -> None:
    machine = budget(ram_total=31 * GIB, ram_available=20 * GIB, swap_total=4 * GIB, swap_free=4 * GIB)
    fits = answer(machine, 10 * GIB)
    assert fits.exit_status == 0
    assert fits.sentence == (
        "needs 10.0 GiB; 20.0 GiB available, 4.0 GiB disk swap free, margin 5.0 GiB: fits, 9.0 GiB to spare"
    )
    never = answer(machine, 64 * GIB)
    assert never.exit_status == 69
    assert never.sentence == (
        "needs 64.0 GiB; this machine has 31.0 GiB RAM + 4.0 GiB disk swap, margin 5.0 GiB: "
        "never fits, short by 34.0 GiB"
    )


def test_zram_counts_as_nothing() -> None:
    machine = budget(ram_total=16 * GIB, ram_available=10 * GIB, zram_total=16 * GIB)
    assert machine.now == 6 * GIB and machine.ever == 12 * GIB
    assert "zram not counted" in answer(machine, 20 * GIB - 13 * GIB).sentence


def test_the_limit_of_a_container_bounds_everything() -> None:
    machine = budget(
        ram_total=64 * GIB,
        ram_available=60 * GIB,
        swap_total=8 * GIB,
        swap_free=8 * GIB,
        limit=8 * GIB,
        limit_left=6 * GIB,
        swap_limit=0,
        swap_limit_left=0,
        limited_by="/docker/abc",
    )
    assert (machine.total, machine.available, machine.margin, machine.now) == (
        8 * GIB,
        6 * GIB,
        2 * GIB,
        4 * GIB,
    )
    assert machine.limited_by == "/docker/abc"
    assert "under the memory limit, no swap" in answer(machine, 5 * GIB).sentence
    assert "the limit here is 8.0 GiB" in answer(machine, 9 * GIB).sentence


def test_a_limit_wider_than_the_host_binds_nothing() -> None:
    machine = budget(
        ram_total=8 * GIB, ram_available=6 * GIB, limit=64 * GIB, limit_left=60 * GIB, limited_by="/a"
    )
    assert machine.limited_by is None and machine.total == 8 * GIB


def test_what_is_promised_is_not_given_twice() -> None:
    machine = budget(ram_total=32 * GIB, ram_available=20 * GIB, reserved=10 * GIB)
    assert machine.now == 5 * GIB
    assert "10.0 GiB reserved for running jobs" in answer(machine, 6 * GIB).sentence


@given(sizes, sizes, sizes, sizes, sizes, sizes)
def test_the_answer_agrees_with_the_budget(
    total: int, available: int, swap_total: int, swap_free: int, reserved: int, need: int
) -> None:
    machine = budget(
        ram_total=total,
        ram_available=min(available, total),
        swap_total=swap_total,
        swap_free=min(swap_free, swap_total),
        reserved=reserved,
    )
    found = answer(machine, need)
    assert machine.now <= machine.ever and machine.in_use >= 0
    assert (found.status == "never") == (need > machine.ever)
    if found.status == "fits":
        assert need <= machine.now or need == 0
        assert found.short_by == 0
    else:
        assert found.short_by > 0
    if found.status == "not-now":  # what is short is exactly what is missing
        assert machine.headroom + found.short_by == need
    assert (found.short_by == 0) == ("to spare" in found.sentence)


@given(sizes, sizes, sizes)
def test_more_memory_never_turns_yes_into_no(total: int, available: int, need: int) -> None:
    def margin_free(more: int) -> str:
        return answer(
            budget(ram_total=total + more, ram_available=min(available, total) + more, margin=5 * GIB), need
        ).status

    order = ("never", "not-now", "fits")
    assert order.index(margin_free(GIB)) >= order.index(margin_free(0))


# --- GPUs


def card(index: int, free: int, total: int = 24) -> Gpu:
    return Gpu(index, "card", total * GIB, (total - free) * GIB, free * GIB)


def test_gpu_need() -> None:
    gpus = Gpus((card(0, 3), card(1, 20)))
    assert answer_gpu(gpus, 12 * GIB).sentence == (
        "needs 12.0 GiB on GPU 1; 20.0 GiB free of 24.0 GiB: fits, 8.0 GiB to spare"
    )
    assert answer_gpu(gpus, 12 * GIB, 0).sentence == (
        "needs 12.0 GiB on GPU 0; 3.0 GiB free of 24.0 GiB: short by 9.0 GiB"
    )
    assert answer_gpu(gpus, 48 * GIB).exit_status == 69


def test_gpu_need_without_gpu_or_without_answer() -> None:
    assert answer_gpu(Gpus(), GIB).status == "never"
    silent = answer_gpu(Gpus(problem="the GPU driver did not answer within 3 s"), GIB)
    assert silent.status == "not-now" and "cannot tell" in silent.sentence
    with pytest.raises(OomproofError, match="no GPU 7"):
        answer_gpu(Gpus((card(0, 3),)), GIB, 7)
