"""Pauses CUDA processes with their device memory given back, and restores them, through the driver (570 and newer).

Run as a process of its own (leaf/start_by_path.py), standard library only: a driver call
can hang for ever (on an H200 with driver 580 the first call on a stopped process never came back), and whoever asks must not hang with it.
Prints one JSON line per step, then the answer:

    find PID ...     which of these are CUDA processes, and in what state
    pause PID ...    all of them or none: lock every one, then move their device memory into their host memory
    resume PID ...   all of them or none: restore, then unlock; one that has no memory stays as it was, to be tried again
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from oomproof.leaf import start_by_path
from oomproof.leaf.proc_files import is_stopped

RUNNING, LOCKED, CHECKPOINTED, FAILED = 0, 1, 2, 3
SUCCESS, OUT_OF_MEMORY, NOT_INITIALIZED, NOT_READY = 0, 2, 3, 600
LOCK_SECONDS = 10.0  # a lock waits for the work already on the card
# What 580 answered here: 3 for a process without CUDA (a forked loader worker too), 304 for one that is gone,
# 401 for a call that does not fit the state.
_WORDS = {
    1: "the driver calls it invalid",
    OUT_OF_MEMORY: "not enough memory",
    NOT_INITIALIZED: "no CUDA in that process",
    100: "no GPU",
    304: "the process is gone or not ours",
    401: "it is in another state already",
    NOT_READY: "its work did not come to rest in time",
    800: "not permitted",
    801: "the driver cannot do it for this process (CUDA IPC, MPS and managed memory are such cases)",
}


class Driver(Protocol):
    """The five calls; each gives the driver's result, 0 when done."""

    def state(self, pid: int) -> tuple[int, int]: ...
    def lock(self, pid: int, seconds: float) -> int: ...
    def checkpoint(self, pid: int) -> int: ...
    def restore(self, pid: int) -> int: ...
    def unlock(self, pid: int) -> int: ...


class _LockArguments(ctypes.Structure):
    _fields_ = [
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    ]


