"""Recorded series of real programs, replayed against the guard's decisions: healthy ones are left alone, leaks are not.

Recorded by `bench/false_stops.py --keep-series`: what counted against the limit, and the phases and steps that were told.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from oomproof.guard import ladder
from oomproof.guard.detect_limit import default_limit_floor
from oomproof.guard.guarded_job import JobGrowth
from oomproof.guard.view import ActionHistory, PolicyInput, Settings
from oomproof.runner.job_watch import shall_save
from oomproof.units import GIB, MIB

SERIES = Path(__file__).parents[1] / "series"
HEALTHY = sorted(path.stem for path in SERIES.glob("*.json") if not path.stem.startswith("leak"))
LEAKS = sorted(path.stem for path in SERIES.glob("leak*.json"))


@dataclass
class Recorded:
    held: list[tuple[float, int]]
    phases: list[tuple[float, str, int | None]]

    @property
    def peak(self) -> int:
        return max(held for _, held in self.held)


def recorded(name: str) -> Recorded:
    found = json.loads((SERIES / f"{name}.json").read_text())
    return Recorded(
        [(t, kib * 1024) for t, kib in found["held_kib"]], [tuple(each) for each in found["phases"]]
    )


def replay(series: Recorded, limit: int, usual_peak: int | None = None) -> dict[str, float]:
    """What the guard does first of each kind, and when; ends where the kernel would end the job."""
    settings = Settings(
        margin=GIB,
        floor=GIB // 2,
        grace=30.0,
        limit=limit,
        limit_floor=default_limit_floor(limit),
        usual_peak=usual_peak,
    )
    growth, state, done = JobGrowth(settings), ActionHistory(), {}
    told = iter([*series.phases, (float("inf"), "", None)])
    phase, next_row = next(told), 0.0
    for t, held in series.held:
        while phase[0] <= t:
            growth.warm_up.note(phase[1], phase[2], phase[0])
            phase = next(told)
        available = limit - held
        if available < 0:
            done["kernel"] = t
            break
        growth.use.add(t, held)
        near = growth.near_limit(t, available)
        if t >= next_row:
            next_row = t + 1.0
            growth.row(t, held, available)
        if shall_save(growth.time_to_full, growth.is_sure, t, None):
            done.setdefault("save", t)
        facts = PolicyInput(
            t=t,
            available=20 * GIB,
            swap_free=0,
            stall=0.0,
            use=held,
            rate=growth.use.rate(0.3),
            sustained=growth.use.sustained(),
            shrink=0.0,
            limit_headroom=available,
            **near,
            time_to_full=growth.time_to_full,
        )
        action = ladder.choose(settings, facts, state)
        if action.kind != "none":
            done.setdefault(action.kind, t)
            state = ladder.taken(settings, action, facts, state)
    return done


@pytest.mark.parametrize("above", [5, 10, 25, 100, 300])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_is_left_alone(name: str, above: int) -> None:
    series = recorded(name)
    done = replay(series, series.peak * (100 + above) // 100)
    assert set(done) <= {"warn"}, done


@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize("limit", [0.85, 0.95])
def test_a_leak_is_asked_to_stop_before_the_kernel_ends_it(name: str, limit: float) -> None:
    series = recorded(name)
    done = replay(series, int(series.peak * limit))
    assert "request" in done, done
    assert done["kernel"] - done["request"] >= 2.0, "enough for a step and the decision to save"


def training(rate: float, seconds: int, start: int = 300, breath: int = 32, quiet: int = 0) -> Recorded:
    """Two steps a second from ``start`` MiB on; after ``quiet`` seconds it leaks ``rate`` MiB a second."""
    held = [
        (tenth / 10, int((start + rate * max(0.0, tenth / 10 - quiet) + tenth % 5 * breath / 4) * MIB))
        for tenth in range(10 * seconds)
    ]
    return Recorded(held, [(float(t), "train", 2 * t) for t in range(seconds)])


@pytest.mark.parametrize(
    ("rate", "start", "quiet", "least"),
    [
        (0.1, 500, 0, 25.0),  # the whole grace, or nearly
        (1.0, 300, 0, 25.0),
        (1.0, 450, 90, 25.0),
        (5.0, 300, 0, 5.0),  # 4.5 % of the limit is what is left
        (5.0, 450, 90, 5.0),
    ],
)
def test_a_leak_in_training_is_asked_in_time(rate: float, start: int, quiet: int, least: float) -> None:
    seconds = quiet + int((600 - start) / rate) + 5
    done = replay(training(rate, seconds, start, quiet=quiet), 600 * MIB)
    assert done["kernel"] - done["request"] >= least, done
    assert done["request"] <= done.get("term", done["kernel"]), "asked first"


@pytest.mark.parametrize("begins", [0.0, 0.3, 0.6])
def test_a_limit_that_is_full_in_twenty_seconds_is_warned_of_before_the_request(begins: float) -> None:
    """As recorded of data kept in three forms: imports for five seconds, then 6 MiB/s. There was one forecast in the first
    ten seconds, when the imports still hid the trend, and the next came after the request."""
    rows = [(begins + tenth / 10, tenth / 10) for tenth in range(230)]
    held = [(t, int((18 * since if since < 5 else 94 + 6.5 * (since - 5)) * MIB)) for t, since in rows]
    done = replay(Recorded(held, []), 200 * MIB)
    assert done["warn"] + 3.0 < done["request"] < done["kernel"], done


def test_a_leak_beyond_what_the_command_usually_holds_is_asked_sooner() -> None:
    series = training(5.0, 64)
    unknown, known = replay(series, 600 * MIB), replay(series, 600 * MIB, usual_peak=350 * MIB)
    assert known["kernel"] - known["request"] >= 25.0 > unknown["kernel"] - unknown["request"]


def test_growth_within_what_the_command_usually_holds_is_expected() -> None:
    done = replay(training(1.0, 200), 540 * MIB, usual_peak=532 * MIB)
    assert done == {}, "it held as much before, and ended well"
    assert "warn" in replay(training(1.0, 200), 540 * MIB)


def test_a_training_that_breathes_just_below_its_limit_is_left_alone() -> None:
    """No growth at all, 2 % of room at the top of each step: the kernel lets it live."""
    assert replay(training(0.0, 300), 339 * MIB) == {}


def test_loading_right_up_to_the_limit_is_left_alone() -> None:
    """As run_clm.py under 600M: imports and first steps, then flat."""
    held = [(tenth / 10, min(470, 8 * tenth) * MIB) for tenth in range(600)]
    phases: list[tuple[float, str, int | None]] = [(2.0, "load", None), (5.0, "train", None)]
    phases += [(6.0 + step, "train", step) for step in range(1, 50)]
    for limit in (494, 520, 560, 600, 1024, 2048):
        assert replay(Recorded(held, phases), limit * MIB) == {}
        assert replay(Recorded(held, []), limit * MIB) == {}, "nor where no agent tells"


def test_a_drip_over_an_hour_is_saved_long_before() -> None:
    """15 MiB a minute from 1 GiB on, under 2 GiB: the checkpoint comes minutes before the request to stop."""
    done = replay(training(0.25, 4200, 1000), 2 * GIB)
    assert done["kernel"] - done["save"] > 180, done
    assert 25 < done["kernel"] - done["request"] < 60, done
