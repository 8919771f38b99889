"""What the agents inside the job tell: read from a socket by one thread, written to the recording.

The agent's files lie in the attempt's folder ``agent/`` (see docs/files.md), the socket in the runtime folder.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from oomproof.errors import OomproofError
from oomproof.leaf.attempt_names import CENSUS_ON, FAULT, NOW, UNSENT
from oomproof.leaf.proc_files import is_working
from oomproof.machine.clock import boottime
from oomproof.machine.processes import memory
from oomproof.recording.attempt import Attempt
from oomproof.recording.json_shapes import parse
from oomproof.recording.position_record import best, progress, read_all, read_position
from oomproof.recording.spill_record import SPILLS
from oomproof.recording.state_files import TEMPORARY, runtime_folder, temporary_folder
from oomproof.recording.writer import Writer
from oomproof.runner.census_watch import AS_IT_FILLS, AT_STOP, AT_WARNING, BY_TIME, CensusWatch, UnaskedLooks
from oomproof.runner.trace_requests import TraceRequests
from oomproof.trend.growth import LONGEST_PIN, mean_rate
from oomproof.units import MIB, format_size

_FAULT = re.compile(rf"([0-9]{{1,9}})-{re.escape(FAULT)}")
_SITE = Path(__file__).parents[1] / "agent" / "site"
_LONGEST = 100  # bytes of a socket's path: the kernel takes 107
_UNSENT_SIZE = 1 << 20  # bytes of one such file: an agent leaves a tenth of that
_LIVES_ON = 5.0  # seconds after which a job has outlived the program that died in it
_TICK = 1.0  # seconds between two looks at the job's step and growth
# While nobody in the job has said anything, after its first seconds: a wake-up costs half a millisecond of cold caches.
_TICK_ALONE, _FIRST_SECONDS = 4.0, 10.0
_TICK_CALM = 15.0  # ... and the job has held the same for a minute: `wake` says when that is over
_STORED = 4000  # characters of what an agent tells, kept with one event
_DEEPEST = 20  # levels of what an agent tells
_EVENTS = 1000  # of one kind: a job that tells more has told it, and takes nothing from the other kinds
_KINDS = 40  # further ones share one count
# why a job ended: always kept, shorter once they are many
_MATTERS = ("exception", "program-lost", "saved", "stacks", "worker-lost", "census")
_MOST = 20_000  # even of those
_SHORT = 400  # characters
_TROUBLES = 20  # told in one run, each once
_STEEP = 64 * MIB  # bytes a second: slower growth needs no stack to be explained
_LARGE = 256 * MIB  # of a job: importing PyTorch alone grows fast to nearly that
_STEEPER = 1.5  # times the steepest so far
_LOOKS = 12  # stacks asked for in one run: each stops the job's main thread for about a millisecond
_UNHEARD = 64  # processes whose marks are remembered until one of them trains
_REMEMBERED = 16  # marks of each
_SWEEP = 60.0  # seconds between two removals of what ended processes left empty


def environment(attempt: Attempt, run_id: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The variables that bring the agent into every Python of the job; the user's own PYTHONPATH comes after ours."""
    folder = attempt.agent_folder
    folder.mkdir(mode=0o700, exist_ok=True)
    theirs = os.environ.get("PYTHONPATH", "")
    if os.environ.get("OOMPROOF_AGENT"):  # a run inside a run: once is enough
        theirs = os.pathsep.join(entry for entry in theirs.split(os.pathsep) if entry != str(_SITE))
    return {
        "PYTHONPATH": f"{_SITE}{os.pathsep}{theirs}" if theirs else str(_SITE),
        "OOMPROOF_AGENT": str(folder),
        "OOMPROOF_AGENT_SOCKET": str(socket_path(run_id)),
        "OOMPROOF_AGENT_SETTINGS": json.dumps(settings),
        "OOMPROOF_SAVE_FILE": str(attempt.save_file),
    }


