"""The cards in the machine's guard: who will be refused memory next, told before it happens, and who could give some back.

By readings through the fake NVML library; nobody has seen it on a real card yet."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers_gpu import FakeNvml

from oomproof.errors import OomproofError
from oomproof.guard import card_runs
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.card_runs import holders_of, idle_bytes
from oomproof.guard.card_watch import CardGrowth, CardHolder, CardWatch, warning, what_to_type
from oomproof.guard.machine_guard import MachineGuard
from oomproof.guard.unmanaged_guard import Choice
from oomproof.guard.view import Settings
from oomproof.leaf.attempt_names import RELEASE_REQUEST
from oomproof.ledger.live_runs import BY_GUARD, Live
from oomproof.machine import gpu
from oomproof.recording import run_folders
from oomproof.recording.attempt import Attempt
from oomproof.units import GIB, MIB

Held = Callable[[float], float]  # seconds → GiB


def seen(seconds: int, total: float, *cards: dict[int, Held]) -> list[tuple[float, CardGrowth]]:
    """A reading every two seconds; what is warned of, and when."""
    watch, warnings = CardWatch(), []
    for t in range(0, seconds, 2):
        readings = []
        for users in cards:
            held = [(pid, int(curve(t) * GIB)) for pid, curve in users.items()]
            free = int(total * GIB) - sum(size for _, size in held)
            readings.append({"memory": (int(total * GIB), max(0, free)), "compute": held})
        found = gpu.query_nvml(FakeNvml(*readings), wsl=False).gpus
        warnings += [(float(t), growth) for growth in watch.look(float(t), found)]
    return warnings


def test_the_one_that_grows_is_named_before_the_card_is_full() -> None:
    """10 GiB that stay, 4 that grow by 0.1 GiB a second: full after 100 s."""
    ((t, growth),) = seen(100, 24, {7: lambda t: 10.0, 42: lambda t: 4 + t / 10})
    assert growth.pid == 42 and growth.card == 0 and growth.holders == {7: 10 * GIB}
    assert 35 <= t <= 45 and abs(t + growth.left - 100) < 3, "a minute before, and the time left is right"


def test_the_fastest_of_several_is_the_one_and_all_of_them_count() -> None:
    ((t, growth),) = seen(90, 24, {7: lambda t: 4 + t / 20, 42: lambda t: 4 + t / 10})
    assert growth.pid == 42 and abs(t + growth.left - 16 / 0.15) < 4


@pytest.mark.parametrize(
    "held",
    [
        lambda t: 22.0,
        lambda t: min(22.0, 2 * t),  # a model is loaded, and stays
        lambda t: 20.0 + 3 * (t % 10 < 5),  # a step's activations come and go
        lambda t: 22.0 - t / 100,
        lambda t: 20.0 + t / 10000,
    ],
    ids=["steady", "loaded", "steps", "shrinks", "hardly"],
)
def test_what_is_no_growth_is_not_told(held: Held) -> None:
    assert seen(600, 24, {42: held}) == []


def test_each_card_is_told_of_once_in_ten_minutes() -> None:
    warnings = seen(1500, 24, {42: lambda t: 20 + t / 1000}, {43: lambda t: 4.0})
    assert [growth.card for _, growth in warnings] == []
    warnings = seen(1500, 24, {42: lambda t: 20 + t / 300}, {43: lambda t: 20 + t / 300})
    assert [growth.card for _, growth in warnings] == [0, 1]


def test_a_card_without_memory_of_its_own_and_hidden_processes_are_left_alone() -> None:
    watch = CardWatch()
    unified = gpu.query_nvml(FakeNvml({"compute": [(42, GIB)]}), wsl=False).gpus
    hidden = gpu.query_nvml(FakeNvml({"memory": (24 * GIB, GIB), "compute": [(42, None)]}), wsl=True).gpus
    for t in range(0, 60, 2):
        assert watch.look(float(t), unified) == [] and watch.look(float(t), hidden) == []


def test_processes_that_have_ended_are_forgotten() -> None:
    watch = CardWatch()
    for t in range(2000):
        cards = gpu.query_nvml(FakeNvml({"memory": (24 * GIB, GIB), "compute": [(t, GIB)]}), wsl=False).gpus
        watch.look(float(t), cards)
    assert len(watch._points) == 1


GROWTH = CardGrowth(0, 42, 14 * GIB, 3 * GIB, 20.0, 1200 * MIB, 24 * GIB, 8.0, {})


def test_one_message_says_job_figure_time_left_and_what_to_type() -> None:
    assert warning(GROWTH, "python train.py", "20261116-a", []) == (
        "GPU 0 is getting full: 1.2 GiB of 24.0 GiB free; python train.py (pid 42) grew by 3.0 GiB in 20 s to 14.0 GiB and will at this "
        "rate be refused more (CUDA out of memory) in about 8.0 s; move it off the card for now: oomproof pause 20261116-a --gpu; "
        "or save first: oomproof save 20261116-a"
    )
    assert "oomproof run --gpu-share" in warning(GROWTH, "python train.py", "", [])


def test_who_sits_on_memory_is_named_first() -> None:
    paused, idle = CardHolder("paused", 9 * GIB, paused=True), CardHolder("idle", 8 * GIB, idle=6 * GIB)
    assert what_to_type("mine", [idle, paused]) == (
        "paused is paused and holds 9.0 GiB there; give it back: oomproof pause paused --gpu"
    )
    said = what_to_type("mine", [idle, CardHolder("busy", 9 * GIB)])
    assert said.startswith("idle keeps 6.0 GiB reserved that it does not use (oomproof run --release auto")
    assert "oomproof pause mine --gpu" in said
    assert "reserved" not in what_to_type("mine", [CardHolder("busy", 9 * GIB, idle=100 * MIB)])


def test_a_run_that_keeps_what_it_does_not_use_is_asked_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    attempts = {name: Attempt(tmp_path / name) for name in ("idle", "paused", "busy")}
    for attempt in attempts.values():
        attempt.agent_folder.mkdir(parents=True)

    def find(name: str) -> SimpleNamespace:
        if name not in attempts:
            raise OomproofError("no such run")
        return SimpleNamespace(attempt=attempts[name])

    monkeypatch.setattr(run_folders, "find", find)
    holders = [
        CardHolder("idle", 8 * GIB, idle=6 * GIB),
        CardHolder("paused", 8 * GIB, paused=True, idle=6 * GIB),
        CardHolder("busy", 8 * GIB, idle=100 * MIB),
        CardHolder("ended", 8 * GIB, idle=6 * GIB),
    ]
    assert card_runs.ask_for_idle(holders) == ["idle"]
    assert [
        name for name, attempt in attempts.items() if (attempt.agent_folder / RELEASE_REQUEST).exists()
    ] == ["idle"]
    said = what_to_type("mine", [holders[0], holders[2]], ["idle"])
    assert said.startswith(
        "asked to give back what it keeps reserved and does not use: idle (6.0 GiB); move it"
    )


def test_what_a_job_told_of_its_allocator() -> None:
    told = [
        {"pid": 1, "device": 0, "reserved": 9, "returnable": 8},
        {"pid": 1, "device": 0, "reserved": 5 * GIB, "returnable": 3 * GIB},
        {"pid": 2, "device": 0, "reserved": 2 * GIB, "returnable": GIB},
        {"pid": 3, "device": 0, "reserved": 40 * GIB, "returnable": 0},  # one small tensor in a large segment
        {"pid": 3, "device": 1, "returnable": "much"},
        {"pid": 4, "device": 1, "reserved": 2 * GIB},
    ]
    assert idle_bytes(told) == 4 * GIB, "of each the newest"
    assert idle_bytes([]) == 0


def test_a_process_below_a_runs_own_belongs_to_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real child, as a worker that holds the card."""
    monkeypatch.setattr(card_runs, "idle_of", lambda run: 9 * GIB)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        runs = [
            Live("000000000001000-mine", pid=os.getpid(), paused=BY_GUARD),
            Live("000000000002000-other", pid=1 << 30),
        ]
        held = holders_of({child.pid: 3 * GIB, 1: GIB}, runs)
        assert held == {child.pid: CardHolder("mine", 3 * GIB, True, 3 * GIB)}, (
            "idle is at most what it holds there"
        )
        assert child.stdin is not None
        child.stdin.close()


