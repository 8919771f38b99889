"""Pauses a job with its GPU memory given back, and resumes it: all its processes or none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from oomproof.machine import cuda_checkpoint, processes
from oomproof.machine.cuda_checkpoint import Answer
from oomproof.recording import state_files
from oomproof.recording.attempt import Attempt
from oomproof.records import dataclass
from oomproof.units import GIB, format_size

if TYPE_CHECKING:  # it brings subprocess along
    from oomproof.machine.gpu import Gpu

# Seen on an H200 with driver 580: 1.5 GiB/s out, 5 GiB/s back. A tenth of that is still patience, not a hang.
_SLOWEST = GIB // 8
_PATIENCE = 60.0
# For 10.7 GiB in use the job's host memory grew by 10.7 GiB, at a second pause by 12.7.
_HOST_FACTOR = 1.25

Ask = Callable[[str, Sequence[int], float], Answer]


@dataclass(frozen=True, slots=True)
class Result:
    """``done`` with the bytes and seconds it took, or ``problem`` in words. ``lost``: the job's GPU state is gone."""

    done: bool
    size: int = 0
    seconds: float = 0.0
    problem: str = ""
    lost: bool = False


def host_memory_problem(size: int, available: int, keep: int, limit_left: int | None) -> str:
    """Why this machine's memory cannot hold what the card gives back; empty when it can. ``keep`` stays free."""
    wanted = int(size * _HOST_FACTOR)
    if limit_left is not None and wanted > limit_left:
        return (
            f"{format_size(size)} of GPU memory would go to the job's host memory, "
            f"and its limit leaves {format_size(max(0, limit_left))}"
        )
    if wanted > available - keep:
        return (
            f"{format_size(size)} of GPU memory would go to host memory, and only {format_size(available)} "
            f"are available, of which {format_size(keep)} stay free"
        )
    return ""


def held_by(pids: Iterable[int], cards: Iterable[Gpu]) -> dict[int, int]:
    """Card → bytes that these processes hold there."""
    mine = set(pids)
    by_card = {
        card.index: sum(process.used or 0 for process in card.processes if process.pid in mine)
        for card in cards
    }
    return {index: size for index, size in by_card.items() if size}


def card_memory_problem(held: Mapping[int, int], cards: Sequence[Gpu]) -> str:
    """Why these bytes do not fit on their cards again; empty when they do, or when no card tells."""
    for card in cards:
        size = held.get(card.index, 0)
        if card.free is not None and size > card.free:
            return f"it needs {format_size(size)} on GPU {card.index} and {format_size(card.free)} are free"
    return ""


class GpuPause:
    """One job. The marker file stands before the first driver call, so that a killed guard leaves word of it."""

    def __init__(self, attempt: Attempt, ask: Ask = cuda_checkpoint.ask) -> None:
        self._marker = attempt.gpu_paused_file
        self._ask = ask

    @property
    def paused(self) -> bool:
        return self._marker.exists()

    def give_back(
        self, pids: Sequence[int], held: Mapping[int, int], turn: Mapping[str, object] | None = None
    ) -> Result:
        """``held``: what it holds on each card. ``turn``: its place among those that take turns on a card, for whoever
        has to restore it in the guard's place. The job must not be paused: its own CUDA threads do the work."""
        size = sum(held.values())
        reply = self._ask("find", pids, 15.0)
        if not reply.ok:
            return Result(False, problem=reply.problem or "the driver did not answer")
        if not reply.pids:
            return Result(False, problem="none of its processes uses CUDA")
        named = [[pid, processes.start_time(pid)] for pid in reply.pids]
        cards = {str(index): size for index, size in held.items()}
        marked = {"boot_id": processes.boot_id(), "pids": named, "cards": cards}
        state_files.write_json(self._marker, {**marked, "turn": turn} if turn else marked)
        answer = self._ask("pause", reply.pids, _PATIENCE + size / _SLOWEST)
        if answer.ok:
            return Result(True, size, answer.seconds)
        # Whatever was left half done (the driver hung, the helper died) is undone before anybody is told.
        undone = self._ask("resume", reply.pids, _PATIENCE + size / _SLOWEST)
        problem = answer.problem or "it could not be paused"
        if undone.ok:
            self._marker.unlink(missing_ok=True)
        else:
            problem += f"; {undone.problem}"
        return Result(False, problem=problem, lost=bool(answer.lost or undone.lost))

    def take_back(self, cards: Sequence[Gpu]) -> Result:
        """The job must not be paused. No free memory yet is a problem to try again; nothing is lost by it.

        The driver is asked only when there is free memory: on an H200 (driver 580) a resume without it had not come back after
        three minutes. What held it up was not looked into.
        """
        try:
            kept = json.loads(self._marker.read_bytes())
        except (OSError, ValueError):
            return Result(True)
        pids = [pid for pid, start in kept["pids"] if processes.is_alive(pid, start)]
        held = {int(index): int(size) for index, size in kept.get("cards", {}).items()}
        size = sum(held.values())
        if kept.get("boot_id") != processes.boot_id() or not pids:
            self._marker.unlink(missing_ok=True)
            return Result(True)
        if problem := card_memory_problem(held, cards):
            return Result(False, size, problem=problem)
        answer = self._ask("resume", pids, _PATIENCE + size / _SLOWEST)
        if answer.ok or answer.lost:
            self._marker.unlink(missing_ok=True)
        return Result(answer.ok, size, answer.seconds, answer.problem or "", lost=bool(answer.lost))
