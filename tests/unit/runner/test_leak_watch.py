"""A leak is told while the job runs, hours before it is full; what only looks like one is not."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from oomproof.guard.guarded_job import LatestReading
from oomproof.guard.job_handle import JobMemory
from oomproof.machine.gpu import Gpu, GpuProcess
from oomproof.runner import sampler
from oomproof.runner.job_watch import status_line
from oomproof.runner.leak_watch import LeakWatch, TrendQuestion
from oomproof.trend.growth import WarmUp
from oomproof.units import GIB, MIB


def told(use: list[tuple[float, int]], limit: int) -> list[float]:
    watch, asked = LeakWatch(), []
    for t, held in use:
        watch.note(t, held)
        if watch.suspects(t, limit - held):
            asked.append(t)
    return asked


def grows(rate: float, seconds: int, noise: int = 20 * MIB) -> list[tuple[float, int]]:
    dice = random.Random(7)
    return [(float(t), int(4 * GIB + rate * t + dice.uniform(0, noise))) for t in range(0, seconds, 5)]


def test_a_leak_is_told_early_and_again_when_half_the_time_is_gone() -> None:
    asked = told(grows(0.5 * MIB, 7200), 8 * GIB)
    assert 1 <= len(asked) <= 5
    assert asked[0] < 1200 and asked[-1] > 3600, "and again as it comes nearer"


def test_what_is_far_away_is_not_told() -> None:
    """In ten times as long as was seen: nobody knows what the job does by then."""
    assert told(grows(0.1 * MIB, 3600), 64 * GIB) == []


def test_a_job_that_breathes_and_one_that_loads_are_left_alone() -> None:
    dice = random.Random(3)
    breathes = [
        (float(t), int(4 * GIB + 2 * GIB * (t % 300) / 300 + dice.uniform(0, 30 * MIB)))
        for t in range(0, 7200, 5)
    ]
    loads = [
        (float(t), int(min(20 * GIB, t * 80 * MIB) + dice.uniform(0, 30 * MIB))) for t in range(0, 7200, 5)
    ]
    assert told(breathes, 16 * GIB) == [] and told(loads, 32 * GIB) == []


def test_weeks_take_no_more_than_a_few_hundred_points() -> None:
    watch = LeakWatch()
    for t in range(0, 30 * 86400, 60):
        watch.note(float(t), 4 * GIB + t * 100)
    assert len(watch._bins) <= 720
    assert min(lowest for _, lowest, _ in watch._bins) == 4 * GIB


class Job:
    leader, counts_kills = 4_100_000, True

    def known_pids(self) -> list[int]:
        return []

    def kernel_kills(self) -> int:
        return 0

    def shared(self, samples: object) -> dict[int, int]:
        return {}

    def cache_faults(self, pids: object) -> None:
        return None


def sampled(
    monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], gpu: Any = None
) -> tuple[list[str], LatestReading]:
    """An hour of a job that grows by half a MiB a second, up to 8 GiB; `oomproof trend` answers this."""
    asked: list[float] = []

    class Question:
        def __init__(self, run_id: str) -> None:
            assert run_id == "a-run"

        def ask(self, t: float) -> None:
            asked.append(t)

        def answer(self, t: float) -> dict[str, Any] | None:
            return answers.pop(0) if asked and asked[-1] < t and answers else None

        def close(self) -> None:
            pass

    monkeypatch.setattr(sampler, "TrendQuestion", Question)
    alerts, moment = an_hour(gpu)
    assert asked, "it was suspected"
    return alerts, moment


def an_hour(gpu: Any = None) -> tuple[list[str], LatestReading]:
    """What a sampler tells of it."""
    alerts: list[str] = []
    leaks: list[int] = []  # with the headroom: then the job is asked what it holds
    moment = LatestReading()
    rows = type("Rows", (), {"put": lambda *_: None, "event": lambda *_, **__: None})()
    watch = sampler.Sampler(
        Job(),
        moment,
        rows,
        gpu,
        sampler.AlertThresholds(),
        lambda _, text: alerts.append(text),
        WarmUp(),
        "a-run",
        leaks.append,
    )  # type: ignore[arg-type]
    for t in range(0, 3600, 5):
        use = 4 * GIB + (0 if gpu else t * MIB // 2)
        moment.t, moment.memory, moment.available = float(t), JobMemory(use, 0, 0, 0, 0, use), 8 * GIB - use
        watch.sample(float(t))
    assert len(leaks) == len(alerts)
    return alerts, moment


def test_the_trend_is_asked_and_told_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    full = {"low": 3000.0, "expected": 3300.0, "high": 3600.0}
    said = {
        "kind": "growing",
        "alert": "memory has grown",
        "full_in_seconds": full,
        "last_sample_boottime": 650.0,
    }
    alerts, moment = sampled(monkeypatch, [said])
    assert alerts == ["memory has grown"] and moment.full_at == 3950.0
    assert status_line(moment).endswith("full in ~6 min")


def test_what_the_trend_does_not_find_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows the phases, and when the run ends."""
    flat = {"kind": "flat", "alert": None, "full_in_seconds": None}
    alerts, moment = sampled(monkeypatch, [flat])
    assert alerts == [] and moment.full_at is None and "full in" not in status_line(moment)
    alerts, _ = sampled(monkeypatch, [flat, {"kind": "growing", "alert": "memory has grown"}])
    assert alerts == ["memory has grown"], "asked again"


def test_a_trend_that_could_not_be_had_is_no_reason_for_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    alerts, moment = sampled(monkeypatch, [{}])
    assert len(alerts) == 1 and "oomproof trend" in alerts[0] and moment.full_at is None


def test_growth_is_told_where_no_process_can_be_had_for_the_trend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oomproof.own_command.OWN_COMMAND", ("/no/such/program",))
    question = TrendQuestion("a-run")
    question.ask(0.0)
    assert question.answer(0.0) == {} and question.answer(0.0) is None, "once"
    alerts, _ = an_hour()
    assert alerts and set(alerts) == {sampler._UNTOLD}


def test_a_card_that_fills_is_suspected_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Feed:
        seconds = 0

        def latest(self) -> tuple[Gpu, ...]:
            self.seconds += 5
            used = 2 * GIB + self.seconds * MIB
            others = GIB
            return (
                Gpu(
                    0,
                    "card",
                    12 * GIB,
                    used + others,
                    12 * GIB - used - others,
                    (GpuProcess(4_100_000, used),),
                ),
            )

    monkeypatch.setattr(Job, "known_pids", lambda self: [4_100_000])
    alerts, moment = sampled(monkeypatch, [{"kind": "flat", "alert": "GPU 0: memory has grown"}], Feed())
    assert alerts == ["GPU 0: memory has grown"] and moment.full_at is None


def test_a_question_is_never_waited_for(folders_of_their_own: Path) -> None:
    question = TrendQuestion("no-such-run")
    assert question.answer(0.0) is None
    question.ask(0.0)
    answer, deadline = None, time.monotonic() + 60
    while answer is None and time.monotonic() < deadline:
        answer = question.answer(1.0)
        time.sleep(0.02)
    assert answer == {} and question.answer(2.0) is None
    question.ask(3.0)
    assert question.answer(3.0 + 61) == {}, "given up"
    question.ask(80.0)
    question.close()