class Cuda:
    """The real driver. No context is made and none is needed."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self._cuda = ctypes.CDLL(library)  # OSError: there is no driver
        self._cuda.cuCheckpointProcessGetState  # noqa: B018 - AttributeError: older than 570

    def state(self, pid: int) -> tuple[int, int]:
        value = ctypes.c_int(-1)
        return int(self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(value))), value.value

    def lock(self, pid: int, seconds: float) -> int:
        arguments = _LockArguments(max(1, int(seconds * 1000)))
        return int(self._cuda.cuCheckpointProcessLock(pid, ctypes.byref(arguments)))

    def checkpoint(self, pid: int) -> int:
        return int(self._cuda.cuCheckpointProcessCheckpoint(pid, None))

    def restore(self, pid: int) -> int:
        return int(self._cuda.cuCheckpointProcessRestore(pid, None))

    def unlock(self, pid: int) -> int:
        return int(self._cuda.cuCheckpointProcessUnlock(pid, None))


def words(result: int) -> str:
    return _WORDS.get(result, f"CUDA error {result}")


# --- all or none ------------------------------------------------------------------------------------------------

Step = Callable[[str, int, int, float], None]  # what, pid, the driver's result, seconds


class Answer(NamedTuple):
    """``ok`` with the pids it is about; else ``problem`` in words. ``lost``: their state on the card is gone."""

    ok: bool
    pids: Sequence[int] = ()
    problem: str | None = None
    lost: Sequence[int] = ()
    seconds: float = 0.0


def _timed(step: Step, what: str, pid: int, call: Callable[[int], int]) -> int:
    before = time.monotonic()
    result = call(pid)
    step(what, pid, result, time.monotonic() - before)
    return result


def find(driver: Driver, pids: Iterable[int]) -> dict[int, int]:
    """pid → state of those that use CUDA. Stopped ones are left out: they cannot be asked."""
    states = {}
    for pid in pids:
        if not is_stopped(pid):
            result, state = driver.state(pid)
            if result == SUCCESS:
                states[pid] = state
    return states


def pause(driver: Driver, pids: Sequence[int], step: Step, lock_seconds: float = LOCK_SECONDS) -> Answer:
    """All are locked before the first is checkpointed: ranks that wait for each other must be paused together."""
    done: list[int] = []
    for what, call in (
        ("lock", lambda pid: driver.lock(pid, lock_seconds)),
        ("checkpoint", driver.checkpoint),
    ):
        for pid in pids:
            if is_stopped(pid):
                result, why = NOT_READY, "it is stopped (Ctrl-Z or a debugger)"
            else:
                result = _timed(step, what, pid, call)
                why = words(result)
            if result != SUCCESS:
                undone = resume(driver, pids, step)
                problem = f"process {pid} could not be {'locked' if what == 'lock' else 'paused'}: {why}"
                if undone.problem:
                    problem += f"; and undoing it failed: {undone.problem}"
                return Answer(False, done, problem, undone.lost)
            if what == "checkpoint":
                done.append(pid)
    return Answer(True, done)


def resume(driver: Driver, pids: Sequence[int], step: Step) -> Answer:
    """From whatever state they are in: back to running. When one finds no memory all give theirs back again."""
    restored: list[int] = []
    for pid in pids:
        if driver.state(pid) != (SUCCESS, CHECKPOINTED):
            continue
        result = _timed(step, "restore", pid, driver.restore)
        if result == SUCCESS:
            restored.append(pid)
        elif driver.state(pid) == (SUCCESS, CHECKPOINTED):  # it kept its data: nothing is lost
            for other in restored:
                _timed(step, "checkpoint", other, driver.checkpoint)
            return Answer(False, [], f"process {pid} could not be restored: {words(result)}")
    lost, locked = [], []
    for pid in pids:
        result, state = driver.state(pid)
        if result == SUCCESS and state == LOCKED:
            result = _timed(step, "unlock", pid, driver.unlock)
            if result != SUCCESS:
                locked.append(pid)
        elif result == SUCCESS and state == FAILED:
            lost.append(pid)
    if lost or locked:
        told = [f"process {pid} lost what it had on the card" for pid in lost]
        told += [f"process {pid} could not be unlocked" for pid in locked]
        return Answer(False, [], "; ".join(told), lost)
    return Answer(True, list(pids))


def main(arguments: Sequence[str], driver: Driver | None = None) -> int:
    if len(arguments) < 2 or arguments[0] not in ("find", "pause", "resume"):
        print("usage: cuda_checkpoint.py find|pause|resume PID ...", file=sys.stderr)
        return 2
    verb = arguments[0]
    pids = [int(word) for word in arguments[1:]]
    started = time.monotonic()
    try:
        driver = driver or Cuda()
    except OSError:
        return say({"ok": False, "problem": "there is no CUDA driver here (libcuda.so.1)"})
    except AttributeError:
        return say(
            {"ok": False, "problem": "the driver is older than 570: it cannot give a job's GPU memory back"}
        )
    if verb == "find":
        states = find(driver, pids)
        return say({"ok": True, "pids": list(states), "states": {str(pid): states[pid] for pid in states}})

    answer = (pause if verb == "pause" else resume)(driver, pids, step_lines)
    answer = answer._replace(seconds=round(time.monotonic() - started, 3))
    say(answer._asdict())
    return 0 if answer.ok else 1


def step_lines(what: str, pid: int, result: int, seconds: float) -> None:
    say({"step": what, "pid": pid, "result": result, "seconds": round(seconds, 3)})


def say(line: dict[str, Any]) -> int:
    try:
        print(json.dumps(line), flush=True)
    except OSError:  # whoever asked is gone: the work is finished all the same
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return 0


# --- the side that asks -----------------------------------------------------------------------------------------


def ask(verb: str, pids: Sequence[int], seconds: float, command: Sequence[str] | None = None) -> Answer:
    """Runs the script and waits at most ``seconds``. A script that hangs is left behind, not waited for."""
    import selectors
    import subprocess

    command = command or start_by_path.command(__file__)
    try:
        helper = subprocess.Popen(
            [*command, verb, *map(str, pids)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must not cut a checkpoint in the middle
        )
    except OSError as error:
        return Answer(False, problem=f"the CUDA helper could not be started: {error.strerror}")
    assert helper.stdout is not None
    end, text = time.monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(helper.stdout, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            part = os.read(helper.stdout.fileno(), 65536)
            if not part:
                break
            text += part
        else:
            helper.stdout.close()
            last = (_lines(text) or [{}])[-1]
            at = f" after {last['step']} of process {last['pid']}" if "step" in last else ""
            return Answer(
                False, problem=f"the driver did not answer within {seconds:.0f} s{at}", seconds=seconds
            )
    helper.stdout.close()
    helper.wait()
    final = (_lines(text) or [{}])[-1]
    if "ok" not in final:
        return Answer(False, problem="the CUDA helper ended without an answer")
    return Answer(
        bool(final["ok"]),
        [int(pid) for pid in final.get("pids", [])],
        final.get("problem"),
        [int(pid) for pid in final.get("lost", [])],
        float(final.get("seconds", 0.0)),
    )


def _lines(text: bytes) -> list[dict[str, Any]]:
    answers = []
    for line in text.splitlines():
        try:
            answers.append(json.loads(line))
        except ValueError:
            continue
    return [line for line in answers if isinstance(line, dict)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
