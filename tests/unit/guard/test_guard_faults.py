"""The guard acts, whatever breaks around it: each helper fails at every call, the job fills memory, and is ended."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomproof.guard import actuator, freezer, guard_loop, guard_policy, guarded_job, pause_timeouts
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.freezer import Freezer
from oomproof.guard.guard_actions import Actions, TaskThread
from oomproof.guard.guard_loop import Guard
from oomproof.guard.guarded_job import GuardedJob, LatestReading
from oomproof.guard.job_pause import Pause
from oomproof.guard.policy_input import input_of
from oomproof.guard.view import Action, JobView, Settings, View, shortage
from oomproof.leaf.action_kinds import BELOW_MARGIN, HEADROOM_BACK, SIGNAL_CAME, ActionKind, ActionReason
from oomproof.ledger.forecast import LiveClaim
from oomproof.machine import processes
from oomproof.machine.cgroups import JobMemory
from oomproof.machine.clock import boottime
from oomproof.recording import state_files
from oomproof.recording.attempt import Attempt
from oomproof.runner.sampler import AlertThresholds, Sampler
from oomproof.trend.growth import WarmUp
from oomproof.units import GIB, MIB

SETTINGS = Settings(margin=4 * GIB, floor=GIB, grace=30.0)
TICK = 0.1


class Host:
    """Loses what the job takes."""

    mem_total = swap_total = ram = 16 * GIB
    limit_folder = None
    psi = (0, 0)

    def __init__(self, job: Job) -> None:
        self._job = job

    def headroom(self) -> tuple[int, int]:
        return max(0, 6 * GIB - self._job.use), 0

    def stall(self, t: float) -> float:
        return 0.0


class Job:
    """Takes 150 MiB at each look, until it is ended."""

    leader, corrected, reclaim, is_exact, alarm, counts_kills = 4711, 0, None, True, None, True

    def __init__(self) -> None:
        self.use, self.signals, self.killed = 0, [], False
        self.freezer = Freezer(None, list)

    def kernel_kills(self) -> int:
        return 0

    def memory(self, available: int | None = None, headroom: int = 0) -> JobMemory | None:
        if not self.signals and not self.killed:
            self.use += 150 * MIB
        return JobMemory(self.use, 0, 0, 0, 0, self.use)

    def most_charged(self) -> int | None:
        return None

    def settle(self, seconds: float) -> None:
        pass

    def known_pids(self) -> list[int]:
        return [self.leader]

    pids = known_pids

    def pss(self, pids: list[int]) -> dict[int, int]:
        return {}

    def is_gone(self) -> bool:
        return False

    def hears(self, number: int) -> bool:
        return True

    def ask_by_signal(self, number: int) -> bool:
        return self.signal_leader(number)

    def signal_leader(self, number: int) -> bool:
        self.signals.append(number)
        return True

    def kill(self) -> None:
        self.killed = True


class Rows:
    """A recording that takes everything."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def put(self, table: str, row: tuple[Any, ...]) -> None:
        self.rows.append((table, *row))

    def commit_if_due(self) -> None:
        pass

    def event(self, t: float, kind: str, text: str, **data: object) -> None:
        self.rows.append(("event", t, kind, text))


