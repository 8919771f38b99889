"""Does it fit? The arithmetic and its sentence, for this machine's RAM, its cards, and a machine that is not there."""

from __future__ import annotations

from oomproof.ledger.budget import budget
from oomproof.machine.gpu import Gpu
from oomproof.sizing.estimate import Estimate
from oomproof.sizing.fit_verdict import card_here, card_of, fit, ram_here, ram_of
from oomproof.units import GIB


def estimate(low: float, expected: float, high: float) -> Estimate:
    return Estimate(int(low * GIB), int(expected * GIB), int(high * GIB), {})


HERE = ram_here(budget(ram_total=32 * GIB, ram_available=20 * GIB))


def test_this_machines_ram() -> None:
    assert fit(HERE, estimate(10, 12, 14)).status == "fits"
    assert (
        "fits in this machine's RAM (20.0 GiB available, margin 5.0 GiB), 1.0 GiB to spare"
        in fit(HERE, estimate(1, 2, 14)).sentence
    )
    close = fit(HERE, estimate(10, 15, 16))
    assert close.status == "close" and "16.0 GiB are possible" in close.sentence
    later = fit(HERE, estimate(10, 18, 20))
    assert (later.status, later.short_by) == ("not-now", 3 * GIB) and "does not fit now" in later.sentence
    never = fit(HERE, estimate(10, 30, 31))
    assert (never.status, never.short_by) == ("never", 3 * GIB) and "never fits" in never.sentence


def test_what_is_reserved_is_not_free() -> None:
    """A 20 GB loader beside a 19 GB training that has yet to grow."""
    place = ram_here(budget(ram_total=32 * GIB, ram_available=27 * GIB, reserved=12 * GIB))
    judged = fit(place, estimate(18, 20, 20))
    assert (
        judged.status == "not-now"
        and judged.short_by == 10 * GIB
        and "12.0 GiB reserved for running jobs" in judged.sentence
    )


def test_a_card_that_is_not_there() -> None:
    judged = fit(
        card_of(24 * GIB),
        estimate(26, 27, 28),
        [("bf16", estimate(25, 26, 27)), ("int8", estimate(13, 14, 15))],
    )
    assert judged.short_by == 3 * GIB
    assert judged.sentence.endswith("short by 3.0 GiB; as int8 it would fit (14.0 GiB)")
    assert fit(card_of(24 * GIB), estimate(99, 99, 99), [("int8", estimate(50, 50, 50))]).sentence.endswith(
        "no smaller type would fit either"
    )
    assert fit(ram_of(64 * GIB, 5 * GIB), estimate(50, 58, 59)).status == "fits"


def test_a_card_that_is_in_use() -> None:
    place = card_here(Gpu(1, "H200", 140 * GIB, 120 * GIB, 20 * GIB))
    judged = fit(place, estimate(29, 30, 31))
    assert judged.status == "not-now" and "on GPU 1 (H200) (20.0 GiB free of 140.0 GiB)" in judged.sentence
