"""Pausing a CUDA job with its memory given back: all processes or none, and nobody left locked.

CI has no card: a driver with the states and results that an H200 gave (tests/gpu/pause.py asks the real one) stands in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.guard.gpu_pause import GpuPause, host_memory_problem
from oomproof.machine import cuda_checkpoint as cc
from oomproof.machine.gpu import Gpu
from oomproof.recording.attempt import Attempt
from oomproof.units import GIB


class Card:
    """Processes in their states; ``fails`` names calls that fail, as (call, pid) → result."""

    def __init__(self, pids: Sequence[int], fails: dict[tuple[str, int], int] | None = None) -> None:
        self.states = dict.fromkeys(pids, cc.RUNNING)
        self.fails = fails or {}

    def state(self, pid: int) -> tuple[int, int]:
        return (cc.SUCCESS, self.states[pid]) if pid in self.states else (cc.NOT_INITIALIZED, -1)

    def _do(self, what: str, pid: int, before: int, after: int) -> int:
        if pid not in self.states:
            return cc.NOT_INITIALIZED
        if (what, pid) in self.fails:
            return self.fails[what, pid]
        if self.states[pid] != before:
            return 401
        self.states[pid] = after
        return cc.SUCCESS

    def lock(self, pid: int, seconds: float) -> int:
        return self._do("lock", pid, cc.RUNNING, cc.LOCKED)

    def checkpoint(self, pid: int) -> int:
        return self._do("checkpoint", pid, cc.LOCKED, cc.CHECKPOINTED)

    def restore(self, pid: int) -> int:
        return self._do("restore", pid, cc.CHECKPOINTED, cc.LOCKED)

    def unlock(self, pid: int) -> int:
        return self._do("unlock", pid, cc.LOCKED, cc.RUNNING)


def nothing(what: str, pid: int, result: int, seconds: float) -> None: ...


PIDS = (2**22 + 11, 2**22 + 12, 2**22 + 13)  # above any pid of a machine


def test_all_stand_still_before_the_first_is_moved() -> None:
    card, seen = Card(PIDS), []
    assert cc.pause(card, PIDS, lambda what, pid, *_: seen.append(what)).ok
    assert seen == ["lock"] * 3 + ["checkpoint"] * 3
    assert set(card.states.values()) == {cc.CHECKPOINTED}
    assert cc.resume(card, PIDS, nothing).ok
    assert set(card.states.values()) == {cc.RUNNING}


@given(st.sampled_from(["lock", "checkpoint"]), st.sampled_from(PIDS), st.sampled_from([2, 600, 801, 999]))
def test_one_that_fails_leaves_all_running(call: str, pid: int, result: int) -> None:
    card = Card(PIDS, {(call, pid): result})
    answer = cc.pause(card, PIDS, nothing)
    assert not answer.ok
    assert str(pid) in (answer.problem or "")
    assert set(card.states.values()) == {cc.RUNNING}


def test_no_room_for_one_gives_back_what_the_others_took_and_can_be_tried_again() -> None:
    card = Card(PIDS)
    cc.pause(card, PIDS, nothing)
    card.fails = {("restore", PIDS[1]): cc.OUT_OF_MEMORY}
    answer = cc.resume(card, PIDS, nothing)
    assert "not enough memory" in (answer.problem or "")
    assert set(card.states.values()) == {cc.CHECKPOINTED}
    card.fails = {}
    assert cc.resume(card, PIDS, nothing).ok
    assert set(card.states.values()) == {cc.RUNNING}


def test_a_process_that_lost_its_state_is_said_and_the_others_are_unlocked() -> None:
    card = Card(PIDS)
    cc.pause(card, PIDS, nothing)
    card.states[PIDS[0]] = cc.FAILED
    answer = cc.resume(card, PIDS, nothing)
    assert answer.lost == [PIDS[0]]
    assert [card.states[pid] for pid in PIDS[1:]] == [cc.RUNNING] * 2


def test_processes_without_cuda_are_not_touched() -> None:
    card = Card(PIDS[:1])
    assert cc.find(card, PIDS) == {PIDS[0]: cc.RUNNING}


def test_a_stopped_process_is_never_asked() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1
    ) as job:
        assert job.stdout is not None
        job.stdout.readline()
        card = Card([job.pid])
        os.kill(job.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, job.pid, os.WSTOPPED | os.WNOWAIT)
        assert cc.find(card, [job.pid]) == {}
        assert "stopped" in (cc.pause(card, [job.pid], nothing).problem or "")
        assert card.states[job.pid] == cc.RUNNING
        job.kill()


# --- the helper process ----------------------------------------------------------------------------------------


def helper(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "helper.py"
    script.write_text(
        "import json, os, sys, time\nverb, pids = sys.argv[1], [int(p) for p in sys.argv[2:]]\n" + body
    )
    return [sys.executable, str(script)]


def test_a_machine_without_a_driver_says_so() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a driver here: tests/gpu/pause.py is the test for it")
    assert "no CUDA driver" in (cc.ask("find", [os.getpid()], 20).problem or "")


def test_a_driver_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    command = ["sh", "-c", """echo '{"step": "lock", "pid": 7}'; exec sleep 60"""]
    answer = cc.ask("pause", [7], 3.0, command)
    assert not answer.ok
    assert "did not answer within 3 s after lock of process 7" in (answer.problem or "")


@pytest.mark.parametrize("body", ["print('no json')", "sys.exit(3)", "print('[1]')"])
def test_nonsense_from_the_helper_is_a_problem_in_words(tmp_path: Path, body: str) -> None:
    assert "without an answer" in (cc.ask("pause", [7], 20.0, helper(tmp_path, body)).problem or "")


# --- one job -----------------------------------------------------------------------------------------------------


class Asked:
    """The answers of the helper, as the card gives them."""

    def __init__(self, card: Card) -> None:
        self.card, self.verbs = card, []

    def __call__(self, verb: str, pids: Sequence[int], seconds: float) -> cc.Answer:
        self.verbs.append(verb)
        if verb == "find":
            return cc.Answer(True, list(cc.find(self.card, pids)))
        return (cc.pause if verb == "pause" else cc.resume)(self.card, pids, nothing)


def test_word_of_the_pause_stands_on_disk_as_long_as_it_lasts(tmp_path: Path) -> None:
    me = os.getpid()
    asked = Asked(Card([me]))
    pause = GpuPause(Attempt(tmp_path), asked)
    assert pause.give_back([me, PIDS[0]], {0: 5 * GIB}).done
    kept = json.loads(Attempt(tmp_path).gpu_paused_file.read_text())
    assert [pid for pid, _ in kept["pids"]] == [me]
    assert pause.paused
    full = Gpu(0, "card", 8 * GIB, 4 * GIB, 4 * GIB)
    assert "needs 5.0 GiB on GPU 0 and 4.0 GiB are free" in pause.take_back([full]).problem
    assert asked.verbs == ["find", "pause"]  # without room the driver is not even asked
    assert pause.paused
    assert pause.take_back([replace(full, free=6 * GIB)]).done
    assert not pause.paused
    assert asked.card.states == {me: cc.RUNNING}


def test_a_job_that_cannot_be_paused_runs_on_unmarked(tmp_path: Path) -> None:
    me = os.getpid()
    pause = GpuPause(Attempt(tmp_path), Asked(Card([me], {("checkpoint", me): 801})))
    result = pause.give_back([me], {0: GIB})
    assert not result.done
    assert "cannot do it for this process" in result.problem
    assert not pause.paused


def test_a_job_without_cuda_is_left_alone(tmp_path: Path) -> None:
    result = GpuPause(Attempt(tmp_path), Asked(Card([]))).give_back([os.getpid()], {})
    assert result.problem == "none of its processes uses CUDA"
    assert not Attempt(tmp_path).gpu_paused_file.exists()


def test_processes_that_ended_meanwhile_end_the_pause(tmp_path: Path) -> None:
    Attempt(tmp_path).gpu_paused_file.write_text(
        json.dumps({"boot_id": "another", "pids": [[PIDS[0], 1]], "cards": {"0": 1}})
    )
    assert GpuPause(Attempt(tmp_path), Asked(Card([]))).take_back([]).done
    assert not Attempt(tmp_path).gpu_paused_file.exists()


@pytest.mark.parametrize(
    ("size", "available", "limit_left", "word"),
    [
        (10 * GIB, 30 * GIB, None, ""),
        (10 * GIB, 16 * GIB, None, "only 16.0 GiB are available"),
        (10 * GIB, 30 * GIB, 11 * GIB, "its limit leaves 11.0 GiB"),
        (10 * GIB, 30 * GIB, 13 * GIB, ""),
    ],
)
def test_what_the_host_cannot_hold_is_refused(
    size: int, available: int, limit_left: int | None, word: str
) -> None:
    problem = host_memory_problem(size, available, 5 * GIB, limit_left)
    assert (word in problem) if word else problem == ""