class ByHand(TaskThread):
    """Does a background task when the test says so, or at once."""

    def __init__(self, at_once: bool = True) -> None:
        self.waiting: list[Callable[[], None]] = []
        self._at_once = at_once

    def do(self, task: Callable[[], None]) -> None:
        self.waiting.append(task)
        if self._at_once:
            self.work()

    def work(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class Scene:
    """A guard over a job that fills memory, with a clock of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 1000.0
        for module in (guard_loop, actuator):
            monkeypatch.setattr(module, "boottime", lambda: self.clock)
        self.said: list[str] = []
        self.told: list[str] = []
        self.job, self.rows, self.task_thread = Job(), Rows(), ByHand()
        self.host = Host(self.job)
        self.runtime = folder / "runtime"
        self.runtime.mkdir()
        self.attempt = Attempt(folder / "1")
        self.attempt.folder.mkdir()
        self.live = LiveClaim("me", 1.0, self.runtime)
        self.pause = Pause(self.job, self.attempt, self.task_thread, self.told.append)  # type: ignore[arg-type]
        self.guard_with(SETTINGS, self.live)

    def guard_with(self, settings: Settings, live: LiveClaim | None) -> None:
        best_effort = BestEffort(self.told.append)
        self.guarded = GuardedJob(
            self.job,  # type: ignore[arg-type]
            settings,
            Actions(self.job, self.attempt, self.task_thread, [self.attempt / "stop"]),  # type: ignore[arg-type]
            self.pause,
            self.rows,  # type: ignore[arg-type]
            live,
            lambda kind, why: self.said.append(kind),
            best_effort,
        )
        self.guard = Guard(self.host, [self.guarded], best_effort)  # type: ignore[arg-type]
        # no processes but the job's: what grows on the machine that runs the test is none of this scene
        self.guard._unmanaged.growth._proc = str(self.runtime)

    @property
    def done(self) -> Any:
        """What the guard believes to have done."""
        return self.guard._state.get(self.guarded.name, guard_policy.NEW).done

    def steps(self, count: int = 50) -> None:
        for _ in range(count):
            self.clock += TICK
            self.guard.step(self.clock)

    def close(self) -> None:
        self.guard.close()
        self.live.leave()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Scene(tmp_path, monkeypatch)
    yield made
    made.close()


def broken(*_: object, **__: object) -> Any:
    raise RuntimeError("broken for the test")


def acted(scene: Scene) -> bool:
    return bool(scene.job.signals or scene.job.killed)


def test_the_scene_itself_calls_for_an_action(scene: Scene) -> None:
    scene.steps()
    assert acted(scene) and scene.told == []
    assert "term" in scene.said or "kill" in scene.said
    assert {"host", "job"} <= {row[0] for row in scene.rows.rows}


BREAKS: dict[str, Callable[[Scene], object]] = {
    "the other runs": lambda scene: setattr(scene.live, "others", broken),
    "telling them": lambda scene: setattr(scene.live, "update", broken),
    "the latch": lambda scene: setattr(scene.live, "take_latch", broken),
    "all of live": lambda scene: scene.live.__dict__.update(others=broken, update=broken, take_latch=broken),
    "rows": lambda scene: setattr(scene.rows, "put", broken),
    "events": lambda scene: setattr(scene.rows, "event", broken),
    "unmanaged jobs": lambda scene: setattr(scene.guard._unmanaged.growth, "look", broken),
    "pauses by hand": lambda scene: setattr(scene.pause, "look", broken),
    "the forecast": lambda scene: setattr(guarded_job.growth, "time_to_full", broken),
    "pressure": lambda scene: setattr(scene.host, "stall", broken),
    "shared pages": lambda scene: setattr(scene.job, "settle", broken),
    "the terminal": lambda scene: setattr(scene.guarded, "say", broken),
}


@pytest.mark.parametrize("what", BREAKS)
def test_it_acts_and_says_once_what_is_broken(
    scene: Scene, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        guarded_job.growth, "time_to_full", guarded_job.growth.time_to_full
    )  # put back afterwards
    BREAKS[what](scene)
    scene.steps()
    assert acted(scene)
    assert len(scene.told) == 1 and "broken for the test" in scene.told[0], scene.told
    if "put" not in scene.rows.__dict__:
        rows = [row for row in scene.rows.rows if row[0] == "job"]
        assert len(rows) > 5, "the recording goes on"


def test_errands_that_fail_cost_only_themselves(scene: Scene) -> None:
    told: list[str] = []
    task_thread = TaskThread(told.append)
    done = threading.Event()
    for _ in range(5):
        task_thread.do(broken)
    task_thread.do(done.set)
    assert done.wait(10), "the thread lives"
    assert len(told) == 1 and "broken for the test" in told[0]
    task_thread.close()


def test_without_a_thread_errands_are_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        task_thread = TaskThread()
        done: list[int] = []
        task_thread.do(lambda: done.append(1))
        assert done == [1]
    ready = threading.Event()
    task_thread.do(ready.set)  # threads can be had again
    assert ready.wait(10)
    task_thread.close()


def test_the_machine_unreadable_leaves_the_limit(scene: Scene) -> None:
    limited = Settings(margin=4 * GIB, floor=GIB, grace=30.0, limit=2 * GIB, limit_floor=20 * MIB)
    scene.guard_with(limited, scene.live)
    scene.host.headroom = broken  # type: ignore[method-assign]
    scene.steps()
    assert acted(scene) and len(scene.told) == 1
    assert "only the job's own limit is guarded" in scene.told[0]


def test_the_machine_unreadable_ends_nobody_without_a_limit(scene: Scene) -> None:
    scene.host.headroom = broken  # type: ignore[method-assign]
    scene.steps()
    assert not acted(scene), "unknown is not full"


@pytest.mark.parametrize("answer", [broken, lambda *_: None])
def test_a_job_that_cannot_be_read_is_no_job_that_has_gone(scene: Scene, answer: Any) -> None:
    scene.steps(5)
    rows = len(scene.rows.rows)
    scene.job.memory = answer
    scene.host.headroom = lambda: (100 * MIB, 0)  # type: ignore[method-assign]
    scene.steps(20)
    assert len(scene.told) == 1 and "uses its last reading" in scene.told[0]
    assert scene.said and len(scene.rows.rows) > rows, "it warns, and the recording goes on"


def test_a_vanished_runtime_folder_and_its_return(scene: Scene) -> None:
    """At the logout of a root ssh session the runtime folder goes; at the next login it comes back."""
    away = scene.runtime.rename(scene.runtime.parent / "away")
    scene.steps(120)
    assert acted(scene)
    assert len(scene.told) == 1 and "does not take your other runs into account" in scene.told[0], scene.told
    scene.runtime.mkdir()
    scene.steps(120)
    assert (scene.runtime / "live" / scene.live.name).exists(), "it has joined the others again"
    assert (scene.runtime / "forecast" / "me").stat().st_size > 0
    assert len(scene.told) == 1
    assert away.exists()


def test_a_folder_that_comes_back_as_another_is_joined(scene: Scene) -> None:
    scene.steps(20)
    scene.runtime.rename(scene.runtime.parent / "away")
    scene.runtime.mkdir()
    scene.steps(120)
    other = LiveClaim("other", 2.0, scene.runtime)
    assert [one.id for one in other.others(scene.clock)] == ["me"]
    other.leave()


def test_a_full_runtime_folder(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("oomproof.ledger.live_runs.os.pwrite", full)
    scene.steps()
    assert (
        acted(scene)
        and len(scene.told) == 1
        and "does not take your other runs into account" in scene.told[0]
    )


def test_no_runtime_folder_at_the_start(tmp_path: Path) -> None:
    live = LiveClaim("me", 1.0, tmp_path / "none")
    with pytest.raises(OSError):
        live.update(1, 10.0)
    with pytest.raises(OSError):
        live.others(10.0)
    (tmp_path / "none").mkdir()
    live.update(1, 20.0)
    assert live.others(20.0) == []
    live.leave()


def test_what_is_read_from_every_process_is_not_read_at_every_row(scene: Scene) -> None:
    """The throttles once counted with a deque of 600 rows: full, it never moved again."""
    scene.guarded.growth._history = deque(maxlen=10)
    scene.job.signals.append(0)  # it takes no more
    scene.host.headroom = lambda: (3 * GIB, 0)  # type: ignore[method-assign]  # below the margin, above the floor
    scans: list[float] = []
    looks: list[float] = []
    scene.guard._unmanaged.growth.look = lambda *_: scans.append(scene.clock)  # type: ignore[method-assign]
    scene.pause.look = lambda: looks.append(scene.clock)  # type: ignore[method-assign]
    scene.steps(600)
    rows = [row for row in scene.rows.rows if row[0] == "job"]
    assert len(rows) > 100
    assert len(scans) < len(rows) / 2 and len(scans) >= 10
    assert len(looks) < len(rows) / 2 and len(looks) >= 10


def test_the_loop_goes_on_after_a_step_that_raises(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    enough = threading.Event()
    count = 0

    def step(t: float) -> None:
        nonlocal count
        count += 1
        if count == 3:
            enough.set()
        raise MemoryError

    scene.guard.step = step  # type: ignore[method-assign]
    scene.guard.start()
    assert enough.wait(20)
    scene.guard.stop()
    assert len(scene.told) == 1


def test_without_a_descriptor_for_its_wake_up_it_looks_as_often(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It then looked every 100 ms: with 26 descriptors the kernel was first in 7 of 12 runs, with 64 in none."""
    monkeypatch.setattr(guard_loop, "_pipe", lambda: (None, None))
    scene.guard_with(SETTINGS, scene.live)
    waits: list[float] = []
    monkeypatch.setattr(scene.guard._stopping, "wait", waits.append)
    view = scene.guard.step(scene.clock)
    assert scene.guard._sleep(view)
    assert waits == [scene.guard.seconds_to_next_look(view, scene.clock)]


def test_the_sampler_tells_no_kills_of_before_it_came(scene: Scene) -> None:
    """`oomproof watch` comes to a job whose kills its first guard has told."""
    kills: list[int] = [2]
    alerts: list[tuple[str, str]] = []
    scene.job.kernel_kills = lambda: kills[0]  # type: ignore[method-assign]
    sampler = Sampler(
        scene.job,
        LatestReading(),
        Rows(),  # type: ignore[arg-type]
        None,
        AlertThresholds(),
        lambda kind, text: alerts.append((kind, text)),
        WarmUp(),
        "none",
    )
    sampler._look_at_kills(1.0, [])
    assert not alerts
    kills[0] = 3
    sampler._look_at_kills(2.0, [])
    [(kind, text)] = alerts
    assert kind == "worker-killed" and "(3 so far)" in text


def test_the_sampler_survives_anything(scene: Scene) -> None:
    rows = Rows()
    moment = LatestReading(sample_seconds=0.05)
    sampler = Sampler(scene.job, moment, rows, None, AlertThresholds(), lambda *_: None, WarmUp(), "none")  # type: ignore[arg-type]
    enough = threading.Event()
    calls = 0

    def pids() -> list[int]:
        nonlocal calls
        calls += 1
        if calls >= 3:
            enough.set()
            return [os.getpid()]
        raise RuntimeError("broken for the test")

    scene.job.known_pids = pids  # type: ignore[method-assign]
    sampler.start()
    assert enough.wait(20)
    sampler.stop()
    troubles = [row for row in rows.rows if row[:1] == ("event",) and row[2] == "trouble"]
    assert len(troubles) == 1 and "broken for the test" in troubles[0][3]


def test_a_dear_walk_over_page_tables_does_not_blind_the_sampler(scene: Scene) -> None:
    """It counted against the samples' own share: half a minute without one, while two workers filled the limit."""
    sampler = Sampler(
        scene.job, LatestReading(), Rows(), None, AlertThresholds(), lambda *_: None, WarmUp(), "none"
    )  # type: ignore[arg-type]

    def walk(samples: object) -> dict[int, int]:
        ends = time.thread_time() + 0.2
        while time.thread_time() < ends:
            pass
        return {}

    scene.job.known_pids = lambda: [os.getpid()]  # type: ignore[method-assign]
    scene.job.shared = walk  # type: ignore[attr-defined]
    begun = boottime()
    assert sampler._take_sample() < 0.1
    assert begun + 10 < sampler._soonest_pss < boottime() + 60, "the walk itself is bounded as before"


def test_a_message_that_nobody_heard_is_told_again() -> None:
    heard: list[str] = []
    deaf = [True]

    def tell(text: str) -> None:
        if deaf[0]:
            raise OSError("the terminal has gone")
        heard.append(text)

    attempt = BestEffort(tell)
    for _ in range(3):
        assert attempt("reading", broken, 7) == 7
    deaf[0] = False
    for _ in range(3):
        attempt("reading", broken, 7)
    assert len(heard) == 1


# --- pauses that cross each other -------------------------------------------------------------------------------------


class Still(Freezer):
    """Remembers what it was asked, as a cgroup does."""

    how = "cgroup v2 freezer"

    def __init__(self) -> None:
        self.paused = self._asked = False

    def pause(self) -> bool:
        self.paused = self._asked = True
        return True

    def resume(self) -> bool:
        self.paused = self._asked = False
        return True

    def is_paused(self) -> bool:
        return self.paused

    def resumed_by_others(self) -> bool:
        return self._asked and not self.paused


def begin(scene: Scene) -> None:
    """The guard pauses."""
    carry_out(scene, "pause", BELOW_MARGIN)


def end(scene: Scene) -> None:
    carry_out(scene, "resume", HEADROOM_BACK)


def carry_out(scene: Scene, kind: ActionKind, reason: ActionReason) -> None:
    guard, name = scene.guard, scene.guarded.name
    view = guard._reader.read(scene.clock)
    state = guard._state.setdefault(name, guard_policy.NEW)
    facts, _ = input_of(SETTINGS, view, view.jobs[0], state)
    guard._carry_out(
        [
            Action(
                kind,
                reason,
                {**shortage(facts), "margin": 1, "waited": 1.0},
                "machine",
                job=name,
                facts=facts,
            )
        ]
    )


@pytest.fixture
def pausing_scene(scene: Scene) -> Scene:
    scene.task_thread._at_once = False
    scene.job.freezer = Still()
    scene.job.signals.append(0)  # it takes no more
    scene.guard_with(SETTINGS, None)
    return scene


def still_paused(scene: Scene) -> bool:
    """By the guard's own knowledge and in truth alike; anything else would stay so for good."""
    knows = scene.done.paused_at is not None
    assert knows == scene.job.freezer.is_paused(), "the guard believes what is not so"
    assert (scene.pause.by == "guard") == knows
    return knows


def rows(scene: Scene, count: int = 3) -> None:
    for _ in range(count):
        scene.clock += 1.1
        scene.guard.step(scene.clock)


def test_a_late_removal_of_the_old_mark_is_no_thaw_of_the_new_pause(pausing_scene: Scene) -> None:
    scene = pausing_scene
    begin(scene)
    scene.task_thread.work()
    rows(scene, 2)
    end(scene)  # its mark is still there: the disk is slow
    begin(scene)
    marks = scene.task_thread.waiting
    scene.task_thread.waiting = []
    marks.pop(0)()  # now the old mark goes
    rows(scene, 2)
    assert still_paused(scene)
    for late in marks:
        late()
    rows(scene, 2)
    assert still_paused(scene)
    assert state_files.read_json(scene.attempt.paused_file)["by"] == "guard"
    scene.attempt.paused_file.unlink()  # the user's thaw, of this very pause
    rows(scene, 2)
    assert not still_paused(scene)


def test_a_mark_that_is_written_and_removed_between_two_looks(pausing_scene: Scene) -> None:
    scene = pausing_scene
    begin(scene)
    scene.task_thread.work()
    scene.attempt.paused_file.unlink()
    rows(scene, 2)
    assert not still_paused(scene)


def test_a_thaw_from_outside_is_noticed_where_no_mark_could_be_written(pausing_scene: Scene) -> None:
    scene = pausing_scene
    begin(scene)
    scene.task_thread.waiting.clear()  # a full disk
    rows(scene, 2)
    assert still_paused(scene)
    scene.job.freezer.paused = False  # type: ignore[attr-defined]
    rows(scene, 2)
    assert not still_paused(scene)


def test_a_pause_by_hand_is_not_undone_by_the_guards_thaw(pausing_scene: Scene) -> None:
    scene = pausing_scene
    begin(scene)
    scene.task_thread.work()
    freezer.write_mark(scene.attempt, "user", "oomproof pause")  # before the guard has looked
    end(scene)
    scene.task_thread.work()
    assert scene.pause.by == "hand" and scene.job.freezer.is_paused()
    assert freezer.read_mark(scene.attempt)["by"] == "user"


@pytest.mark.parametrize("paused_before", [False, True])
def test_a_job_that_moves_its_gpu_memory_for_a_pause_by_hand_is_not_frozen_meanwhile(
    pausing_scene: Scene, paused_before: bool
) -> None:
    """Seen on a card: the guard froze the job in the middle, and the driver waited for its threads until a deadline."""
    scene = pausing_scene
    if paused_before:
        begin(scene)
        scene.task_thread.work()
    freezer.write_mark(scene.attempt, "user", "oomproof pause", pause="one", moving=True)
    scene.job.freezer.resume()  # as `oomproof pause --gpu` does before it asks the driver
    rows(scene, 6)
    scene.task_thread.work()
    assert scene.pause.by == "hand" and not scene.job.freezer.is_paused()
    freezer.write_mark(scene.attempt, "user", "oomproof pause", pause="one")
    scene.job.freezer.pause()
    rows(scene, 6)
    scene.task_thread.work()
    assert scene.pause.by == "hand" and scene.job.freezer.is_paused()


@pytest.mark.parametrize("in_between", [False, True])
def test_a_job_whose_gpu_memory_is_restored_is_not_frozen_again(
    pausing_scene: Scene, in_between: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a card: paused and resumed at once by hand, seen by the guard only while the driver moved the memory back."""
    scene = pausing_scene
    freezer.write_mark(scene.attempt, "user", "oomproof pause", pause="one")
    scene.job.freezer.pause()

    def resume() -> bool:
        freezer.mark_moving(scene.attempt, True)
        scene.job.freezer.resume()
        return False

    if in_between:  # the guard has read the mark, and looks whether the job is frozen
        monkeypatch.setattr(scene.job.freezer, "is_paused", resume)
    else:
        resume()
    rows(scene, 6)
    scene.task_thread.work()
    monkeypatch.undo()
    assert scene.pause.by == "hand" and not scene.job.freezer.is_paused()
    freezer.remove_mark(scene.attempt, "one")
    rows(scene, 6)
    assert scene.pause.by == "" and not scene.job.freezer.is_paused()


def test_a_pause_by_hand_that_crosses_the_thaw_itself(pausing_scene: Scene) -> None:
    scene = pausing_scene
    begin(scene)
    scene.task_thread.work()
    take = scene.guarded.actions.take

    def crossed(*arguments: Any, **more: Any) -> None:
        freezer.write_mark(scene.attempt, "user", "oomproof pause")
        scene.job.freezer.pause()
        take(*arguments, **more)

    scene.guarded.actions.take = crossed  # type: ignore[method-assign]
    end(scene)
    scene.task_thread.work()
    rows(scene, 2)
    assert scene.pause.by == "hand" and scene.job.freezer.is_paused()
    assert freezer.read_mark(scene.attempt)["by"] == "user"


def test_the_guards_late_mark_does_not_replace_the_users(pausing_scene: Scene) -> None:
    scene = pausing_scene
    begin(scene)
    freezer.write_mark(scene.attempt, "user", "oomproof pause")
    scene.task_thread.work()
    rows(scene, 2)
    assert scene.pause.by == "hand"
    assert freezer.read_mark(scene.attempt)["by"] == "user"


def test_a_job_paused_by_hand_whose_folder_is_removed_goes_on(pausing_scene: Scene) -> None:
    scene = pausing_scene
    freezer.write_mark(scene.attempt, "user", "oomproof pause")
    scene.job.freezer.pause()
    rows(scene, 4)
    assert scene.pause.by == "hand"
    scene.attempt.paused_file.unlink()
    scene.attempt.folder.rmdir()
    rows(scene, 4)
    assert scene.pause.by == "" and not scene.job.freezer.is_paused()


def test_what_was_found_about_an_old_pause_does_not_bound_the_new_one(
    pausing_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = pausing_scene
    found = [SimpleNamespace(seconds=60.0, text="NCCL")]
    monkeypatch.setattr(pause_timeouts, "look", lambda *_: found)
    begin(scene)
    first, scene.task_thread.waiting = scene.task_thread.waiting, []
    end(scene)
    begin(scene)
    for late in first:
        late()
    assert scene.pause.limit is None and scene.told == []


def test_let_go_and_the_guards_pause_do_not_cross(pausing_scene: Scene) -> None:
    """A signal comes for a job that is paused: it goes on, and the guard knows."""
    scene = pausing_scene
    begin(scene)
    scene.task_thread.work()
    scene.guard.let_go(scene.guarded, SIGNAL_CAME, {"signal": "SIGINT"})
    rows(scene, 2)
    assert not still_paused(scene)


def test_pause_thaw_pause_of_a_real_process_with_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By signals, as without cgroups: whatever the order of marks on disk, it is paused or runs as the guard believes."""
    sleeper = subprocess.Popen(["sleep", "300"])
    scene = Scene(tmp_path, monkeypatch)
    scene.task_thread._at_once = False
    scene.job.freezer = Freezer(None, lambda: [sleeper.pid])
    scene.job.signals.append(0)
    scene.guard_with(SETTINGS, None)

    def is_paused() -> bool:
        fields = processes.stat_fields(sleeper.pid)
        return fields is not None and fields[0] == b"T"

    def becomes(still: bool) -> None:
        end = time.monotonic() + 10
        while is_paused() != still:
            assert time.monotonic() < end
            time.sleep(0.005)

    try:
        for order in itertools.permutations(range(3)):
            begin(scene)
            end(scene)
            begin(scene)
            waiting, scene.task_thread.waiting = scene.task_thread.waiting, []
            # three groups of background tasks: what belongs to the first pause, its end, and what belongs to the second
            groups = [waiting[:2], waiting[2:4], waiting[4:]]
            for number in order:
                for task in groups[number]:
                    task()
                rows(scene, 1)
            becomes(still=scene.done.paused_at is not None)
            end(scene)
            scene.task_thread.work()
            rows(scene, 1)
            becomes(still=False)
            assert scene.pause.by == "" and not scene.attempt.paused_file.exists()
            scene.guard._state.clear()
    finally:
        sleeper.kill()
        sleeper.wait()
        scene.close()


@pytest.mark.parametrize("paused", ["guard", ""])
def test_what_a_run_took_as_it_started_or_before_its_pause_is_no_growth_to_come(paused: str) -> None:
    """Seen in replays: the training was asked to stop for what the loader had taken, which was paused a moment before
    or had just started and held too little yet to be its turn."""
    me = JobView("1-me", use=1 << 30)
    view = View(1000.0, 100 * MIB, 0, 0.0, 50e6, 50e6, (me,))
    state = {me.name: guard_policy.NEW}

    def drain(view: View) -> float:
        nonlocal state
        facts, _ = input_of(SETTINGS, view, me, state[me.name])
        _, state = guard_policy.decide({me.name: SETTINGS}, view, state)
        return facts.drain

    assert drain(view) == 50e6
    beside = replace(view, others=(JobView("9-loader", use=1 << 20, paused=paused),))
    assert drain(beside) == 0.0
    assert drain(replace(beside, t=view.t + 4.0)) == 0.0
    assert drain(replace(beside, t=view.t + 6.0)) == 50e6
