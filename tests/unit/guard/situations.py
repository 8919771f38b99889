"""The situations whose decisions are recorded in decisions.json: recorded programs, and made ones for each rule of the guard."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from simulated_guard import Curve, Neighbour, Situation

from oomproof.guard.detect_limit import default_limit_floor
from oomproof.guard.view import Settings
from oomproof.units import GIB, MIB

SERIES = Path(__file__).parent.parent / "series"
MACHINE = Settings(margin=5 * GIB, floor=GIB, grace=30.0)
SMALL = Settings(margin=243 * MIB, floor=243 * MIB, grace=30.0)
OLDER, NEWER = "000000000400000-older", "000000000600000-newer"


def limited(mib: float, **more: object) -> Settings:
    limit = int(mib * MIB)
    return replace(MACHINE, limit=limit, limit_floor=default_limit_floor(limit), **more)  # type: ignore[arg-type]


def ramp(rate: float, start: float = 300.0, begins: float = 0.0, stops: float = 1e9) -> Curve:
    return lambda t: start + rate * (min(max(t, begins), stops) - begins)


def breath(size: float, period: float = 0.5) -> Curve:
    return lambda t: size * (t % period) / period


def plus(*curves: Curve) -> Curve:
    return lambda t: sum(curve(t) for curve in curves)


def steps(seconds: int) -> list[tuple[float, str, int | None]]:
    return [(float(t), "train", 2 * t) for t in range(seconds)]


def every_situation() -> Iterator[tuple[str, Situation]]:
    yield from _recorded()
    yield from _limit()
    yield from _machine()
    yield from _calm()
    yield from _others()
    yield from _pauses()
    yield from _hands()
    yield from _faults()


def _recorded() -> Iterator[tuple[str, Situation]]:
    for path in sorted(SERIES.glob("*.json")):
        found = json.loads(path.read_text())
        times = [t for t, _ in found["held_kib"]]
        sizes = [kib / 1024 for _, kib in found["held_kib"]]
        phases = [(t, name, step) for t, name, step in found["phases"]]

        def held(t: float, times: list[float] = times, sizes: list[float] = sizes) -> float:
            return sizes[max(0, bisect_right(times, t) - 1)]

        for share in (0.85, 0.95) if path.stem.startswith("leak") else (1.05,):
            limit = int(max(sizes) * share)
            given = Situation(limited(limit), times[-1], held, phases=phases, job_limit=limit)
            yield f"recorded: {path.stem}, limit at {share} of its peak", given
            if share == 0.85:
                usual = replace(given.settings, usual_peak=int(max(sizes) * 0.7 * MIB))
                yield (
                    f"recorded: {path.stem}, limit at {share}, usual peak known",
                    replace(given, settings=usual),
                )


def _limit() -> Iterator[tuple[str, Situation]]:
    for mib in (600, 1024, 8192):
        for rate in (1, 5, 20, 100, 500, 1000, 2000, 6000):
            start = max(100, mib - 60 * rate)  # the last minute, at most
            given = Situation(limited(mib), (mib - start) / rate + 5, ramp(rate, start), job_limit=mib)
            yield f"limit {mib}: {rate} MiB/s", given
            stubborn = replace(given, answers_term=None, seconds=given.seconds + 40, job_limit=mib * 10)
            yield f"limit {mib}: {rate} MiB/s, answers no SIGTERM", stubborn
    for mib, rate in ((600, 100), (1024, 20), (1024, 500), (1024, 2000), (8192, 6000)):
        waits = lambda t, start=mib // 2, rate=rate: start + max(0.0, t - 21.37) * rate  # noqa: E731
        given = Situation(limited(mib), 25 + mib / 2 / rate, waits, job_limit=mib)
        yield f"limit {mib}: still, then {rate} MiB/s", given
    leak = Situation(limited(600), 150, plus(ramp(1, 450), breath(32)), phases=steps(150), job_limit=600)
    yield "limit: a training leaks", leak
    yield "limit: a training leaks and stops when asked", replace(leak, answers_ask=2.0)
    yield "limit: a training leaks, watched only", replace(leak, settings=limited(600, watch_only=True))
    for stops in (60, 72, 85):
        flat = plus(ramp(1, 500, 0, stops), breath(16))
        yield (
            f"limit: a leak that ends after {stops} s: the request is taken back",
            replace(leak, held=flat, seconds=200, phases=steps(200)),
        )
    late = plus(ramp(5, 450, 90), breath(32))
    yield "limit: a late leak", replace(leak, held=late, phases=steps(130), seconds=130)
    yield (
        "limit: a late leak beyond its usual peak",
        replace(
            leak,
            settings=limited(600, usual_peak=350 * MIB),
            held=plus(ramp(5), breath(32)),
            phases=steps(70),
        ),
    )
    yield (
        "limit: growth within its usual peak",
        replace(
            leak,
            settings=limited(540, usual_peak=532 * MIB),
            job_limit=540,
            held=plus(ramp(1, 400), breath(32)),
        ),
    )
    yield (
        "limit: a drip over minutes",
        Situation(limited(1250), 400, plus(ramp(0.25, 1150), breath(16)), phases=steps(400), job_limit=1250),
    )
    yield (
        "limit: a training that breathes just below it",
        Situation(limited(339), 60, plus(ramp(0), breath(32)), phases=steps(60), job_limit=339),
    )
    yield (
        "limit: bursts that end by themselves",
        Situation(limited(1024), 60, lambda t: 500 + (450 if 5 < t % 10 < 6 else 0), job_limit=1024),
    )
    yield (
        "limit: in swap too",
        Situation(
            limited(1024),
            12,
            ramp(100, 100),
            swapped=lambda t: 50 * t,
            swap_free=lambda t: 4000,
            job_limit=5000,
        ),
    )


def _machine() -> Iterator[tuple[str, Situation]]:
    for rate in (0.5, 5, 50, 100, 500, 1000, 2000, 6000):
        free = 6000.0 + 8 * rate
        start = free - 5000 - 8 * rate if rate > 10 else free - 1000 - 15 * rate
        seconds = min(90.0 if rate > 10 else 30.0, (free - start) / rate + 3)
        given = Situation(MACHINE, seconds, ramp(rate, start), free=lambda t, free=free: free)
        yield f"machine: alone, {rate} MiB/s", given
        yield f"machine: no runtime folder, {rate} MiB/s", replace(given, alone=True)
        yield f"machine: {rate} MiB/s, answers no SIGTERM", replace(given, answers_term=None)
        yield f"machine: {rate} MiB/s, protected", replace(given, settings=replace(MACHINE, protected=True))
        yield (
            f"machine: {rate} MiB/s, watched only",
            replace(given, settings=replace(MACHINE, watch_only=True)),
        )
        unmanaged = Situation(
            MACHINE,
            given.seconds,
            plus(ramp(0, 1500), breath(1)),
            free=ramp(-rate, 1500 + start if rate > 10 else 2500 + 20 * rate),
        )
        yield f"machine: an unmanaged job takes {rate} MiB/s", unmanaged
        yield (
            f"machine: an unmanaged job takes {rate} MiB/s beside a small one",
            replace(unmanaged, held=ramp(0, 20)),
        )
        both = replace(unmanaged, held=ramp(rate * 0.4, 1500))
        yield f"machine: an unmanaged job takes {rate} MiB/s, the job grows too", both
    breathing = Situation(
        SMALL, 60, plus(ramp(0, 487), breath(1)), free=plus(lambda t: 487 + 235, breath(2.4, 6))
    )
    yield "machine: others breathe just below the floor", breathing
    yield (
        "machine: an hour below the margin: one warning every ten minutes",
        Situation(MACHINE, 650, ramp(0, 1000), free=lambda t: 4000),
    )
    yield (
        "machine: asked, then the shortage ends, then another",
        Situation(
            MACHINE,
            330,
            lambda t: 2000 + 60 * (min(t, 35) + max(0.0, min(t, 230) - 200)),
            free=lambda t: 6000 + (1e4 if 36 < t < 190 else 0),
        ),
    )
    yield (
        "machine: disk swap counts",
        Situation(
            MACHINE,
            60,
            ramp(100, 1000),
            free=lambda t: 4000,
            swap_free=lambda t: max(0.0, 6000 - 100 * t),
            can_push=True,
        ),
    )
    yield (
        "machine: thrashes",
        Situation(
            MACHINE,
            60,
            ramp(20, 1000),
            free=lambda t: 2300,
            swap_free=lambda t: 6000,
            stall=lambda t: min(0.6, t / 60),
            can_push=True,
        ),
    )
    yield (
        "machine: limit and floor at once",
        Situation(limited(4096), 60, ramp(100, 2000), free=lambda t: 5500, job_limit=4096),
    )
    yield (
        "machine: a stall without swap",
        Situation(MACHINE, 30, ramp(3, 1000), free=lambda t: 1900, stall=lambda t: t / 30),
    )


def _calm() -> Iterator[tuple[str, Situation]]:
    """Three minutes in which nothing happens, then at once."""
    begins = 187.9
    for rate in (5, 100, 1000, 3000, 5000):
        seconds, free = begins + min(60.0, 21_000 / rate), lambda t: 22_000.0
        given = Situation(MACHINE, seconds, ramp(rate, 800, begins), free=free)
        yield f"calm: machine, {rate} MiB/s", given
        left = plus(free, ramp(-rate, 0, begins))
        yield f"calm: an unmanaged job takes {rate} MiB/s", replace(given, held=ramp(0, 800), free=left)
        limit = Situation(limited(1024), begins + 60, ramp(rate, 400, begins), job_limit=1024)
        yield f"calm: limit 1024, {rate} MiB/s", limit
    hands = [(begins, "pause"), (begins + 20, "resume")]
    yield "calm: paused by hand", Situation(MACHINE, begins + 60, ramp(0, 800), hands=hands)


def _others() -> Iterator[tuple[str, Situation]]:
    for rate in (20, 100, 1000):
        given = Situation(MACHINE, 10 + 700 / rate, ramp(rate, 4600, 3), free=lambda t: 6500)
        older, newer = Neighbour(OLDER), Neighbour(NEWER)
        for name, one in {
            "an older": older,
            "a newer": newer,
            "a newer that grows": replace(newer, rate=50.0, held=ramp(10, 512)),
            "a newer, protected": replace(newer, protected=True),
            "a newer that holds little": replace(newer, held=lambda t: 10.0),
            "an older that is paused": replace(older, paused=[(0.0, 1e9)]),
            "a newer that is paused": replace(newer, paused=[(0.0, 1e9)]),
            "a newer that is paused in the end": replace(newer, rate=50.0, paused=[(3 + 250 / rate, 1e9)]),
            "one that reserved its need": replace(newer, rate=50.0, reserved=True),
        }.items():
            yield f"others: {rate} MiB/s beside {name} run", replace(given, neighbours=[one])
            stubborn = replace(given, neighbours=[one], settings=replace(MACHINE, pause_max=0.0))
            yield f"others: {rate} MiB/s beside {name} run, never to be paused", stubborn
        two = replace(given, neighbours=[older, replace(newer, rate=30.0)])
        yield f"others: {rate} MiB/s between two", two
        busy = replace(two, neighbours=[older], latch_taken=[n / 2 for n in range(0, 300, 3)])
        yield f"others: {rate} MiB/s while another guard acts again and again", busy
        yield (
            f"others: {rate} MiB/s, its need is known",
            replace(two, settings=replace(MACHINE, need=9 * GIB), neighbours=[older]),
        )
        yield f"others: {rate} MiB/s, protected", replace(two, settings=replace(MACHINE, protected=True))
    loader = Neighbour(NEWER, held=lambda t: 200 + 40 * min(t, 20), rate=40.0, paused=[(20.0, 1e9)])
    yield (
        "others: the training beside a loader that was just paused",
        Situation(
            SMALL,
            60,
            plus(ramp(0, 487), breath(2)),
            free=lambda t: 1728 - (t > 20) * min(6.0, t - 20),
            neighbours=[loader],
        ),
    )


def _pauses() -> Iterator[tuple[str, Situation]]:
    older = Neighbour(OLDER, held=lambda t: 2000.0)
    given = Situation(MACHINE, 120, ramp(100, 500), free=lambda t: 6500, neighbours=[older])
    yield "pause: the other ends, the room is back", replace(given, neighbours=[replace(older, ends=70.0)])
    yield (
        "pause: the other ends while another guard lets go",
        replace(given, neighbours=[replace(older, ends=70.0)], latch_taken=[68.0, 71.0, 74.5]),
    )
    yield (
        "pause: an older waits for its room as well",
        replace(
            given,
            neighbours=[
                replace(older, ends=60.0),
                Neighbour("000000000300000-oldest", held=lambda t: 100.0, paused=[(20.0, 80.0)]),
            ],
        ),
    )
    for limit in (20.0, 45.0):
        yield f"pause: at most {limit} s", replace(given, settings=replace(MACHINE, pause_max=limit))
        yield f"pause: something in it counts {limit} s", replace(given, pause_limit=limit)
    yield (
        "pause: the other grows on: it did not help",
        replace(given, neighbours=[replace(older, held=ramp(40, 2000), rate=40.0)]),
    )
    yield (
        "pause: the other grows on fast",
        replace(given, neighbours=[replace(older, held=ramp(900, 2000, 35), rate=900.0)]),
    )
    yield (
        "pause: the other does nothing for two minutes",
        replace(given, neighbours=[replace(older, busy=False)], seconds=240),
    )
    yield "pause: pushed out to swap", replace(
        given, can_push=True, swap_free=lambda t: max(0.0, 4000 - max(0.0, t - 20) * 50), swapped=lambda t: max(0.0, min(1500.0, (t - 42) * 50)),
        stall=lambda t: 0.2 if t > 42 else 0.0, neighbours=[replace(older, ends=80.0)], seconds=200,
    )  # fmt: skip
    yield (
        "pause: breath of room",
        replace(given, free=lambda t: 6500 + (1500 if t > 40 and t % 3 < 1.5 else 0)),
    )
    yield (
        "pause: an unmanaged job grows, the job a little",
        Situation(
            MACHINE, 120, ramp(30, 1000), free=lambda t: 5000 - 70 * min(t, 40) + 60 * max(0.0, t - 60)
        ),
    )
    yield (
        "pause: again after the first",
        replace(given, free=lambda t: 6500 + (700 if t > 40 else 0), seconds=200),
    )


def _hands() -> Iterator[tuple[str, Situation]]:
    older = Neighbour(OLDER, held=lambda t: 2000.0)
    given = Situation(MACHINE, 120, ramp(100, 500), free=lambda t: 6500, neighbours=[older])
    yield (
        "hand: paused and resumed before any shortage",
        replace(given, hands=[(3.0, "pause"), (20.0, "resume")]),
    )
    yield (
        "hand: paused for good, others fill the machine",
        replace(given, hands=[(10.0, "pause")], neighbours=[replace(older, held=ramp(60, 2000, 20))]),
    )
    yield "hand: takes the guard's pause over", replace(given, hands=[(60.0, "pause"), (90.0, "resume")])
    yield "hand: resumes what the guard paused", replace(given, hands=[(60.0, "resume")])
    yield (
        "hand: moves GPU memory first",
        replace(given, hands=[(10.0, "move"), (25.0, "pause"), (60.0, "resume")]),
    )
    yield (
        "hand: paused under its limit",
        Situation(
            limited(1024), 60, ramp(20, 300), hands=[(20.0, "pause"), (40.0, "resume")], job_limit=1024
        ),
    )


def _faults() -> Iterator[tuple[str, Situation]]:
    given = Situation(MACHINE, 60, ramp(200, 500), free=lambda t: 9000)
    for what in ("machine", "job", "others"):
        for begun, end in ((0.0, 1e9), (10.0, 20.0), (35.0, 1e9)):
            yield (
                f"faults: {what} not readable from {begun} to {end}",
                replace(given, unreadable=[(begun, end, what)], neighbours=[Neighbour(OLDER)]),
            )
    yield (
        "faults: machine not readable under a limit",
        Situation(limited(1024), 60, ramp(20, 300), unreadable=[(5.0, 1e9, "machine")], job_limit=1024),
    )
    yield "faults: gone at once", Situation(MACHINE, 5, ramp(0), job_limit=1)
