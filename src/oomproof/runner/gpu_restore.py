"""Restores the GPU memory of a job whose guard was killed while it was paused: started by the keeper, a process of its own.

    gpu_restore.py FILE      gpu_paused.json, as the guard left it; removed once the job has its memory again

Standard library only (leaf/start_by_path.py). Prints one JSON line per step, then the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oomproof.leaf.proc_files import boottime, start_time
from oomproof.ledger.gpu_turns import ON, GpuSlot, GpuTurns
from oomproof.machine import cuda_checkpoint
from oomproof.machine.cuda_checkpoint import Answer, Cuda, Driver, Step, say
from oomproof.records import replace

_TRY_AGAIN = 5.0  # seconds between looks for free memory on the card
_UNKNOWN = 1 << 62  # bytes: nobody can tell what is free, so it is tried


def main(arguments: Sequence[str], driver: Driver | None = None) -> int:
    path = arguments[0]
    with open(path, "rb") as file:
        mark: dict[str, Any] = json.load(file)
    pids = [int(pid) for pid, start in mark["pids"] if start_time(int(pid)) == start]
    cards = mark.get("cards") or {}
    turns = _turns(mark.get("turn"), sum(cards.values()))
    began = time.monotonic()
    try:
        driver = driver or Cuda()
    except (OSError, AttributeError) as error:  # no driver, or one that is too old
        return say({"ok": False, "problem": str(error)}) or 1
    answer = _restore(driver, path, pids, cards, turns, cuda_checkpoint.step_lines)
    say(answer._replace(seconds=round(time.monotonic() - began, 3))._asdict())
    # nobody is left to pause it again: the card is its until it ends
    while turns is not None and _alive(pids):
        time.sleep(_TRY_AGAIN)
    return 0 if answer.ok else 1


def _restore(
    driver: Driver, path: str, pids: Sequence[int], cards: dict[str, int], turns: GpuTurns | None, step: Step
) -> Answer:
    """A restore that finds too little memory never works again (304; NVIDIA/cuda-checkpoint, issue 44, and seen on an H200
    with driver 580): so free memory comes first, and runs that take turns on the card must know of this one."""
    while True:
        pids = _alive(pids)
        if not pids or may_go(cards, turns, free_on_cards()):
            answer = cuda_checkpoint.resume(driver, pids, step)
            if answer.ok or answer.lost:
                with contextlib.suppress(FileNotFoundError):  # restored by hand meanwhile
                    os.unlink(path)
                return answer
            if turns is not None:
                turns.gave_back(turns.slot.since)
        time.sleep(_TRY_AGAIN)


def _alive(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def _turns(noted: dict[str, Any] | None, size: int) -> GpuTurns | None:
    """Its place among those that take turns on a card, taken up after its guard. None where there is none any more."""
    if not noted:
        return None
    slot = GpuSlot(**noted["slot"])
    need = None if slot.need is None else max(slot.need, size)
    try:
        return GpuTurns(Path(noted["folder"]), int(noted["card"]), replace(slot, need=need))
    except OSError:
        return None


def may_go(cards: dict[str, int], turns: GpuTurns | None, free: dict[str, int]) -> bool:
    """Whether the memory is free on each card, and it is this run's turn. ``free`` is empty where nobody can tell."""
    if free and any(free.get(card, 0) < size for card, size in cards.items()):
        return False
    if turns is None:
        return True
    try:
        held = sum(slot.used for slot in turns.others() if slot.state == ON)
        capacity = free[str(turns.card)] + held if free else _UNKNOWN
        if not turns.take(capacity, boottime()):
            return False
        turns.update(sum(cards.values()))
    except OSError:  # the folder is gone, and with it everybody's place
        pass
    return True


def free_on_cards() -> dict[str, int]:
    """Index of each card, as nvidia-smi counts them, and its free bytes."""
    import subprocess

    query = ["nvidia-smi", "--query-gpu=index,memory.free", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout
        rows = [line.split(",") for line in text.splitlines()]
        return {row[0].strip(): int(row[1]) << 20 for row in rows}
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}