def test_the_guard_of_the_machine_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From reading to message, with this process as the job on the card."""
    told: list[tuple[str, str]] = []
    heard, clock = threading.Event(), SimpleNamespace(t=0.0)

    def tell(kind: str, text: str, key: Any) -> None:
        told.append((kind, text))
        heard.set()

    def cards() -> tuple[gpu.Gpu, ...]:
        held = int((20 + clock.t / 10) * GIB)
        return gpu.query_nvml(FakeNvml({"memory": (24 * GIB, 24 * GIB - held), "compute": [(os.getpid(), held)]}), False).gpus  # fmt: skip

    host = SimpleNamespace(
        headroom=lambda: (20 * GIB, 0), stall=lambda t: 0.0, ram=32 * GIB, limit_folder=None
    )
    settings = Settings(margin=5 * GIB, floor=GIB, grace=30.0)
    guard = MachineGuard(
        host, settings, Choice(), tell, BestEffort(pytest.fail), lambda: pytest.fail("?"), cards=cards
    )  # type: ignore[arg-type]
    while clock.t < 30:
        clock.t += guard.step(clock.t)
    guard.close()
    assert heard.wait(10)
    ((kind, text),) = told
    assert kind == "gpu-full" and f"(pid {os.getpid()}) grew by" in text and "CUDA out of memory" in text