def without(variables: Mapping[str, str]) -> dict[str, str]:
    """For --no-agent: an agent of a run around this one is not ours to pass on."""
    kept_variables = {
        name: value for name, value in variables.items() if not name.startswith("OOMPROOF_AGENT")
    }
    if "OOMPROOF_AGENT" in variables:
        rest = [
            folder
            for folder in kept_variables.get("PYTHONPATH", "").split(os.pathsep)
            if folder != str(_SITE)
        ]
        kept_variables["PYTHONPATH"] = os.pathsep.join(rest)
        if not kept_variables["PYTHONPATH"]:
            del kept_variables["PYTHONPATH"]
    return kept_variables


def socket_path(run_id: str) -> Path:
    """In the runtime folder; where that lies too deep for a socket's name, in ours under /tmp."""
    for folder in (runtime_folder, temporary_folder):
        with contextlib.suppress(OomproofError):
            path = folder() / f"agent-{run_id}"
            if len(os.fsencode(path)) <= _LONGEST:
                return path
    return TEMPORARY / f"oomproof-{os.getuid()}" / f"agent-{run_id}"  # cannot be had: _bind says so


class AgentFeed:
    def __init__(
        self,
        run_id: str,
        attempt: Attempt,
        writer: Writer,
        tell: Callable[[str], None],
        held: Callable[[], tuple[int, int] | None],
        note_phase: Callable[[str, int | None, float, int | None], None] | None = None,
        census_every: float | None = None,
        note_pinning: Callable[[bool], None] | None = None,
        leader: int = 0,
        is_calm: Callable[[], bool] = lambda: False,
    ) -> None:
        """``held``: what the job holds, and what it can still get. ``note_phase``: its name, the step, since when, and what the
        process held then. ``note_pinning``: host memory is being pinned for --spill.
        ``leader``: the job's first process."""
        self._path, self._folder = socket_path(run_id), attempt.agent_folder
        self._writer, self._tell, self._job_held, self._note_phase = writer, tell, held, note_phase
        self._note_pinning, self._leader, self._is_calm = note_pinning, leader, is_calm
        self._pinning: int | None = None  # the process that pins memory now
        self._pins_since = 0.0
        self._events: Counter[str] = Counter()
        self._troubles: set[str] = set()
        self._voice: tuple[int, int] | None = None  # whose phases are the job's: how far it has come, its pid
        self._unheard: dict[int, list[tuple[Any, ...]]] = {}  # marks of the others, by pid
        self._last_step: tuple[str, int | None] | None = None
        self._steepest = float(_STEEP)
        self._looks = 0
        self._held: dict[int, int] = {}  # by each process at the last look, while nobody trains
        self._before: tuple[float, int] | None = None
        self._census = CensusWatch(attempt.agent_folder, census_every)
        self._unasked = UnaskedLooks()
        self._stepless = 0  # the process that is looked into while nobody makes steps
        self._swept = boottime()
        self.traces = TraceRequests(self._folder, tell, self._store)
        self._over = threading.Event()
        self._next_tick = 0.0
        self._socket = self._bind()
        self._thread = threading.Thread(target=self._loop, name="agent", daemon=True)

    def _bind(self) -> socket.socket | None:
        """None where no socket can be had: the agent's files still tell most of it."""
        made = None
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            if self._path.parent.lstat().st_uid != os.getuid():
                raise PermissionError("the socket's folder belongs to another user")
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()  # of a guard that was killed; agents send to the name, not to the socket
            made.bind(str(self._path))
            self._path.chmod(0o600)
            return made
        except OSError as error:
            if made is not None:
                made.close()
            self._trouble(f"no socket for the agent: {error}")
            return None

    def _trouble(self, text: str) -> None:
        if text not in self._troubles and len(self._troubles) < _TROUBLES:
            self._troubles.add(text)
            self._writer.event(boottime(), "trouble", text)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread left: the run continues without what agents tell
            self._trouble(f"the agent's reports are not received: {error}")

    def stop(self) -> None:
        """After the job's end: what is still in the socket is read."""
        self._over.set()
        self._wake_thread()
        if self._thread.is_alive():
            self._thread.join(2.0)
        self._read_unsent()
        self._read_step()  # a process that multiprocessing started ends without a last word
        if self._socket is not None:
            self._socket.close()
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._note_presence()
        self.traces.close()
        self._sweep(everybody=True)

    def _read_unsent(self) -> None:
        """What a process could tell nobody: it was over before the socket was there, or its queue was full to the end."""
        for path in sorted(self._folder.glob(f"*-{UNSENT}")):
            try:
                with path.open("rb") as file:
                    lines = file.read(_UNSENT_SIZE).splitlines()
                path.unlink()
            except OSError:
                continue
            for line in lines:
                self._take(line)

    def wake(self) -> None:
        """From the guard's thread: the job changes, after it was calm."""
        self._next_tick = 0.0
        self._wake_thread()

    def _wake_thread(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # a full queue wakes it as well
                self._socket.sendto(b"{}", socket.MSG_DONTWAIT, str(self._path))

    def _loop(self) -> None:
        begun = boottime()
        self._next_tick = begun + _TICK
        while True:
            try:
                data = self._receive(max(0.01, self._next_tick - boottime()))
                if data is not None:
                    self._take(data)
                elif self._over.is_set():
                    return
                if boottime() >= self._next_tick and not self._over.is_set():
                    alone = self._voice is None and boottime() - begun > _FIRST_SECONDS
                    alone = alone and not self._unasked.is_tracing(boottime())
                    calm = _TICK_CALM if self._is_calm() else _TICK_ALONE
                    self._next_tick = boottime() + (calm if alone else _TICK)
                    self._look(boottime())
            except Exception as error:  # costs this one datagram or look, never those after it
                self._trouble(f"agent: {type(error).__name__}: {error}")

    def _receive(self, seconds: float) -> bytes | None:
        if self._socket is None:
            self._over.wait(seconds)
            return None
        self._socket.settimeout(0.0 if self._over.is_set() else seconds)
        try:
            return self._socket.recv(64 << 10)
        except (BlockingIOError, TimeoutError):
            return None
        except OSError as error:  # the socket itself: the next look makes another
            self._trouble(f"agent: {error}")
            self._socket.close()
            self._socket = None
            return None

    def _take(self, data: bytes) -> None:
        try:
            value: Any = parse(data.decode(), _DEEPEST)
            kind, pid, t = str(value["kind"]), int(value["pid"]), float(value["t"])
            fields, rank = dict(value.get("fields") or {}), value.get("rank")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return  # our own wake-up, or something that is no agent
        if not (0.0 <= t < math.inf and 0 < pid < 1 << 31):  # no time since boot, no process
            return
        self.handle(kind, pid, fields, min(t, boottime()), rank if isinstance(rank, int) else None)

    # --- what they tell ---------------------------------------------------------------------------------------

    def handle(self, kind: str, pid: int, fields: dict[str, Any], t: float, rank: int | None = None) -> None:
        if kind == "phase":
            self._phase(pid, fields, t, rank)
        elif kind == "tell":
            self._tell(str(fields.get("text", ""))[:500])
            self._store(t, "agent:tell", str(fields.get("text", "")), pid, {})
        elif kind == "saved":
            text = f"saved {fields.get('path')} at step {fields.get('step')}"
            self._store(t, "saved", text, pid, fields)
            if fields.get("asked"):
                self._tell(text)
        elif kind == "worker-lost":
            self._store(t, kind, str(fields.get("text", "")), pid, {"worker": fields.get("worker")})
        elif kind == "census":
            self._take_census(pid, fields, t)
        elif kind == "exception":
            self._take_exception(pid, fields, t)
        elif kind == "trace":
            if not fields.get("more"):
                self._unasked.traced()
            self.traces.take(t, pid, fields)
        elif kind == "trim":
            self.traces.take_trim(t, pid, fields)
        elif kind == "spill":
            self._spill(pid, fields.get("did") == "pinning")
            self._store(t, SPILLS, str(fields.get("text", "")), pid, fields)
        else:
            self._store(t, f"agent:{kind}"[:60], str(fields.get("text", "")), pid, fields)

    def _spill(self, pid: int, pins: bool) -> None:
        """Of the process that pins, its next word ends it."""
        if not pins and pid != self._pinning:
            return
        self._pinning, self._pins_since = pid if pins else None, boottime()
        if self._note_pinning is not None:
            self._note_pinning(pins)

    def _end_pinning(self, t: float) -> None:
        """Of a process that died while it pinned, or whose last word was lost: growth counts again."""
        pid = self._pinning
        if pid is not None and (t - self._pins_since > LONGEST_PIN or not os.path.exists(f"/proc/{pid}")):
            self._spill(pid, False)

    def _store(self, t: float, kind: str, text: str, pid: int, fields: dict[str, Any]) -> None:
        matters = kind in _MATTERS
        counted = kind if matters or kind in self._events or len(self._events) < _KINDS else "others"
        self._events[counted] += 1
        many = self._events[counted] > _EVENTS
        if many and (not matters or self._events[counted] > _MOST):
            return
        data = json.dumps({"pid": pid, **fields}, default=str)
        if len(data) > _STORED * 8:
            data = json.dumps({"pid": pid, "left_out": sorted(fields)[:20]})
        if many:
            data = json.dumps({"pid": pid})
        self._writer.put("event", (t, kind, text[: _SHORT if many else _STORED], data))

    def _take_exception(self, pid: int, fields: dict[str, Any], t: float) -> None:
        text = exception_text(fields)
        argv = fields.pop("argv", None)
        self._store(t, "exception", text, pid, fields)
        if not fields.get("memory") or fields.get("thread") or pid == self._leader or not self._leader:
            return
        # most jobs are one program
        from oomproof.runner.lost_programs import PROGRAM_LOST, exception_of_program

        says = exception_of_program({"argv": argv}, pid, text.partition(";")[0])
        self._store(t, PROGRAM_LOST, says, pid, {})
        # most jobs end with it, and say so themselves; an agent that runs trial after trial does not
        later = threading.Timer(_LIVES_ON, self._tell_program_lost, (says,))
        later.daemon = True
        later.start()

    def _tell_program_lost(self, says: str) -> None:
        if not self._over.is_set():
            self._tell(f"{says}; the job that started it continues")

    def _phase(self, pid: int, fields: dict[str, Any], t: float, rank: int | None) -> None:
        """Of several processes one speaks for the job: the one that has come furthest, on rank 0."""
        name = str(fields.get("name") or "unknown")[:60]
        step, anon, gpu, reached = (
            value if isinstance(value := fields.get(key), int) else None
            for key in ("step", "anon", "gpu", "reached")
        )
        mark = (t, name, step, pid, anon, gpu)
        if rank:
            return
        if self._speaks(pid, progress(name, step)):
            if (
                reached is not None
                and self._last_step is not None
                and self._last_step[0] == fields.get("left")
            ):
                before = (math.nextafter(t, 0.0), self._last_step[0], None, pid, None, reached)
                self._writer.put("phase", before)
            self._in_phase(name, step, t, anon)
            self._writer.put("phase", mark)
        elif pid in self._unheard or len(self._unheard) < _UNHEARD:
            self._unheard[pid] = [*self._unheard.get(pid, ()), mark][-_REMEMBERED:]

    def _in_phase(self, name: str, step: int | None, t: float, held: int | None = None) -> None:
        self._last_step = (name, step)
        if self._note_phase is not None:
            self._note_phase(name, step, t, held)

    def _speaks(self, pid: int, come: int) -> bool:
        """A launcher speaks first and only loads: who trains takes over, with what it had told before."""
        if self._voice is not None and self._voice[1] == pid:
            come = max(come, self._voice[0])
        elif self._voice is not None and come <= self._voice[0] and os.path.exists(f"/proc/{self._voice[1]}"):
            return False
        self._voice = (come, pid)
        for mark in self._unheard.pop(pid, ()):
            self._writer.put("phase", mark)
        return True

    # --- what we look at --------------------------------------------------------------------------------------

    def _look(self, t: float) -> None:
        if self._socket is None or not self._path.exists():
            self._bind_again()  # the runtime folder was cleaned: agents send to the name
        self._read_step()
        self._end_pinning(t)
        held = self._job_held()
        self._watch_growth(t, held[0] if held is not None else None)
        if held is not None:
            self._look_unasked(t, *held)
        nobody_trains = self._voice is None or not self._voice[0]
        self._held = {pid: _anon(pid) for pid in self._pids()[:_UNHEARD]} if nobody_trains else {}
        self._look_after_census(t)
        if t - self._swept > _SWEEP:
            self._swept = t
            self._sweep(everybody=False)

    def _bind_again(self) -> None:
        made = self._bind()
        if made is not None:
            before, self._socket = self._socket, made
            if before is not None:
                before.close()

    def _read_step(self) -> None:
        """The job's step about once a second, from the record it keeps: steps themselves send nothing."""
        if self._voice is None:
            return
        now = read_position(self._folder / f"{self._voice[1]}-{NOW}")
        if self._voice[0] < 2:  # perhaps another has come further; what it told of it may have been lost
            alive = [record for record in read_all(self._folder) if os.path.exists(f"/proc/{record.pid}")]
            now = best(alive) or now
        if now is None or now.rank or self._last_step == (now.phase, now.step):
            return
        if self._speaks(now.pid, progress(now.phase, now.step)):
            self._in_phase(now.phase, now.step, now.t)
            self._writer.put("phase", (now.t, now.phase, now.step, now.pid, None, None))

    def _watch_growth(self, t: float, use: int | None) -> None:
        """Where the code stands when memory grows faster than ever before."""
        before, self._before = self._before, (t, use) if use is not None else None
        if use is None or before is None or t <= before[0] or self._looks >= _LOOKS or use < _LARGE:
            return
        if self._pinning is not None:
            return
        rate = mean_rate([before, (t, use)])
        if rate > self._steepest and self.ask_stacks(
            f"the steepest growth so far, {format_size(int(rate))} a second", t, working=True
        ):
            self._steepest = rate * _STEEPER

    def ask_stacks(self, why: str, t: float | None = None, working: bool = False) -> bool:
        """The Python stacks of the job's processes, written by faulthandler inside them, read here a moment later.

        ``working``: only of a process that does something now: who sleeps is not the one that grows. Whether one was asked."""
        from oomproof.runner import stack_request  # a job that is small or grows slowly needs none

        at = boottime() if t is None else t
        pids = [pid for pid in self._pids() if stack_request.answers(pid)]
        if self._voice is not None and self._voice[0] and self._voice[1] in pids:
            pids = [self._voice[1]]
        else:  # a launcher waits for those that work
            pids = sorted(pids, key=lambda pid: _anon(pid) - self._held.get(pid, 0))[-1:]
        if working:
            pids = [pid for pid in pids if is_working(pid)]
        asked = [
            (pid, begin)
            for pid in pids
            if (begin := stack_request.ask(self._folder, pid, why, at)) is not None
        ]
        if asked:
            self._looks += 1
            later = threading.Timer(stack_request.WRITTEN_IN, self._read_stacks, (asked, why, at))
            later.daemon = True
            later.start()
        return bool(asked)

    def _read_stacks(self, asked: list[tuple[int, int]], why: str, t: float) -> None:
        from oomproof.recording.stack_dumps import own_frame, where
        from oomproof.runner import stack_request

        for pid, begin in asked:
            with contextlib.suppress(OSError):
                for dump in stack_request.read(self._folder, pid, begin):
                    if dump.frames and own_frame(dump.frames) is None:
                        continue  # a launcher, a library's thread: no line to look at
                    text = f"{why}: {where(dump.frames)}"
                    frames = [f"{frame.file}:{frame.line} {frame.name}" for frame in dump.frames[:30]]
                    self._store(t, "stacks", text, pid, {"frames": frames})

    # --- what is alive in the job -----------------------------------------------------------------------------

    def trace(self, headroom: int) -> None:
        """It was told that memory grows without end: the tracer of that kind of memory is asked for."""
        if self.traces.ask(headroom):
            self._unasked.trace(boottime())

    def _look_unasked(self, t: float, use: int, headroom: int) -> None:
        if self._unasked.fills(use, headroom):
            self.ask_census(AS_IT_FILLS)
        steps = self._voice is not None and self._voice[0] >= 2
        if not steps and self._unasked.grows(t, use):
            from oomproof.runner import census_request  # of a job that makes steps the agent looks by itself

            pids = census_request.able(self._folder)
            if pids and self._stepless not in pids:  # counters of two processes cannot be compared
                self._stepless = pids[0]
            if pids:
                census_request.send(self._stepless)

    def ask_census(self, why: str) -> bool:
        """Of the process that trains, or of the one that holds most."""
        return self._census.ask(boottime(), why, self._voice[1] if self._voice and self._voice[0] else None)

    def _take_census(self, pid: int, fields: dict[str, Any], t: float) -> None:
        if (told := self._census.came(pid, t)) is not None:
            why, text = told
            self._store(t, "census", text, pid, {"file": str(fields.get("file", ""))[:80], "why": why})
            if why in (AT_WARNING, AT_STOP):
                self._tell(f"what it holds: {text} (oomproof inspect tells more)")

    def _look_after_census(self, t: float) -> None:
        if self._census.tick(t):
            self.ask_census(BY_TIME)

    # --- the agent's files ------------------------------------------------------------------------------------

    def _pids(self) -> list[int]:
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        return sorted({int(match[1]) for name in names if (match := _FAULT.fullmatch(name))})

    def _note_presence(self) -> None:
        count = len(self._pids())
        if count:
            self._writer.event(
                boottime(), "agent", f"in {count} Python {'process' if count == 1 else 'processes'}"
            )

    def _sweep(self, everybody: bool) -> None:
        """Most processes end without a last word: their empty files go."""
        pids = self._pids()
        if len(pids) < 64 and not everybody:
            return
        for pid in pids if everybody else pids[1:]:
            if os.path.exists(f"/proc/{pid}") and not everybody:
                continue
            with contextlib.suppress(OSError):
                (self._folder / f"{pid}-{CENSUS_ON}").unlink()
            path = self._folder / f"{pid}-{FAULT}"
            with contextlib.suppress(OSError):
                if path.stat().st_size == 0:
                    path.unlink()


def _anon(pid: int) -> int:
    held = memory(pid)
    return held.anon if held is not None else 0


def _variables(frame: Mapping[str, Any]) -> list[Any]:
    told = frame.get("locals")
    rows = told if isinstance(told, list) else []
    return [row for row in rows if isinstance(row, list) and len(row) == 3 and _is_size(row[1])]


def _is_size(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 62


def exception_text(fields: Mapping[str, Any]) -> str:
    """`ValueError at train.py:12 in collate; largest: batch 37 MiB (Tensor [64x3x224x224] float32 on cpu)`."""
    told = fields.get("frames")
    frames = [finding for finding in told if isinstance(finding, dict)] if isinstance(told, list) else []
    name = str(fields.get("type", "?")).removeprefix("builtins.")
    if not frames:
        return name
    last = frames[-1]
    text = f"{name} at {last.get('file')}:{last.get('line')} in {last.get('name')}"
    variables = [
        (int(size), str(name), str(what)) for frame in frames for name, size, what in _variables(frame)
    ]
    large = sorted({(size, name, what) for size, name, what in variables if size >= MIB}, reverse=True)[:3]
    if large:
        text += "; largest variables: " + ", ".join(
            f"{name} {format_size(size)} ({what})" for size, name, what in large
        )
    return text
