"""A job that lost its guard while its GPU memory was in host memory: restored when there is memory, and when it is its turn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from oomproof.leaf.proc_files import start_time
from oomproof.ledger.gpu_turns import ON, WAITING, GpuSlot, GpuTurns, decide
from oomproof.machine import cuda_checkpoint as cc
from oomproof.runner import gpu_restore
from oomproof.units import GIB


def at(run: str, state: str, since: float, need: int | None = 10 * GIB, used: int = 0) -> GpuSlot:
    return GpuSlot(run, state, since, need, used, 10.0)


class Card:
    """Checkpointed processes, and a driver that restores them."""

    def __init__(self, *pids: int) -> None:
        self.states = dict.fromkeys(pids, cc.CHECKPOINTED)

    def state(self, pid: int) -> tuple[int, int]:
        return cc.SUCCESS, self.states[pid]

    def restore(self, pid: int) -> int:
        self.states[pid] = cc.LOCKED
        return cc.SUCCESS

    def unlock(self, pid: int) -> int:
        self.states[pid] = cc.RUNNING
        return cc.SUCCESS


def test_asked_for_only_when_there_is_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked once without it, the driver never restores it: so it must not be asked."""
    me = os.getpid()
    card = Card(me)
    mark = tmp_path / "gpu_paused.json"
    mark.write_text(json.dumps({"pids": [[me, start_time(me)]], "cards": {"0": 8 * GIB}}))
    answers = iter([{"0": 2 * GIB}, {"1": 80 * GIB}, {"0": 9 * GIB}])
    asked: list[int] = []
    monkeypatch.setattr(gpu_restore, "free_on_cards", lambda: next(answers))
    monkeypatch.setattr(gpu_restore.time, "sleep", lambda _: asked.append(card.states[me]))
    assert gpu_restore.main([str(mark)], card) == 0  # type: ignore[arg-type]
    assert asked == [cc.CHECKPOINTED, cc.CHECKPOINTED], "it was left alone while there was no memory"
    assert card.states[me] == cc.RUNNING and not mark.exists()


def test_it_takes_its_turn(tmp_path: Path) -> None:
    """The guard was killed while its job waited for the card: whoever restores it must not meet another's restore."""
    mine = GpuTurns(tmp_path, 0, at("a", ON, 0))
    noted = mine.noted(5.0)
    os.close(mine._fd)  # killed
    other = GpuTurns(tmp_path, 0, at("b", ON, 1, used=2 * GIB))
    turns = gpu_restore._turns(noted, 9 * GIB)
    assert turns is not None
    assert [slot.run for slot in other.others()] == ["a"], "the others see that it waits"

    def goes(free: dict[str, int]) -> bool:
        return gpu_restore.may_go({"0": 9 * GIB}, turns, free)

    assert not goes({"0": 16 * GIB}), "b has not yet taken all that it needs"
    other.update(10 * GIB)
    assert not goes({"0": 8 * GIB}) and not goes({"1": 80 * GIB})
    earlier = GpuTurns(tmp_path, 0, at("c", WAITING, 4, GIB))
    assert not goes({"0": 16 * GIB}), "c waits longer"
    earlier.leave()
    assert goes({"0": 16 * GIB})
    (slot,) = other.others()
    assert (slot.run, slot.state, slot.used) == ("a", ON, 9 * GIB)
    assert decide(at("d", WAITING, 6), other.others(), 16 * GIB, 7) == "wait"
    turns.gave_back(5.0)
    shutil.rmtree(tmp_path / "gpu-0")
    assert goes({"0": 9 * GIB}) and not goes({"0": 8 * GIB}), "without their folder free memory alone decides"


def test_an_unknown_need_waits_for_an_empty_card_with_its_memory_free(tmp_path: Path) -> None:
    noted = {
        "folder": str(tmp_path),
        "card": 0,
        "slot": {"run": "a", "state": WAITING, "since": 5.0, "need": None},
    }
    turns = gpu_restore._turns(noted, 9 * GIB)
    other = GpuTurns(tmp_path, 0, at("b", ON, 1, GIB, used=GIB))
    assert not gpu_restore.may_go({"0": 9 * GIB}, turns, {"0": 80 * GIB})
    other.leave()
    assert not gpu_restore.may_go({"0": 9 * GIB}, turns, {"0": 8 * GIB}), "an unmanaged process holds it"
    assert gpu_restore.may_go({"0": 9 * GIB}, turns, {"0": 10 * GIB})


def test_its_place_is_held_until_the_job_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = GpuTurns(tmp_path, 0, at("a", ON, 0))
    job = subprocess.Popen(["sleep", "60"])
    card = Card(job.pid)
    mark = tmp_path / "gpu_paused.json"
    pids = [[job.pid, start_time(job.pid)]]
    mark.write_text(json.dumps({"pids": pids, "cards": {"0": 9 * GIB}, "turn": mine.noted(5.0)}))
    os.close(mine._fd)
    other = GpuTurns(tmp_path, 0, at("b", WAITING, 9))
    seen: list[tuple[str, bool]] = []

    def sleep(_: float) -> None:
        seen.extend((slot.state, mark.exists()) for slot in other.others())
        job.kill()
        job.wait()

    monkeypatch.setattr(gpu_restore, "free_on_cards", lambda: {"0": 12 * GIB})
    monkeypatch.setattr(gpu_restore.time, "sleep", sleep)
    assert gpu_restore.main([str(mark)], card) == 0  # type: ignore[arg-type]
    assert seen == [(ON, False)] and card.states[job.pid] == cc.RUNNING
