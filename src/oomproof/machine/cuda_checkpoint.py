"""Pauses CUDA processes with their device memory given back, and restores them, through the driver (570 and newer).

Run as a process of its own (leaf/start_by_path.py), standard library only: a driver call
can hang for ever (on an H200 with driver 580 the first call on a stopped process never came back), and whoever asks must not hang with it.
The keeper runs it too, when the guard was killed while its job was paused. Prints one JSON line per step, then the answer:

    find PID ...     which of these are CUDA processes, and in what state
    pause PID ...    all of them or none: lock every one, then move their device memory into their host memory
    resume PID ...   all of them or none: restore, then unlock; one that has no memory stays as it was, to be tried again
    resume-marked FILE   the processes a guard noted there; tried until it works, then the file is removed
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from oomproof.leaf import start_by_path
from oomproof.leaf.proc_files import is_stopped, start_time

RUNNING, LOCKED, CHECKPOINTED, FAILED = 0, 1, 2, 3
SUCCESS, OUT_OF_MEMORY, NOT_INITIALIZED, NOT_READY = 0, 2, 3, 600
_TRY_AGAIN = 5.0  # seconds between looks for free memory on the card
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


def _timed(step: Step, what: str, pid: int, call: Callable[[], int]) -> int:
    before = time.monotonic()
    result = call()
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
                result = _timed(step, what, pid, lambda pid=pid, call=call: call(pid))  # type: ignore[misc]
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
        result = _timed(step, "restore", pid, lambda pid=pid: driver.restore(pid))  # type: ignore[misc]
        if result == SUCCESS:
            restored.append(pid)
        elif driver.state(pid) == (SUCCESS, CHECKPOINTED):  # it kept its data: nothing is lost
            for other in restored:
                _timed(step, "checkpoint", other, lambda other=other: driver.checkpoint(other))  # type: ignore[misc]
            return Answer(False, [], f"process {pid} could not be restored: {words(result)}")
    lost, locked = [], []
    for pid in pids:
        result, state = driver.state(pid)
        if result == SUCCESS and state == LOCKED:
            result = _timed(step, "unlock", pid, lambda pid=pid: driver.unlock(pid))  # type: ignore[misc]
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
    if len(arguments) < 2 or arguments[0] not in ("find", "pause", "resume", "resume-marked"):
        print("usage: cuda_checkpoint.py find|pause|resume PID ...", file=sys.stderr)
        return 2
    verb = arguments[0]
    pids = marked(arguments[1]) if verb == "resume-marked" else [int(word) for word in arguments[1:]]
    started = time.monotonic()
    try:
        driver = driver or Cuda()
    except OSError:
        return _say({"ok": False, "problem": "there is no CUDA driver here (libcuda.so.1)"})
    except AttributeError:
        return _say(
            {"ok": False, "problem": "the driver is older than 570: it cannot give a job's GPU memory back"}
        )
    if verb == "find":
        states = find(driver, pids)
        return _say({"ok": True, "pids": list(states), "states": {str(pid): states[pid] for pid in states}})

    def step(what: str, pid: int, result: int, seconds: float) -> None:
        _say({"step": what, "pid": pid, "result": result, "seconds": round(seconds, 3)})

    if verb == "resume-marked":
        return 0 if _resume_when_memory_is_free(driver, arguments[1], pids, step).ok else 1
    answer = pause(driver, pids, step) if verb == "pause" else resume(driver, pids, step)
    answer = answer._replace(seconds=round(time.monotonic() - started, 3))
    _say(answer._asdict())
    return 0 if answer.ok else 1


def _resume_when_memory_is_free(driver: Driver, path: str, pids: Sequence[int], step: Step) -> Answer:
    """Another job may have the card. A restore that finds too little memory never works again (304; NVIDIA/cuda-checkpoint,
    issue 44, and seen on an H200 with driver 580): so free memory comes first, and runs that take turns must know of this one."""
    began, mark = time.monotonic(), _read_mark(path)
    size = sum((mark.get("cards") or {}).values())
    turn = _turn(mark.get("turn"), size)
    while True:
        pids = _alive(pids)
        if not pids or _may_go(mark.get("cards") or {}, turn):
            answer = resume(driver, pids, step)
            if answer.ok or answer.lost:
                with contextlib.suppress(FileNotFoundError):  # restored by hand meanwhile
                    os.unlink(path)
                break
            if turn is not None:
                turn.put("waiting")
        time.sleep(_TRY_AGAIN)
    answer = answer._replace(seconds=round(time.monotonic() - began, 3))
    _say(answer._asdict())
    # nobody is left to pause it again: the card is its until it ends
    while turn is not None and _alive(pids):
        time.sleep(_TRY_AGAIN)
    return answer


def _alive(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def _may_go(needed: dict[str, int], turn: _Turn | None) -> bool:
    return has_free_memory(needed, free_on_cards()) if turn is None else turn.take(free_on_cards)


def _turn(noted: dict[str, Any] | None, size: int) -> _Turn | None:
    """None where there are no turns, or no folder for them any more: then the room alone decides."""
    try:
        return _Turn(noted, size) if noted else None
    except OSError:
        return None


class _Turn:
    """The run's place among those that take turns on a card, taken up after its guard (ledger/gpu_turns.py has the rule)."""

    def __init__(self, noted: dict[str, Any], size: int) -> None:
        self._folder, self._card, self._size = noted["folder"], str(noted["card"]), size
        self._place = {**noted["place"], "state": "waiting", "used": 0}
        self._path = os.path.join(self._folder, self._place["run"])
        self._fd = self._lock(self._path)
        self.put("waiting")

    def _lock(self, path: str) -> int:
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd
            os.close(fd)  # swept by another between the open and the lock

    def put(self, state: str) -> None:
        self._place.update(state=state, used=self._size if state == "on" else 0)
        os.pwrite(self._fd, json.dumps(self._place).encode().ljust(512), 0)

    def take(self, free: Callable[[], dict[str, int]]) -> bool:
        """One at a time: two that wait must not both see the same free memory. ``free`` gives nothing where nobody can tell."""
        try:
            deciding = self._lock(os.path.join(self._folder, ".deciding"))
        except OSError:  # the folder is gone, and with it everybody's place
            return has_free_memory({self._card: self._size}, free())
        try:
            others = list(self._others())
            mine = (self._place["since"], self._place["run"])
            if any(other["state"] == "waiting" and (other["since"], other["run"]) < mine for other in others):
                return False
            known = free()
            free_bytes: float = known.get(self._card, 0) if known else float("inf")
            for other in others:  # what those on the card have not taken yet
                if other["state"] == "on":
                    free_bytes -= (
                        float("inf") if other["need"] is None else max(0, other["need"] - other["used"])
                    )
            if not free_bytes >= self._size:
                return False
            self.put("on")
            return True
        finally:
            os.close(deciding)

    def _others(self) -> Iterable[dict[str, Any]]:
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if name.startswith(".") or path == self._path:
                continue
            try:
                with open(path, "rb") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    except OSError:  # its run lives
                        yield json.loads(file.read())
            except (OSError, ValueError):
                continue


def has_free_memory(needed: dict[str, int], free: dict[str, int]) -> bool:
    """``free`` is empty where nobody can tell: then it is tried."""
    return not free or all(free.get(card, 0) >= size for card, size in needed.items())


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


def _read_mark(path: str) -> dict[str, Any]:
    """Raises when it is gone: somebody else has restored them."""
    with open(path, "rb") as file:
        kept: dict[str, Any] = json.load(file)
    return kept


def marked(path: str) -> list[int]:
    """Pids of a marker file that are still the same processes."""
    return [int(pid) for pid, start in _read_mark(path)["pids"] if start_time(int(pid)) == start]


def _say(line: dict[str, Any]) -> int:
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
            last = _lines(text)
            at = (
                f" after {last[-1]['step']} of process {last[-1]['pid']}"
                if last and "step" in last[-1]
                else ""
            )
            return Answer(
                False, problem=f"the driver did not answer within {seconds:.0f} s{at}", seconds=seconds
            )
    helper.stdout.close()
    helper.wait()
    lines = _lines(text)
    final: dict[str, Any] = {"ok": False, "problem": "the CUDA helper ended without an answer"}
    if lines and "ok" in lines[-1]:
        final = lines[-1]
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
